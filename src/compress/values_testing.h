/* values_testing.h -- values of several kinds, and one group's message of one tensor. */
#ifndef LKI_COMPRESS_VALUES_TESTING_H
#define LKI_COMPRESS_VALUES_TESTING_H

#include "compress/compress_testing.h"

static inline const lk_compressor *find(const char *name)
{
    const lk_compressor *c = NULL;
    assert_int_equal(lk_compressor_find(&c, name), LK_OK);
    return c;
}

/* Kinds of values. */
typedef enum {
    NORMAL,
    WIDE, /* sums of these are rounded in FP64 */
    TIES,
    EQUAL,
    DENORMAL,
    ASCENDING,
    MOSTLY_ZERO,
    ANY_BITS,
    KINDS
} kind;

static inline uint64_t mixed(uint64_t x)
{
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 29;
}

static inline void fill(float *values, size_t count, kind k, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t x    = mixed(seed << 40 ^ i);
        float    sign = x & 1 ? -1.0f : 1.0f, unit = (float)(x >> 40) * 0x1p-24f;
        uint32_t bits = k == ANY_BITS ? (uint32_t)(x >> 32) : (uint32_t)(x >> 45);
        float    odd;
        memcpy(&odd, &bits, sizeof odd);
        values[i] = k == NORMAL        ? sign * unit * unit * unit
                    : k == WIDE        ? sign * unit / (float)(UINT64_C(1) << (x >> 8 & 63))
                    : k == TIES        ? sign * (float)(x >> 8 & 7)
                    : k == EQUAL       ? sign * 0.5f
                    : k == ASCENDING   ? sign * (float)i
                    : k == MOSTLY_ZERO ? (x >> 8 & 255) == 0 ? sign * unit : sign * 0.0f
                    : k == DENORMAL    ? sign * odd
                                       : odd;
    }
}

/* One group's message of one tensor. */
typedef struct {
    const lk_compressor *by;
    lk_compression       options;
    lk_compress_key      key;
    size_t               count, bytes;
    float               *original, *values;
    void                *message;
} one;

static inline one one_open(const char *name, double ratio, size_t count)
{
    lk_compression given = LK_COMPRESSION_INIT;
    one            o     = { .by = find(name), .count = count };
    given.ratio          = ratio;
    given.seed           = 5;
    assert_int_equal(lk_compression_resolve(&o.options, &given), LK_OK);
    o.key      = (lk_compress_key){ .rows = count, .cols = 1, .tensor = 3, .step = 7 };
    o.bytes    = o.by->bytes(&o.options, &o.key, 0);
    o.original = calloc(count, sizeof(float));
    o.values   = calloc(count, sizeof(float));
    o.message  = malloc(o.bytes);
    memset(o.message, 0xee, o.bytes);
    return o;
}

static inline void one_encode(one *o)
{
    memcpy(o->values, o->original, o->count * sizeof(float));
    lkt_encode(o->by, &o->options, &o->key, 0, false, NULL, o->values, o->message);
}

static inline void one_decode(const one *o, size_t first, size_t count, float *out)
{
    const void *messages[] = { o->message };
    o->by->decode(&o->options, &o->key, messages, first, count, out);
}

static inline void one_close(one *o)
{
    free(o->original);
    free(o->values);
    free(o->message);
}

#endif
