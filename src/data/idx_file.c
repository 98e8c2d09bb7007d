/* idx_file.c -- the IDX format: a magic number, big-endian dimensions, bytes.
 *
 *     00 00 08 RR   type 08 = unsigned byte, RR = rank
 *     u32 x RR      dimensions
 *     u8  x ...     values, last dimension innermost
 *
 * A gzip file is recognised by its magic number, not by its name.  Its header is inflated first and
 * determines the memory needed.  Deflate expands by at most a factor of 1032, so a header that
 * claims more is refused before any memory is allocated.
 */
#include "data/files.h"

#include <string.h>

#include "base/memory.h"

enum { DEFLATE_RATIO_MAX = 1032, HEADER_MAX = 4 + 4 * 3, TYPE_U8 = 0x08 };

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static size_t header_bytes(uint32_t rank)
{
    return 4 + 4 * (size_t)rank;
}

/* Sets dims and count.  `head` holds the whole header. */
static lk_status parse_header(lki_idx *out, const uint8_t *head, uint32_t rank, const char *path)
{
    uint32_t magic = be32(head), want = (uint32_t)TYPE_U8 << 8 | rank;
    if (magic != want)
        return lk_fail(LK_EFORMAT, "'%s' begins with 0x%08x; IDX %s begin with 0x%08x%s", path,
                       magic, rank == 1 ? "labels" : "images", want,
                       magic == 0x801 || magic == 0x803 ? " (write idx:IMAGES,LABELS in this order)"
                                                        : "");
    out->count = 1;
    for (uint32_t i = 0; i < rank; i++) {
        out->dims[i] = be32(head + 4 + 4 * i);
        if (out->dims[i] == 0)
            return lk_fail(LK_EFORMAT, "'%s' is empty: dimension %u of %u is 0", path, i + 1,
                           rank);
        if (__builtin_mul_overflow(out->count, out->dims[i], &out->count) ||
            out->count > SIZE_MAX / 2)
            return lk_fail(LK_EFORMAT, "'%s' claims dimensions whose product is more than any "
                                       "file holds", path);
    }
    return LK_OK;
}

static lk_status parse_plain(lki_idx *out, const uint8_t *data, size_t bytes, uint32_t rank,
                             const char *path)
{
    size_t head = header_bytes(rank);
    if (bytes < head)
        return lk_fail(LK_EFORMAT, "'%s' has %zu bytes, and the header alone of an IDX file of "
                                   "rank %u has %zu", path, bytes, rank, head);
    LK_TRY(parse_header(out, data, rank, path));
    if (bytes != head + out->count)
        return lk_fail(LK_EFORMAT, "'%s' %s: its header speaks of %zu bytes in all, it has %zu",
                       path, bytes < head + out->count ? "is truncated" : "has bytes left over",
                       head + out->count, bytes);
    out->values      = data + head;
    out->plain       = data;
    out->plain_bytes = bytes;
    return LK_OK;
}

static lk_status inflate_all(lki_idx *out, lki_gunzip *gunzip, size_t bytes, uint32_t rank,
                             const char *path)
{
    uint8_t head[HEADER_MAX];
    size_t  got, want = header_bytes(rank);
    LK_TRY(lki_gunzip_read(gunzip, head, want, &got));
    if (got < want)
        return lk_fail(LK_EFORMAT, "'%s' has %zu bytes of content, and the header alone of an IDX "
                                   "file of rank %u has %zu", path, got, rank, want);
    LK_TRY(parse_header(out, head, rank, path));
    if (out->count / DEFLATE_RATIO_MAX > bytes)
        return lk_fail(LK_EFORMAT, "'%s' claims %zu bytes, more than a gzip file of %zu can hold",
                       path, out->count, bytes);
    size_t total = want + out->count;
    LK_TRY(lki_alloc((void **)&out->memory, total, path));
    memcpy(out->memory, head, want);
    LK_TRY(lki_gunzip_read(gunzip, out->memory + want, out->count, &got));
    if (got < out->count)
        return lk_fail(LK_EFORMAT, "'%s' is truncated: its header speaks of %zu bytes of content, "
                                   "it has %zu", path, total, want + got);
    LK_TRY(lki_gunzip_finish(gunzip));
    return parse_plain(out, out->memory, total, rank, path);
}

lk_status lki_idx_parse(lki_idx *out, const uint8_t *data, size_t bytes, uint32_t rank,
                        const char *path)
{
    LK_ASSERT(rank >= 1 && rank <= 3);
    *out = (lki_idx){ .memory = NULL };
    if (bytes == 0)
        return lk_fail(LK_EFORMAT, "'%s' is empty", path);
    if (!lki_is_gzip(data, bytes))
        return parse_plain(out, data, bytes, rank, path);
    lki_gunzip *gunzip = NULL;
    LK_TRY(lki_gunzip_open(&gunzip, data, bytes, path));
    lk_status status = inflate_all(out, gunzip, bytes, rank, path);
    lki_gunzip_close(gunzip);
    if (status != LK_OK)
        lki_idx_close(out);
    return status;
}

void lki_idx_close(lki_idx *idx)
{
    lki_free(idx->memory);
    *idx = (lki_idx){ .memory = NULL };
}
