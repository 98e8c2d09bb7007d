/* config.c -- a parser for a small and strict subset of TOML.
 *
 * The parser makes one pass, line by line, and decodes keys and values into one buffer of twice the
 * text's size plus one.  Decoded text is never longer than its source: an escape \uXXXX of 6
 * characters becomes at most 3 bytes.  The NUL after a key or value uses the byte of its '=' or
 * line end.
 */
#include "cli/config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/paths.h"
#include "cli/values.h"

enum { FILE_BYTES_MAX = 1 << 20 };

typedef struct {
    lki_config  *config;
    const char  *name;
    const char  *at, *end;
    char        *to; /* end of the decoded text */
    unsigned     line;
    lki_message *error;
} parser;

static bool fail(parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(parser *p, const char *format, ...)
{
    char    what[300];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return lki_refuse(p->error, "%.150s:%u: %s", p->name, p->line, what);
}

static bool ended(const parser *p)
{
    return p->at == p->end || *p->at == '\n' ||
           (*p->at == '\r' && p->at + 1 < p->end && p->at[1] == '\n');
}

static void skip_blanks(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t'))
        p->at++;
}

static bool is_bare(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* Skips to the next line.  Fails unless the rest of this line has only blanks and a comment. */
static bool finish_line(parser *p)
{
    skip_blanks(p);
    if (p->at < p->end && *p->at == '#')
        while (!ended(p))
            p->at++;
    if (!ended(p))
        return fail(p, "more after the value; one key = value a line");
    while (p->at < p->end && *p->at != '\n')
        p->at++;
    if (p->at < p->end)
        p->at++;
    p->line++;
    return true;
}

/* ---- Strings ----------------------------------------------------------------------------- */

static bool put_utf8(parser *p, uint32_t code)
{
    if (code == 0 || (code >= 0xD800 && code < 0xE000))
        return fail(p, "\\u%04X is no character that a value may have", (unsigned)code);
    if (code < 0x80) {
        *p->to++ = (char)code;
    } else if (code < 0x800) {
        *p->to++ = (char)(0xC0 | (code >> 6));
        *p->to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *p->to++ = (char)(0xE0 | (code >> 12));
        *p->to++ = (char)(0x80 | ((code >> 6) & 0x3F));
        *p->to++ = (char)(0x80 | (code & 0x3F));
    }
    return true;
}

static bool read_unicode(parser *p)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    uint32_t          code     = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        const char *digit = p->at < p->end && *p->at != '\0' ? strchr(digits, *p->at) : NULL;
        if (digit == NULL)
            return fail(p, "\\u needs four hexadecimal digits");
        code = code * 16 + (uint32_t)((digit - digits) % 16);
    }
    return put_utf8(p, code);
}

static bool read_escape(parser *p)
{
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    if (p->at == p->end)
        return fail(p, "the string has no closing quote on its line");
    char        c     = *p->at++;
    const char *found = c != '\0' ? strchr(from, c) : NULL;
    if (c == 'u')
        return read_unicode(p);
    if (found == NULL)
        return fail(p, "unknown escape in a string; write \\\\ for a backslash");
    *p->to++ = to[found - from];
    return true;
}

static bool read_string(parser *p)
{
    char quote = *p->at++;
    if (p->end - p->at >= 2 && p->at[0] == quote && p->at[1] == quote)
        return fail(p, "strings of several lines are not used here");
    while (!ended(p) && *p->at != quote) {
        char c = *p->at++;
        if (quote == '"' && c == '\\') {
            if (!read_escape(p))
                return false;
            continue;
        }
        if ((unsigned char)c < 0x20 && c != '\t')
            return fail(p, "control character %d in a string", c);
        *p->to++ = c;
    }
    if (ended(p))
        return fail(p, "the string has no closing quote on its line");
    p->at++;
    return true;
}

/* ---- Numbers, booleans, arrays ----------------------------------------------------------- */

static bool is_digit(char c, bool hex)
{
    return (c >= '0' && c <= '9') || (hex && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')));
}

/* Converts an integer in another base, such as 0x10, to decimal.  Returns false if the text is not
 * such an integer.  The result fits into the memory of the text. */
static bool read_other_base(parser *p, char *text, size_t length)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    uint64_t base = text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : 2, value = 0;

    for (size_t i = 2; i < length; i++) {
        const char *digit = strchr(digits, text[i]);
        uint64_t    add   = digit == NULL ? base : (uint64_t)((digit - digits) % 16);
        if (add >= base || value > (UINT64_MAX - add) / base)
            return false;
        value = value * base + add;
    }
    p->to = text + snprintf(text, 24, "%llu", (unsigned long long)value);
    return length > 2;
}

/* Copies a number without TOML's underscores, and determines its type. */
static bool read_number(parser *p, lki_config_type *type)
{
    const char *start = p->at;
    char       *text  = p->to;
    double      real  = 0;
    bool        hex   = p->end - start > 1 && start[0] == '0' && start[1] == 'x';
    while (p->at < p->end && (is_bare(*p->at) || *p->at == '.' || *p->at == '+')) {
        bool inside = p->at > start && is_digit(p->at[-1], hex) && p->at + 1 < p->end &&
                      is_digit(p->at[1], hex);
        if (*p->at == '_' && !inside)
            return fail(p, "an underscore stands between two digits");
        if (*p->at != '_')
            *p->to++ = *p->at;
        p->at++;
    }
    if (p->to - text > 1 && text[0] == '+' && text[1] >= '0' && text[1] <= '9') {
        memmove(text, text + 1, (size_t)(p->to - text) - 1);
        p->to--;
    }
    size_t length = (size_t)(p->to - text);
    if (length > 2 && text[0] == '0' && strchr("xob", text[1]) != NULL && *start != '+') {
        *type = LKI_CONFIG_INTEGER;
        return read_other_base(p, text, length) ||
               fail(p, "this is no integer of up to 64 bits");
    }
    if (!lki_parse_real(text, length, &real))
        return fail(p, "%s; strings need quotes",
                    length == 0 ? "there is no value" : "this is neither number nor true or false");
    *type = LKI_CONFIG_INTEGER;
    for (size_t i = 0; i < length; i++)
        if (strchr(".eE", text[i]) != NULL)
            *type = LKI_CONFIG_REAL;
    return true;
}

static bool read_array(parser *p, lki_config_type *type)
{
    *type = LKI_CONFIG_INTEGERS;
    p->at++;
    skip_blanks(p);
    for (bool first = true; p->at < p->end && *p->at != ']'; first = false) {
        lki_config_type each;
        if (!first)
            *p->to++ = ',';
        if (!read_number(p, &each))
            return false;
        if (each == LKI_CONFIG_REAL)
            *type = LKI_CONFIG_REALS;
        skip_blanks(p);
        if (p->at < p->end && *p->at == ',') {
            p->at++;
            skip_blanks(p);
        } else if (p->at == p->end || *p->at != ']') {
            return fail(p, "an array is numbers with commas between them in [ ], on one line");
        }
    }
    if (p->at == p->end)
        return fail(p, "the array has no closing ]");
    p->at++;
    return true;
}

static bool starts_with(const parser *p, const char *word)
{
    size_t length = strlen(word);
    return (size_t)(p->end - p->at) >= length && memcmp(p->at, word, length) == 0 &&
           ((size_t)(p->end - p->at) == length || !is_bare(p->at[length]));
}

static bool read_boolean(parser *p, const char *word)
{
    size_t length = strlen(word);
    memcpy(p->to, word, length);
    p->to += length;
    p->at += length;
    return true;
}

static bool read_value(parser *p, lki_config_type *type)
{
    skip_blanks(p);
    if (ended(p) || *p->at == '#')
        return fail(p, "there is no value after =");
    if (*p->at == '"' || *p->at == '\'') {
        *type = LKI_CONFIG_STRING;
        return read_string(p);
    }
    if (*p->at == '[')
        return read_array(p, type);
    *type = LKI_CONFIG_BOOLEAN;
    if (starts_with(p, "true"))
        return read_boolean(p, "true");
    if (starts_with(p, "false"))
        return read_boolean(p, "false");
    if (*p->at == '{')
        return fail(p, "tables are not used here: one key = value a line");
    return read_number(p, type);
}

/* ---- Lines ------------------------------------------------------------------------------- */

/* Ends the key that has just been decoded. */
static const char *key_text(parser *p, const char *key)
{
    *p->to = '\0';
    return key;
}

static bool read_key(parser *p, const char **out)
{
    char *key = p->to;
    if (*p->at == '[')
        return fail(p, "tables are not used here: write every option as key = value");
    if (*p->at == '{')
        return fail(p, "a config file is no JSON: it has lines such as lr = 1e-3, with the names "
                       "of options");
    bool quoted = *p->at == '"' || *p->at == '\'';
    if (quoted && !read_string(p))
        return false;
    while (!quoted && p->at < p->end && is_bare(*p->at))
        *p->to++ = *p->at++;
    size_t length = (size_t)(p->to - key);
    skip_blanks(p);
    if (length > 0 && p->at < p->end && *p->at == ':')
        return fail(p, "a config file is no YAML: write %.60s = VALUE", key_text(p, key));
    if (length == 0 || p->at == p->end || *p->at != '=')
        return fail(p, "expected key = value, with a key of letters, digits and -");
    *p->to++ = '\0';
    p->at++;
    for (size_t i = 0; i < p->config->count; i++)
        if (strcmp(p->config->items[i].key, key) == 0)
            return fail(p, "%.60s stands twice, first on line %u", key, p->config->items[i].line);
    *out = key;
    return true;
}

static bool read_item(parser *p)
{
    lki_config     *config = p->config;
    lki_config_item item   = { .line = p->line };

    if (!read_key(p, &item.key))
        return false;
    item.text = p->to;
    if (!read_value(p, &item.type))
        return false;
    *p->to++ = '\0';
    if (config->count == config->capacity) {
        size_t           capacity = config->capacity == 0 ? 16 : config->capacity * 2;
        lki_config_item *items    = realloc(config->items, capacity * sizeof *items);
        if (items == NULL)
            return fail(p, "out of memory");
        config->items    = items;
        config->capacity = capacity;
    }
    config->items[config->count++] = item;
    return finish_line(p);
}

bool lki_config_parse(lki_config *out, const char *text, size_t bytes, const char *name,
                      lki_message *error)
{
    *out        = (lki_config){ .text = malloc(2 * bytes + 1) };
    parser p    = { .config = out,
                    .name   = name,
                    .at     = text,
                    .end    = text + bytes,
                    .to     = out->text,
                    .line   = 1,
                    .error  = error };
    bool   good = out->text != NULL || fail(&p, "out of memory");

    while (good && p.at < p.end) {
        skip_blanks(&p);
        good = ended(&p) || *p.at == '#' ? finish_line(&p) : read_item(&p);
    }
    if (!good)
        lki_config_free(out);
    return good;
}

void lki_config_free(lki_config *config)
{
    free(config->items);
    free(config->text);
    *config = (lki_config){ 0 };
}

bool lki_config_open(lki_config *out, const char *path, lki_message *error)
{
    const char *why  = lki_why_unreadable(path);
    FILE       *file = why == NULL ? fopen(path, "rb") : NULL;
    *out             = (lki_config){ 0 };
    if (file == NULL)
        return lki_refuse(error, "--config %.300s: %s; correct the path", path,
                          why != NULL ? why : strerror(errno));

    char  *text  = malloc(FILE_BYTES_MAX + 1);
    size_t bytes = text == NULL ? 0 : fread(text, 1, FILE_BYTES_MAX + 1, file);
    bool   good  = true;
    if (text == NULL)
        good = lki_refuse(error, "%.300s: out of memory", path);
    else if (ferror(file) != 0)
        good = lki_refuse(error, "--config %.300s: %s", path, strerror(errno));
    else if (bytes > FILE_BYTES_MAX)
        good = lki_refuse(error, "%.300s: over 1 MiB; is this a config file?", path);
    else
        good = lki_config_parse(out, text, bytes, path, error);
    free(text);
    (void)fclose(file);
    return good;
}
