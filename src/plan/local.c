/* local.c -- predicts the steps of a run with replicas (local SGD, DiLoCo).
 *
 * An inner step of a replica is a step of a run that has its virtual workers and its workers alone.
 * An outer step sends the outer gradients of a host, whose bytes are estimated by the room that
 * sends them.  It computes little: differences between weights, an update, and copies.
 */
#include <math.h>

#include "base/memory.h"
#include "base/options.h"
#include "parallel/virtual.h"
#include "plan/predict.h"
#include "train/config.h"

/* The numbers of times that an outer step reads or writes an element of a replica: twice for its
 * distance from the outer weights, three times for the difference, twice for the new weights. */
enum { OUTER_PASSES = 7 };

/* ---- A prediction ------------------------------------------------------------------------ */

static lk_status check(const lk_local_model *m)
{
    if (m->served == 0 || m->local_steps == 0 || m->fragments == 0 || m->workers == 0 ||
        m->virtual_workers == 0)
        return lk_fail(LK_EINVAL, "replicas have workers that serve them, and inner steps");
    if (!(m->outer_bytes >= 0 && m->outer_messages >= 0 && m->outer_update >= 0))
        return lk_fail(LK_EINVAL, "an outer step's times and bytes are not negative");
    if (m->hosts > 1 && !(m->inner.bandwidth > 0))
        return lk_fail(LK_EINVAL, "what %u hosts send takes a bandwidth to be told", m->hosts);
    return LK_OK;
}

/* Adds a message of all hosts, by which they know each other's losses.  A worker computes its
 * replicas one after another. */
static void add_inner(lk_step_prediction *inner, const lk_local_model *m)
{
    const double message = m->hosts > 1 ? ceil(log2(m->hosts)) * m->inner.latency : 0;
    inner->rounds *= m->served;
    inner->compute *= m->served;
    inner->exposed += message;
    inner->communication += message;
    inner->seconds = inner->compute + inner->exposed + m->served * m->inner.update;
}

/* Predicts an outer step of a fragment.  Fragments are taken to have equal sizes. */
static lk_step_prediction predict_outer(const lk_local_model *m, double inner)
{
    lk_step_prediction outer = { .sent = m->outer_bytes / m->fragments };
    if (m->hosts > 1)
        outer.communication = outer.sent / m->inner.bandwidth +
                              m->outer_messages / m->fragments * m->inner.latency;
    outer.exposed = fmax(0, outer.communication - m->delay * inner);
    outer.seconds = outer.exposed + m->outer_update / m->fragments;
    return outer;
}

lk_status lk_local_predict(lk_local_prediction *out, const lk_local_model *m)
{
    lk_step_prediction *inner = &out->inner, *mean = &out->mean;
    const double        part = (double)m->fragments / (double)m->local_steps;
    *out                     = (lk_local_prediction){ 0 };
    LK_TRY(check(m));
    LK_TRY(lk_step_predict(inner, &m->inner));
    add_inner(inner, m);
    out->outer = predict_outer(m, inner->seconds);

    const double share  = (double)m->virtual_workers / m->workers;
    const double ideal  = share * (m->inner.forward + m->inner.backward);
    const double update = m->served * m->inner.update + m->outer_update / (double)m->local_steps;
    *mean               = *inner;
    mean->balance       = share / inner->rounds;
    mean->sent += part * out->outer.sent;
    mean->communication += part * out->outer.communication;
    mean->exposed += part * out->outer.exposed;
    mean->seconds += part * out->outer.seconds;
    mean->efficiency  = (ideal + update) / mean->seconds;
    inner->balance    = mean->balance;
    inner->efficiency = (ideal + m->served * m->inner.update) / inner->seconds;
    return LK_OK;
}

/* ---- From a configuration ---------------------------------------------------------------- */

typedef struct {
    lk_train_config      *config;
    const lk_model       *model;
    uint32_t              hosts;
    const lk_rates       *rates;
    const lk_calibration *measured;
} source;

/* The workers of a replica, which are neighbours, and their hosts. */
typedef struct {
    uint32_t workers, hosts;
} place;

static uint32_t host_of(const source *from, uint32_t worker)
{
    const uint64_t workers = from->config->workers;
    return (uint32_t)(((worker + 1) * (uint64_t)from->hosts - 1) / workers);
}

static place place_of(const source *from, uint32_t replica)
{
    const uint32_t n = from->config->workers, replicas = from->config->exchange.groups;
    uint32_t       first, count;
    if (n < replicas)
        return (place){ 1, 1 };
    lki_virtual_range(n, replicas, replica, &first, &count);
    return (place){ count, host_of(from, first + count - 1) - host_of(from, first) + 1 };
}

/* Returns the configuration of a replica: a run of its virtual workers alone. */
static lk_train_config replica_config(const lk_train_config *c, uint32_t workers)
{
    lk_train_config inner = *c;
    inner.virtual_workers /= c->exchange.groups;
    inner.global_batch /= c->exchange.groups;
    inner.workers      = workers;
    inner.exchange     = (lk_train_exchange){ 0 };
    inner.gather_dtype = LK_F32;
    return inner;
}

static double elements_of(const source *from)
{
    return (double)lk_model_param_elements(from->model);
}

/* Fills in the step of a replica in a place.  Measured updates are those of all workers of a host.
 * If a replica has only some of them, its update takes as much longer. */
static lk_status model_inner(lk_step_model *out, double *flops, const source *from, place at)
{
    const lk_train_config inner = replica_config(from->config, at.workers);
    LK_TRY(lki_model_step(out, flops, &inner, from->model, at.hosts, from->rates, from->measured));
    if (from->measured != NULL) {
        const double here  = ceil((double)from->config->workers / from->hosts);
        const double times = here / ceil((double)at.workers / at.hosts);
        out->update        = lki_update_seconds(from->measured, times * elements_of(from),
                                                times * elements_of(from));
    }
    return LK_OK;
}

/* Finds the replica whose step takes the longest.  Most replicas have as many workers and hosts as
 * the one before. */
static lk_status find_slowest(lk_local_model *out, double *flops, const source *from)
{
    place  before  = { 0, 0 };
    double longest = 0;
    for (uint32_t r = 0; r < from->config->exchange.groups; r++) {
        const place        at = place_of(from, r);
        lk_step_model      model;
        lk_step_prediction step;
        if (at.workers == before.workers && at.hosts == before.hosts)
            continue;
        before = at;
        LK_TRY(model_inner(&model, flops, from, at));
        lk_status status = lk_step_predict(&step, &model);
        if (status == LK_OK && step.seconds > longest) {
            lk_step_model_deinit(&out->inner);
            out->inner = model;
            longest    = step.seconds;
        } else
            lk_step_model_deinit(&model);
        LK_TRY(status);
    }
    return LK_OK;
}

/* Returns the bytes per second that a worker moves in updates; 0 if they take no time. */
static double memory_rate(const source *from, double states)
{
    if (from->measured == NULL)
        return from->rates->memory_bandwidth;
    const double workers = from->measured->workers, elements = elements_of(from);
    const double moved = sizeof(float) * elements * (workers + 5 + 2 * states) / workers;
    return moved / lki_update_seconds(from->measured, elements, elements);
}

/* Computes the seconds of an outer step without communication, by the bytes that a worker moves.
 * An update is that of ddp: see update_by_rate() in step_model.c. */
static double update_outer(const source *from, const lk_local_model *m, const lk_optimizer *outer)
{
    const double rate = memory_rate(from, lk_optimizer_state_count(&from->config->optimizer));
    const double here = ceil((double)m->workers / m->hosts), served = m->served;
    const double states = lk_optimizer_state_count(outer);
    const double moved  = OUTER_PASSES * served + served + 3 * (served - 1) +
                         (here + 5 + 2 * states) / here;
    return rate > 0 ? sizeof(float) * elements_of(from) * moved / rate : 0;
}

static lk_status fill(lk_local_model *out, double *flops, const source *from)
{
    lk_train_config *c        = from->config;
    const uint32_t   replicas = c->exchange.groups;
    lk_replicas     *options  = NULL;
    lk_train_cost    cost;

    if (!lki_replicates(c))
        return lk_fail(LK_EINVAL, "a run without `exchange.local.steps` has no replicas");
    LK_TRY(lk_train_estimate(c, from->hosts, &cost));
    *out = (lk_local_model){ .workers         = c->workers,
                             .hosts           = from->hosts,
                             .virtual_workers = c->virtual_workers,
                             .served          = c->workers < replicas
                                                    ? (replicas + c->workers - 1) / c->workers
                                                    : 1,
                             .local_steps     = c->exchange.local.steps,
                             .fragments       = (uint32_t)lki_max(c->exchange.local.fragments, 1),
                             .delay           = c->exchange.local.delay,
                             .outer_bytes     = (double)cost.shared.sent_outer };
    LK_TRY(find_slowest(out, flops, from));
    if (flops != NULL)
        *flops *= replicas;
    const double bucket  = c->bucket_bytes > 0 ? (double)c->bucket_bytes : LKI_BUCKET_BYTES;
    const double buckets = fmax(out->fragments, ceil(sizeof(float) * elements_of(from) / bucket));
    out->outer_messages  = from->hosts > 1 ? 2 * ceil(log2(from->hosts)) * buckets : 0;
    LK_TRY(lki_replicas_of(c, &options));
    out->outer_update = update_outer(from, out, &options->optimizer);
    lki_free(options);
    return LK_OK;
}

lk_status lk_train_model_local(lk_local_model *out, double *flops, lk_train_config *config,
                               uint32_t hosts, const lk_rates *rates,
                               const lk_calibration *measured)
{
    lk_train_config mine;
    lk_model       *model = NULL;

    *out = (lk_local_model){ 0 };
    LK_TRY(lki_options_copy(&mine, sizeof mine, config, "lk_train_config"));
    lk_status status = lki_model_alone(&model, &mine, NULL);
    if (status == LK_OK)
        status = fill(out, flops, &(source){ &mine, model, hosts, rates, measured });
    lki_options_return(config, &mine);
    if (status != LK_OK)
        lk_step_model_deinit(&out->inner);
    lk_model_free(model);
    return status;
}
