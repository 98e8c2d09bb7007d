/* loss.c -- softmax cross-entropy (isa/softmax.inc).  Each task has some of the rows. */
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
    float                 gradient;
} softmax_xent;

static void softmax_xent_task(void *context, size_t index, uint32_t thread)
{
    const softmax_xent *s = context;
    size_t first = index * s->rows_per_task, last = lki_min(first + s->rows_per_task, s->rows);
    (void)thread;
    void *logits = s->logits + first * s->classes * lk_dtype_bytes(s->type);
    s->kernels->softmax_xent(s->type, last - first, s->classes, logits, s->targets + first,
                             s->loss + first, s->hit + first, s->gradient != 0);
    if (s->gradient != 0 && s->gradient != 1)
        s->kernels->scale((last - first) * s->classes, s->gradient, logits);
}

void lki_softmax_xent(lk_exec *exec, lk_dtype type, size_t rows, size_t classes, void *logits,
                      const int32_t *targets, float *loss, uint8_t *hit, float gradient)
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
    };
    lki_pool_run(lki_exec_pool(exec), (rows + s.rows_per_task - 1) / s.rows_per_task,
                 softmax_xent_task, &s);
}
