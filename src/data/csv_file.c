/* csv_file.c -- records of tables with commas or tabs (RFC 4180).
 *
 * A record is a line of fields.  A field in quotes may contain delimiters, line ends, and quotes
 * that are written twice.  Lines end with LF or CRLF.  Empty lines, and a byte order mark before
 * the first, are skipped.  Everything else is refused by its line: quotes inside a field without
 * quotes, text after a closing quote, a quote that is never closed, a CR without LF, and NUL bytes.
 */
#include "data/files.h"

#include <string.h>

#include "base/memory.h"

void lki_csv_begin(lki_csv *csv, const uint8_t *data, size_t bytes, char delimiter,
                   const char *path)
{
    static const uint8_t mark[] = { 0xef, 0xbb, 0xbf };
    *csv = (lki_csv){ .data = data, .bytes = bytes, .delimiter = delimiter, .path = path,
                      .next_line = 1 };
    if (bytes >= sizeof mark && memcmp(data, mark, sizeof mark) == 0)
        csv->at = sizeof mark;
}

void lki_csv_end(lki_csv *csv)
{
    lki_free(csv->text);
    lki_free(csv->starts);
}

const char *lki_csv_field(const lki_csv *csv, size_t index)
{
    LK_ASSERT(index < csv->count);
    return csv->text + csv->starts[index];
}

static lk_status refuse(const lki_csv *csv, const char *what)
{
    return lk_fail(LK_EFORMAT, "'%s', line %llu: %s", csv->path,
                   (unsigned long long)csv->next_line, what);
}

/* Returns the length of a line end at the current byte; 0: there is none. */
static size_t line_end(const lki_csv *csv)
{
    if (csv->at < csv->bytes && csv->data[csv->at] == '\n')
        return 1;
    return csv->at + 1 < csv->bytes && csv->data[csv->at] == '\r' && csv->data[csv->at + 1] == '\n'
               ? 2 : 0;
}

static bool ends_field(const lki_csv *csv)
{
    return csv->at == csv->bytes || csv->data[csv->at] == (uint8_t)csv->delimiter ||
           line_end(csv) > 0;
}

static lk_status append(lki_csv *csv, char c)
{
    LK_TRY(lki_reserve((void **)&csv->text, &csv->text_capacity, csv->text_bytes, 1,
                       "a record of a table"));
    csv->text[csv->text_bytes++] = c;
    return LK_OK;
}

static lk_status read_plain(lki_csv *csv)
{
    for (; !ends_field(csv); csv->at++) {
        char c = (char)csv->data[csv->at];
        if (c == '"')
            return refuse(csv, "a quote inside a field without quotes; write the field in quotes, "
                               "and the quotes in it twice");
        if (c == '\r')
            return refuse(csv, "a carriage return without line feed; end lines with LF or CRLF");
        if (c == '\0')
            return refuse(csv, "a NUL byte; the file is damaged, or no text in UTF-8");
        LK_TRY(append(csv, c));
    }
    return LK_OK;
}

static lk_status read_quoted(lki_csv *csv)
{
    const uint64_t begun = csv->next_line;
    for (csv->at++; csv->at < csv->bytes; csv->at++) {
        char c = (char)csv->data[csv->at];
        if (c == '"' && csv->at + 1 < csv->bytes && csv->data[csv->at + 1] == '"')
            csv->at++;
        else if (c == '"') {
            csv->at++;
            return ends_field(csv) ? LK_OK
                                   : refuse(csv, "text after a closing quote; write a quote in a "
                                                 "field twice");
        }
        if (c == '\0')
            return refuse(csv, "a NUL byte; the file is damaged, or no text in UTF-8");
        csv->next_line += c == '\n';
        LK_TRY(append(csv, c));
    }
    csv->next_line = begun;
    return refuse(csv, "a quote that begins here is never closed; the file is truncated, or the "
                       "quote belongs to the text and must be written twice");
}

lk_status lki_csv_next(lki_csv *csv, bool *more)
{
    for (size_t end; (end = line_end(csv)) > 0; csv->at += end)
        csv->next_line++;
    csv->line       = csv->next_line;
    csv->count      = 0;
    csv->text_bytes = 0;
    *more           = csv->at < csv->bytes;
    while (*more) {
        LK_TRY(lki_reserve((void **)&csv->starts, &csv->capacity, csv->count,
                           sizeof *csv->starts, "fields of a table"));
        csv->starts[csv->count++] = csv->text_bytes;
        bool quoted = csv->at < csv->bytes && csv->data[csv->at] == '"';
        LK_TRY(quoted ? read_quoted(csv) : read_plain(csv));
        LK_TRY(append(csv, '\0'));
        if (csv->at == csv->bytes)
            return LK_OK;
        size_t end = line_end(csv);
        csv->at += end > 0 ? end : 1;
        csv->next_line += end > 0;
        if (end > 0)
            return LK_OK;
    }
    return LK_OK;
}
