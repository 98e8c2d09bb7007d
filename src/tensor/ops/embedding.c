/* embedding.c -- rows of a table by token, plus a row by position; and the way back.
 *
 * Forward is a copy and an addition, split over positions.  Backward scatters: two positions
 * with the same token add to the same row.  Instead of atomics every thread owns a block of
 * columns and walks all positions in order, so each element of a table is one chain of
 * additions that continues from what the buffer holds.
 *
 * Cost: bytes only.  Nothing here rounds differently on another instruction set, so there are
 * no kernels: the compiler's own vectors do.
 */
#include "base/memory.h"
#include "tensor/ops.h"

enum {
    ROWS_PER_TASK    = 32,
    COLUMNS_PER_TASK = 64, /* four cache lines of a row: narrow enough for several threads */
};

typedef struct {
    size_t         b, t, c;
    const int32_t *tokens;
    const float   *wte, *wpe, *dy;
    float         *y, *dwte, *dwpe;
} embedding;

static void forward_task(void *context, size_t index, uint32_t thread)
{
    const embedding *e = context;
    size_t first = index * ROWS_PER_TASK, last = lki_min(first + ROWS_PER_TASK, e->b * e->t);
    (void)thread;

    for (size_t row = first; row < last; row++) {
        const float *token = e->wte + (size_t)e->tokens[row] * e->c;
        float       *y     = e->y + row * e->c;
        if (e->wpe == NULL) {
            for (size_t i = 0; i < e->c; i++)
                y[i] = token[i];
            continue;
        }
        const float *position = e->wpe + row % e->t * e->c;
        for (size_t i = 0; i < e->c; i++)
            y[i] = token[i] + position[i];
    }
}

void lki_embedding(lk_exec *exec, size_t b, size_t t, size_t c, const int32_t *tokens,
                   const float *wte, const float *wpe, float *y)
{
    embedding e = { .b = b, .t = t, .c = c, .tokens = tokens, .wte = wte, .wpe = wpe, .y = y };
    lki_pool_run(lki_exec_pool(exec), (b * t + ROWS_PER_TASK - 1) / ROWS_PER_TASK, forward_task,
                 &e);
}

static void backward_task(void *context, size_t index, uint32_t thread)
{
    const embedding *e = context;
    size_t first = index * COLUMNS_PER_TASK, count = lki_min(COLUMNS_PER_TASK, e->c - first);
    (void)thread;

    for (size_t row = 0; row < e->b * e->t; row++) {
        const float *dy    = e->dy + row * e->c + first;
        float       *token = e->dwte + (size_t)e->tokens[row] * e->c + first;
        for (size_t i = 0; i < count; i++)
            token[i] += dy[i];
        if (e->dwpe == NULL)
            continue;
        float *position = e->dwpe + row % e->t * e->c + first;
        for (size_t i = 0; i < count; i++)
            position[i] += dy[i];
    }
}

void lki_embedding_backward(lk_exec *exec, size_t b, size_t t, size_t c, const int32_t *tokens,
                            const float *dy, float *dwte, float *dwpe)
{
    embedding e = { .b = b, .t = t, .c = c, .tokens = tokens, .dy = dy, .dwte = dwte,
                    .dwpe = dwpe };
    lki_pool_run(lki_exec_pool(exec), (c + COLUMNS_PER_TASK - 1) / COLUMNS_PER_TASK,
                 backward_task, &e);
}
