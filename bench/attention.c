/* bench/attention.c -- Lockstep's side of bench/attention: causal attention, timed on request.
 *
 * Usage: attention THREADS [ISA [fp32|bf16]].  Prints "ready ISA".  Then, for each line "B T HEADS
 * SIZE CALLS [KV_HEADS]" of stdin, prints the medians of CALLS forward and CALLS backward passes in
 * microseconds.
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

typedef struct {
    lk_exec            *exec;
    lki_attention_shape shape;
    bool                bf16;
    float              *qkv, *y, *lse, *dy, *dqkv; /* memory for FP32; bf16 uses the first half */
    void               *scratch;
} bench;

static void forward(const bench *b)
{
    lki_attention_input x = lki_attention_packed(&b->shape, b->bf16 ? LK_BF16 : LK_F32, b->qkv);
    if (b->bf16)
        lki_attention_bf16(b->exec, &b->shape, x, (void *)b->y, b->lse, b->scratch);
    else
        lki_attention(b->exec, &b->shape, x, b->y, b->lse, b->scratch);
}

static void backward(const bench *b)
{
    lk_dtype               type = b->bf16 ? LK_BF16 : LK_F32;
    lki_attention_input    x    = lki_attention_packed(&b->shape, type, b->qkv);
    lki_attention_gradient dx   = lki_attention_packed_gradient(&b->shape, type, b->dqkv, false);
    if (b->bf16)
        lki_attention_bf16_backward(b->exec, &b->shape, x, (void *)b->y, b->lse, (void *)b->dy, dx,
                                    b->scratch);
    else
        lki_attention_backward(b->exec, &b->shape, x, b->y, b->lse, b->dy, dx, b->scratch);
}

static double median_us(const bench *b, void (*pass)(const bench *b), double *times, size_t calls)
{
    pass(b); /* the first pass is not measured */
    for (size_t i = 0; i < calls; i++) {
        double began = lki_seconds();
        pass(b);
        times[i] = 1e6 * (lki_seconds() - began);
    }
    qsort(times, calls, sizeof *times, lki_by_value);
    return times[calls / 2];
}

static void fill(float *x, size_t n, bool bf16)
{
    uint32_t word = 1;
    for (size_t i = 0; i < n; i++) {
        word = word * 1664525u + 1013904223u;
        float value = (float)(word >> 8) * 0x1p-23f - 1.0f;
        if (bf16)
            ((uint16_t *)(void *)x)[i] = lki_bf16_narrow(value);
        else
            x[i] = value;
    }
}

static lk_status measure(lk_exec *exec, lki_attention_shape shape, bool bf16, size_t calls)
{
    size_t  rows  = shape.b * shape.t;
    bench   b     = { .exec = exec, .shape = shape, .bf16 = bf16 };
    double *times = NULL;
    char   *scratch = NULL;

    lk_status st = LKI_NEW(&b.qkv, rows * 3 * shape.c, "qkv");
    if (st == LK_OK)
        st = LKI_NEW(&b.dqkv, rows * 3 * shape.c, "dqkv");
    if (st == LK_OK)
        st = LKI_NEW(&b.y, rows * shape.c, "y");
    if (st == LK_OK)
        st = LKI_NEW(&b.dy, rows * shape.c, "dy");
    if (st == LK_OK)
        st = LKI_NEW(&b.lse, rows * shape.heads, "lse");
    if (st == LK_OK)
        st = LKI_NEW(&times, calls, "times");
    if (st == LK_OK)
        st = LKI_NEW(&scratch, bf16 ? lki_attention_bf16_scratch_bytes(exec, &shape)
                                     : lki_attention_scratch_bytes(exec, &shape), "scratch");
    if (st == LK_OK) {
        b.scratch = scratch;
        fill(b.qkv, rows * 3 * shape.c, bf16);
        fill(b.dy, rows * shape.c, bf16);
        double ahead = median_us(&b, forward, times, calls);
        printf("%.2f %.2f\n", ahead, median_us(&b, backward, times, calls));
        fflush(stdout);
    }
    lki_free(b.qkv);
    lki_free(b.dqkv);
    lki_free(b.y);
    lki_free(b.dy);
    lki_free(b.lse);
    lki_free(times);
    lki_free(scratch);
    return st;
}

int main(int count, char **words)
{
    check_arguments(count, words, 0, 3);
    lk_exec  *exec    = NULL;
    uint32_t  threads = count > 1 ? (uint32_t)strtoul(words[1], NULL, 10) : 1;
    lk_status st      = lk_exec_open(&exec, threads, count > 2 ? words[2] : NULL);
    bool      bf16    = count > 3 && strcmp(words[3], "bf16") == 0;
    char      line[128];

    if (st == LK_OK) {
        printf("ready %s\n", lk_exec_isa(exec));
        fflush(stdout);
    }
    while (st == LK_OK && fgets(line, sizeof line, stdin) != NULL) {
        char  *at = line;
        size_t number[6];
        for (size_t i = 0; i < 6; i++)
            number[i] = strtoul(at, &at, 10); /* kv_heads: 0 if absent */
        lki_attention_shape shape = { .b = number[0], .t = number[1], .c = number[2] * number[3],
                                      .heads = number[2], .kv_heads = number[5] };
        st = measure(exec, shape, bf16, number[4]);
    }
    if (st != LK_OK)
        fprintf(stderr, "attention: %s\n", lk_error_last()->message);
    lk_exec_free(exec);
    return st == LK_OK ? 0 : 1;
}
