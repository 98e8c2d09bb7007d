/* param.c -- initial values, norms and updates of parameters.
 *
 * The factors of an update are computed in double, as in the host code of the frameworks, and
 * rounded to float once.  Elements are updated with floats only.
 */
#include <string.h>

#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"

typedef struct {
    const lki_param_kernels *kernels;
    uint64_t                 seed;
    uint32_t                 index;
    const lk_param          *param;
    size_t                   first, n;
    float                   *y;
} initial;

/* Computes the values of LKI_GRAIN elements, except those outside the range.  The first element is
 * a multiple of LKI_GRAIN. */
static void init_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const initial *w     = context;
    size_t         grain = (w->first / LKI_GRAIN + index) * LKI_GRAIN;
    size_t         begin = lki_max(grain, w->first);
    size_t         end   = lki_min(grain + LKI_GRAIN, w->first + w->n);

    for (size_t at = begin / 64 * 64; at < end; at += 64) {
        float  value[64];
        size_t low = lki_max(at, begin), high = lki_min(at + 64, end);
        w->kernels->init64(w->seed, w->index, w->param->init, w->param->scale, at, value);
        memcpy(w->y + (low - w->first), value + (low - at), (high - low) * sizeof *value);
    }
}

void lki_init_param(lk_exec *exec, uint64_t seed, uint32_t index, const lk_param *param,
                    size_t first, size_t n, float *y)
{
    if (n == 0)
        return;
    if (param->init == LK_INIT_ZERO || param->init == LK_INIT_ONE) {
        lki_fill(exec, n, param->init == LK_INIT_ONE ? 1.0f : 0.0f, y);
        return;
    }
    initial work = { lki_exec_kernels(exec)->param, seed, index, param, first, n, y };
    lki_exec_run(exec, (first + n - 1) / LKI_GRAIN - first / LKI_GRAIN + 1, init_task, &work);
}

double lki_block_sum_squares(const lk_exec *exec, size_t n, const float *x)
{
    double sum;
    lki_block_sums_squares(exec, 1, &n, &x, &sum);
    return sum;
}

void lki_block_sums_squares(const lk_exec *exec, size_t count, const size_t *n,
                            const float *const *x, double *sums)
{
    for (size_t i = 0; i < count; i++)
        LK_ASSERT(n[i] <= LKI_NORM_BLOCK);
    lki_exec_kernels(exec)->param->sum_squares(count, n, x, sums);
}

double lki_tree_sum_f64(const double *x, size_t n)
{
    if (n <= 1)
        return n == 0 ? 0.0 : x[0];
    size_t left = 1;
    while (2 * left < n)
        left *= 2;
    return lki_tree_sum_f64(x, left) + lki_tree_sum_f64(x + left, n - left);
}

static lki_adamw_factors factors_of(const lki_adamw_step *step)
{
    return (lki_adamw_factors){
        .scale = step->scale,
        .clip  = step->clip,
        .keep  = (float)(1.0 - step->lr * step->weight_decay),
        .mix1  = (float)(1.0 - step->beta1),
        .beta2 = (float)step->beta2,
        .mix2  = (float)(1.0 - step->beta2),
        .rate  = (float)(step->lr / step->correction1),
        .root2 = (float)step->correction2_sqrt,
        .eps   = (float)step->eps,
        .lift1 = (float)(1.0 / step->correction1),
        .decay = (float)step->weight_decay,
    };
}

void lki_adamw(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
               float *m, float *v)
{
    lki_adamw_factors factors = factors_of(step);
    lki_exec_kernels(exec)->param->adamw(&factors, n, g, p, m, v);
}

void lki_sgd(const lk_exec *exec, const lki_sgd_step *step, size_t n, const float *g, float *p,
             float *b)
{
    LK_ASSERT(b != NULL || step->momentum == 0.0f);
    lki_exec_kernels(exec)->param->sgd(step, n, g, p, b);
}

void lki_lamb_direction(const lk_exec *exec, const lki_adamw_step *step, size_t n, float *g,
                        const float *p, float *m, float *v)
{
    lki_adamw_factors factors = factors_of(step);
    lki_exec_kernels(exec)->param->lamb_direction(&factors, n, g, p, m, v);
}

void lki_descend(const lk_exec *exec, float rate, size_t n, const float *u, float *p)
{
    lki_exec_kernels(exec)->param->descend(rate, n, u, p);
}

void lki_lion(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
              float *m)
{
    lki_adamw_factors factors = factors_of(step);
    factors.rate              = (float)step->lr;
    lki_exec_kernels(exec)->param->lion(&factors, n, g, p, m);
}

void lki_adagrad(const lk_exec *exec, const lki_adagrad_step *step, size_t n, const float *g,
                 float *p, float *sum)
{
    lki_exec_kernels(exec)->param->adagrad(step, n, g, p, sum);
}

void lki_yogi(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
              float *m, float *v)
{
    lki_adamw_factors factors = factors_of(step);
    lki_exec_kernels(exec)->param->yogi(&factors, n, g, p, m, v);
}
