/* tar_file.c -- the members of a tar archive, in order.
 *
 *     header   512 bytes: name 100, mode.., size at 124 (12), checksum at 148 (8), type at 156,
 *              magic "ustar" at 257, prefix of the name at 345 (155)
 *     content  `size` bytes, and zeros up to a multiple of 512
 *     ...
 *     end      two blocks of zeros, of which we require one
 *
 * Supports POSIX ustar, pax extended headers (path and size), and GNU's long names and binary
 * sizes, which cover today's tar programs.  Checksums are verified.  Members other than regular
 * files are skipped.  An archive without an end block is truncated, even if it ends between two
 * members.
 *
 * Memory holds the whole archive, or a window that moves with the members.  A window is only as
 * large as the current member really is, whatever its header claims.
 */
#include "data/files.h"

#include <string.h>

#include "base/memory.h"

enum { BLOCK = 512, NAME_AT = 0, NAME = 100, SIZE_AT = 124, SIZE = 12, SUM_AT = 148, SUM = 8,
       TYPE_AT = 156, MAGIC_AT = 257, PREFIX_AT = 345, PREFIX = 155 };

void lki_tar_begin(lki_tar *tar, const uint8_t *data, size_t bytes, const char *path)
{
    *tar = (lki_tar){ .data = data, .bytes = bytes, .path = path };
}

/* ---- Numbers -------------------------------------------------------------------------------- */

/* Parses a number field of a header.  The field contains either octal digits, after optional spaces
 * and up to a NUL or a space, or a number in GNU's binary form. */
static bool parse_number(uint64_t *out, const uint8_t *field, size_t width)
{
    uint64_t value = 0;
    size_t   i     = 0;
    if (field[0] == 0x80) {
        for (i = 1; i < width; i++) {
            if (value >> 56 != 0)
                return false;
            value = value << 8 | field[i];
        }
        *out = value;
        return true;
    }
    while (i < width && field[i] == ' ')
        i++;
    for (; i < width && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0'); /* 12 digits are 36 bits */
    *out = value;
    return i == width || field[i] == '\0' || field[i] == ' ';
}

/* Returns true if the checksum matches.  It is the sum of the header's bytes, with the checksum
 * field itself read as spaces. */
static bool has_checksum(const uint8_t *header)
{
    uint64_t sum = 0, stored;
    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= SUM_AT && i < SUM_AT + SUM ? ' ' : header[i];
    return parse_number(&stored, header + SUM_AT, SUM) && stored == sum;
}

static bool is_zero(const uint8_t *block)
{
    for (size_t i = 0; i < BLOCK; i++)
        if (block[i] != 0)
            return false;
    return true;
}

/* ---- Names ---------------------------------------------------------------------------------- */

static lk_status set_name(lki_tar *tar, const uint8_t *text, size_t bytes)
{
    size_t length = strnlen((const char *)text, bytes);
    if (length > LKI_TAR_NAME_MAX)
        return lk_fail(LK_EFORMAT, "'%s': the member at byte %llu has a name of %zu bytes; at most "
                                   "%d are read", tar->path, (unsigned long long)tar->start,
                       length, LKI_TAR_NAME_MAX);
    memcpy(tar->name, text, length);
    tar->name[length] = '\0';
    return LK_OK;
}

/* Sets the member's name from the name fields of its header. */
static void join_name(lki_tar *tar, const uint8_t *header)
{
    size_t prefix = 0, length = strnlen((const char *)header + NAME_AT, NAME);
    if (memcmp(header + MAGIC_AT, "ustar\0", 6) == 0) /* GNU has two spaces, and no prefix */
        prefix = strnlen((const char *)header + PREFIX_AT, PREFIX);
    memcpy(tar->name, header + PREFIX_AT, prefix);
    if (prefix > 0)
        tar->name[prefix++] = '/';
    memcpy(tar->name + prefix, header + NAME_AT, length);
    tar->name[prefix + length] = '\0';
}

/* ---- pax ------------------------------------------------------------------------------------ */

/* Parses one record "LENGTH KEY=VALUE\n"; *taken becomes its length. */
static lk_status take_record(lki_tar *tar, const uint8_t *text, size_t bytes, size_t *taken)
{
    size_t length = 0, at = 0;
    while (at < bytes && at < 9 && text[at] >= '0' && text[at] <= '9')
        length = length * 10 + (size_t)(text[at++] - '0');
    const uint8_t *key = text + at + 1, *end = text + length;
    bool good = at > 0 && length <= bytes && length > at + 2 && text[at] == ' ' && end[-1] == '\n';
    const uint8_t *equals = good ? memchr(key, '=', (size_t)(end - key)) : NULL;
    if (equals == NULL)
        return lk_fail(LK_EFORMAT, "'%s': the extended header at byte %llu is malformed", tar->path,
                       (unsigned long long)tar->start);
    size_t         key_bytes = (size_t)(equals - key), value_bytes = (size_t)(end - equals) - 2;
    const uint8_t *value     = equals + 1;
    *taken                   = length;
    if (key_bytes == 4 && memcmp(key, "path", 4) == 0) {
        tar->has_name = true;
        return set_name(tar, value, value_bytes);
    }
    if (key_bytes >= 10 && memcmp(key, "GNU.sparse", 10) == 0)
        return lk_fail(LK_EUNSUPPORTED, "'%s': the member at byte %llu is sparse; pack it again "
                                        "without", tar->path, (unsigned long long)tar->start);
    if (key_bytes != 4 || memcmp(key, "size", 4) != 0)
        return LK_OK;
    tar->has_size = true;
    tar->size     = 0;
    for (size_t i = 0; i < value_bytes; i++)
        if (value[i] < '0' || value[i] > '9' ||
            __builtin_mul_overflow(tar->size, 10u, &tar->size) ||
            __builtin_add_overflow(tar->size, (uint64_t)(value[i] - '0'), &tar->size))
            return lk_fail(LK_EFORMAT, "'%s': the extended header at byte %llu has no good size",
                           tar->path, (unsigned long long)tar->start);
    return LK_OK;
}

static lk_status take_records(lki_tar *tar, const uint8_t *text, size_t bytes)
{
    while (bytes > 0) {
        size_t taken = 0;
        LK_TRY(take_record(tar, text, bytes, &taken));
        text += taken;
        bytes -= taken;
    }
    return LK_OK;
}

/* ---- Members -------------------------------------------------------------------------------- */

/* Loads the archive so that `bytes` bytes from offset tar->at on are in memory. *left becomes the
 * number of bytes available from there. */
static lk_status reach(lki_tar *tar, size_t bytes, size_t *left)
{
    size_t end = bytes < SIZE_MAX - tar->at ? tar->at + bytes : SIZE_MAX;
    if (tar->hold != NULL && end - tar->from > tar->bytes)
        LK_TRY(tar->hold(tar, end));
    *left = tar->from + tar->bytes - tar->at;
    return LK_OK;
}

static const uint8_t *bytes_at(const lki_tar *tar, size_t at)
{
    return tar->data + (at - tar->from);
}

static lk_status fail_cut(const lki_tar *tar)
{
    return lk_fail(LK_EFORMAT, "'%s' ends at byte %zu without the block that ends an archive: it "
                               "is truncated", tar->path, tar->from + tar->bytes);
}

/* Reads the next header. *type becomes its type, or '\0' at the end of the archive. *content and
 * *bytes become the offset and size of the member's content. */
static lk_status take_entry(lki_tar *tar, char *type, size_t *content, size_t *bytes)
{
    uint64_t size = 0;
    size_t   left;
    LK_TRY(reach(tar, BLOCK, &left));
    if (left < BLOCK)
        return fail_cut(tar);
    const uint8_t *header = bytes_at(tar, tar->at);
    *type = '\0';
    if (is_zero(header))
        return LK_OK;
    if (!has_checksum(header) || !parse_number(&size, header + SIZE_AT, SIZE))
        return lk_fail(LK_EFORMAT, "'%s' is no tar archive, or damaged: what stands at byte %zu is "
                                   "no header", tar->path, tar->at);
    *type = header[TYPE_AT] == '\0' ? '0' : (char)header[TYPE_AT];
    bool special = *type == 'L' || *type == 'K' || *type == 'x' || *type == 'g';
    if (!special && tar->has_size)
        size = tar->size;
    if (!special && !tar->has_name)
        join_name(tar, header);
    size_t whole = size < SIZE_MAX / 2 ? BLOCK + lki_round_up((size_t)size, BLOCK) : SIZE_MAX;
    LK_TRY(reach(tar, whole, &left));
    if (size > left - BLOCK)
        return lk_fail(LK_EFORMAT, "'%s' ends at byte %zu, inside the member '%s' at byte %zu: it "
                                   "has %llu bytes; the archive is truncated", tar->path,
                       tar->from + tar->bytes, special ? "(header)" : tar->name, tar->at,
                       (unsigned long long)size);
    *content = tar->at + BLOCK;
    *bytes   = (size_t)size;
    tar->at += lki_min(left, whole);
    return LK_OK;
}

lk_status lki_tar_next(lki_tar *tar, lki_tar_member *out, bool *more)
{
    char   type    = '\0';
    size_t content = 0, bytes = 0;
    *more      = false;
    tar->start = tar->at;
    tar->has_name = tar->has_size = false;
    for (;;) {
        LK_TRY(take_entry(tar, &type, &content, &bytes));
        if (type == '\0')
            return LK_OK;
        if (type == 'L') {
            tar->has_name = true;
            LK_TRY(set_name(tar, bytes_at(tar, content), bytes));
        } else if (type == 'x') {
            LK_TRY(take_records(tar, bytes_at(tar, content), bytes));
        } else if (type == '0' || type == '7') {
            break;
        } else if (type != 'K' && type != 'g') { /* a folder, a link or a device */
            tar->start    = tar->at;
            tar->has_name = tar->has_size = false;
        }
    }
    *out  = (lki_tar_member){ tar->name, tar->start, content, bytes_at(tar, content), bytes };
    *more = true;
    return LK_OK;
}

lk_status lki_tar_follows(lki_tar *tar, bool *more)
{
    size_t left;
    *more = false;
    for (;; tar->at += BLOCK) {
        LK_TRY(reach(tar, BLOCK, &left));
        if (left == 0)
            return LK_OK;
        if (left < BLOCK)
            return fail_cut(tar);
        *more = !is_zero(bytes_at(tar, tar->at));
        if (*more)
            return LK_OK;
    }
}
