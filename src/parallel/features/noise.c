/* noise.c -- the gradient noise scale, from the gradients of virtual workers and their sum.
 *
 * The gradients of n samples, summed, have the expected square n^2 |G|^2 + n tr(S), where G is the
 * true gradient of a sample and S the covariance of the samples' gradients.  Let W virtual workers
 * have samples: virtual worker v has n_v, with the sum s_v, and all together have N, with the sum
 * s:
 *
 *      a = sum of |s_v|^2 / n_v    has expectation  N |G|^2 + W tr(S)
 *      b = |s|^2 / N               has expectation  N |G|^2 +   tr(S)
 *
 *      tr(S) = (a - b) / (W - 1)       |G|^2 = (b - tr(S)) / N
 *
 * If all n_v are equal, these are the estimates of the source.  A ratio of estimates is biased, so
 * each estimate is averaged over steps before the division.
 *
 * Order:  a virtual worker's norm is computed after its gradient is complete and before it is
 *         merged, with the same blocks and trees as all norms.  Sums over virtual workers use the
 *         tree of the loss.  So the bits depend neither on the number of workers nor on the
 *         strategy.
 * Cost:   every virtual worker's gradient is read once more.  If a parameter is used several times,
 *         a copy of each use is stored until the last use is ready.
 *
 * Source: McCandlish, Kaplan, Amodei et al. 2018, An Empirical Model of Large-Batch Training,
 *         appendix A.1.
 */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/features/table.h"
#include "parallel/state.h"
#include "tensor/exec.h"
#include "tensor/ops.h"

enum { SPANS_PER_TASK = 8 };

/* Without a decay only `averages` is used.  Arrays have one row per virtual worker of a turn. */
typedef struct {
    lk_noise  averages;
    double    decay;   /* 0: no estimates */
    double   *sums;    /* [together][span_count]: sums of squares */
    uint32_t *missing; /* [together][param_count]: number of uses that are not ready */
    float    *copies;  /* [together][copied]: copies of the terms of parameters with several uses */
    size_t   *copy_at; /* [term_count]: offset of the term in a row of copies */
    size_t    copied;
    size_t    squares_at; /* offset in a report: the squared norm of a virtual worker's gradient */
    size_t    tally_at;   /* offset in a tally: the averages after the step */
} noise;

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

static lk_status noise_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    noise *self = NULL;

    if (!(options->noise_decay >= 0 && options->noise_decay < 1))
        return lk_fail(LK_EINVAL,
                       "`noise_decay` is %g; give one in (0, 1), or 0 for no noise scale",
                       options->noise_decay);
    if (options->hook != NULL && options->noise_decay > 0)
        return lk_fail(LK_EINVAL, "the noise scale compares gradients as they are with their sum, "
                                  "which a hook changes: give `noise_decay` or `hook`, not both");
    LK_TRY(LKI_NEW(&self, 1, "noise scale"));
    *out           = self;
    self->decay    = options->noise_decay;
    self->tally_at = lki_tally_reserve(parallel, sizeof self->averages);
    if (self->decay > 0) {
        self->squares_at          = lki_report_reserve(parallel, sizeof(double));
        parallel->effects.watches = true;
        parallel->effects.single  = true;
    }
    return LK_OK;
}

static lk_status noise_attach(lk_parallel *parallel, void *context)
{
    noise            *self   = context;
    const lki_layout *layout = parallel->layout;
    const size_t      rows   = parallel->turn.together;

    if (self->decay == 0)
        return LK_OK;
    LK_TRY(LKI_NEW(&self->sums, rows * layout->span_count, "noise scale"));
    LK_TRY(LKI_NEW(&self->missing, rows * layout->param_count, "noise scale"));
    LK_TRY(LKI_NEW(&self->copy_at, layout->term_count, "noise scale"));
    self->copied = place_copies(layout, self->copy_at);
    return LKI_NEW(&self->copies, rows * self->copied, "copies of shared gradients");
}

static void noise_close(void *context)
{
    noise *self = context;
    lki_free(self->sums);
    lki_free(self->missing);
    lki_free(self->copies);
    lki_free(self->copy_at);
    lki_free(self);
}

static uint64_t noise_hash(const lk_parallel_options *options)
{
    return lki_xxh3(&options->noise_decay, sizeof options->noise_decay);
}

static void noise_take_over(lk_parallel *parallel, void *context, const void *before)
{
    noise *self = context;
    (void)parallel;
    if (before != NULL)
        self->averages = ((const noise *)before)->averages;
}

/* ---- A virtual worker -------------------------------------------------------------------- */

static lk_status noise_begin_leaves(lk_parallel *parallel, void *context)
{
    noise            *self   = context;
    const lki_layout *layout = parallel->layout;
    if (self->decay == 0)
        return LK_OK;
    /* the order of terms may have changed in the last step */
    (void)place_copies(layout, self->copy_at);
    for (uint32_t c = 0; c < parallel->turn.together; c++)
        for (uint32_t p = 0; p < layout->param_count; p++)
            self->missing[(size_t)c * layout->param_count + p] = lki_layout_uses(layout, p);
    return LK_OK;
}

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

static void square(const lk_parallel *parallel, const noise *self, uint32_t index, uint32_t param,
                   const float *grad)
{
    const lki_layout *layout = parallel->layout;
    squaring          s      = { .parallel = parallel,
                                 .grad     = grad,
                                 .sums     = self->sums + (size_t)index * layout->span_count,
                                 .first    = layout->first_span[param],
                                 .end      = layout->first_span[param + 1] };
    lki_track        *track  = lki_exec_track(parallel->exec);
    uint64_t          begun  = lki_trace_begin(track);
    lk_parallel_for(parallel->exec, (s.end - s.first + SPANS_PER_TASK - 1) / SPANS_PER_TASK,
                    square_some, &s);
    lki_trace_end(track, LKI_SPAN_NORM, 0, begun);
}

/* Adds all uses of a parameter, in order. */
static const float *add_uses(const lk_parallel *parallel, const noise *self, uint32_t index,
                             uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    float            *copies = self->copies + index * self->copied;
    const uint32_t   *terms  = layout->term_of + layout->first_use[param];
    float            *sum    = copies + self->copy_at[terms[0]];
    for (uint32_t use = 1; use < lki_layout_uses(layout, param); use++)
        lki_merge_f32(LK_F32, layout->sizes[param], sum, copies + self->copy_at[terms[use]]);
    return sum;
}

static lk_status noise_term_ready(lk_parallel *parallel, void *context, uint32_t index,
                                  uint32_t term)
{
    const noise      *self   = context;
    const lki_layout *layout = parallel->layout;
    const size_t      row    = index;
    uint32_t          param  = layout->terms[term].param;

    if (self->decay == 0 || parallel->turn.kind == LKI_TURN_AGAIN)
        return LK_OK;
    const float *grad = lki_gradient_now(parallel, index, term);
    if (lki_layout_uses(layout, param) > 1) {
        memcpy(self->copies + row * self->copied + self->copy_at[term], grad,
               layout->sizes[param] * sizeof *grad);
        if (--self->missing[row * layout->param_count + param] > 0)
            return LK_OK;
        grad = add_uses(parallel, self, index, param);
    }
    square(parallel, self, index, param, grad);
    return LK_OK;
}

static double *squares_of(const noise *self, lki_report *report)
{
    return lki_report_at(report, self->squares_at);
}

static void noise_end_leaf(lk_parallel *parallel, void *context, uint32_t index)
{
    const noise      *self    = context;
    const lki_layout *layout  = parallel->layout;
    const double     *sums    = self->sums + (size_t)index * layout->span_count;
    double           *tensors = parallel->norms.scratch;
    if (self->decay == 0)
        return;
    for (uint32_t p = 0; p < layout->param_count; p++)
        tensors[p] = lki_tree_sum_f64(sums + layout->first_span[p],
                                      layout->first_span[p + 1] - layout->first_span[p]);
    *squares_of(self, lki_report_now(parallel, index)) =
        lki_tree_sum_f64(tensors, layout->param_count);
}

/* ---- A step ------------------------------------------------------------------------------ */

static uint64_t samples_of(const lk_parallel *parallel, const lki_report *report)
{
    uint64_t samples = 0;
    for (uint32_t k = 0; k < parallel->micro_count; k++)
        samples += report->samples[k];
    return samples;
}

static void estimate(lk_parallel *parallel, noise *self, const lk_step_result *result)
{
    double  *parts = parallel->norms.scratch, decay = self->decay;
    uint64_t samples = 0, with = 0;

    for (uint32_t v = 0; v < parallel->leaves; v++) {
        lki_report *report = lki_report_of(parallel, v);
        uint64_t    n      = samples_of(parallel, report);
        parts[v]           = n > 0 ? *squares_of(self, report) / (double)n : 0;
        samples += n;
        with += n > 0;
    }
    if (with < 2)
        return;
    double all = (double)samples, a = lki_tree_sum_f64(parts, parallel->leaves),
           b     = parallel->norms.root_squares / all;
    double trace = (a - b) / (double)(with - 1), square = (b - trace) / all;

    /* The sum is scaled like the mean gradient: divided by the loss scale and the count, which may
     * be tokens. */
    double    factor = all / (double)result->count / parallel->now.seed;
    lk_noise *n      = &self->averages;
    n->square        = decay * n->square + (1 - decay) * (square * factor * factor);
    n->trace         = decay * n->trace + (1 - decay) * (trace * factor * factor);
    n->weight        = decay * n->weight + (1 - decay);
    n->steps++;
}

static void noise_before_update(lk_parallel *parallel, void *context, lki_tally *tally)
{
    noise *self = context;
    if (self->decay > 0 && !tally->result.skipped)
        estimate(parallel, self, &tally->result);
    lki_tally_put(tally, self->tally_at, &self->averages, sizeof self->averages);
}

static void noise_restore(lk_parallel *parallel, void *context, const lki_tally *tally,
                          lk_parallel_standing *standing)
{
    noise *self = context;
    (void)parallel;
    (void)standing;
    lki_tally_get(tally, self->tally_at, &self->averages, sizeof self->averages);
}

const lki_feature lki_feature_noise = {
    .name          = "noise scale",
    .open          = noise_open,
    .close         = noise_close,
    .hash_options  = noise_hash,
    .attach        = noise_attach,
    .take_over     = noise_take_over,
    .begin_leaves  = noise_begin_leaves,
    .term_ready    = noise_term_ready,
    .end_leaf      = noise_end_leaf,
    .before_update = noise_before_update,
    .restore       = noise_restore,
};

/* ---- Public functions -------------------------------------------------------------------- */

static noise *noise_of(const lk_parallel *parallel)
{
    return lki_feature_state(parallel, &lki_feature_noise);
}

lk_noise lk_parallel_noise(const lk_parallel *parallel)
{
    parallel = lki_in_use(parallel);
    return noise_of(parallel)->averages;
}

void lk_parallel_load_noise(lk_parallel *parallel, const lk_noise *loaded)
{
    parallel = lki_in_use(parallel);
    noise_of(parallel)->averages = *loaded;
}

double lk_noise_scale(const lk_noise *n)
{
    return n->steps > 0 && n->square > 0 ? n->trace / n->square : (double)NAN;
}
