/* choose.c -- the instruction sets of this processor, and the choice of the fastest kernels.
 *
 * All instruction sets have the same bits, so rates decide.  Products of bf16 values have several
 * tables that run on the same processors: AMX, the instruction for pairs, and fma.  The fastest is
 * found by measuring a block of a product.  A wider table of the other kernels is never slower.
 */
#include "tensor/isa/choose.h"

#include <errno.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/file.h"
#include "base/memory.h"

typedef struct {
    const char                    *name;
    const lki_kernels             *kernels;
    const lki_bf16_kernels        *bf16;       /* NULL: those of `kernels` */
    const lki_gemm_kernels *const *gemm;       /* instead of those in `bf16`, unless NULL */
    bool                           on_request; /* only if it is named */
} table;

/* The tables of kernels, with the widest instruction set first. */
static const table tables[] = {
#if defined(__x86_64__)
    { "amx", &lki_kernels_avx512, NULL, &lki_gemm_amx, false },
    { "avx512_bf16", &lki_kernels_avx512, &lki_bf16_avx512, NULL, false },
    { "avx512", &lki_kernels_avx512, NULL, NULL, false },
    { "avx2", &lki_kernels_avx2, NULL, NULL, false },
#elif defined(__aarch64__)
    { "neon", &lki_kernels_neon, NULL, NULL, false },
#endif
    { "portable", &lki_kernels_portable, NULL, NULL, false },
    { "amx_emulated", &lki_kernels_portable, NULL, &lki_gemm_amx_emulated, true },
};
enum { TABLES = sizeof tables / sizeof tables[0] };

#if defined(__x86_64__)
/* Returns true if the processor's instructions for bf16 values compute the specified sums
 * (isa/gemm_chunks.inc).  The cases detect another order, products that are not rounded separately,
 * and subnormal operands and results that do not become zero. */
static bool multiplies_as_said(const lki_gemm_kernels *kernels)
{
    enum { ONE = 0x3f80, MINUS = 0xbf80, TINY = 0x3380 /* 2^-24 */, K = 8, WORDS = LKI_CHUNK / 2 };
    static const struct {
        uint16_t a[K], b[K];
        float    want;
    } cases[] = {
        { { ONE, 0, 0, 0, TINY, 0, MINUS }, { ONE, 0, 0, 0, ONE, 0, ONE }, 0.0f },
        { { ONE, TINY, MINUS }, { ONE, ONE, ONE }, 0x1p-24f },  /* in two chains */
        { { 0x0d80, 0, 0x0d80 }, { 0x3280, 0, 0xb200 }, 0.0f }, /* 2^-126 - 2^-127 */
        { { 0x0040 }, { 0x7f00 }, 0.0f },                       /* 2^-127 2^127 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float a[WORDS + LKI_GEMM_ROWS_MAX], b[WORDS * LKI_GEMM_COLUMNS_MAX], sum;
        kernels->pack_a(false, 1, K, cases[i].a, K, a);
        kernels->pack_b(true, 1, K, cases[i].b, K, b);
        kernels->block(&(lki_gemm_block){ .m          = 1,
                                          .n          = 1,
                                          .k          = lki_round_up(K / 2, kernels->unit),
                                          .a          = a,
                                          .row_stride = WORDS,
                                          .b          = b,
                                          .b_row      = kernels->columns,
                                          .c          = &sum,
                                          .ldc        = 1,
                                          .from_zero  = true });
        if (sum != cases[i].want)
            return false;
    }
    return true;
}

/* Returns true if the processor has AMX with bf16 and the operating system stores its registers. */
static bool has_amx(void)
{
    enum { OSXSAVE = 1 << 27, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, TILE_STATE = 3 << 17 };
    uint32_t a, b, c, d, low, high;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & OSXSAVE) == 0)
        return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & TILE_STATE) == TILE_STATE && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (d & AMX_BF16) != 0 && (d & AMX_TILE) != 0;
}

/* Asks the kernel to let this process use the tiles; errno says why not. */
static bool may_use_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool processor_has(const char *isa)
{
    __builtin_cpu_init();
    bool avx2   = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (strcmp(isa, "amx") == 0)
        return avx512 && has_amx() && may_use_amx() && multiplies_as_said(lki_gemm_amx);
    if (strcmp(isa, "avx512_bf16") == 0)
        return avx512 && __builtin_cpu_supports("avx512bf16") &&
               multiplies_as_said(lki_bf16_avx512.gemm);
    if (strcmp(isa, "avx512") == 0)
        return avx512;
    return strcmp(isa, "avx2") != 0 || avx2;
}
#else
static bool processor_has(const char *isa) /* every 64-bit ARM processor has neon */
{
    (void)isa;
    return true;
}
#endif

const char *lk_isa_name(uint32_t index)
{
    static const char *const names[] = {
        "amx", "avx512_bf16", "avx512", "avx2", "neon", "portable"
    };
    return index < sizeof names / sizeof names[0] ? names[index] : NULL;
}

static lki_bf16_kernels bf16_of(const table *t)
{
    lki_bf16_kernels bf16 = t->bf16 != NULL ? *t->bf16 : *t->kernels->bf16;
    if (t->gemm != NULL)
        bf16.gemm = *t->gemm;
    return bf16;
}

/* Operands for measurements.  The kernels may take any numbers that are not subnormal. */
enum { WORDS = 32, REPEATS = 16 };
typedef struct {
    float a[LKI_GEMM_ROWS_MAX * WORDS], b[LKI_GEMM_COLUMNS_MAX * WORDS];
    float c[LKI_GEMM_ROWS_MAX * LKI_GEMM_COLUMNS_MAX];
} operands;

/* Computes a block of a product of bf16 values. */
static void multiply(const lki_bf16_kernels *bf16, operands *o)
{
    bf16->gemm->block(&(lki_gemm_block){ .m          = LKI_GEMM_ROWS_MAX,
                                         .n          = LKI_GEMM_COLUMNS_MAX,
                                         .k          = WORDS,
                                         .a          = o->a,
                                         .row_stride = WORDS,
                                         .b          = o->b,
                                         .b_panel    = WORDS * bf16->gemm->columns,
                                         .b_row      = bf16->gemm->columns,
                                         .c          = o->c,
                                         .ldc        = LKI_GEMM_COLUMNS_MAX });
}

static double time_of(const lki_bf16_kernels *bf16, operands *o)
{
    double begun = lki_seconds();
    for (int i = 0; i < REPEATS; i++)
        multiply(bf16, o);
    return lki_seconds() - begun;
}

/* Returns true if `next` takes clearly less time than `now`.  Compares the shortest of several
 * times, which are hardly longer on a busy machine than on an idle one.  The margin keeps noise
 * from deciding. */
static bool is_faster(const lki_bf16_kernels *next, const lki_bf16_kernels *now)
{
    enum { TRIES = 16 };
    const double margin = 1.1;
    operands     o;
    double       of_next = 1, of_now = 1;

    memset(&o, 0, sizeof o);
    for (int i = 0; i < TRIES; i++) {
        double took = time_of(next, &o);
        of_next     = took < of_next ? took : of_next;
        took        = time_of(now, &o);
        of_now      = took < of_now ? took : of_now;
    }
    return margin * of_next < of_now;
}

/* Replaces kernels by faster ones of the following tables.  Tables qualify if their other kernels
 * are the same. */
static void take_faster(lki_choice *choice, size_t first)
{
    for (size_t i = first + 1; i < TABLES && tables[i].kernels == choice->kernels; i++) {
        if (tables[i].on_request || !processor_has(tables[i].name))
            continue;
        lki_bf16_kernels next = bf16_of(&tables[i]);
        if (is_faster(&next, &choice->bf16)) {
            choice->name        = tables[i].name;
            choice->bf16 = next;
        }
    }
}

static lk_status refuse(const char *isa)
{
    for (uint32_t i = 0; lk_isa_name(i) != NULL; i++) {
        if (strcmp(isa, lk_isa_name(i)) != 0)
            continue;
#if defined(__x86_64__)
        if (strcmp(isa, "amx") == 0 && has_amx() && !may_use_amx())
            return lk_fail(LK_EUNSUPPORTED,
                           "isa amx: the kernel or a sandbox refuses its use: %s; "
                           "leave it out to take the fastest there is (no bit of a "
                           "result depends on it)",
                           strerror(errno));
#endif
        return lk_fail(LK_EUNSUPPORTED,
                       "isa %s: this processor lacks it; leave it out to take the "
                       "fastest there is (no bit of a result depends on it)",
                       isa);
    }
    return lk_fail(LK_EINVAL,
                   "isa %s: not one of amx, avx512_bf16, avx512, avx2, neon, portable, "
                   "amx_emulated, auto",
                   isa);
}

lk_status lki_choose_kernels(lki_choice *out, const char *isa)
{
    bool any = isa == NULL || strcmp(isa, "auto") == 0;
    for (size_t i = 0; i < TABLES; i++) {
        bool wanted = any ? !tables[i].on_request : strcmp(isa, tables[i].name) == 0;
        if (!wanted || !processor_has(tables[i].name))
            continue;
        *out = (lki_choice){ tables[i].name, tables[i].kernels, bf16_of(&tables[i]) };
        if (any)
            take_faster(out, i);
        return LK_OK;
    }
    return refuse(isa);
}
