/* table.c -- reads the cells of a table, in two walks over its text.
 *
 * The first walk counts the rows, and how many cells of each column are numbers.  Then the kinds of
 * all columns are known.  The second walk converts cells: numbers to FP64, and texts to the number
 * of their level.
 */
#include "data/table.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "tokenizer/unicode.h"

/* ---- Texts --------------------------------------------------------------------------------- */

/* Reads a finite number that FP32 can hold, with spaces around it allowed. */
static bool read_number(const char *text, double *out)
{
    const char *end = text + strlen(text);
    char       *after;
    while (*text == ' ')
        text++;
    while (end > text && end[-1] == ' ')
        end--;
    if (end == text || strspn(text, "0123456789+-.eE") < (size_t)(end - text))
        return false;
    *out = strtod(text, &after) + 0.0; /* -0 becomes 0 */
    return after == end && fabs(*out) <= (double)FLT_MAX;
}

static bool is_missing(const char *text)
{
    static const char *const words[] = { "", "NA", "N/A", "NaN", "nan", "null", "NULL", "None" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return false;
}

static bool is_utf8(const char *text)
{
    const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
    uint32_t       character;
    while (at < end) {
        size_t bytes = lki_character(at, end, &character);
        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

static lk_status refuse_cell(const lki_csv *csv, const lki_table_column *column, const char *text,
                             const char *what)
{
    return lk_fail(LK_EFORMAT, "'%s', line %llu, column '%.60s': '%.60s' %s", csv->path,
                   (unsigned long long)csv->line, column->name, text, what);
}

/* ---- The header ---------------------------------------------------------------------------- */

static lki_table_column *find(lki_table *table, const char *name)
{
    for (size_t i = 0; i < table->column_count; i++)
        if (strcmp(table->columns[i].name, name) == 0)
            return &table->columns[i];
    return NULL;
}

static lk_status check_name(const lki_table *table, size_t index, const char *name)
{
    if (*name == '\0')
        return lk_fail(LK_EFORMAT, "'%s': column %zu has no name; name it in the first line, or "
                                   "remove it (pandas: to_csv(..., index=False))", table->path,
                       index + 1);
    if (!is_utf8(name))
        return lk_fail(LK_EFORMAT, "'%s': the name of column %zu is no UTF-8; convert the file "
                                   "(iconv)", table->path, index + 1);
    return LK_OK;
}

static lk_status check_twice(const lki_table *table)
{
    const char **names  = NULL;
    lk_status    status = LK_OK;
    LK_TRY(LKI_NEW(&names, table->column_count, "columns of a table"));
    for (size_t i = 0; i < table->column_count; i++)
        names[i] = table->columns[i].name;
    qsort(names, table->column_count, sizeof *names, lki_by_bytes);
    for (size_t i = 1; status == LK_OK && i < table->column_count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = lk_fail(LK_EFORMAT, "'%s': two columns have the name '%.60s'; rename one",
                             table->path, names[i]);
    lki_free(names);
    return status;
}

static lk_status read_header(lki_table *table, lki_csv *csv)
{
    bool more;
    LK_TRY(lki_csv_next(csv, &more));
    if (!more)
        return lk_fail(LK_EFORMAT, "'%s' is empty; its first line names the columns", table->path);
    for (size_t i = 0; i < csv->count; i++) {
        const char *name = lki_csv_field(csv, i);
        LK_TRY(check_name(table, i, name));
        LK_TRY(lki_reserve((void **)&table->columns, &table->column_capacity, table->column_count,
                           sizeof *table->columns, "columns of a table"));
        lki_table_column *column = &table->columns[table->column_count];
        *column = (lki_table_column){ .deviation = 1 };
        LK_TRY(lki_path_join(&column->name, "", name));
        table->column_count++;
    }
    return check_twice(table);
}

/* Writes the names of the columns, for messages. */
static void list_columns(const lki_table *table, char *out, size_t bytes)
{
    size_t used = 0;
    out[0]      = '\0';
    for (size_t i = 0; i < table->column_count && used < bytes; i++) {
        const char *name  = table->columns[i].name;
        const char *quote = strchr(name, ',') != NULL ? "\"" : "";
        used += (size_t)snprintf(out + used, bytes - used, "%s%s%.40s%s", i > 0 ? ", " : "", quote,
                                 name, quote);
    }
}

/* Returns what may be wrong with a header in which a name is missing; "" if nothing seems to be. */
static const char *doubt(const lki_table *table, const char *name)
{
    if (table->column_count == 1 && strpbrk(table->columns[0].name, ",;\t|") != NULL)
        return "; commas separate fields, or tabs if the file's name ends with .tsv";
    for (size_t i = 0; i < table->column_count; i++) {
        const char  *other = table->columns[i].name + strspn(table->columns[i].name, " ");
        const size_t bytes = strlen(name);
        if (strncmp(other, name, bytes) == 0 && other[bytes + strspn(other + bytes, " ")] == '\0')
            return "; a space beside it belongs to its name there: remove it, or write it";
    }
    return "";
}

/* Fails because of a name that no column has.  `from` begins with it, in the option. */
static lk_status refuse_name(const lki_table *table, const char *name, const char *from)
{
    char names[400];
    list_columns(table, names, sizeof names);
    for (size_t i = 0; i < table->column_count; i++) {
        const char  *other = table->columns[i].name;
        const size_t bytes = strlen(other);
        if (strchr(other, ',') != NULL && strncmp(from, other, bytes) == 0 &&
            (from[bytes] == '\0' || from[bytes] == ','))
            return lk_fail(LK_EINVAL, "`target` %.60s: '%s' has no such column; write "
                                      "'\"%.60s\"', with the double quotes, for that column", name,
                           table->path, other);
    }
    if (*name == '\0')
        return lk_fail(LK_EINVAL, "`target` has an empty name; '%s' has the columns %s",
                       table->path, names);
    return lk_fail(LK_EINVAL, "`target` %.60s: '%s' has no such column; there are %s%s", name,
                   table->path, names, doubt(table, name));
}

static lk_status mark_target(lki_table *table, const char *name, const char *from)
{
    lki_table_column *column = find(table, name);
    if (column == NULL)
        return refuse_name(table, name, from);
    if (column->is_target)
        return lk_fail(LK_EINVAL, "`target` names the column '%.60s' twice", column->name);
    column->is_target                    = true;
    table->targets[table->target_count++] = (size_t)(column - table->columns);
    return LK_OK;
}

/* Copies the name at *at, which may be in double quotes as in a header, and moves *at to its end.
 * Within quotes a double one stands for one.  Returns false if a quote is not closed. */
static bool copy_name(char *out, const char **at)
{
    const char *from   = *at;
    const bool  quoted = *from == '"';
    bool        open   = quoted;
    for (from += quoted; *from != '\0' && (quoted || *from != ','); from++) {
        if (quoted && *from == '"' && *++from != '"') {
            open = false;
            break;
        }
        *out++ = *from;
    }
    *out = '\0';
    *at  = from;
    return !open;
}

static lk_status mark_names(lki_table *table, const char *target, char *name)
{
    for (;; target++) {
        const char *from = target;
        if (!copy_name(name, &target))
            return lk_fail(LK_EINVAL, "`target`: the quote before '%.60s' is not closed; write one "
                                      "at the end of the name", name);
        LK_TRY(mark_target(table, name, from));
        if (*target == '\0')
            return LK_OK;
        if (*target != ',')
            return lk_fail(LK_EINVAL, "`target`: '%.20s' stands after the quoted name '%.60s'; "
                                      "write commas between names", target, name);
    }
}

static lk_status mark_targets(lki_table *table, const char *target)
{
    char names[400], *name;
    list_columns(table, names, sizeof names);
    if (target == NULL || *target == '\0')
        return lk_fail(LK_EINVAL, "'%s' is a table: `target` must name the column to predict; "
                                  "there are %s", table->path, names);
    LK_TRY(LKI_NEW(&table->targets, table->column_count, "targets of a table"));
    LK_TRY(LKI_NEW(&name, strlen(target) + 1, "the name of a column"));
    lk_status status = mark_names(table, target, name);
    lki_free(name);
    LK_TRY(status);
    if (table->target_count == table->column_count)
        return lk_fail(LK_EINVAL, "'%s' has only target columns, and none to predict them from",
                       table->path);
    return LK_OK;
}

/* ---- Walks --------------------------------------------------------------------------------- */

static lk_status next_row(const lki_table *table, lki_csv *csv, bool *more)
{
    LK_TRY(lki_csv_next(csv, more));
    if (*more && csv->count != table->column_count)
        return lk_fail(LK_EFORMAT, "'%s', line %llu has %zu fields, and the first line names %zu "
                                   "columns; write a field with a delimiter in quotes",
                       csv->path, (unsigned long long)csv->line, csv->count, table->column_count);
    return LK_OK;
}

/* Counts rows, and cells that are numbers, and decides on the kinds of the columns. */
static lk_status count_cells(lki_table *table, lki_csv *csv, const lk_column *known)
{
    for (bool more;;) {
        LK_TRY(next_row(table, csv, &more));
        if (!more)
            break;
        table->rows++;
        for (size_t i = 0; i < table->column_count; i++) {
            double ignored;
            table->columns[i].numbers += read_number(lki_csv_field(csv, i), &ignored);
        }
    }
    if (table->rows == 0)
        return lk_fail(LK_EFORMAT, "'%s' has a header and no rows", table->path);
    for (size_t i = 0; i < table->column_count; i++) {
        lki_table_column *column = &table->columns[i];
        column->is_text          = column->numbers < table->rows - table->rows / 2;
        if (known != NULL && !column->is_target)
            column->is_text = known[i].level_count > 0;
        else if (known != NULL && known[i].level_count > 0)
            column->is_text = column->numbers < table->rows;
    }
    return LK_OK;
}

/* Decides whether the targets are classes. */
static lk_status judge_targets(lki_table *table, lk_targets targets)
{
    const char *text = NULL;
    for (uint32_t i = 0; i < table->target_count; i++)
        if (table->columns[table->targets[i]].is_text)
            text = table->columns[table->targets[i]].name;
    table->has_classes = targets == LK_TARGETS_CLASSES || (targets == LK_TARGETS_AUTO && text);
    if (!table->has_classes && text != NULL)
        return lk_fail(LK_EINVAL, "'%s': the target column '%.60s' has texts, and this loss needs "
                                  "numbers; use `loss` cross-entropy, or write numbers",
                       table->path, text);
    if (table->has_classes && table->target_count > 1)
        return lk_fail(LK_EINVAL, "'%s': classes are of one target column, and `target` names %u; "
                                  "several columns must be numbers, for `loss` mse, huber or bce",
                       table->path, table->target_count);
    return LK_OK;
}

/* ---- Cells --------------------------------------------------------------------------------- */

/* Sets *out to the number of the level with this text, which may be new. */
static lk_status find_level(const lki_csv *csv, lki_table_column *column, const char *text,
                            double *out)
{
    size_t low = 0, high = column->level_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int    order  = strcmp(column->levels[column->sorted[middle]], text);
        if (order == 0) {
            *out = (double)column->sorted[middle];
            return LK_OK;
        }
        *(order < 0 ? &low : &high) = order < 0 ? middle + 1 : middle;
    }
    if (column->level_count == LKI_LEVELS_MAX)
        return lk_fail(LK_EFORMAT, "'%s': column '%.60s' has more than %d different %s", csv->path,
                       column->name, LKI_LEVELS_MAX,
                       column->is_target ? "classes; group them, or use `loss` mse if they are "
                                           "numbers"
                                         : "texts; remove it, or group its texts");
    if (!is_utf8(text))
        return refuse_cell(csv, column, "...", "is no UTF-8; convert the file (iconv)");
    LK_TRY(lki_reserve((void **)&column->sorted, &column->sorted_capacity, column->level_count,
                       sizeof *column->sorted, "levels of a column"));
    LK_TRY(lki_reserve((void **)&column->levels, &column->level_capacity, column->level_count,
                       sizeof *column->levels, "levels of a column"));
    LK_TRY(lki_path_join(&column->levels[column->level_count], "", text));
    memmove(column->sorted + low + 1, column->sorted + low,
            (column->level_count - low) * sizeof *column->sorted);
    column->sorted[low] = (uint32_t)column->level_count;
    *out                = (double)column->level_count++;
    return LK_OK;
}

static lk_status convert(const lki_table *table, lk_targets targets, const lki_csv *csv, size_t i,
                         double *out)
{
    lki_table_column *column = &table->columns[i];
    const char       *text   = lki_csv_field(csv, i);
    char              whole[40];
    if (*text == '\0' || (!column->is_text && is_missing(text)))
        return refuse_cell(csv, column, text, "is a missing value; fill it in, or remove the line "
                                              "or the column");
    if (column->is_text)
        return find_level(csv, column, text, out);
    if (!read_number(text, out))
        return refuse_cell(csv, column, text,
                           "is no number that FP32 can hold, and most of the column are; correct "
                           "it, or write words in place of numbers");
    if (!column->is_target)
        return LK_OK;
    if (targets == LK_TARGETS_LABELS && !(*out >= 0 && *out <= 1))
        return refuse_cell(csv, column, text, "is no label for `loss` bce, from 0 to 1");
    if (!table->has_classes)
        return LK_OK;
    if (*out != floor(*out) || fabs(*out) > 1e15)
        return refuse_cell(csv, column, text, "is no whole number, and `loss` cross-entropy needs "
                                              "classes; use mse for numbers");
    (void)snprintf(whole, sizeof whole, "%.0f", *out);
    return find_level(csv, column, whole, out);
}

static lk_status fill_cells(lki_table *table, lk_targets targets, lki_csv *csv)
{
    LK_TRY(lki_alloc_array((void **)&table->cells, table->rows,
                           table->column_count * sizeof *table->cells, "cells of a table"));
    for (uint64_t row = 0; row < table->rows; row++) {
        bool more;
        LK_TRY(next_row(table, csv, &more));
        if (!more)
            return lk_fail(LK_EIO, "'%s' has changed while it was read", table->path);
        for (size_t i = 0; i < table->column_count; i++)
            LK_TRY(convert(table, targets, csv, i,
                           table->cells + row * table->column_count + i));
    }
    return LK_OK;
}

/* Checks that the columns are those of the form, and finds out what its targets are. */
static lk_status check_columns(const lki_table *table, const lki_table_form *form,
                               lk_targets *targets)
{
    if (form->columns == NULL)
        return LK_OK;
    for (size_t i = 0; i < table->column_count || i < form->column_count; i++) {
        const char *have = i < table->column_count ? table->columns[i].name : "not there";
        const char *want = i < form->column_count ? form->columns[i].name : "not there";
        if (i >= table->column_count || i >= form->column_count || strcmp(have, want) != 0)
            return lk_fail(LK_EINVAL, "'%s': column %zu is %.60s, and in the table of the training "
                                      "%.60s; the same columns are needed, in the same order",
                           table->path, i + 1, have, want);
    }
    if (*targets == LK_TARGETS_AUTO)
        *targets = form->columns[table->targets[0]].level_count > 0 ? LK_TARGETS_CLASSES
                                                                    : LK_TARGETS_NUMBERS;
    return LK_OK;
}

static lk_status walk(lki_table *table, lki_csv *csv, const lki_table_form *form)
{
    lk_targets targets = form->targets;
    LK_TRY(read_header(table, csv));
    LK_TRY(mark_targets(table, form->target));
    LK_TRY(check_columns(table, form, &targets));
    lki_csv again = *csv; /* of the first row; buffers belong to `csv` */
    LK_TRY(count_cells(table, csv, form->columns));
    LK_TRY(judge_targets(table, targets));
    csv->at        = again.at;
    csv->next_line = again.next_line;
    return fill_cells(table, targets, csv);
}

lk_status lki_table_read(lki_table *table, const uint8_t *data, size_t bytes, char delimiter,
                         const char *path, const lki_table_form *form)
{
    lki_csv csv;
    *table = (lki_table){ .path = path };
    lki_csv_begin(&csv, data, bytes, delimiter, path);
    lk_status status = walk(table, &csv, form);
    lki_csv_end(&csv);
    return status;
}

void lki_table_close(lki_table *table)
{
    for (size_t i = 0; i < table->column_count; i++) {
        lki_table_column *column = &table->columns[i];
        for (size_t k = 0; k < column->level_count; k++)
            lki_free(column->levels[k]);
        lki_free(column->levels);
        lki_free(column->sorted);
        lki_free(column->places);
        lki_free((void *)column->kept);
        lki_free(column->name);
    }
    lki_free(table->columns);
    lki_free(table->cells);
    lki_free(table->targets);
}
