/* noise.c -- the gradient noise scale, from the gradients of virtual workers and their sum.
 *
 * The gradients of n samples, summed, have the expected square n^2 |G|^2 + n tr(S), where G is the
 * true gradient of a sample and S the covariance of samples'.  So, over the W virtual workers that
 * have samples, n_v each and N together, with sums s_v and their sum s:
 *
 *      a = sum of |s_v|^2 / n_v    expects  N |G|^2 + W tr(S)
 *      b = |s|^2 / N               expects  N |G|^2 +   tr(S)
 *
 *      tr(S) = (a - b) / (W - 1)       |G|^2 = (b - tr(S)) / N
 *
 * which are, where all n_v are equal, the estimates of the source.  A ratio of estimates is
 * biased, so both are averaged over steps, each by itself, and then divided.
 *
 * Order:  a virtual worker's norm is taken when its gradient is complete and before it is merged,
 *         over the blocks, tensors and trees of all norms; sums over virtual workers have the tree
 *         of the loss.  So the bits are those of any number of workers and any strategy.
 * Cost:   every virtual worker's gradient is read once more; of a parameter that is used more than
 *         once, a copy of each use is kept until the last is ready.
 *
 * Source: McCandlish, Kaplan, Amodei et al. 2018, An Empirical Model of Large-Batch Training,
 *         appendix A.1.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/strategy.h"
#include "tensor/exec.h"
#include "tensor/ops.h"

enum { SPANS_PER_TASK = 8 };

/* Rows of arrays belong to the virtual workers of a turn. */
struct lki_noise {
    double   *sums;    /* [together][span_count]: squares */
    uint32_t *missing; /* [together][param_count]: uses that are not ready */
    float    *copies;  /* [together][copied]: terms of parameters with several uses */
    size_t   *copy_at; /* of each term */
    size_t    copied;
};

static size_t place_copies(const lki_layout *layout, size_t *at)
{
    size_t total = 0;
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t param = layout->terms[t].param;
        at[t]          = total;
        if (lki_layout_uses(layout, param) > 1)
            total += layout->sizes[param];
    }
    return total;
}

lk_status lki_noise_open(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    const size_t      rows   = parallel->together;
    lki_noise        *noise  = NULL;

    LK_TRY(LKI_NEW(&noise, 1, "noise scale"));
    parallel->noise = noise;
    LK_TRY(LKI_NEW(&noise->sums, rows * layout->span_count, "noise scale"));
    LK_TRY(LKI_NEW(&noise->missing, rows * layout->param_count, "noise scale"));
    LK_TRY(LKI_NEW(&noise->copy_at, layout->term_count, "noise scale"));
    noise->copied = place_copies(layout, noise->copy_at);
    return LKI_NEW(&noise->copies, rows * noise->copied, "copies of shared gradients");
}

void lki_noise_close(lk_parallel *parallel)
{
    lki_noise *noise = parallel->noise;
    if (noise == NULL)
        return;
    lki_free(noise->sums);
    lki_free(noise->missing);
    lki_free(noise->copies);
    lki_free(noise->copy_at);
    lki_free(noise);
    parallel->noise = NULL;
}

void lki_noise_begin(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    (void)place_copies(layout, parallel->noise->copy_at); /* terms may have another order */
    for (uint32_t c = 0; c < parallel->together; c++)
        for (uint32_t p = 0; p < layout->param_count; p++)
            parallel->noise->missing[(size_t)c * layout->param_count + p] =
                lki_layout_uses(layout, p);
}

/* ---- A virtual worker -------------------------------------------------------------------- */

typedef struct {
    const lk_parallel *parallel;
    const float       *grad; /* of the whole parameter */
    double            *sums;
    size_t             first, end; /* spans */
} squaring;

static void square_some(void *context, size_t task)
{
    const squaring   *s      = context;
    const lki_layout *layout = s->parallel->layout;
    size_t            first  = s->first + task * SPANS_PER_TASK;
    size_t            end    = lki_min(first + SPANS_PER_TASK, s->end);
    for (size_t i = first; i < end; i++)
        s->sums[i] = lki_block_sum_squares(s->parallel->exec, layout->spans[i].count,
                                           s->grad + layout->spans[i].inside);
}

static void square(const lk_parallel *parallel, uint32_t param, const float *grad)
{
    const lki_layout *layout = parallel->layout;
    squaring          s      = { .parallel = parallel,
                                 .grad     = grad,
                                 .sums     = parallel->noise->sums +
                                             (size_t)parallel->chosen * layout->span_count,
                                 .first    = layout->first_span[param],
                                 .end      = layout->first_span[param + 1] };
    lki_track        *track  = lki_exec_track(parallel->exec);
    uint64_t          begun  = lki_trace_begin(track);
    lk_parallel_for(parallel->exec, (s.end - s.first + SPANS_PER_TASK - 1) / SPANS_PER_TASK,
                    square_some, &s);
    lki_trace_end(track, LKI_SPAN_NORM, 0, begun);
}

/* All uses of a parameter, added up in their order. */
static const float *add_uses(const lk_parallel *parallel, uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    const lki_noise  *noise  = parallel->noise;
    float            *copies = noise->copies + parallel->chosen * noise->copied;
    const uint32_t   *terms  = layout->term_of + layout->first_use[param];
    float            *sum    = copies + noise->copy_at[terms[0]];
    for (uint32_t use = 1; use < lki_layout_uses(layout, param); use++)
        lki_merge_f32(LK_F32, layout->sizes[param], sum, copies + noise->copy_at[terms[use]]);
    return sum;
}

void lki_noise_term(lk_parallel *parallel, uint32_t term)
{
    const lki_layout *layout  = parallel->layout;
    const lki_noise  *noise   = parallel->noise;
    uint32_t          param   = layout->terms[term].param;
    const float      *grad    = lki_gradient_now(parallel, term);
    uint32_t         *missing = &noise->missing[(size_t)parallel->chosen * layout->param_count +
                                                param];
    if (lki_layout_uses(layout, param) > 1) {
        memcpy(noise->copies + parallel->chosen * noise->copied + noise->copy_at[term], grad,
               layout->sizes[param] * sizeof *grad);
        if (--*missing > 0)
            return;
        grad = add_uses(parallel, param);
    }
    square(parallel, param, grad);
}

double lki_noise_leaf(const lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    const double     *sums   = parallel->noise->sums + (size_t)parallel->chosen *
                                                           layout->span_count;
    double           *tensors = parallel->scratch;
    for (uint32_t p = 0; p < layout->param_count; p++)
        tensors[p] = lki_tree_sum_f64(sums + layout->first_span[p],
                                      layout->first_span[p + 1] - layout->first_span[p]);
    return lki_tree_sum_f64(tensors, layout->param_count);
}

/* ---- A step ------------------------------------------------------------------------------ */

static uint64_t samples_of(const lk_parallel *parallel, const lki_report *report)
{
    uint64_t samples = 0;
    for (uint32_t k = 0; k < parallel->micro_count; k++)
        samples += report->samples[k];
    return samples;
}

void lki_noise_step(lk_parallel *parallel, const lk_step_result *result)
{
    double  *parts = parallel->scratch, decay = parallel->noise_decay;
    uint64_t samples = 0, with = 0;

    for (uint32_t v = 0; v < parallel->leaves; v++) {
        const lki_report *report = lki_report_of(parallel, v);
        uint64_t          n      = samples_of(parallel, report);
        parts[v]                 = n > 0 ? report->squares / (double)n : 0;
        samples += n;
        with += n > 0;
    }
    if (with < 2)
        return;
    double all = (double)samples, a = lki_tree_sum_f64(parts, parallel->leaves),
           b     = parallel->root_squares / all;
    double trace = (a - b) / (double)(with - 1), square = (b - trace) / all;

    /* as the mean gradient is: over the count, which may be tokens, and not scaled */
    double factor = all / (double)result->count / parallel->seed;
    lk_noise *n = &parallel->noise_sums;
    n->square   = decay * n->square + (1 - decay) * (square * factor * factor);
    n->trace    = decay * n->trace + (1 - decay) * (trace * factor * factor);
    n->weight   = decay * n->weight + (1 - decay);
    n->steps++;
}

lk_noise lk_parallel_noise(const lk_parallel *parallel)
{
    return parallel->noise_sums;
}

void lk_parallel_load_noise(lk_parallel *parallel, const lk_noise *noise)
{
    parallel->noise_sums = *noise;
}

double lk_noise_scale(const lk_noise *noise)
{
    return noise->steps > 0 && noise->square > 0 ? noise->trace / noise->square : (double)NAN;
}
