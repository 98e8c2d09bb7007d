/* bench/decode.c -- generation of text for one stream, beside the bandwidth of the memory.
 *
 * Usage: decode [THREADS [gpt|llama [fp32|bf16 [TOKENS]]]]      default: 2 llama fp32 32
 *
 * Model:   GPT-2 124M, or a llama of about as many parameters (12 layers of 768, 12 heads, 4 of
 *          keys and values, tied), with random weights.  128 tokens are in the cache at first.
 * Method:  each turn sums all weights with all threads, and then generates a token.  A ratio is the
 *          median of the turns' ratios: the time of reading the weights, divided by the time of the
 *          token, with minimum and maximum in brackets.  1 is the bound of one stream, because a
 *          token needs all weights.  With one thread times are processor times, so other
 *          processes disturb less.
 * Output:  parameters, bytes, GB/s of reading, ms and tokens per second, ratio.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/sort.h"
#include "lockstep/models.h"
#include "tensor/ops.h"
#include "usage.h"

enum { PROMPT = 128, VOCABULARY = 50257, PIECES = 256, TOKENS_MAX = 512 };

typedef struct {
    lk_exec         *exec;
    lk_model        *model;
    lk_engine       *engine;
    const float    **params;
    const uint16_t **params_bf16;
    unsigned char   *memory;
    size_t           bytes, padded;
    uint64_t         sums[PIECES];
} bench;

static double now_s(const bench *b)
{
    struct timespec t;
    clock_gettime(lk_exec_threads(b->exec) == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(lk_status status)
{
    if (status == LK_OK)
        return;
    fprintf(stderr, "decode: %s\n", lk_error_last()->message);
    exit(1);
}

static void build(bench *b, const char *name)
{
    lk_model_options options = { .struct_size = sizeof options, .input = { 1, { 1024 } },
                                 .tokens = true, .classes = VOCABULARY, .logits = true,
                                 .layers = 12, .heads = 12, .width = 768, .tie = true };
    if (strcmp(name, "llama") == 0)
        options.kv_heads = 4;
    must(lk_model_build(&b->model, name, &options));
}

/* Fills the weights with small numbers.  The memory has them one after another. */
static void fill(bench *b, bool bf16)
{
    uint32_t        count, word = 1;
    const lk_param *params = lk_model_params(b->model, &count);
    must(LKI_NEW(&b->params, count, "parameters"));
    must(LKI_NEW(&b->params_bf16, count, "parameters"));
    must(lki_alloc((void **)&b->memory,
                   lk_model_param_elements(b->model) * sizeof(float) + (size_t)count * LKI_LINE,
                   "parameters"));
    float *values;
    must(LKI_NEW(&values, lk_model_param_elements(b->model), "values"));
    for (uint32_t p = 0; p < count; p++) {
        size_t elements = lk_shape_count(params[p].shape);
        bool   narrow   = bf16 && params[p].bf16;
        for (size_t i = 0; i < elements; i++) {
            word      = word * 1664525U + 1013904223U;
            values[i] = 0.05F * ((float)(word >> 8) * 0x1p-23F - 1.0F);
        }
        unsigned char *to = b->memory + b->padded;
        if (narrow)
            lki_convert(b->exec, elements, LK_F32, values, LK_BF16, to);
        else
            memcpy(to, values, elements * sizeof(float));
        b->params[p]      = narrow ? NULL : (const float *)(const void *)to;
        b->params_bf16[p] = narrow ? (const uint16_t *)(const void *)to : NULL;
        b->bytes += elements * (narrow ? 2 : 4);
        b->padded += lki_round_up(elements * (narrow ? 2 : 4), LKI_LINE);
    }
    lki_free(values);
}

static void sum_piece(void *context, size_t i)
{
    bench          *b     = context;
    size_t          words = b->padded / sizeof(uint64_t);
    const uint64_t *from  = (const uint64_t *)(const void *)b->memory + i * words / PIECES;
    size_t          count = (i + 1) * words / PIECES - i * words / PIECES;
    uint64_t        sum[8] = { 0 };
    for (size_t k = 0; k + 8 <= count; k += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] += from[k + j];
    for (size_t j = 0; j < 8; j++)
        b->sums[i] += sum[j];
}

static double read_weights(bench *b)
{
    double began = now_s(b);
    lk_parallel_for(b->exec, PIECES, sum_piece, b);
    return now_s(b) - began;
}

static double generate(bench *b, uint32_t first, uint32_t count)
{
    int32_t tokens[PROMPT];
    lk_walk walk  = { .params = b->params, .params_bf16 = b->params_bf16 };
    lk_pass pass  = { .samples = 1, .first = first, .length = count, .x = tokens };
    double  began = now_s(b);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)((first + i) * 7919 % VOCABULARY);
    lk_engine_forward(b->engine, &walk, &pass, 1);
    b->sums[0] += (uint64_t)(lk_engine_output(b->engine, 0)[0] > 0);
    return now_s(b) - began;
}

int main(int argc, char **argv)
{
    static bench b;
    static double reads[TOKENS_MAX], times[TOKENS_MAX], ratios[TOKENS_MAX];
    check_arguments(argc, argv, 0, 4);
    uint32_t    threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    const char *name    = argc > 2 ? argv[2] : "llama";
    bool        bf16    = argc > 3 && strcmp(argv[3], "bf16") == 0;
    uint32_t    count   = argc > 4 ? (uint32_t)atoi(argv[4]) : 32;
    count               = count == 0 || count > TOKENS_MAX ? TOKENS_MAX : count;

    must(lk_exec_open(&b.exec, threads, NULL));
    build(&b, name);
    fill(&b, bf16);
    must(lk_engine_open_cached(&b.engine, b.model, b.exec, bf16 ? LK_BF16 : LK_F32, 1, PROMPT));
    (void)generate(&b, 0, PROMPT);
    (void)generate(&b, PROMPT, 1); /* the first token is not measured */
    for (uint32_t i = 0; i < count; i++) {
        reads[i]  = read_weights(&b);
        times[i]  = generate(&b, PROMPT + 1 + i, 1);
        ratios[i] = reads[i] / times[i];
    }
    qsort(reads, count, sizeof *reads, lki_by_value);
    qsort(times, count, sizeof *times, lki_by_value);
    qsort(ratios, count, sizeof *ratios, lki_by_value);
    printf("%s %s, %u threads, %s: %.1f million parameters, %.0f MB; reading %.2f GB/s; a token "
           "%.2f ms (%.1f tokens/s); ratio %.3f (%.3f to %.3f)%s\n",
           name, bf16 ? "bf16" : "fp32", threads, lk_exec_isa(b.exec),
           1e-6 * (double)lk_model_param_elements(b.model), 1e-6 * (double)b.bytes,
           1e-9 * (double)b.bytes / reads[count / 2], 1e3 * times[count / 2],
           1 / times[count / 2], ratios[count / 2], ratios[0], ratios[count - 1],
           b.sums[0] == 1 ? " " : "");
    lk_engine_free(b.engine);
    lk_model_free(b.model);
    lki_free(b.params);
    lki_free(b.params_bf16);
    lki_free(b.memory);
    lk_exec_free(b.exec);
    return 0;
}
