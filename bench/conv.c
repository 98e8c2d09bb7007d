/* bench/conv.c -- Lockstep's side of bench/conv: measures the time of convolutions.
 *
 * Prints "ready ISA", then reads one measurement per line and answers with the median of the calls
 * in milliseconds:
 *
 *     forward|input|weights N H W CIN COUT KERNEL STRIDE PAD SECONDS
 *
 *     conv [THREADS] [ISA] [fp32|bf16]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/sort.h"
#include "device/half.h"
#include "tensor/exec.h"
#include "usage.h"

enum { CALLS_MAX = 1000 };

typedef struct {
    lki_conv_shape shape;
    bool           bf16;
    float         *x, *w, *y; /* memory for FP32; in bf16 x and y use the first half */
    void          *scratch;
} conv;

static lk_status values_new(float **out, size_t count, bool bf16)
{
    LK_TRY(LKI_NEW(out, count, "values"));
    for (size_t i = 0; i < count; i++) {
        float value = (float)(i * 7919 % 1000) * 1e-3f - 0.5f;
        if (bf16)
            ((uint16_t *)(void *)*out)[i] = lki_bf16_narrow(value);
        else
            (*out)[i] = value;
    }
    return LK_OK;
}

static lk_status conv_init(conv *c, const lk_exec *exec)
{
    const lki_conv_shape *s = &c->shape;
    LK_TRY(values_new(&c->x, s->n * s->h * s->w * s->cin, c->bf16));
    LK_TRY(values_new(&c->w, s->cout * s->cin * s->kh * s->kw, false));
    LK_TRY(values_new(&c->y, s->n * s->oh * s->ow * s->cout, c->bf16));
    return lki_alloc(&c->scratch,
                     c->bf16 ? lki_conv_bf16_scratch_bytes(exec, s, 1)
                             : lki_conv_scratch_bytes(exec, s, 1), "scratch memory");
}

static void conv_deinit(conv *c)
{
    lki_free(c->x);
    lki_free(c->w);
    lki_free(c->y);
    lki_free(c->scratch);
}

static void call_f32(const conv *c, lk_exec *exec, const char *what)
{
    if (strcmp(what, "forward") == 0)
        lki_conv(exec, &c->shape, c->x, c->w, c->y, c->scratch, NULL);
    else if (strcmp(what, "input") == 0)
        lki_conv_backward_input(exec, &c->shape, c->y, c->w, c->x, false, c->scratch, NULL);
    else
        lki_conv_backward_weights(exec, &c->shape, c->x, c->y, c->w, true, NULL, c->scratch);
}

static void call_bf16(const conv *c, lk_exec *exec, const char *what)
{
    void *x = c->x, *y = c->y;
    if (strcmp(what, "forward") == 0)
        lki_conv_bf16(exec, &c->shape, x, c->w, y, c->scratch, NULL);
    else if (strcmp(what, "input") == 0)
        lki_conv_bf16_backward_input(exec, &c->shape, y, c->w, x, false, c->scratch, NULL);
    else
        lki_conv_bf16_backward_weights(exec, &c->shape, x, y, c->w, true, NULL, c->scratch);
}

static double median_ms(const conv *c, lk_exec *exec, const char *what, double seconds)
{
    void (*call)(const conv *, lk_exec *, const char *) = c->bf16 ? call_bf16 : call_f32;
    static double took[CALLS_MAX];
    size_t        calls = 0;
    call(c, exec, what);
    for (double began = lki_seconds();
         calls < 3 || (calls < CALLS_MAX && lki_seconds() - began < seconds);) {
        double start = lki_seconds();
        call(c, exec, what);
        took[calls++] = lki_seconds() - start;
    }
    qsort(took, calls, sizeof *took, lki_by_value);
    return 1e3 * took[calls / 2];
}

int main(int count, char **words)
{
    check_arguments(count, words, 0, 3);
    lk_exec *exec = NULL;
    char     what[16];
    size_t   kernel;
    double   seconds;
    conv     c       = { 0 };
    bool     bf16    = count > 3 && strcmp(words[3], "bf16") == 0;
    uint32_t threads = count > 1 ? (uint32_t)strtoul(words[1], NULL, 10) : 1;
    bool     good    = lk_exec_open(&exec, threads, count > 2 ? words[2] : NULL) == LK_OK;

    if (good)
        printf("ready %s\n", lk_exec_isa(exec));
    fflush(stdout);
    while (good && scanf("%15s %zu %zu %zu %zu %zu %zu %zu %zu %lf", what, &c.shape.n, &c.shape.h,
                         &c.shape.w, &c.shape.cin, &c.shape.cout, &kernel, &c.shape.stride,
                         &c.shape.pad, &seconds) == 10) {
        lki_conv_shape *s = &c.shape;
        c.bf16 = bf16;
        s->kh = s->kw = kernel;
        s->oh         = (s->h + 2 * s->pad - kernel) / s->stride + 1;
        s->ow         = (s->w + 2 * s->pad - kernel) / s->stride + 1;
        good          = conv_init(&c, exec) == LK_OK;
        if (good)
            printf("%.4f\n", median_ms(&c, exec, what, seconds));
        fflush(stdout);
        conv_deinit(&c);
        c = (conv){ 0 };
    }
    if (!good)
        fprintf(stderr, "%s\n", lk_error_last()->message);
    lk_exec_free(exec);
    return good ? 0 : 1;
}
