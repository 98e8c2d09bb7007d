/* embedding.c -- embeddings: a table row by token plus a table row by position, and the gradients.
 *
 * Forward is a copy and an addition, and its work is divided by positions.  Backward scatters,
 * because two positions with the same token add to the same row.  There are no atomics: every
 * thread owns a block of columns and processes all positions in order.  So each element of a table
 * is one chain of additions that continues from the contents of the buffer.
 *
 * In bf16 both rows are rounded before the addition, as a product rounds its weights.  So a table
 * may be stored as bf16, and a table shared with the head has the same values in both uses.
 *
 * Cost: memory traffic only.  The results do not depend on the instruction set, so there are no
 * kernels; the compiler vectorises the loops.
 */
#include <string.h>

#include "base/memory.h"
#include "device/half.h"
#include "tensor/ops.h"
#include "tensor/isa/kernels.h"

enum {
    ROWS_PER_TASK    = 32,
    COLUMNS_PER_TASK = 64, /* two to four cache lines of a row, so that several threads have work */
    PIECE            = 256, /* values of a row that are in FP32 at the same time */
};

typedef struct {
    lk_dtype       type;
    size_t         b, t, c;
    const int32_t *tokens;
    lki_table      wte, wpe;
    const void    *dy;
    void          *y;
    float         *dwte, *dwpe;
} embedding;

/* Loads n values of a table from element `at` on, rounded to bf16 if results are bf16. */
static void load(lk_dtype type, const lki_table *table, size_t at, size_t n, float *row)
{
    const uint16_t *narrow = (const uint16_t *)table->values + at;
    const float    *wide   = (const float *)table->values + at;
    if (table->type == LK_BF16)
        for (size_t i = 0; i < n; i++)
            row[i] = lki_bf16_widen(narrow[i]);
    else if (type == LK_BF16)
        for (size_t i = 0; i < n; i++)
            row[i] = lki_bf16_widen(lki_bf16_narrow(wide[i]));
    else
        memcpy(row, wide, n * sizeof *row);
}

static void store(lk_dtype type, size_t n, const float *row, void *y, size_t at)
{
    uint16_t *narrow = (uint16_t *)y + at;
    float    *wide   = (float *)y + at;
    if (type == LK_BF16)
        for (size_t i = 0; i < n; i++)
            narrow[i] = lki_bf16_narrow(row[i]);
    else
        memcpy(wide, row, n * sizeof *row);
}

static void forward_row(const embedding *e, size_t row)
{
    float sum[PIECE], more[PIECE];
    for (size_t first = 0; first < e->c; first += PIECE) {
        size_t n = lki_min(PIECE, e->c - first);
        load(e->type, &e->wte, (size_t)e->tokens[row] * e->c + first, n, sum);
        if (e->wpe.values != NULL) {
            load(e->type, &e->wpe, row % e->t * e->c + first, n, more);
            for (size_t i = 0; i < n; i++)
                sum[i] += more[i];
        }
        store(e->type, n, sum, e->y, row * e->c + first);
    }
}

static void forward_task(void *context, size_t index, uint32_t thread)
{
    const embedding *e = context;
    size_t first = index * ROWS_PER_TASK, last = lki_min(first + ROWS_PER_TASK, e->b * e->t);
    (void)thread;
    for (size_t row = first; row < last; row++)
        forward_row(e, row);
}

void lki_embedding(lk_exec *exec, lk_dtype type, size_t b, size_t t, size_t c,
                   const int32_t *tokens, lki_table wte, lki_table wpe, void *y)
{
    embedding e = { .type = type, .b = b, .t = t, .c = c, .tokens = tokens, .wte = wte,
                    .wpe = wpe, .y = y };
    lki_pool_run(lki_exec_pool(exec), (b * t + ROWS_PER_TASK - 1) / ROWS_PER_TASK, forward_task,
                 &e);
}

/* Adds n values from element `at` on to `sums`. */
static void add_to(lk_dtype type, size_t n, const void *values, size_t at, float *sums)
{
    const uint16_t *narrow = (const uint16_t *)values + at;
    const float    *wide   = (const float *)values + at;
    if (type == LK_BF16)
        for (size_t i = 0; i < n; i++)
            sums[i] += lki_bf16_widen(narrow[i]);
    else
        for (size_t i = 0; i < n; i++)
            sums[i] += wide[i];
}

static void backward_task(void *context, size_t index, uint32_t thread)
{
    const embedding *e = context;
    size_t first = index * COLUMNS_PER_TASK, count = lki_min(COLUMNS_PER_TASK, e->c - first);
    (void)thread;

    for (size_t row = 0; row < e->b * e->t; row++) {
        size_t at = row * e->c + first;
        add_to(e->type, count, e->dy, at, e->dwte + (size_t)e->tokens[row] * e->c + first);
        if (e->dwpe != NULL)
            add_to(e->type, count, e->dy, at, e->dwpe + row % e->t * e->c + first);
    }
}

void lki_embedding_backward(lk_exec *exec, lk_dtype type, size_t b, size_t t, size_t c,
                            const int32_t *tokens, const void *dy, float *dwte, float *dwpe)
{
    embedding e = { .type = type, .b = b, .t = t, .c = c, .tokens = tokens, .dy = dy,
                    .dwte = dwte, .dwpe = dwpe };
    lki_pool_run(lki_exec_pool(exec), (c + COLUMNS_PER_TASK - 1) / COLUMNS_PER_TASK,
                 backward_task, &e);
}
