/* clients.c -- the options of federated averaging, and what a rank needs for it.
 *
 * A round is a step of the run.  Its V virtual workers are the clients that were chosen for it, so
 * sums, updates, checkpoints and losses of workers are those of any run.  Only the turn of a
 * virtual worker is another one: loop/client.c.
 */
#include "train/core/client_rounds.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

enum { MICRO_BATCH_MOST = 64, CLIENTS_OF_ROUND_MOST = 4096 };

static const double FRACTION = 0.1;

bool lki_federates(const lk_train_config *c)
{
    return c->exchange.clients.count > 0;
}

/* ---- Options ------------------------------------------------------------------------------- */

static bool is_summed_whole(const char *strategy)
{
    const char *name = strategy != NULL ? lk_strategy_name(strategy) : "ddp";
    return strcmp(name, "ddp") == 0 || strcmp(name, "zero1") == 0 || strcmp(name, "single") == 0;
}

/* Returns what does not go with clients in the order of samples and the length of a run; NULL if
 * all does. */
static const char *why_not_these_data(const lk_train_config *c)
{
    return c->epochs != 0 || c->limits.epochs != 0
               ? "have no common epochs: leave out `epochs` and `limits.epochs`, and count "
                 "rounds with `steps`"
           : c->limits.samples != 0 || c->limits.tokens != 0
               ? "train in rounds: leave out `limits.samples` and `limits.tokens`, and count "
                 "rounds with `steps`"
           : c->warmup_epochs != 0
               ? "have no common epochs: give `schedule.warmup`, in rounds, instead of "
                 "`warmup_epochs`"
           : c->data.order != LK_ORDER_PERMUTED || c->data.weights != NULL
               ? "take their own samples in an order of their own: leave out `data.order` and "
                 "`data.weights`"
           : c->drop_last ? "use all of their samples: leave out `drop_last`"
           : c->data.loss_weights != NULL
               ? "are weighted by their number of samples: leave out `data.loss_weights`"
           : c->scale_lr != LK_SCALE_LR_NONE
               ? "have batches of `exchange.clients.batch`: give the rate itself, and leave out "
                 "`scale_lr`"
               : NULL;
}

/* Returns what does not go with clients; NULL if all does. */
static const char *why_not(const lk_train_config *c)
{
    return !is_summed_whole(c->strategy) ? "need `strategy` ddp or zero1"
           : lki_is_async(c)
               ? "train in rounds, which all wait for: leave out `exchange.async.mode`"
           : c->exchange.local.steps > 0 || c->exchange.local.start > 0
               ? "take as many steps as `exchange.clients.epochs` and `exchange.clients.batch` "
                 "say: leave out `exchange.local.steps` and `exchange.local.start`"
           : c->exchange.local.topology != LK_TOPOLOGY_ALL
               ? "meet at a server: leave out `exchange.local.topology`"
           : c->model_options.batchnorm == LK_BATCHNORM_SYNC
               ? "share no statistics while they train: use `batchnorm` ghost"
           : c->precision == LK_F16 || c->scaling.rule > LK_SCALE_NONE
               ? "have no loss scale: use `precision` fp32 or bf16"
           : c->comm_dtype > LK_F32
               ? "send their changes as `exchange.local.dtype`: leave out `comm_dtype`"
           : c->gather_dtype == LK_I8 ? "read FP32 parameters: leave out `gather_dtype`"
           : lki_sends_momenta(c) ? "have optimizers of their own: use adamw"
           : c->optimizer.ema > 0 ? "have no moving averages: leave out `optimizer.ema`"
           : c->offload != NULL   ? "are in memory: leave out `offload`"
           : c->noise_decay > 0   ? "have no gradients to compare: leave out `noise_decay`"
           : c->elastic.backup_workers > 0 ? "all count: leave out `elastic.backup_workers`"
                                           : why_not_these_data(c);
}

static lk_status refuse(const lk_train_config *c, const char *why)
{
    return lk_fail(LK_EINVAL, "clients (`exchange.clients.count` %u) %s",
                   c->exchange.clients.count, why);
}

static lk_status check_numbers(const lk_train_clients *k)
{
    if (!(k->fraction > 0 && k->fraction <= 1))
        return lk_fail(LK_EINVAL, "`exchange.clients.fraction` %g is no share of the clients; give "
                                  "one above 0 and up to 1", k->fraction);
    if (!(k->prox_mu >= 0) || isinf(k->prox_mu))
        return lk_fail(LK_EINVAL, "`exchange.clients.prox_mu` %g is no weight; give a number such "
                                  "as 0.01, or 0 for none", k->prox_mu);
    if (!(k->dropout >= 0 && k->dropout < 1))
        return lk_fail(LK_EINVAL, "`exchange.clients.dropout` %g is no probability; give one from "
                                  "0 to below 1", k->dropout);
    return LK_OK;
}

/* Sets a number that follows from others, unless it has that value already. */
static lk_status derive(uint32_t *number, uint64_t value, const char *name, const char *why)
{
    if (*number != 0 && *number != value)
        return lk_fail(LK_EINVAL, "`%s` %u: with clients it is %llu, %s; leave it out", name,
                       *number, (unsigned long long)value, why);
    *number = (uint32_t)value;
    return LK_OK;
}

/* Divides a local step into equal micro-batches of at most MICRO_BATCH_MOST samples. */
static uint32_t default_micro_batch(uint32_t batch)
{
    const uint32_t parts = (batch + MICRO_BATCH_MOST - 1) / MICRO_BATCH_MOST;
    return batch == 0 ? MICRO_BATCH_MOST : (batch + parts - 1) / parts;
}

/* Computes V and the batch.  The sum over the virtual workers of their micro-batches is the global
 * batch, though a client trains on many micro-batches. */
static lk_status check_batch(lk_train_config *c)
{
    const lk_train_clients *k = &c->exchange.clients;
    const double            m = ceil(k->fraction * k->count - 1e-6);
    if (m > CLIENTS_OF_ROUND_MOST)
        return lk_fail(LK_EINVAL, "`exchange.clients.fraction` %g of %u clients are more than %d "
                                  "in a round; give less", k->fraction, k->count,
                       CLIENTS_OF_ROUND_MOST);
    LK_TRY(derive(&c->virtual_workers, m < 1 ? 1 : (uint64_t)m, "virtual_workers",
                  "the number of clients of a round"));
    if (c->micro_batch == 0)
        c->micro_batch = default_micro_batch(k->batch);
    if (k->batch > 0 && c->micro_batch > k->batch)
        return lk_fail(LK_EINVAL, "`micro_batch` %u is more than `exchange.clients.batch` %u, the "
                                  "samples of a local step", c->micro_batch, k->batch);
    return derive(&c->global_batch, (uint64_t)c->virtual_workers * c->micro_batch, "global_batch",
                  "a micro-batch for each client of a round");
}

lk_status lki_clients_check(lk_train_config *c)
{
    lk_train_clients *k = &c->exchange.clients;
    if (!lki_federates(c))
        return LK_OK;
    const char *why = why_not(c);
    if (why != NULL)
        return refuse(c, why);
    if (c->steps == 0)
        return lk_fail(LK_EINVAL, "how long to train is missing: give `steps`, the number of "
                                  "rounds");
    if (k->fraction == 0)
        k->fraction = FRACTION;
    if (k->epochs == 0)
        k->epochs = 1;
    LK_TRY(lki_outer_check(c));
    LK_TRY(check_numbers(k));
    return check_batch(c);
}

lk_status lki_clients_check_data(lk_train_config *c, const lk_dataset *dataset)
{
    lk_clients *clients = NULL;
    if (!lki_federates(c))
        return LK_OK;
    LK_TRY(lki_clients_divide(&clients, c, dataset));
    c->exchange.clients.most = lk_clients_most(clients);
    lk_clients_free(clients);
    return LK_OK;
}

lk_status lki_clients_divide(lk_clients **out, const lk_train_config *c, const lk_dataset *dataset)
{
    const lk_train_clients  *k       = &c->exchange.clients;
    const lk_clients_options options = { .struct_size = sizeof options,
                                         .count       = k->count,
                                         .split       = k->split,
                                         .by          = k->split_by,
                                         .seed        = c->seed };
    return lk_clients_open(out, dataset, &options);
}

/* ---- A rank's object ------------------------------------------------------------------------ */

static lk_status make_room(lki_session *s, lki_clients *self)
{
    const lk_dataset_info *data    = lk_dataset_describe(s->dataset);
    const size_t           samples = s->config->micro_batch, each = lk_shape_count(data->x);
    size_t                 largest = 0;
    for (uint32_t p = 0; p < s->param_count; p++)
        largest = lki_max(largest, lk_shape_count(s->params[p].shape));
    LK_TRY(lki_alloc_array(&self->x, samples * each, sizeof(float), "a client's micro-batch"));
    LK_TRY(LKI_NEW(&self->y, samples * data->targets, "a client's micro-batch"));
    LK_TRY(LKI_NEW(&self->indices, samples, "a client's micro-batch"));
    LK_TRY(LKI_NEW(&self->zeros, largest, "a parameter of a client"));
    return LKI_NEW(&self->chosen, s->config->virtual_workers, "clients of a round");
}

static lk_status open_model(lki_session *s, lki_clients *self)
{
    lk_parallel_options options;
    lk_status           status = lki_client_options_of(s->config, s->model, s->exec, &options);
    self->micro_count          = options.micro_count;
    if (status == LK_OK)
        status = lk_comm_open_threads(&self->comm, 1, NULL);
    if (status == LK_OK)
        status = lk_parallel_open(&self->model, self->comm, s->params, s->param_count, &options);
    lki_parallel_options_free(&options);
    lki_session_may_idle(s->config, self->model);
    return status;
}

lk_status lki_clients_open(lki_session *s)
{
    if (!lki_federates(s->config))
        return LK_OK;
    LK_TRY(LKI_NEW(&s->clients, 1, "clients"));
    s->clients->round = UINT64_MAX;
    LK_TRY(lki_clients_divide(&s->clients->of, s->config, s->dataset));
    LK_TRY(make_room(s, s->clients));
    return open_model(s, s->clients);
}

void lki_clients_close(lki_session *s)
{
    lki_clients *self = s->clients;
    if (self == NULL)
        return;
    lk_parallel_free(self->model);
    lk_comm_free(self->comm);
    lk_clients_free(self->of);
    lki_free(self->chosen);
    lki_free(self->x);
    lki_free(self->y);
    lki_free(self->indices);
    lki_free(self->zeros);
    lki_free(self);
    s->clients = NULL;
}

/* ---- Rounds --------------------------------------------------------------------------------- */

uint64_t lki_client_steps(const lki_session *s, uint32_t client)
{
    const lk_train_clients *k = &s->config->exchange.clients;
    const uint64_t          n = lk_clients_samples(s->clients->of, client);
    return k->epochs * (k->batch == 0 ? n > 0 : (n + k->batch - 1) / k->batch);
}

uint64_t lki_client_does(const lki_session *s, uint32_t client, uint64_t round)
{
    const lk_train_clients *k     = &s->config->exchange.clients;
    const uint64_t          steps = lki_client_steps(s, client);
    const uint64_t does = lk_clients_stop(s->clients->of, client, round, k->dropout, steps);
    return does < steps && !(k->prox_mu > 0) ? 0 : does;
}

void lki_clients_choose(const lki_session *s, uint64_t round)
{
    lki_clients *self = s->clients;
    if (self->round != round)
        lk_clients_choose(self->of, round, s->config->virtual_workers, self->chosen);
    self->round = round;
}

lki_round lki_round_of(const lki_session *s, uint64_t round)
{
    lki_round sum = { 0 };
    lki_clients_choose(s, round);
    for (uint32_t v = 0; v < s->config->virtual_workers; v++) {
        const uint32_t client = s->clients->chosen[v];
        if (client == LK_NO_CLIENT)
            continue;
        const uint64_t does = lki_client_does(s, client, round);
        sum.chosen++;
        sum.stopped += does < lki_client_steps(s, client);
        sum.samples += does > 0 ? lk_clients_samples(s->clients->of, client) : 0;
    }
    return sum;
}
