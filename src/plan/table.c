/* table.c -- plans every strategy for a configuration, and chooses one. */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "lockstep/plan.h"
#include "train/config.h"

static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3", "hybrid" };

enum { STRATEGIES = sizeof strategies / sizeof strategies[0], MOST_WORKERS = 4096 };
_Static_assert((int)STRATEGIES <= (int)LK_PLAN_ROWS_MAX, "a row for each");

/* The inputs of a plan. */
typedef struct {
    lk_train_config             *config;
    const lk_train_plan_options *options;
    uint32_t                     hosts;
    lk_calibration              *measured; /* NULL: use the given rates */
} inputs;

/* ---- Rows -------------------------------------------------------------------------------- */

/* Fills in the row of config->strategy. */
static lk_status fill_row(lk_train_plan *plan, lk_train_plan_row *row, const inputs *in)
{
    lk_train_config *c      = in->config;
    double           memory = in->options->memory;
    LK_TRY(lk_train_estimate(c, in->hosts, &row->cost));
    row->strategy = c->strategy;
    row->bytes    = (double)lk_train_cost_bytes(&row->cost);
    row->fits     = memory == 0 || row->bytes <= memory;
    if (!plan->timed)
        return LK_OK;
    if (!lki_replicates(c)) {
        LK_TRY(lk_train_model_step(&row->model, &plan->flops, c, in->hosts, &in->options->rates,
                                   in->measured));
        return lk_step_predict(&row->step, &row->model);
    }
    LK_TRY(lk_train_model_local(&row->local, &plan->flops, c, in->hosts, &in->options->rates,
                                in->measured));
    LK_TRY(lk_local_predict(&row->round, &row->local));
    row->step = row->round.mean;
    return LK_OK;
}

/* Fills in the row of ddp without replicas, for the same configuration otherwise. */
static lk_status fill_whole(lk_train_plan *plan, const inputs *in)
{
    lk_train_config whole  = *in->config;
    inputs          inside = *in;
    whole.exchange         = (lk_train_exchange){ 0 };
    whole.strategy         = strategies[0];
    inside.config          = &whole;
    return fill_row(plan, &plan->whole, &inside);
}

/* Returns true if a strategy is listed when none is requested.  hybrid is listed only with
 * shard_hosts.  With parameters in files, only strategies that can read these files are listed. */
static bool is_listed(const lk_train_config *c, const char *strategy)
{
    bool files = c->offloaded & LK_OFFLOADED_PARAMETERS;
    if (strcmp(strategy, "hybrid") == 0)
        return c->shard_hosts > 0;
    return !files || strcmp(strategy, "zero3") == 0;
}

/* Returns true if `status` refuses only this strategy, because the plan already has the row of
 * another strategy. */
static bool is_its_own(const lk_train_plan *plan, lk_status status)
{
    return plan->row_count > 0 && (status == LK_EINVAL || status == LK_EUNSUPPORTED);
}

static void note_refusal(lk_train_plan *plan, const char *strategy)
{
    lk_train_plan_refusal *refusal = &plan->refused[plan->refused_count++];
    refusal->strategy              = strategy;
    (void)snprintf(refusal->why, sizeof refusal->why, "%s", lk_error_last()->message);
}

/* Adds the row of config->strategy, or the reason why that strategy is impossible. */
static lk_status add_row(lk_train_plan *plan, const inputs *in)
{
    lk_status status  = lk_train_check_hosts(in->config, in->hosts);
    bool      refuses = status != LK_OK;
    if (!refuses)
        status = fill_row(plan, &plan->rows[plan->row_count], in);
    if (status == LK_OK)
        plan->row_count++;
    else if (refuses || is_its_own(plan, status)) {
        note_refusal(plan, in->config->strategy);
        return LK_OK;
    }
    return status;
}

/* Fills in rows for all strategies, or only for the requested strategy.  If no strategy is
 * possible, fails with the reason of the last one. */
static lk_status fill_rows(lk_train_plan *plan, const inputs *in)
{
    lk_train_config *c = in->config;
    c->strategy        = lk_strategy_name(c->strategy);
    if (c->strategy != NULL) {
        LK_TRY(lk_train_check_hosts(c, in->hosts));
        return fill_row(plan, &plan->rows[plan->row_count++], in);
    }
    for (size_t i = 0; i < STRATEGIES; i++) {
        c->strategy = strategies[i];
        if (is_listed(c, c->strategy))
            LK_TRY(add_row(plan, in));
    }
    return plan->row_count > 0 ? LK_OK : LK_EINVAL;
}

/* ---- The choice -------------------------------------------------------------------------- */

static double price_of(const lk_train_plan *plan, const lk_train_plan_row *row)
{
    return plan->timed ? row->step.seconds
                       : (double)(row->cost.shared.sent_gradients + row->cost.shared.sent_params);
}

/* Chooses the fastest of the rows that fit or, without step times, the row that sends the fewest
 * bytes.  Among equal rows, chooses the first, which is the simplest. */
static void choose(lk_train_plan *plan, double memory)
{
    uint32_t least = 0, fitting = 0;
    plan->chosen = plan->row_count;
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const lk_train_plan_row *row = &plan->rows[i];
        least                        = row->bytes < plan->rows[least].bytes ? i : least;
        fitting += row->fits;
        if (row->fits && (plan->chosen == plan->row_count ||
                          price_of(plan, row) < price_of(plan, &plan->rows[plan->chosen])))
            plan->chosen = i;
    }
    const char *what = plan->timed ? "no step is shorter" : "none sends less";
    if (fitting == 0)
        (void)snprintf(plan->why, sizeof plan->why,
                       "no strategy fits into %.4g bytes of a host: %s takes the least, %.4g; take "
                       "more hosts, or fewer workers on each, or a smaller model",
                       memory, plan->rows[least].strategy, plan->rows[least].bytes);
    else if (fitting < plan->row_count)
        (void)snprintf(plan->why, sizeof plan->why,
                       "of the %u that fit into %.4g bytes of a host, %s", fitting, memory, what);
    else
        (void)snprintf(plan->why, sizeof plan->why, "%s", what);
}

/* ---- More workers ------------------------------------------------------------------------ */

static lk_status add_point(lk_train_plan *plan, const lk_train_plan_row *row, uint32_t workers,
                           uint32_t hosts)
{
    lk_train_plan_point *point = &plan->points[plan->point_count++];
    lk_step_model        same  = row->model, each;
    point->workers = same.workers = workers;
    point->hosts = same.hosts = hosts;
    point->dealt              = workers <= row->model.virtual_workers;
    each                      = same;
    each.virtual_workers      = row->step.rounds * workers;
    LK_TRY(lk_step_predict(&point->each, &each));
    return point->dealt ? lk_step_predict(&point->same, &same) : LK_OK;
}

/* Fills in predictions for other numbers of workers.  More than one host requires the network's
 * bandwidth. */
static lk_status fill_points(lk_train_plan *plan, const lk_train_plan_options *o)
{
    uint32_t                 first = plan->chosen < plan->row_count ? plan->chosen : 0;
    const lk_train_plan_row *row   = &plan->rows[first];
    uint32_t                 here  = (row->model.workers + row->model.hosts - 1) / row->model.hosts;
    uint32_t                 most  = o->most_workers > 0 ? o->most_workers : MOST_WORKERS;
    for (uint32_t n = 1; n <= most && plan->point_count < LK_PLAN_POINTS_MAX; n *= 2) {
        uint32_t hosts = (n + here - 1) / here;
        if (hosts > 1 && o->rates.bandwidth == 0)
            break;
        LK_TRY(add_point(plan, row, n, hosts));
    }
    plan->alone = plan->points[0].same.seconds;
    return LK_OK;
}

/* ---- The plan ---------------------------------------------------------------------------- */

/* Returns false if a step takes or saves a time that is not predicted.  Replicas compress only in
 * outer steps, which are rare. */
static bool is_predictable(const lk_train_config *c)
{
    const lk_train_local *local = &c->exchange.local;
    /* clients differ in size, and groups that do not wait have no steps of their own */
    if (local->topology != LK_TOPOLOGY_ALL || lki_federates(c) || lki_is_async(c))
        return false;
    return local->steps > 0 || local->optimizer != LK_OUTER_MEAN ||
           (c->exchange.compressor == NULL && !lki_sends_momenta(c));
}

/* Measures this machine.  The measurements do not depend on the strategy.  Does not measure files
 * if the user gave their rate, which may be another machine's. */
static lk_status measure(inputs *in)
{
    lk_train_config copy = *in->config;
    if (in->options->rates.file_bandwidth > 0)
        copy.offload = NULL;
    if (copy.strategy == NULL && !is_listed(&copy, "ddp"))
        copy.strategy = "zero3";
    return lk_calibrate(&in->measured, &copy, in->hosts);
}

static lk_status make(lk_train_plan *plan, inputs *in)
{
    if (in->options->measure && plan->timed)
        LK_TRY(measure(in));
    LK_TRY(fill_rows(plan, in));
    choose(plan, in->options->memory);
    LK_TRY(lki_async_forecast(in->config, &plan->async));
    if (lki_replicates(in->config))
        return fill_whole(plan, in);
    return plan->timed ? fill_points(plan, in->options) : LK_OK;
}

/* Takes what `rates` does not have of the network from the file of constants. */
static lk_status read_tuning(lk_train_plan_options *o)
{
    double latency, bandwidth;
    if (o->tuning == NULL)
        return LK_OK;
    LK_TRY(lk_comm_read_tuning(o->tuning, &latency, &bandwidth));
    if (o->rates.bandwidth == 0)
        o->rates.bandwidth = bandwidth;
    if (o->rates.latency == 0)
        o->rates.latency = latency;
    return LK_OK;
}

lk_status lk_train_plan_make(lk_train_plan *out, lk_train_config *config,
                             const lk_train_plan_options *options)
{
    lk_train_config       c;
    lk_train_plan_options mine;

    memset(out, 0, sizeof *out);
    LK_TRY(lki_options_copy(&c, sizeof c, config, "lk_train_config"));
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_train_plan_options"));
    LK_TRY(read_tuning(&mine));
    inputs in = { .config  = &c,
                  .options = &mine,
                  .hosts   = mine.hosts > 0 ? mine.hosts : 1 };
    out->timed       = is_predictable(&c) && (mine.measure || mine.rates.flops > 0);
    lk_status status = make(out, &in);
    lki_options_return(config, &c);
    lk_calibration_free(in.measured);
    return status;
}

void lk_train_plan_deinit(lk_train_plan *plan)
{
    for (uint32_t i = 0; i < LK_PLAN_ROWS_MAX; i++) {
        lk_step_model_deinit(&plan->rows[i].model);
        lk_step_model_deinit(&plan->rows[i].local.inner);
    }
    lk_step_model_deinit(&plan->whole.model);
}
