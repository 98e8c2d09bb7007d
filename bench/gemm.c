/* bench/gemm.c -- compares our matrix product with those of oneDNN and OpenBLAS.
 *
 * Each turn of a shape runs every library for some time: first calls to warm up, because the
 * threads of the previous library may still spin, then measured calls, of which the median is used.
 * A ratio is the median over turns of (their time / our time): above 1 our product is faster.
 * Libraries that are not installed are reported and skipped.  Every result is compared with ours.
 *
 *     gemm [THREADS] [ISA] [PREFIX OF USE]
 *
 * Measures products in FP32, then in bf16 with results in FP32.  Shapes with more than LARGE
 * results are skipped unless they are named.
 *
 * Peers: lockstep-onednn.so of this build; libopenblas.so.0 as the dynamic linker finds it.  If
 * OpenBLAS mistakes a newer AVX-512 processor for an older one (it prints the name), set
 * OPENBLAS_CORETYPE=SkylakeX, which makes OpenBLAS twice as fast.  `peak` is a loop of independent
 * fma on data in registers, in the same process.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/sort.h"
#include "device/half.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/onednn/module.h"
#include "usage.h"

enum { TURNS = 5, CALLS = 4000, LARGE = 4 << 20 };

static const double WARM = 0.05, COUNT = 0.04; /* seconds per turn */

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
    { "gpt2 256 rows", false, true, 256, 3072, 768 },
    { "logits", false, true, 1024, 50257, 768 },
    { "square 2048", false, false, 2048, 2048, 2048 },
    { "square 1024", false, false, 1024, 1024, 1024 },
    { "mlp 128", false, true, 128, 512, 512 },
    { "tiny proj", false, true, 768, 128, 128 },
    { "tiny qkv", false, true, 768, 384, 128 },
    { "tiny mlp up", false, true, 768, 512, 128 },
    { "tiny mlp down", false, true, 768, 128, 512 },
    { "tiny dw", true, false, 512, 128, 768 },
    { "tiny dx", false, false, 768, 128, 512 },
    { "odd nt", false, true, 1023, 777, 513 },
    { "odd tn", true, false, 333, 65, 2049 },
    { "rows 64", false, true, 64, 768, 768 },
    { "rows 16", false, true, 16, 768, 768 },
    { "rows 16 nn", false, false, 16, 768, 768 },
    { "rows 4", false, true, 4, 768, 768 },
    { "rows 1", false, true, 1, 768, 768 },
    { "rows 1 nn", false, false, 1, 768, 768 },
    { "512 wide dx", false, false, 64, 512, 512 },
    { "512 wide dw", true, false, 512, 512, 64 },
    { "llama mlp up", false, true, 2048, 1408, 512 },
    { "llama mlp dx", false, false, 2048, 512, 1408 },
    { "llama mlp dw", true, false, 1408, 512, 2048 },
    { "classes", false, true, 64, 10, 512 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const char *prefix = "";
static float      *a, *b, *c, *ours;
static uint16_t   *a16, *b16; /* the same values, in bf16 */

/* ---- The libraries ----------------------------------------------------------------------- */

typedef struct {
    const char *name;
    void (*run)(void *self, const shape *s, bool bf16, float *result);
    void *self; /* NULL: not available */
    bool  has_bf16;
} party;

static void run_ours(void *self, const shape *s, bool bf16, float *result)
{
    lki_gemm(self, &(lki_gemm_args){ .transpose_a = s->ta,
                                     .transpose_b = s->tb,
                                     .operands    = bf16 ? LK_BF16 : LK_F32,
                                     .m           = s->m,
                                     .n           = s->n,
                                     .k           = s->k,
                                     .a           = bf16 ? (const void *)a16 : a,
                                     .b           = bf16 ? (const void *)b16 : b,
                                     .c           = result });
}

static const lki_onednn_module *onednn;

static void run_onednn(void *self, const shape *s, bool bf16, float *result)
{
    lki_onednn_shape wanted = { .transpose_a   = s->ta,
                                .transpose_b   = s->tb,
                                .bf16_operands = bf16,
                                .m             = s->m,
                                .n             = s->n,
                                .k             = s->k,
                                .lda           = s->ta ? s->m : s->k,
                                .ldb           = s->tb ? s->k : s->n,
                                .ldc           = s->n };
    const char      *error  = onednn->gemm(self, &wanted, bf16 ? (const void *)a16 : a,
                                           bf16 ? (const void *)b16 : b, result);
    if (error != NULL) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
}

static lki_onednn *open_onednn(uint32_t threads)
{
    void       *module  = dlopen(LK_MODULE_FOLDER "/lockstep-onednn.so", RTLD_NOW);
    lki_onednn *library = NULL;
    if (module != NULL)
        onednn = dlsym(module, LKI_ONEDNN_SYMBOL);
    const char *error = onednn == NULL ? "no module: not installed (apt package libdnnl-dev)"
                                       : onednn->open(&library, threads);
    printf("oneDNN: %s\n", error != NULL ? error : onednn->identity(library));
    return library;
}

typedef struct {
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);
} openblas;

static void run_openblas(void *self, const shape *s, bool bf16, float *result)
{
    (void)bf16;
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    const openblas *blas = self;
    int             m = (int)s->m, n = (int)s->n, k = (int)s->k;
    blas->sgemm(ROW_MAJOR, s->ta ? TRANSPOSED : PLAIN, s->tb ? TRANSPOSED : PLAIN, m, n, k, 1.0f, a,
                s->ta ? m : k, b, s->tb ? k : n, 0.0f, result, n);
}

static openblas *open_openblas(openblas *blas, uint32_t threads)
{
    if (threads > 1) {
        printf("OpenBLAS: left out, as its threads would continue spinning in everybody's turns\n");
        return NULL;
    }
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("without OpenBLAS: not installed (apt package libopenblas0-pthread)\n");
        return NULL;
    }
    void (*set_threads)(int) = NULL;
    char *(*config)(void)    = NULL;
    *(void **)&set_threads   = dlsym(library, "openblas_set_num_threads");
    *(void **)&config        = dlsym(library, "openblas_get_config");
    *(void **)&blas->sgemm   = dlsym(library, "cblas_sgemm");
    if (set_threads == NULL || config == NULL || blas->sgemm == NULL) {
        printf("without OpenBLAS: libopenblas.so.0 is another library\n");
        return NULL;
    }
    set_threads(1);
    printf("OpenBLAS: %s\n", config());
    return blas;
}

/* ---- Peak -------------------------------------------------------------------------------- */

/* A loop over one micro-panel in the first-level cache, which measures the limit of the
 * arithmetic. */
typedef struct {
    const lki_gemm_kernels *kernels;
} peak_loop;
enum { PEAK_K = 96, PEAK_CALLS = 400, PEAK_ROOM = 1 << 16 };

static void peak_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    peak_loop     *l    = context;
    size_t         rows = l->kernels->rows, columns = l->kernels->columns;
    lki_gemm_block block = { .m          = rows,
                             .n          = columns,
                             .k          = PEAK_K,
                             .a          = a,
                             .row_stride = PEAK_K,
                             .b          = b,
                             .b_row      = columns,
                             .c          = c + index * 4096,
                             .ldc        = columns };
    for (int i = 0; i < PEAK_CALLS; i++)
        l->kernels->block(&block);
}

static double peak(lk_exec *exec, bool bf16)
{
    const lki_kernels *all = lki_exec_kernels(exec);
    peak_loop loop    = { bf16 ? all->bf16->gemm : all->gemm };
    size_t    threads = lk_exec_threads(exec);
    double    best    = 1e30;
    for (int i = 0; i < 20; i++) {
        double start = lki_seconds();
        lki_exec_run(exec, threads, peak_task, &loop);
        best = fmin(best, lki_seconds() - start);
    }
    return (bf16 ? 4e-9 : 2e-9) * (double)(threads * loop.kernels->rows * loop.kernels->columns) *
           PEAK_K * PEAK_CALLS / best;
}

/* ---- Turns ------------------------------------------------------------------------------- */

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, lki_by_value);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Returns the median of the seconds per call in a turn. */
static double turn(const party *p, const shape *s, bool bf16, float *result)
{
    static double took[CALLS];
    size_t        calls = 0;
    for (double began = lki_seconds(); lki_seconds() - began < WARM;)
        p->run(p->self, s, bf16, result);
    for (double began = lki_seconds(); lki_seconds() - began < COUNT && calls < CALLS; calls++) {
        double start = lki_seconds();
        p->run(p->self, s, bf16, result);
        took[calls] = lki_seconds() - start;
    }
    return median(took, calls);
}

static void verify(const party *p, const shape *s)
{
    for (size_t i = 0; i < s->m * s->n; i++)
        if (!(fabsf(c[i] - ours[i]) <= 1e-5f * (float)s->k)) {
            fprintf(stderr, "%s, %s: element %zu is %g, ours %g\n", p->name, s->use, i,
                    (double)c[i], (double)ours[i]);
            exit(1);
        }
}

static void measure(const party *parties, size_t count, const shape *s, bool bf16)
{
    double took[4][TURNS], ratio[4][TURNS], flops = 2e-9 * (double)(s->m * s->n * s->k);
    for (int t = 0; t < TURNS; t++)
        for (size_t i = 0; i < count; i++) {
            if (parties[i].self == NULL || (bf16 && !parties[i].has_bf16))
                continue;
            took[i][t]  = turn(&parties[i], s, bf16, i == 0 ? ours : c);
            ratio[i][t] = took[i][t] / took[0][t];
            if (i > 0)
                verify(&parties[i], s);
        }
    printf("%-4s %-14s %c%c %5zu %5zu %5zu  %8.1f", bf16 ? "bf16" : "f32", s->use,
           s->ta ? 't' : 'n', s->tb ? 't' : 'n', s->m, s->n, s->k, flops / median(took[0], TURNS));
    for (size_t i = 1; i < count; i++)
        if (parties[i].self == NULL || (bf16 && !parties[i].has_bf16))
            printf(" %8s %6s", "-", "-");
        else
            printf(" %8.1f %6.3f", flops / median(took[i], TURNS), median(ratio[i], TURNS));
    printf("\n");
    fflush(stdout);
}

static bool wanted(const shape *s)
{
    return strncmp(s->use, prefix, strlen(prefix)) == 0 &&
           (s->m * s->n <= LARGE || strcmp(s->use, prefix) == 0);
}

static lk_status make_operands(void)
{
    size_t most[3] = { 0, 0, 0 };
    for (size_t i = 0; i < SHAPES; i++)
        if (wanted(&shapes[i])) {
            const shape *s = &shapes[i];
            most[0]        = lki_max(most[0], s->m * s->k);
            most[1]        = lki_max(most[1], s->n * s->k);
            most[2]        = lki_max(most[2], s->m * s->n);
        }
    most[0] = lki_max(most[0], PEAK_ROOM); /* the loop for the peak also uses the matrices */
    most[1] = lki_max(most[1], PEAK_ROOM);
    most[2] = lki_max(most[2], PEAK_ROOM);
    LK_TRY(LKI_NEW(&a, most[0], "a"));
    LK_TRY(LKI_NEW(&b, most[1], "b"));
    LK_TRY(LKI_NEW(&a16, most[0], "a"));
    LK_TRY(LKI_NEW(&b16, most[1], "b"));
    LK_TRY(LKI_NEW(&c, most[2], "c"));
    LK_TRY(LKI_NEW(&ours, most[2], "c"));
    for (size_t i = 0; i < most[0]; i++) {
        a16[i] = lki_bf16_narrow((float)(i * 7919 % 1000) * 1e-3f - 0.5f);
        a[i]   = lki_bf16_widen(a16[i]);
    }
    for (size_t i = 0; i < most[1]; i++) {
        b16[i] = lki_bf16_narrow((float)(i * 104729 % 1000) * 1e-3f - 0.5f);
        b[i]   = lki_bf16_widen(b16[i]);
    }
    return LK_OK;
}

int main(int count, char **words)
{
    check_arguments(count, words, 0, 3);
    lk_exec *exec    = NULL;
    uint32_t threads = count > 1 ? (uint32_t)strtoul(words[1], NULL, 10) : 1;
    prefix           = count > 3 ? words[3] : "";
    if (lk_exec_open(&exec, threads, count > 2 ? words[2] : NULL) != LK_OK ||
        make_operands() != LK_OK) {
        fprintf(stderr, "%s\n", lk_error_last()->message);
        return 1;
    }
    openblas    blas      = { NULL };
    const party parties[] = {
        { "ours", run_ours, exec, true },
        { "oneDNN", run_onednn, open_onednn(threads), true },
        { "OpenBLAS", run_openblas, open_openblas(&blas, threads), false },
    };
    printf("ours: %s, %u threads, peak %.1f GFLOP/s in FP32, %.1f in bf16\n", lk_exec_isa(exec),
           threads, peak(exec, false), peak(exec, true));
    printf("%-4s %-14s %2s %5s %5s %5s  %8s %8s %6s %8s %6s\n", "type", "use", "", "m", "n", "k",
           "GFLOP/s", "oneDNN", "ratio", "OpenBLAS", "ratio");
    size_t rows = 0;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t i = 0; i < SHAPES; i++)
            if (wanted(&shapes[i])) {
                measure(parties, sizeof parties / sizeof parties[0], &shapes[i], bf16 == 1);
                rows++;
            }
    bool compared = parties[1].self != NULL || parties[2].self != NULL;
    if (rows == 0)
        fprintf(stderr, "gemm: no use begins with %s\n", prefix);
    else if (!compared)
        fprintf(stderr, "gemm: neither oneDNN nor OpenBLAS is here: nothing was compared\n");
    void *const all[] = { a, b, a16, b16, c, ours };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        lki_free(all[i]);
    lk_exec_free(exec);
    return rows > 0 && compared ? 0 : 1;
}
