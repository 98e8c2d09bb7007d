/* client.c -- the turn of a client: local training, and the change that it gives as its gradient.
 *
 * The client's weights start as those of the run, in an object of this rank alone.  While a client
 * trains, the session's object is this one, so that forward and backward are those of any step.
 * Then the client gives n (w - w'), with its n samples, the weights w of the run and its own w'.
 * The mean over all samples of the round is the gradient of the server's optimizer.
 *
 * A client has no state between rounds: the state of its optimizer starts at 0.  BatchNorm's
 * running state starts as that of the run, and is averaged as the weights are.  Everything random
 * is keyed by round and client.
 */
#include "base/memory.h"
#include "data/batch.h"
#include "parallel/turn.h"
#include "tensor/ops.h"
#include "train/core/client_rounds.h"
#include "train/loop/loop.h"

/* Sets the client's weights and running state to those of the run, and clears its optimizer. */
static lk_status start(const lki_session *s)
{
    lk_parallel   *model  = s->clients->model;
    const uint32_t states = lk_optimizer_state_count(&s->config->optimizer);
    for (uint32_t p = 0; p < s->param_count; p++) {
        LK_TRY(lk_parallel_load(model, p, 0, lk_parallel_value(s->parallel, p, 0)));
        for (uint32_t i = 1; i <= states; i++)
            LK_TRY(lk_parallel_load(model, p, i, s->clients->zeros));
    }
    for (uint32_t i = 0; i < s->state_count; i++)
        LK_TRY(lk_parallel_load_state(model, i, lk_parallel_state_data(s->parallel, i)));
    return LK_OK;
}

/* A client in its turn. */
typedef struct {
    uint32_t     client;
    uint64_t     round, samples;
    uint64_t     does;     /* number of local steps */
    lk_parallel *of_run;   /* the object of the run */
    double       loss_sum; /* over all local steps */
    uint64_t     count;
} trainee;

/* The samples of a local step: positions [first, first + samples) of a local epoch. */
typedef struct {
    uint64_t epoch, first;
    uint32_t samples;
} local_span;

static local_span span_of(const lki_session *s, const trainee *t, uint64_t step)
{
    const uint32_t   batch = s->config->exchange.clients.batch;
    const lk_step_span at  = lk_step_at(t->samples, batch == 0 ? t->samples : batch, false, step);
    return (local_span){ at.epoch, at.first, (uint32_t)at.samples };
}

/* Reads micro-batch `micro` of a local step. */
static lk_status load(lki_session *s, const trainee *t, const local_span *at, uint64_t step,
                      uint32_t micro)
{
    lki_clients   *self  = s->clients;
    const uint32_t size  = s->config->micro_batch;
    const uint32_t first = micro * size;
    const uint32_t count = at->samples <= first           ? 0
                           : at->samples - first < size ? at->samples - first
                                                        : size;
    lk_batch *batch = &s->turn.batches[0];
    *batch = (lk_batch){ .step = step, .micro_index = micro, .samples = count, .first_slot = first,
                         .x = self->x, .y = self->y };
    for (uint32_t i = 0; i < count; i++)
        self->indices[i] = lk_clients_sample_at(self->of, t->client, t->round, at->epoch,
                                                at->first + first + i);
    /* windows of text would move into those of other clients */
    const bool     fixed = lk_dataset_describe(s->dataset)->tokens;
    const uint64_t epoch = fixed ? 0 : t->round * s->config->exchange.clients.epochs + at->epoch;
    return lki_batch_read(s->dataset, false, epoch, self->indices, count, self->x, self->y,
                          &batch->length);
}

/* Adds mu (w - w of the run), times the count, to the gradients (FedProx). */
static void pull(lki_session *s, const trainee *t, uint64_t count)
{
    const float         weight = (float)(s->config->exchange.clients.prox_mu * (double)count);
    uint32_t            terms;
    const lk_grad_term *term = lk_model_terms(s->model, &terms);
    for (uint32_t i = 0; i < terms; i++) {
        const uint32_t p = term[i].param;
        if (term[i].use != 0)
            continue;
        const float *own = lk_parallel_value(s->parallel, p, 0);
        const float *run = lk_parallel_value(t->of_run, p, 0);
        float       *sum = lk_parallel_grad(s->parallel, 0, i);
        const size_t n   = lk_shape_count(s->params[p].shape);
        for (size_t k = 0; k < n; k++)
            sum[k] += weight * (own[k] - run[k]);
    }
}

static lk_status local_step(lki_session *s, trainee *t, uint64_t step, double lr)
{
    const local_span at = span_of(s, t, step);
    lk_parallel_turn turn;
    lk_step_result   result;

    LK_TRY(lk_parallel_begin(s->parallel, step));
    s->turn.loss_scale = 1;
    lki_fetch_states(s);
    while (lk_parallel_next(s->parallel, &turn)) {
        LK_TRY(load(s, t, &at, step, turn.micro_index));
        lki_session_turn(s);
        LK_TRY(lk_engine_status(s->engine));
        if (turn.micro_index + 1 == s->micro_count && s->config->exchange.clients.prox_mu > 0)
            pull(s, t, s->turn.passes[0].count);
    }
    LK_TRY(lk_parallel_finish(s->parallel, lr, &result));
    t->loss_sum += result.loss * (double)result.count;
    t->count += result.count;
    return LK_OK;
}

/* Runs the local steps.  Returns early if another rank has computed the client. */
static lk_status local_steps(lki_session *s, trainee *t)
{
    const double lr = lk_schedule_at(&s->config->schedule, t->round);
    for (uint64_t step = 0; step < t->does && !lk_parallel_dropped(t->of_run); step++) {
        lk_status status = local_step(s, t, step, lr);
        if (status != LK_OK) {
            const lk_error why = *lk_error_last();
            return lk_fail(status, "round %llu, client %u: %s", (unsigned long long)t->round + 1,
                           t->client, why.message);
        }
        lk_parallel_progress(t->of_run);
    }
    return LK_OK;
}

/* Makes the client's object that of the session, or restores that of the run. */
static void swap(lki_session *s, lk_parallel *parallel, uint32_t micro_count, uint64_t seed,
                 bool alone)
{
    s->parallel    = parallel;
    s->micro_count = micro_count;
    s->turn.seed   = seed;
    s->alone       = alone; /* the gradients of a turn are announced at its end */
    lki_fetch_states(s);
}

static lk_status train(lki_session *s, trainee *t)
{
    const lki_session before = *s;
    LK_TRY(start(s));
    s->turn.version    = 0;
    s->turn.loss_scale = 1;
    swap(s, s->clients->model, s->clients->micro_count,
         lk_clients_seed(s->clients->of, t->client, t->round), true);
    lk_status status = local_steps(s, t);
    swap(s, before.parallel, before.micro_count, before.turn.seed, before.alone);
    return status;
}

/* Returns the sum of the squares of a parameter's values. */
static double sum_squares(const lk_exec *exec, size_t count, const float *values)
{
    double sum = 0;
    for (size_t at = 0; at < count; at += LKI_NORM_BLOCK)
        sum += lki_block_sum_squares(exec, lki_min(count - at, LKI_NORM_BLOCK), values + at);
    return sum;
}

/* Adding +0 makes +0 of -0, as the sums with virtual workers that have no gradient do. */
static void subtract(size_t count, const float *run, const float *own, float weight,
                     float *gradient)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] = weight * (run[i] - own[i]) + 0.0f;
}

/* Gives the change of the weights, its square, the running state and the mean loss, each times the
 * client's number of samples. */
static void give(lki_session *s, const trainee *t)
{
    const lk_parallel *model  = s->clients->model;
    const float        weight = (float)t->samples;
    double             square = 0;
    bool               empty;
    for (uint32_t i = 0; i < s->param_count; i++) {
        const uint32_t p        = s->param_count - 1 - i; /* terms are from last to first */
        const size_t   count    = lk_shape_count(s->params[p].shape);
        float         *gradient = lk_parallel_grad_new(s->parallel, 0, i, &empty);
        subtract(count, lk_parallel_value(s->parallel, p, 0), lk_parallel_value(model, p, 0),
                 weight, gradient);
        square += sum_squares(s->exec, count, gradient);
        if (!s->alone)
            lk_parallel_grad_ready(s->parallel, 0, i);
    }
    for (uint32_t i = 0; i < s->state_count; i++) {
        const float *own = lk_parallel_state_data(model, i);
        float       *sum = lk_parallel_state_sum(s->parallel, 0, i);
        for (size_t k = 0; k < s->states[i].count; k++)
            sum[k] = weight * own[k];
    }
    lk_parallel_report(s->parallel, 0, t->loss_sum / (double)t->count * (double)t->samples,
                       t->samples, t->samples, 0);
    lki_report_square(s->parallel, 0, square / (double)t->samples);
}

lk_status lki_client_turn(lki_session *s, uint64_t round)
{
    lki_clients *self = s->clients;
    trainee      t    = { .round = round, .of_run = s->parallel };

    lki_clients_choose(s, round);
    t.client = self->chosen[self->turn.virtual_worker];
    if (t.client != LK_NO_CLIENT) {
        t.samples = lk_clients_samples(self->of, t.client);
        t.does    = lki_client_does(s, t.client, round);
    }
    if (t.does > 0)
        LK_TRY(train(s, &t));
    if (t.count > 0 && !lk_parallel_dropped(s->parallel))
        give(s, &t);
    else
        lk_parallel_report(s->parallel, 0, 0, 0, 0, 0);
    return LK_OK;
}
