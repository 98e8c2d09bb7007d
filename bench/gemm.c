/* bench/gemm.c -- how much of the processor's FP32 peak the matrix product reaches.
 *
 * The peak is measured in the same process, by a loop of independent fma on the same lanes, right
 * before each product, because clocks wander.  Prints a line a shape: GFLOP/s and the ratio.
 *
 *      gemm [THREADS] [ISA]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "tensor/exec.h"

typedef struct {
    const char *use;
    bool        ta, tb;
    size_t      m, n, k;
} shape;

static const shape shapes[] = {
    { "gpt2 proj", false, true, 1024, 768, 768 },
    { "gpt2 mlp up", false, true, 1024, 3072, 768 },
    { "gpt2 mlp dx", false, false, 1024, 768, 3072 },
    { "gpt2 mlp dw", true, false, 3072, 768, 1024 },
    { "square", false, false, 1024, 1024, 1024 },
    { "tiny proj", false, true, 768, 128, 128 },
    { "tiny qkv", false, true, 768, 384, 128 },
    { "tiny mlp up", false, true, 768, 512, 128 },
    { "tiny mlp down", false, true, 768, 128, 512 },
    { "tiny dw", true, false, 512, 128, 768 },
    { "tiny dx", false, false, 768, 128, 512 },
    { "batch 64", false, true, 64, 768, 768 },
    { "batch 16", false, true, 16, 768, 768 },
    { "batch 4", false, true, 4, 768, 768 },
    { "batch 1", false, true, 1, 768, 768 },
    { "batch 16 nn", false, false, 16, 768, 768 },
    { "classes", false, true, 64, 10, 512 },
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Two micro-panels in the first-level cache: what the arithmetic alone allows. */
typedef struct {
    const lki_gemm_kernels *kernels;
    float                  *a, *b, *c;
} peak_loop;
enum { PEAK_K = 96, PEAK_CALLS = 400 };

static void peak_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    peak_loop     *l    = context;
    size_t         rows = l->kernels->rows, columns = l->kernels->columns;
    lki_gemm_block block = { .m      = rows,
                             .n      = columns,
                             .k      = PEAK_K,
                             .a      = l->a,
                             .packed = true,
                             .b      = l->b,
                             .b_row  = columns,
                             .c      = l->c + index * 4096,
                             .ldc    = columns };
    for (int i = 0; i < PEAK_CALLS; i++)
        l->kernels->block(&block);
}

static double peak(lk_exec *exec, float *a, float *b, float *c)
{
    peak_loop loop    = { lki_exec_kernels(exec)->gemm, a, b, c };
    size_t    threads = lk_exec_threads(exec);
    double    best    = 1e30;
    for (int i = 0; i < 5; i++) {
        double start = now();
        lki_exec_run(exec, threads, peak_task, &loop);
        double took = now() - start;
        best        = took < best ? took : best;
    }
    return 2e-9 * (double)(threads * loop.kernels->rows * loop.kernels->columns) * PEAK_K *
           PEAK_CALLS / best;
}

int main(int count, char **words)
{
    lk_exec *exec = NULL;
    float   *a = NULL, *b = NULL, *c = NULL;
    uint32_t threads = count > 1 ? (uint32_t)strtoul(words[1], NULL, 10) : 1;
    size_t   room    = (size_t)3072 * 3072;
    if (lk_exec_open(&exec, threads, count > 2 ? words[2] : NULL) != LK_OK ||
        LKI_NEW(&a, room, "a") != LK_OK || LKI_NEW(&b, room, "b") != LK_OK ||
        LKI_NEW(&c, room, "c") != LK_OK) {
        fprintf(stderr, "%s\n", lk_error_last()->message);
        return 1;
    }
    for (size_t i = 0; i < room; i++)
        a[i] = b[i] = (float)(i % 1000) * 1e-3f - 0.5f;
    printf("%s, %u threads\n%-14s %5s %5s %5s  %9s %9s %6s\n", lk_exec_isa(exec), threads, "use",
           "m", "n", "k", "GFLOP/s", "peak", "ratio");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        shape  s    = shapes[i];
        double best = 1e30, flops = 2e-9 * (double)s.m * (double)s.n * (double)s.k;
        double top = peak(exec, a, b, c);
        for (double began = now(); now() - began < 0.15;) {
            double start = now();
            lk_gemm(exec, s.ta, s.tb, s.m, s.n, s.k, a, b, c, false);
            double took = now() - start;
            best        = took < best ? took : best;
        }
        printf("%-14s %5zu %5zu %5zu  %9.1f %9.1f %5.0f%%\n", s.use, s.m, s.n, s.k, flops / best,
               top, 100 * flops / best / top);
    }
    lk_exec_free(exec);
    lki_free(a);
    lki_free(b);
    lki_free(c);
    return 0;
}
