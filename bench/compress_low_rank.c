/* bench/compress_low_rank.c -- measures powersgd on the matrices of GPT-2 124M.
 *
 *     compress_low_rank RANK [TURNS]
 *
 * Prints the milliseconds of a step on one thread as NAME NUMBER: of each part, of all of them, and
 * of what memory alone takes to read the gradient three times and to write it twice.  The last line
 * names the instruction set.  A step has one group.  As in training, each round of all tensors ends
 * before the next begins.  Gradients are noise.  Numbers are medians over turns, after a turn that
 * is not measured.  The script bench/compress_low_rank runs it beside PyTorch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/sort.h"
#include "compress/scan.h"
#include "lockstep/compress.h"
#include "usage.h"

enum { TURNS_MAX = 100, LAYERS = 12, MATRICES = 2 + 4 * LAYERS };
enum { BEGIN, FIRST, SETTLE, SECOND, DECODE, ALL, MEMORY, PARTS };

static const char *const names[PARTS] = { "begin",  "encode_p", "settle", "encode_q",
                                          "decode", "all",      "memory" };

typedef struct {
    lk_compress_key key;
    size_t          count;
    float          *fresh, *values, *error, *out;
    void           *p, *q, *message;
} matrix;

typedef struct {
    const lk_compressor *by;
    lk_compression       options;
    matrix               matrices[MATRICES];
    double               took[PARTS][TURNS_MAX];
    uint64_t             check; /* so that what only reads is not left out */
} bench;

static lk_status open_matrix(bench *b, uint32_t index, size_t rows, size_t cols)
{
    matrix *m = &b->matrices[index];
    m->key    = (lk_compress_key){ .rows = rows, .cols = cols, .tensor = index };
    m->count  = rows * cols;
    LK_TRY(LKI_NEW(&m->fresh, m->count, "gradient"));
    LK_TRY(LKI_NEW(&m->values, m->count, "values"));
    LK_TRY(LKI_NEW(&m->error, m->count, "error"));
    LK_TRY(LKI_NEW(&m->out, m->count, "output"));
    size_t bytes[2];
    for (uint32_t round = 0; round < 2; round++)
        bytes[round] = b->by->bytes(&b->options, &m->key, round);
    LK_TRY(lki_alloc(&m->p, bytes[0] + 4, "factor"));
    LK_TRY(lki_alloc(&m->q, bytes[1] + 4, "factor"));
    LK_TRY(lki_alloc(&m->message, lki_max(bytes[0], bytes[1]) + 4, "message"));
    for (size_t i = 0; i < m->count; i++) {
        uint64_t bits = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        m->fresh[i]   = (float)(int32_t)(bits >> 32) * 0x1p-41f;
    }
    return LK_OK;
}

static lk_status open_matrices(bench *b)
{
    static const size_t blocks[4][2] = {
        { 768, 2304 }, { 768, 768 }, { 768, 3072 }, { 3072, 768 }
    };
    LK_TRY(open_matrix(b, 0, 50257, 768));
    LK_TRY(open_matrix(b, 1, 1024, 768));
    for (uint32_t i = 0; i < 4 * LAYERS; i++)
        LK_TRY(open_matrix(b, 2 + i, blocks[i % 4][0], blocks[i % 4][1]));
    return LK_OK;
}

static void close_matrices(bench *b)
{
    for (uint32_t i = 0; i < MATRICES; i++) {
        matrix     *m     = &b->matrices[i];
        void *const all[] = { m->fresh, m->values, m->error, m->out, m->p, m->q, m->message };
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            lki_free(all[k]);
    }
}

/* ---- A step ------------------------------------------------------------------------------ */

enum { SAMPLES = 12 };

/* Encodes all parts of a matrix, and adds or keeps the errors of each. */
static void encode(const bench *b, uint32_t round, matrix *m)
{
    lk_compress_part part;
    for (uint32_t i = 0; b->by->part(&b->options, &m->key, round, i, &part); i++) {
        if (round == 0)
            lk_feedback_add(part.count, m->error + part.first, SAMPLES, m->values + part.first);
        b->by->encode(&b->options, &m->key, round, &part, round == 0 ? m->q : m->p, m->values,
                      m->message);
        if (round == 1)
            lk_feedback_keep(part.count, m->values + part.first, SAMPLES, m->error + part.first);
    }
}

static void do_part(const bench *b, int part, matrix *m)
{
    const void *const messages[] = { m->p, m->q };
    switch (part) {
    case BEGIN: b->by->begin(&b->options, &m->key, m->q); break;
    case FIRST: encode(b, 0, m); break;
    case SETTLE:
        memcpy(m->p, m->message, b->by->bytes(&b->options, &m->key, 0));
        b->by->settle(&b->options, &m->key, 0, m->p);
        break;
    case SECOND:
        encode(b, 1, m);
        memcpy(m->q, m->message, b->by->bytes(&b->options, &m->key, 1));
        break;
    default: b->by->decode(&b->options, &m->key, messages, 0, m->count, m->out);
    }
}

/* Does some parts of every matrix in turn, and adds their times to `took`. */
static void do_parts(bench *b, int first, int end, double *took)
{
    for (uint32_t i = 0; i < MATRICES; i++)
        for (int part = first; part < end; part++) {
            double start = lki_seconds();
            do_part(b, part, &b->matrices[i]);
            took[part] += 1e3 * (lki_seconds() - start);
        }
}

static void step(bench *b, double *took)
{
    for (uint32_t i = 0; i < MATRICES; i++)
        memcpy(b->matrices[i].values, b->matrices[i].fresh, b->matrices[i].count * sizeof(float));
    do_parts(b, BEGIN, FIRST, took);
    do_parts(b, FIRST, SETTLE, took);
    do_parts(b, SETTLE, SECOND, took);
    do_parts(b, SECOND, DECODE, took);
    do_parts(b, DECODE, ALL, took);
    for (int part = 0; part < ALL; part++)
        took[ALL] += took[part];
    for (uint32_t i = 0; i < MATRICES; i++)
        b->matrices[i].key.step++;
}

/* Returns the time to read the gradient three times and to write it twice, by two copies and a
 * hash. */
static double pass_memory(bench *b)
{
    double took = 0;
    for (uint32_t i = 0; i < MATRICES; i++) {
        matrix      *m     = &b->matrices[i];
        const size_t bytes = m->count * sizeof(float);
        const double start = lki_seconds();
        memcpy(m->values, m->fresh, bytes);
        b->check ^= lki_xxh3(m->error, bytes);
        memcpy(m->out, m->fresh, bytes);
        took += 1e3 * (lki_seconds() - start);
    }
    return took;
}

int main(int count, char **words)
{
    check_arguments(count, words, 1, 2);
    static bench   b;
    lk_compression given = LK_COMPRESSION_INIT;
    size_t         turns = count > 2 ? strtoull(words[2], NULL, 10) : 5;
    given.rank           = (uint32_t)strtoul(words[1], NULL, 10);
    turns                = turns < 1 ? 1 : lki_min(turns, TURNS_MAX);
    if (lk_compressor_find(&b.by, "powersgd") != LK_OK ||
        lk_compression_resolve(&b.options, &given) != LK_OK || open_matrices(&b) != LK_OK) {
        fprintf(stderr, "%s\n", lk_error_last()->message);
        return 1;
    }
    for (size_t t = 0; t <= turns; t++) {
        double took[PARTS] = { 0 };
        step(&b, took);
        took[MEMORY] = pass_memory(&b);
        for (int part = 0; part < PARTS && t > 0; part++)
            b.took[part][t - 1] = took[part];
    }
    for (int part = 0; part < PARTS; part++) {
        qsort(b.took[part], turns, sizeof(double), lki_by_value);
        printf("%s %.3f\n", names[part], b.took[part][turns / 2]);
    }
    printf("isa %s\n", lki_scan_best()->name);
    close_matrices(&b);
    return 0;
}
