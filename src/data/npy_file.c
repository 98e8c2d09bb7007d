/* npy_file.c -- NumPy's npy format, versions 1, 2 and 3.
 *
 *     93 'N' 'U' 'M' 'P' 'Y' major minor
 *     u16 (version 1) or u32 (2 and 3): number of bytes of the header, little-endian
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }   spaces   newline
 *     values
 *
 * The header is a Python literal.  We parse only the kind of literal that occurs: a dictionary with
 * exactly these three keys, in any order, with strings without escapes.  Well-formed files that we
 * do not support (big-endian, Fortran order, structures, FP16) are refused with advice for
 * converting them.
 */
#include "data/files.h"

#include <string.h>

#include "lockstep/base.h"

static const struct { const char *descr; lk_dtype dtype; } types[] = {
    { "<f4", LK_F32 }, { "<f8", LK_F64 }, { "|u1", LK_U8 },  { "|i1", LK_I8 },  { "<u2", LK_U16 },
    { "<i2", LK_I16 }, { "<u4", LK_U32 }, { "<i4", LK_I32 }, { "<u8", LK_U64 }, { "<i8", LK_I64 },
};

enum { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4 };

typedef struct {
    const char *at, *end;
    const char *path;
    lki_npy    *out;
} parser;

typedef struct { const char *text; size_t length; } slice;

/* ---- The literal ---------------------------------------------------------------------------- */

static void skip_spaces(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n'))
        p->at++;
}

/* Skips spaces, and consumes the next character if it is `c`. */
static bool take(parser *p, char c)
{
    skip_spaces(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word)
{
    size_t length = strlen(word);
    skip_spaces(p);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
        return false;
    p->at += length;
    return true;
}

static bool take_string(parser *p, slice *out)
{
    char quote = take(p, '\'') ? '\'' : take(p, '"') ? '"' : '\0';
    if (quote == '\0')
        return false;
    const char *close = memchr(p->at, quote, (size_t)(p->end - p->at));
    if (close == NULL)
        return false;
    *out  = (slice){ p->at, (size_t)(close - p->at) };
    p->at = close + 1;
    return memchr(out->text, '\\', out->length) == NULL;
}

static bool take_number(parser *p, uint64_t *out)
{
    skip_spaces(p);
    const char *start = p->at;
    uint64_t    value = 0;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p->at - '0'), &value))
            return false;
    *out = value;
    return p->at > start;
}

static bool equals(slice s, const char *word)
{
    return s.length == strlen(word) && memcmp(s.text, word, s.length) == 0;
}

static lk_status malformed(const parser *p, const char *what)
{
    return lk_fail(LK_EFORMAT, "'%s': malformed npy header: %s", p->path, what);
}

/* ---- The three values ----------------------------------------------------------------------- */

static lk_status parse_descr(parser *p)
{
    slice descr;
    if (!take_string(p, &descr))
        return lk_fail(LK_EFORMAT, "'%s': its elements are no plain numbers (descr is no string); "
                                   "save an array of float32 or integers", p->path);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (equals(descr, types[i].descr)) {
            p->out->dtype = types[i].dtype;
            return LK_OK;
        }
    if (descr.length > 0 && descr.text[0] == '>')
        return lk_fail(LK_EFORMAT, "'%s' is big-endian; save "
                                   "array.astype(array.dtype.newbyteorder('<'))", p->path);
    return lk_fail(LK_EFORMAT, "'%s' has elements of type '%.*s'; float32, float64 and integers "
                               "can be read: save array.astype('float32')", p->path,
                   (int)(descr.length < 16 ? descr.length : 16), descr.text);
}

static lk_status parse_order(parser *p)
{
    if (take_word(p, "False"))
        return LK_OK;
    if (take_word(p, "True"))
        return lk_fail(LK_EFORMAT, "'%s' is in Fortran order; save numpy.ascontiguousarray(array)",
                       p->path);
    return malformed(p, "fortran_order is neither True nor False");
}

static lk_status parse_shape(parser *p)
{
    lki_npy *out = p->out;
    if (!take(p, '('))
        return malformed(p, "the shape is no tuple");
    while (!take(p, ')')) {
        if (out->rank == LKI_NPY_RANK_MAX)
            return lk_fail(LK_EFORMAT, "'%s' has more than %d dimensions", p->path,
                           LKI_NPY_RANK_MAX);
        if (!take_number(p, &out->dims[out->rank]))
            return malformed(p, "a dimension of the shape is no number, or too large");
        out->rank++;
        if (take(p, ','))
            continue;
        if (!take(p, ')'))
            return malformed(p, "the shape does not end with a parenthesis");
        break;
    }
    return LK_OK;
}

static lk_status parse_item(parser *p, unsigned *seen)
{
    slice key;
    if (!take_string(p, &key) || !take(p, ':'))
        return malformed(p, "expected a key in quotes and a colon");
    unsigned bit = equals(key, "descr")           ? SEEN_DESCR
                   : equals(key, "fortran_order") ? SEEN_ORDER
                   : equals(key, "shape")         ? SEEN_SHAPE
                                                  : 0;
    if (bit == 0 || (*seen & bit) != 0)
        return malformed(p, bit == 0 ? "it has an unknown key" : "it has a key twice");
    *seen |= bit;
    return bit == SEEN_DESCR ? parse_descr(p) : bit == SEEN_ORDER ? parse_order(p) : parse_shape(p);
}

static lk_status parse_literal(parser *p)
{
    unsigned seen = 0;
    if (!take(p, '{'))
        return malformed(p, "it is no dictionary");
    while (!take(p, '}')) {
        LK_TRY(parse_item(p, &seen));
        if (take(p, ','))
            continue;
        if (!take(p, '}'))
            return malformed(p, "the dictionary does not end");
        break;
    }
    skip_spaces(p);
    if (p->at != p->end)
        return malformed(p, "something follows the dictionary");
    if (seen != (SEEN_DESCR | SEEN_ORDER | SEEN_SHAPE))
        return malformed(p, "descr, fortran_order or shape is missing");
    return LK_OK;
}

/* ---- The file ------------------------------------------------------------------------------- */

static lk_status check_size(lki_npy *out, size_t bytes, const char *path)
{
    size_t width = lk_dtype_bytes(out->dtype), need = width;
    if (out->rank == 0)
        return lk_fail(LK_EFORMAT, "'%s' is a single number, not an array", path);
    for (uint32_t i = 0; i < out->rank; i++) {
        if (out->dims[i] == 0)
            return lk_fail(LK_EFORMAT, "'%s' is empty: dimension %u of %u is 0", path, i + 1,
                           out->rank);
        if (__builtin_mul_overflow(need, out->dims[i], &need))
            return lk_fail(LK_EFORMAT, "'%s' claims dimensions whose product is more than any "
                                       "file holds", path);
    }
    if (need != bytes)
        return lk_fail(LK_EFORMAT, "'%s' %s: its header speaks of %zu bytes of values, it has %zu",
                       path, bytes < need ? "is truncated" : "has bytes left over", need, bytes);
    out->count = need / width;
    return LK_OK;
}

lk_status lki_npy_parse(lki_npy *out, const uint8_t *data, size_t bytes, const char *path)
{
    static const uint8_t magic[6] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };
    *out = (lki_npy){ .rank = 0 };
    if (bytes == 0)
        return lk_fail(LK_EFORMAT, "'%s' is empty", path);
    if (bytes < 12 || memcmp(data, magic, sizeof magic) != 0)
        return lk_fail(LK_EFORMAT, "'%s' (%zu bytes) is no npy file: it does not begin with "
                                   "\\x93NUMPY", path, bytes);
    if (data[6] < 1 || data[6] > 3)
        return lk_fail(LK_EFORMAT, "'%s' has npy version %u, expected 1, 2 or 3", path, data[6]);
    size_t start  = data[6] == 1 ? 10 : 12;
    size_t header = data[6] == 1 ? (size_t)data[8] | (size_t)data[9] << 8
                                 : (size_t)data[8] | (size_t)data[9] << 8 |
                                       (size_t)data[10] << 16 | (size_t)data[11] << 24;
    if (header > bytes - start)
        return lk_fail(LK_EFORMAT, "'%s' is truncated: its header has %zu bytes, and %zu follow",
                       path, header, bytes - start);
    const char *text = (const char *)data + start;
    parser      p    = { .at = text, .end = text + header, .path = path, .out = out };
    LK_TRY(parse_literal(&p));
    out->values = data + start + header;
    return check_size(out, bytes - start - header, path);
}

/* ---- Values --------------------------------------------------------------------------------- */

#define READ_CASE(NAME, type)                                                                    \
    case LK_##NAME: {                                                                            \
        type value;                                                                              \
        memcpy(&value, array->values + index * sizeof value, sizeof value);                      \
        return (float)value;                                                                     \
    }

/* Returns element `index` as a number.  Copies the bytes, because values may be unaligned. */
float lki_npy_number(const lki_npy *array, size_t index)
{
    switch ((int)array->dtype) {
        READ_CASE(F32, float)
        READ_CASE(F64, double)
        READ_CASE(U8, uint8_t)
        READ_CASE(I8, int8_t)
        READ_CASE(U16, uint16_t)
        READ_CASE(I16, int16_t)
        READ_CASE(U32, uint32_t)
        READ_CASE(I32, int32_t)
        READ_CASE(U64, uint64_t)
        READ_CASE(I64, int64_t)
    default: break;
    }
    LK_ASSERT(false); /* lki_npy_parse() accepts no other type */
    return 0;
}
