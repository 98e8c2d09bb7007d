/* bench/compress_select.c -- measures compressors beside a copy of the same bytes.
 *
 *     compress_select ELEMENTS RATIO [TURNS]
 *
 * Prints one line for each compressor: nanoseconds an element and thread to encode with residual,
 * and to decode; then a line for memcpy(), and one for the instruction set.  Values are normal;
 * each turn encodes a fresh copy of them, which is not measured.  Numbers are medians over turns.
 * The script bench/compress_select runs it beside PyTorch.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/sort.h"
#include "compress/scan.h"
#include "lockstep/compress.h"
#include "usage.h"

enum { TURNS_MAX = 500 };

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, lki_by_value);
    return values[count / 2];
}

static void fill(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lki_random random = lki_philox(1, LKI_RNG_DATA, (uint32_t)i, 0, 0, 0);
        float      radius = sqrtf(-2 * logf(lki_random_unit(random.word[0]) + 0x1p-25f));
        values[i]         = radius * cosf(6.2831853f * lki_random_unit(random.word[1]));
    }
}

typedef struct {
    size_t      count, turns;
    float      *fresh, *values, *out;
    void       *message;
    lk_compression options;
} bench;

static void encode(const bench *b, const lk_compressor *c, const lk_compress_key *key)
{
    lk_compress_part part = { .rows = 1, .count = b->count, .stride = b->count };
    if (c->part == NULL)
        c->encode(&b->options, key, 0, &part, NULL, b->values, b->message);
    for (uint32_t i = 0; c->part != NULL && c->part(&b->options, key, 0, i, &part); i++)
        c->encode(&b->options, key, 0, &part, NULL, b->values, b->message);
}

static void measure(const bench *b, const lk_compressor *c)
{
    double          encoded[TURNS_MAX], decoded[TURNS_MAX];
    lk_compress_key key = { .rows = b->count, .cols = 1 };
    const void     *messages[] = { b->message };
    for (size_t t = 0; t < b->turns; t++) {
        memcpy(b->values, b->fresh, b->count * sizeof *b->values);
        double start = lki_seconds();
        encode(b, c, &key);
        encoded[t] = lki_seconds() - start;
        start      = lki_seconds();
        c->decode(&b->options, &key, messages, 0, b->count, b->out);
        decoded[t] = lki_seconds() - start;
    }
    double unit = 1e9 / (double)b->count;
    printf("%s %.4f %.4f\n", c->name, median(encoded, b->turns) * unit,
           median(decoded, b->turns) * unit);
}

static void measure_copy(const bench *b)
{
    double took[TURNS_MAX];
    for (size_t t = 0; t < b->turns; t++) {
        memcpy(b->values, b->out, b->count * sizeof *b->values);
        double start = lki_seconds();
        memcpy(b->out, b->values, b->count * sizeof *b->values);
        took[t] = lki_seconds() - start;
    }
    printf("memcpy %.4f\n", median(took, b->turns) * 1e9 / (double)b->count);
}

int main(int count, char **words)
{
    check_arguments(count, words, 2, 3);
    lk_compression given = LK_COMPRESSION_INIT;
    bench          b     = { .count = strtoull(words[1], NULL, 10) };
    size_t         turns = count > 3 ? strtoull(words[3], NULL, 10) : 9;
    given.ratio          = strtod(words[2], NULL);
    b.turns              = turns < 1 ? 1 : lki_min(turns, TURNS_MAX);
    if (lk_compression_resolve(&b.options, &given) != LK_OK ||
        LKI_NEW(&b.fresh, b.count, "values") != LK_OK ||
        LKI_NEW(&b.values, b.count, "values") != LK_OK ||
        LKI_NEW(&b.out, b.count, "values") != LK_OK ||
        lki_alloc(&b.message, 8 * b.count + 64, "message") != LK_OK) {
        fprintf(stderr, "%s\n", lk_error_last()->message);
        return 1;
    }
    fill(b.fresh, b.count);
    static const char *const names[] = { "topk", "randomk", "sign", "terngrad",
                                         "qsgd", "vote" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const lk_compressor *c = NULL;
        if (lk_compressor_find(&c, names[i]) != LK_OK)
            return 1;
        measure(&b, c);
    }
    measure_copy(&b);
    printf("isa %s\n", lki_scan_best()->name);
    void *const all[] = { b.fresh, b.values, b.out, b.message };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        lki_free(all[i]);
    return 0;
}
