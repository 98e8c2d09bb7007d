/* bench/attest.c -- the cost of hashing the values that an update reads and writes.
 *
 * Usage: attest [ROUNDS].  For each optimizer and size, one thread alternates between plain updates
 * and updates that hash the values before and after each block.  Blocks are as in a run
 * (parallel/core/step.c).  Prints the medians and their ratio.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/status.h"
#include "lockstep/optim.h"
#include "tensor/exec.h"
#include "tensor/ops.h"
#include "usage.h"

enum { ROUNDS_MAX = 201, STATES = LK_OPTIMIZER_STATES_MAX };

typedef struct {
    lk_exec     *exec;
    lk_optimizer optimizer;
    size_t       count;
    float       *values, *sums, *state[STATES];
    /* differ: number of blocks that have changed since they were hashed */
    uint64_t    *hashes, differ;
    uint64_t     step;
} bench;

static void update_block(bench *b, size_t at, size_t count, bool attested)
{
    const lk_update update = { .step = b->step, .lr = 1e-3, .scale = 1, .clip = 1 };
    const size_t    bytes = count * sizeof(float), block = at / LKI_NORM_BLOCK;
    float          *state[STATES] = { NULL };

    for (uint32_t i = 0; i < lk_optimizer_state_count(&b->optimizer); i++)
        state[i] = b->state[i] + at;
    if (attested && b->hashes[block] != 0)
        b->differ += lki_xxh3(b->values + at, bytes) != b->hashes[block];
    lk_optimizer_update(&b->optimizer, b->exec, &update, count, b->sums + at, b->values + at,
                        state);
    b->hashes[block] = attested ? lki_xxh3(b->values + at, bytes) : 0;
}

static double pass(bench *b, bool attested)
{
    double began = lki_seconds();
    for (size_t at = 0; at < b->count; at += LKI_NORM_BLOCK)
        update_block(b, at, lki_min(LKI_NORM_BLOCK, b->count - at), attested);
    b->step++;
    return 1e6 * (lki_seconds() - began);
}

/* Measures both kinds of passes.  An attested pass verifies the hashes of the previous one, so it
 * runs twice and only the second is measured. */
static void measure(bench *b, size_t rounds)
{
    static double plain[ROUNDS_MAX], attested[ROUNDS_MAX];

    for (size_t r = 0; r < rounds; r++) {
        plain[r] = pass(b, false);
        (void)pass(b, true);
        attested[r] = pass(b, true);
    }
    qsort(plain, rounds, sizeof *plain, lki_by_value);
    qsort(attested, rounds, sizeof *attested, lki_by_value);
    printf("%-6s %9zu elements: %10.1f us alone, %10.1f us attested, ratio %.3f\n",
           lk_optimizer_name(b->optimizer.kind), b->count, plain[rounds / 2],
           attested[rounds / 2], attested[rounds / 2] / plain[rounds / 2]);
}

static lk_status run(lk_optimizer optimizer, size_t count, size_t rounds)
{
    bench     b      = { .optimizer = lk_optimizer_resolve(&optimizer), .count = count };
    lk_status status = lk_exec_open(&b.exec, 1, NULL);

    if (status == LK_OK)
        status = LKI_NEW(&b.values, count, "values");
    if (status == LK_OK)
        status = LKI_NEW(&b.sums, count, "gradients");
    if (status == LK_OK)
        status = LKI_NEW(&b.hashes, count / LKI_NORM_BLOCK + 1, "hashes");
    for (uint32_t i = 0; status == LK_OK && i < lk_optimizer_state_count(&b.optimizer); i++)
        status = LKI_NEW(&b.state[i], count, "state");
    for (size_t i = 0; status == LK_OK && i < count; i++) {
        b.values[i] = (float)(i % 1000) * 1e-3f;
        b.sums[i]   = (float)(i % 77) * 1e-2f;
    }
    if (status == LK_OK)
        measure(&b, rounds);
    if (status == LK_OK && b.differ > 0)
        status = lk_fail(LK_EIO, "%llu blocks were not what had been written",
                         (unsigned long long)b.differ);
    lki_free(b.values);
    lki_free(b.sums);
    lki_free(b.hashes);
    for (uint32_t i = 0; i < STATES; i++)
        lki_free(b.state[i]);
    lk_exec_free(b.exec);
    return status;
}

int main(int argc, char **argv)
{
    check_arguments(argc, argv, 0, 1);
    static const lk_optimizer optimizers[] = { { .kind = LK_SGD, .momentum = 0.9 },
                                               { .kind = LK_ADAMW } };
    static const size_t       counts[]     = { 1 << 16, 1 << 20, 1 << 24 };
    long                      asked        = argc > 1 ? strtol(argv[1], NULL, 10) : 31;
    size_t                    rounds = asked < 1 ? 1 : lki_min((size_t)asked, ROUNDS_MAX);

    for (size_t o = 0; o < 2; o++)
        for (size_t c = 0; c < 3; c++)
            if (run(optimizers[o], counts[c], rounds) != LK_OK) {
                fprintf(stderr, "attest: %s\n", lk_error_last()->message);
                return 1;
            }
    return 0;
}
