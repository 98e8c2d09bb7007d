/* tokens_file.c -- files of token ids: little-endian uint16 or uint32, raw or with a header.
 *
 * The header is that of llm.c's data sets: 256 little-endian int32, of which the first three are a
 * magic number, a version and the count of tokens that follow.
 *
 *      magic 20240520, version 1:  uint16 (GPT-2)
 *      magic 20240801, version 7:  uint32 (Llama 3)
 */
#include "data/files.h"

#include <string.h>

#include "data/fileset.h"

enum { HEADER = 1024 };

static const struct { uint32_t magic, version, width; } kinds[] = {
    { 20240520, 1, 2 },
    { 20240801, 7, 4 },
};

static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static lk_status parse_header(lki_tokens *out, const uint8_t *data, size_t bytes,
                              const char *path)
{
    uint32_t magic = bytes >= 4 ? le32(data) : 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && magic != 0; i++)
        if (kinds[i].magic == magic)
            out->width = kinds[i].width;
    if (out->width == 0)
        return lk_fail(LK_EFORMAT, "'%s' does not begin with 20240520 or 20240801, so nothing says "
                                   "how wide its tokens are: name it .u16 or .u32, or add "
                                   "?width=16 or ?width=32", path);
    if (bytes < HEADER)
        return lk_fail(LK_EFORMAT, "'%s' is truncated: it has %zu bytes, its header alone has %d",
                       path, bytes, HEADER);
    uint32_t version = le32(data + 4), want = magic == kinds[0].magic ? kinds[0].version
                                                                      : kinds[1].version;
    if (version != want)
        return lk_fail(LK_EFORMAT, "'%s' has version %u of its header, expected %u", path, version,
                       want);
    out->count = le32(data + 8);
    if (out->count * out->width != bytes - HEADER)
        return lk_fail(LK_EFORMAT, "'%s' %s: its header speaks of %llu tokens of %u bytes, after "
                                   "it come %zu bytes", path,
                       bytes - HEADER < out->count * out->width ? "is truncated"
                                                                : "has bytes left over",
                       (unsigned long long)out->count, out->width, bytes - HEADER);
    out->values = data + HEADER;
    return LK_OK;
}

/* Returns the largest token. */
static uint32_t largest(const lki_tokens *tokens)
{
    uint32_t max = 0;
    for (uint64_t i = 0; i < tokens->count; i++) {
        uint32_t token = 0; /* tokens and supported machines are little-endian */
        if (tokens->width == 2) {
            uint16_t narrow;
            memcpy(&narrow, tokens->values + 2 * i, sizeof narrow);
            token = narrow;
        } else {
            memcpy(&token, tokens->values + 4 * i, sizeof token);
        }
        max = token > max ? token : max;
    }
    return max;
}

uint32_t lki_tokens_width(uint64_t bits, const char *path)
{
    if (bits != 0)
        return (uint32_t)bits / 8;
    return lki_ends_with(path, ".u16") ? 2 : lki_ends_with(path, ".u32") ? 4 : 0;
}

lk_status lki_tokens_parse(lki_tokens *out, const uint8_t *data, size_t bytes, uint32_t width,
                           uint64_t vocabulary, const char *path)
{
    LK_ASSERT(width == 0 || width == 2 || width == 4);
    *out = (lki_tokens){ .width = width };
    if (bytes == 0)
        return lk_fail(LK_EFORMAT, "'%s' is empty", path);
    if (width == 0) {
        LK_TRY(parse_header(out, data, bytes, path));
    } else {
        if (bytes % width != 0)
            return lk_fail(LK_EFORMAT, "'%s' has %zu bytes, no multiple of its tokens' %u: it is "
                                       "truncated, or its tokens have another width", path, bytes,
                           width);
        out->values = data;
        out->count  = bytes / width;
    }
    if (out->count == 0)
        return lk_fail(LK_EFORMAT, "'%s' is empty: it has a header and no tokens", path);
    out->max = largest(out);
    uint64_t limit = vocabulary != 0 ? vocabulary : (uint64_t)INT32_MAX;
    if (out->max >= limit)
        return lk_fail(LK_EFORMAT, "'%s' has a token %u, expected less than %llu%s", path,
                       out->max, (unsigned long long)limit,
                       vocabulary != 0 ? ", the vocabulary that was given"
                                       : "; its tokens may have another width");
    return LK_OK;
}

void lki_tokens_copy(const lki_tokens *tokens, uint64_t first, size_t count, int32_t *out)
{
    const uint8_t *from = tokens->values + first * tokens->width;
    if (tokens->width == 4) {
        memcpy(out, from, count * sizeof *out);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint16_t token;
        memcpy(&token, from + 2 * i, sizeof token);
        out[i] = token;
    }
}
