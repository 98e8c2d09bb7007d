/* loss.c -- softmax cross-entropy (isa/softmax.inc) and losses of single elements
 * (isa/losses.inc).  Each task has some of the rows.
 *
 * Smoothing by s adds s times the mean of (wanted logit - logit) to the loss of a row, and
 * subtracts s (1 / classes - onehot) from its gradient.
 */
#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/ops.h"

enum { VALUES_PER_TASK = 16384 };

typedef struct {
    const lki_nn_kernels *kernels;
    lk_dtype              type;
    size_t                rows, classes, rows_per_task;
    char                 *logits;
    float                *loss;
    const int32_t        *targets;
    uint8_t              *hit;
    float                 gradient, smoothing;
} softmax_xent;

enum { SMOOTHED = 16 }; /* rows at a time with smoothing */

/* Computes up to SMOOTHED rows from row `first` on. */
static void smoothed_rows(const softmax_xent *s, size_t first, size_t rows)
{
    size_t bytes = s->classes * lk_dtype_bytes(s->type);
    float  more[SMOOTHED];
    for (size_t r = 0; r < rows; r++) {
        int32_t target = s->targets[first + r];
        more[r] = target < 0 ? 0
                             : s->kernels->smooth_mean(s->type, s->classes,
                                                       s->logits + (first + r) * bytes,
                                                       (size_t)target);
    }
    s->kernels->softmax_xent(s->type, rows, s->classes, s->logits + first * bytes,
                             s->targets + first, s->loss + first, s->hit + first,
                             s->gradient != 0);
    for (size_t r = 0; r < rows; r++) {
        int32_t target = s->targets[first + r];
        s->loss[first + r] += s->smoothing * more[r];
        if (target >= 0 && s->gradient != 0)
            s->kernels->smooth_gradient(s->type, s->classes, s->logits + (first + r) * bytes,
                                        (size_t)target, s->smoothing);
    }
}

static void softmax_xent_task(void *context, size_t index, uint32_t thread)
{
    const softmax_xent *s = context;
    size_t first = index * s->rows_per_task, last = lki_min(first + s->rows_per_task, s->rows);
    (void)thread;
    void *logits = s->logits + first * s->classes * lk_dtype_bytes(s->type);
    if (s->smoothing == 0)
        s->kernels->softmax_xent(s->type, last - first, s->classes, logits, s->targets + first,
                                 s->loss + first, s->hit + first, s->gradient != 0);
    else
        for (size_t r = first; r < last; r += SMOOTHED)
            smoothed_rows(s, r, lki_min(SMOOTHED, last - r));
    if (s->gradient != 0 && s->gradient != 1)
        s->kernels->scale((last - first) * s->classes, s->gradient, logits);
}

void lki_softmax_xent(lk_exec *exec, lk_dtype type, size_t rows, size_t classes, void *logits,
                      const int32_t *targets, float *loss, uint8_t *hit, float gradient,
                      float smoothing)
{
    LK_ASSERT(type == LK_F32 || gradient == 0 || gradient == 1);
    softmax_xent s = {
        .kernels       = lki_exec_kernels(exec)->nn,
        .type          = type,
        .rows          = rows,
        .classes       = classes,
        .rows_per_task = lki_max(1, VALUES_PER_TASK / lki_max(1, classes)),
        .logits        = logits,
        .loss          = loss,
        .targets       = targets,
        .hit           = hit,
        .gradient      = gradient,
        .smoothing     = smoothing,
    };
    lki_pool_run(lki_exec_pool(exec), (rows + s.rows_per_task - 1) / s.rows_per_task,
                 softmax_xent_task, &s);
}

/* ---- Losses of single elements ----------------------------------------------------------- */

typedef struct {
    const lki_nn_kernels   *kernels;
    const lki_element_loss *how;
    lk_dtype                type;
    size_t                  n;
    char                   *x;
    const float            *targets;
    float                  *loss;
    uint8_t                *hit;
    float                   gradient;
} element_losses;

static void element_losses_task(void *context, size_t index, uint32_t thread)
{
    const element_losses *e = context;
    size_t                i = index * VALUES_PER_TASK;
    (void)thread;
    e->kernels->element_loss(e->type, e->how, lki_min(VALUES_PER_TASK, e->n - i),
                             e->x + i * lk_dtype_bytes(e->type), e->targets + i, e->loss + i,
                             e->hit + i, e->gradient);
}

void lki_element_losses(lk_exec *exec, lk_dtype type, const lki_element_loss *how, size_t n,
                        void *x, const float *targets, float *loss, uint8_t *hit, float gradient)
{
    LK_ASSERT(type == LK_F32 || gradient == 0 || gradient == 1);
    element_losses e = { lki_exec_kernels(exec)->nn, how, type, n, x, targets, loss, hit,
                         gradient };
    lki_pool_run(lki_exec_pool(exec), (n + VALUES_PER_TASK - 1) / VALUES_PER_TASK,
                 element_losses_task, &e);
}
