/* data/tar_testing.h -- for tests: archives and images, written byte by byte. */
#ifndef LKI_DATA_TAR_TESTING_H
#define LKI_DATA_TAR_TESTING_H

#include "data/data_testing.h"

#include <zlib.h>

typedef struct {
    uint8_t bytes[1 << 18];
    size_t  count;
} lkt_file;

static inline void lkt_add(lkt_file *file, const void *data, size_t bytes)
{
    assert_true(file->count + bytes <= sizeof file->bytes);
    memcpy(file->bytes + file->count, data, bytes);
    file->count += bytes;
}

/* ---- PNG ------------------------------------------------------------------------------------ */

static inline void lkt_add_word(lkt_file *file, uint32_t word)
{
    const uint8_t big[4] = { (uint8_t)(word >> 24), (uint8_t)(word >> 16), (uint8_t)(word >> 8),
                             (uint8_t)word };
    lkt_add(file, big, 4);
}

static inline void lkt_add_chunk(lkt_file *file, const char *type, const void *data, size_t bytes)
{
    lkt_add_word(file, (uint32_t)bytes);
    size_t at = file->count;
    lkt_add(file, type, 4);
    lkt_add(file, data, bytes);
    lkt_add_word(file, (uint32_t)crc32(0, file->bytes + at, (uInt)(4 + bytes)));
}

/* Writes a PNG.  `type`: 0 grey, 2 colour, 3 palette (`palette` has 3 x 256 bytes), 4 grey and
 * alpha, 6 colour and alpha.  `rows` are the pixels as stored in the file, `stride` bytes per
 * row. */
static inline void lkt_png(lkt_file *file, uint32_t width, uint32_t height, uint8_t depth,
                           uint8_t type, const uint8_t *palette, const uint8_t *rows,
                           size_t stride)
{
    static uint8_t raw[1 << 16], packed[1 << 17];
    uLongf         bytes = sizeof packed;
    uint8_t        head[13] = { 0, 0, (uint8_t)(width >> 8), (uint8_t)width, 0, 0,
                                (uint8_t)(height >> 8), (uint8_t)height, depth, type, 0, 0, 0 };
    file->count = 0;
    assert_true(height * (stride + 1) <= sizeof raw);
    for (size_t i = 0; i < height; i++) {
        raw[i * (stride + 1)] = 0;
        memcpy(raw + i * (stride + 1) + 1, rows + i * stride, stride);
    }
    assert_int_equal(compress(packed, &bytes, raw, height * (stride + 1)), Z_OK);
    lkt_add(file, "\x89PNG\r\n\x1a\n", 8);
    lkt_add_chunk(file, "IHDR", head, sizeof head);
    if (palette != NULL)
        lkt_add_chunk(file, "PLTE", palette, 768);
    lkt_add_chunk(file, "IDAT", packed, bytes);
    lkt_add_chunk(file, "IEND", "", 0);
}

/* ---- tar ------------------------------------------------------------------------------------ */

static inline void lkt_tar_block(lkt_file *tar, const void *data, size_t bytes)
{
    static const uint8_t zeros[512] = { 0 };
    lkt_add(tar, data, bytes);
    lkt_add(tar, zeros, (512 - bytes % 512) % 512);
}

/* Adds a member with a plain ustar header. */
static inline void lkt_tar_add(lkt_file *tar, const char *name, char type, const void *data,
                               size_t bytes)
{
    char     header[512] = { 0 };
    unsigned sum         = 0;
    assert_true(strlen(name) < 100);
    memcpy(header, name, strlen(name));
    memcpy(header + 100, "0000644", 7);
    (void)snprintf(header + 124, 12, "%011o", (unsigned)bytes);
    memset(header + 148, ' ', 8);
    header[156] = type;
    memcpy(header + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof header; i++)
        sum += (uint8_t)header[i];
    (void)snprintf(header + 148, 8, "%06o", sum);
    lkt_add(tar, header, sizeof header);
    lkt_tar_block(tar, data, bytes);
}

static inline void lkt_tar_text(lkt_file *tar, const char *name, const char *text)
{
    lkt_tar_add(tar, name, '0', text, strlen(text));
}

static inline void lkt_tar_end(lkt_file *tar)
{
    static const uint8_t zeros[1024] = { 0 };
    lkt_add(tar, zeros, sizeof zeros);
}

/* Adds a `side` x `side` image whose bytes depend on `which`. */
static inline void lkt_tar_picture(lkt_file *tar, const char *key, uint32_t side, uint32_t which)
{
    static lkt_file picture;
    static uint8_t  rows[64 * 64 * 3];
    char            name[160];
    assert_true(side <= 64);
    for (size_t i = 0; i < (size_t)side * side * 3; i++)
        rows[i] = (uint8_t)((i * 7 + which * 31 + i / 5 * which) % 256);
    lkt_png(&picture, side, side, 8, 2, NULL, rows, (size_t)side * 3);
    (void)snprintf(name, sizeof name, "%s.png", key);
    lkt_tar_add(tar, name, '0', picture.bytes, picture.count);
}

static inline void lkt_tar_class(lkt_file *tar, const char *key, int label)
{
    char name[160], text[16];
    (void)snprintf(name, sizeof name, "%s.cls", key);
    (void)snprintf(text, sizeof text, "%d\n", label);
    lkt_tar_text(tar, name, text);
}

/* Adds a sample: an image and its class. */
static inline void lkt_tar_sample(lkt_file *tar, const char *key, uint32_t side, uint32_t which,
                                  int label)
{
    lkt_tar_picture(tar, key, side, which);
    lkt_tar_class(tar, key, label);
}

#endif
