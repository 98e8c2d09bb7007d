/* evaluate.c -- evaluates the validation part, each sample once, on all workers.
 *
 * The part is divided into V fixed slices.  Each rank processes the slices of its virtual workers
 * in order.  Sums and counts are added in the canonical tree, so the bits are the same for every N.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "data/batch.h"
#include "lockstep/checkpoint.h"
#include "parallel/balance.h"
#include "train/core/identity.h"
#include "train/loop/loop.h"

typedef struct {
    void     *x;
    int32_t  *y;
    uint64_t *indices;
} samples;

static lk_status samples_open(samples *s, const lk_dataset_info *data, uint32_t micro_batch)
{
    size_t x_bytes = lk_shape_count(data->x) * (data->tokens ? sizeof(int32_t) : sizeof(float));
    LK_TRY(lki_alloc_array(&s->x, micro_batch, x_bytes, "evaluation samples"));
    LK_TRY(LKI_NEW(&s->indices, micro_batch, "evaluation samples"));
    return LKI_NEW(&s->y, (size_t)micro_batch * data->targets, "evaluation samples");
}

/* The position of this rank in its slices of the validation part. */
typedef struct {
    lk_hooks hooks;
    lk_walk  walk;
    samples  samples;
    lk_pass  pass; /* of the current slice */
    uint32_t leaf; /* index of the slice among this rank's slices */
    uint64_t at;
    bool     measures; /* sums errors, whose targets are numbers */
    lki_error_sums errors;
    double  *mine; /* SUMS per slice */
} course;

enum { SUMS = 5 };

void lki_error_sums_add(lki_error_sums *sums, const lk_engine *engine, const lk_model *model,
                        uint32_t count, const int32_t *targets)
{
    const float *x    = lk_engine_output(engine, 0);
    const size_t rows = (size_t)count * lk_model_loss_rows(model);
    for (size_t i = 0; i < rows; i++) {
        float target;
        memcpy(&target, &targets[i], sizeof target);
        const double d = (double)x[i] - (double)target;
        sums->absolute += fabs(d);
        sums->squares += d * d;
    }
}

/* Returns the first sample of slice v of the validation part. */
static uint64_t slice_begin(const lki_session *session, uint64_t v)
{
    return v * lk_dataset_describe(session->dataset)->validation_count /
           session->config->virtual_workers;
}

static lk_status micro_batch(lki_session *session, course *c, uint64_t end)
{
    samples *s      = &c->samples;
    c->pass.samples = (uint32_t)lki_min(session->config->micro_batch, end - c->at);
    c->pass.x       = s->x;
    c->pass.targets = s->y;
    for (uint32_t i = 0; i < c->pass.samples; i++)
        s->indices[i] = c->at + i;
    LK_TRY(lki_batch_read(session->dataset, true, 0, s->indices, c->pass.samples, s->x, s->y,
                          &c->pass.length));
    lk_engine_forward(session->engine, &c->walk, &c->pass, 1);
    if (c->measures)
        lki_error_sums_add(&c->errors, session->engine, session->model, c->pass.samples, s->y);
    c->at += c->pass.samples;
    return LK_OK;
}

/* Runs the next `count` micro-batches.  If fewer micro-batches are left, runs empty ones instead,
 * so that all ranks read the model's parameters equally often. */
static lk_status advance(lki_session *session, course *c, uint64_t count)
{
    for (; c->leaf < session->count; c->leaf++) {
        uint64_t v   = (uint64_t)session->first + c->leaf * session->stride;
        uint64_t end = slice_begin(session, v + 1);
        c->at        = lki_max(c->at, slice_begin(session, v));
        for (; c->at < end; count--) {
            if (count == 0)
                return LK_OK;
            LK_TRY(micro_batch(session, c, end));
        }
        double *sums = c->mine + SUMS * (size_t)c->leaf;
        sums[0]      = c->pass.loss_sum;
        sums[1]      = (double)c->pass.count;
        sums[2]      = (double)c->pass.hits;
        sums[3]      = c->errors.absolute;
        sums[4]      = c->errors.squares;
        c->pass      = (lk_pass){ 0 };
        c->errors    = (lki_error_sums){ 0 };
    }
    for (; count > 0; count--)
        lk_engine_forward(session->engine, &c->walk, &c->pass, 1);
    return LK_OK;
}

/* Returns the number of rounds of `each` micro-batches that the rank with the most micro-batches
 * needs. */
static uint64_t count_rounds(const lki_session *session, uint64_t each)
{
    uint64_t longest = 0, size = session->config->micro_batch;
    for (uint32_t r = 0; r < session->ranks; r++) {
        lki_share share   = lki_share_of(lki_parallel_dealing(session->parallel), r);
        uint64_t  batches = 0;
        for (uint64_t i = 0, v = share.first; i < share.count; i++, v += share.stride)
            batches += (slice_begin(session, v + 1) - slice_begin(session, v) + size - 1) / size;
        longest = lki_max(longest, batches);
    }
    return (longest + each - 1) / each;
}

/* Runs all slices of this rank.  Ranks synchronise after every round.  So no rank waits longer for
 * another than in a training step, even for a large part or uneven shares. */
static lk_status walk_part(lki_session *session, course *c)
{
    uint32_t leaves = session->config->virtual_workers;
    uint64_t each   = (uint64_t)session->micro_count *
                    ((leaves + session->ranks - 1) / session->ranks);
    for (uint64_t rounds = count_rounds(session, each); rounds > 0; rounds--) {
        LK_TRY(advance(session, c, each));
        LK_TRY(lk_barrier(session->comm));
    }
    LK_ASSERT(c->leaf == session->count);
    return LK_OK;
}

/* ---- Moving means ------------------------------------------------------------------------ */

/* Gathers a whole moving mean on this rank if each host stores only a part.  The next evaluation
 * reuses the memory. */
static lk_status gather_mean(lki_session *session, uint32_t param, float *whole)
{
    uint32_t which = lk_optimizer_state_count(&session->config->optimizer); /* the last state */
    size_t   count = lk_shape_count(session->params[param].shape);
    for (size_t at = 0; at < count; at += LK_CHECKPOINT_PIECE)
        LK_TRY(lk_parallel_fetch(session->parallel, param, which, at,
                                 lki_min(count - at, LK_CHECKPOINT_PIECE), whole + at));
    session->param_data[param] = whole;
    return LK_OK;
}

/* Replaces the weights and running state of this step by their moving means. */
static lk_status fetch_means(lki_session *session)
{
    uint32_t which = lk_optimizer_state_count(&session->config->optimizer);
    size_t   at    = 0;
    for (uint32_t p = 0; p < session->param_count; p++)
        session->param_data[p] = lk_parallel_value(session->parallel, p, which);
    for (uint32_t i = 0; i < session->state_count; i++)
        session->state_data[i] = lk_parallel_state_data(session->parallel,
                                                        session->state_count + i);
    if (session->param_data[0] != NULL)
        return LK_OK;
    if (session->means == NULL)
        LK_TRY(LKI_NEW(&session->means, lk_model_param_elements(session->model), "moving means"));
    for (uint32_t p = 0; p < session->param_count; p++) {
        LK_TRY(gather_mean(session, p, session->means + at));
        at += lk_shape_count(session->params[p].shape);
    }
    return LK_OK;
}

/* Returns true if moving means should be evaluated.  There are none before the first update. */
static bool wants_means(const lki_session *session, uint64_t done)
{
    const lk_train_config *c = session->config;
    return c->optimizer.ema > 0 && c->eval_weights != LK_WEIGHTS_MODEL &&
           done > lk_parallel_scaler(session->parallel).skipped;
}

/* ---- Evaluating -------------------------------------------------------------------------- */

lk_status lki_evaluate(lki_session *session, uint64_t done, lk_train_result *result)
{
    double sums[SUMS] = { 0 };
    course c       = { .hooks = { .user = session, .before_read = lki_read_block },
                       .walk  = { .seed   = session->config->seed,
                                  .params = session->param_data,
                                  .params_bf16 = session->param_bf16,
                                  .state  = session->state_data },
                       .measures = lki_measures_errors(
                           session->config->model_options.loss,
                           lk_dataset_describe(session->dataset)->numbers) };

    bool      means  = wants_means(session, done);
    lk_status status = means ? fetch_means(session) : LK_OK;
    c.walk.hooks     = means ? NULL : &c.hooks; /* the means are already fetched */
    if (means)
        c.walk.params_bf16 = NULL;
    if (status == LK_OK)
        status = LKI_NEW(&c.mine, SUMS * (size_t)session->count, "evaluation sums");
    if (status == LK_OK)
        status = samples_open(&c.samples, lk_dataset_describe(session->dataset),
                              session->config->micro_batch);
    if (status == LK_OK)
        status = walk_part(session, &c);
    if (status == LK_OK)
        status = lk_parallel_sum(session->parallel, c.mine, SUMS, sums);
    if (status == LK_OK && sums[1] == 0)
        status = lk_fail(LK_EINVAL, "none of the %llu samples for validation counts for anything, "
                                    "by their labels; keep more of them, or others",
                         (unsigned long long)lk_dataset_describe(session->dataset)
                             ->validation_count);
    result->validation_loss     = sums[0] / sums[1];
    result->validation_accuracy = c.measures ? (double)NAN : sums[2] / sums[1];
    result->validation_mae      = c.measures ? sums[3] / sums[1] : (double)NAN;
    result->validation_rmse     = c.measures ? sqrt(sums[4] / sums[1]) : (double)NAN;
    lki_free(c.samples.x);
    lki_free(c.samples.y);
    lki_free(c.samples.indices);
    lki_free(c.mine);
    return status;
}
