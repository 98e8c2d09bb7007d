/* plan_print.c -- prints the results of `lockstep plan`, as text or JSON. */
#include <inttypes.h>
#include <string.h>

#include "cli/plan.h"

static double mebi(double bytes)
{
    return bytes / (1 << 20);
}

static double activations_of(const lk_train_cost *c)
{
    return (double)(c->workers * c->activations);
}

static double buffers_of(const lk_train_cost *c)
{
    return (double)(c->shared.tables + c->packs + c->shared.messages + c->workers * c->program);
}

static double samples_per_second(const plan_options *o, const lk_train_plan_row *row)
{
    return o->train.config.global_batch / row->step.seconds;
}

static bool has_replicas(const lk_train_plan *plan)
{
    return plan->whole.strategy != NULL;
}

/* Returns the bytes that a host sends in a step. */
static double sent_by(const lk_train_plan_row *row)
{
    return (double)(row->cost.shared.sent_gradients + row->cost.shared.sent_params);
}

/* Returns the seconds of the update of a step; with replicas, those of all that a worker has. */
static double update_of(const lk_train_plan_row *row)
{
    return row->local.served > 0 ? row->local.served * row->local.inner.update : row->model.update;
}

/* Returns the label of the planned run, and writes it with its rules.  A plan loads no module, so
 * --kernels is not in the configuration. */
static lk_label label_of(const plan_options *o, char *text, size_t bytes)
{
    lk_train_config c = o->train.config;
    if (o->train.kernels != NULL && strcmp(o->train.kernels, "onednn") == 0)
        c.onednn = o->train.kernels;
    return lk_train_label(&c, text, bytes);
}

/* ---- Text -------------------------------------------------------------------------------- */

static void print_head(const plan_options *o, const lk_train_plan *plan)
{
    const lk_train_config *c     = &o->train.config;
    uint32_t               hosts = o->plan.hosts;
    char                   rules[128], label[128];
    const bool             exact = label_of(o, label, sizeof label) == LK_LABEL_EXACT;
    lk_train_rules(c, rules, sizeof rules);
    char batch[64];
    if (c->exchange.clients.count > 0)
        (void)snprintf(batch, sizeof batch, "rounds of %u clients", c->virtual_workers);
    else
        (void)snprintf(batch, sizeof batch, "batch %u as V %u x %u", c->global_batch,
                       c->virtual_workers, c->global_batch / c->virtual_workers);
    printf("%s, %zu parameters, %s%s%s%s; %s; %u x %u threads on %u host%s\n", c->model,
           plan->rows[0].cost.parameters, lk_precision_name(c->precision), rules,
           exact ? "" : "; ", exact ? "" : label, batch, c->workers, c->threads, hosts,
           hosts == 1 ? "" : "s");
    if (o->train.assumed && strcmp(c->model, "bare") != 0)
        printf("no --data, so as with %s\n", c->data.source);
    printf("\n");
}

static void print_memory(const plan_options *o, const lk_train_plan *plan)
{
    printf("%-9s %12s %12s %12s %12s %12s %12s   %s%s\n", "a host", "parameters", "optimizer",
           "gradients", "activations", "buffers", "all, MiB", "sends in a step, MiB",
           o->plan.memory > 0 ? "   fits" : "");
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const lk_train_plan_row *row = &plan->rows[i];
        const lk_parallel_cost  *c   = &row->cost.shared;
        printf("%-9s %12.2f %12.2f %12.2f %12.2f %12.2f %12.2f   ", row->strategy,
               mebi((double)c->params), mebi((double)c->optimizer), mebi((double)c->gradients),
               mebi(activations_of(&row->cost)), mebi(buffers_of(&row->cost)), mebi(row->bytes));
        if (o->plan.memory > 0)
            printf("%-20.2f   %s", mebi(sent_by(row)),
                   row->fits ? "yes" : "no");
        else
            printf("%.2f", mebi(sent_by(row)));
        printf("\n");
    }
    for (uint32_t i = 0; i < plan->row_count && plan->rows[i].cost.snapshot > 0; i++)
        printf("%s%s %.2f%s", i == 0 ? "all: with what checkpoints are written from, MiB: " : ", ",
               plan->rows[i].strategy, mebi((double)plan->rows[i].cost.snapshot),
               i + 1 == plan->row_count ? "\n" : "");
}

static void print_frozen(const lk_train_plan *plan)
{
    if (plan->rows[0].cost.frozen > 0)
        printf("all: with frozen parameters, MiB a host: %.2f\n",
               mebi((double)plan->rows[0].cost.frozen));
}

static void print_refused(const lk_train_plan *plan)
{
    for (uint32_t i = 0; i < plan->refused_count; i++)
        printf("%s cannot: %s\n", plan->refused[i].strategy, plan->refused[i].why);
}

static const char *in_files(const lk_train_config *c)
{
    static const char *const words[] = { "optimizer state", "optimizer state", "parameters",
                                         "parameters and optimizer state" };
    return words[c->offloaded & (LK_OFFLOADED_STATES | LK_OFFLOADED_PARAMETERS)];
}

static void print_spilled(const lk_train_plan *plan)
{
    const lk_train_cost *c = &plan->rows[0].cost;
    if (c->spilled > 0)
        printf("all: activations of %.2f MiB a host in files\n",
               mebi((double)c->workers * (double)c->spilled));
}

/* Returns the largest layer of a model that is given by its sizes. */
static unsigned long long largest_layer(const lk_train_config *config)
{
    lk_model_options options = config->model_options;
    options.struct_size      = sizeof options;
    return lk_model_resolve(&options, "bare") == LK_OK ? options.largest_layer : 0;
}

/* Prints what a plan by --parameters could not include. */
static void print_unknown(const plan_options *o)
{
    const lk_model_options *model = &o->train.config.model_options;
    if (strcmp(o->train.config.model, "bare") != 0)
        return;
    if (model->activation_bytes == 0)
        printf("activations are not known, and not counted: --activation-bytes\n");
    if (model->largest_layer == 0)
        printf("layers are taken to be of %llu parameters, as in a GPT of that size: "
               "--largest-layer\n",
               largest_layer(&o->train.config));
}

static void print_files(const plan_options *o, const lk_train_plan *plan)
{
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const lk_train_plan_row *row = &plan->rows[i];
        if (row->cost.shared.files == 0)
            continue;
        printf("%s: %s of %.2f MiB a host in files", row->strategy, in_files(&o->train.config),
               mebi((double)row->cost.shared.files));
        if (plan->timed && row->model.file_bandwidth > 0)
            printf(", in use for %.3f ms a step, which stalls for %.3f", 1e3 * row->step.files,
                   1e3 * row->step.stalled);
        else if (plan->timed)
            printf("; how long that takes is not known without --file-bandwidth");
        printf("\n");
    }
}

static void print_times(const plan_options *o, const lk_train_plan *plan)
{
    const lk_train_plan_row *first = &plan->rows[0];
    const lk_step_model     *model = has_replicas(plan) ? &first->local.inner : &first->model;
    printf("\nstep: %.3f GFLOP on %u workers, %s; %u x (forward %.3f ms + backward %.3f "
           "ms), update %.3f ms\n",
           1e-9 * plan->flops, o->train.config.workers,
           o->plan.measure ? "by what this machine takes" : "by the rate given", first->step.rounds,
           1e3 * model->forward, 1e3 * model->backward, 1e3 * update_of(first));
    printf("%-9s %12s %14s %12s %12s %12s\n", "", "step, ms", "communication", "of it bare",
           "samples/s", "efficiency");
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const lk_train_plan_row *row = &plan->rows[i];
        printf("%-9s %12.3f %14.3f %12.3f %12.1f %12.3f\n", row->strategy, 1e3 * row->step.seconds,
               1e3 * row->step.communication, 1e3 * row->step.exposed, samples_per_second(o, row),
               row->step.efficiency);
    }
}

/* Prints the two kinds of steps of the chosen strategy, or of the first. */
static void print_rounds(const plan_options *o, const lk_train_plan *plan)
{
    const lk_train_plan_row *row = &plan->rows[plan->chosen < plan->row_count ? plan->chosen : 0];
    if (!plan->timed)
        return;
    const uint32_t outer = row->local.fragments;
    printf("\n%s: %" PRIu64 " inner steps of %.3f ms, and %u outer step%s of %.3f ms in which a "
           "host sends %.2f MiB%s\n",
           row->strategy, row->local.local_steps, 1e3 * row->round.inner.seconds, outer,
           outer == 1 ? "" : "s", 1e3 * row->round.outer.seconds, mebi(row->round.outer.sent),
           outer == 1 ? "" : " each");
    if (o->train.config.exchange.compressor != NULL)
        printf("the time to compress outer gradients is not predicted\n");
}

/* Prints what ddp would take beside the chosen strategy, or the first. */
static void print_whole(const lk_train_plan *plan)
{
    const lk_train_plan_row *ddp = &plan->whole;
    const lk_train_plan_row *row = &plan->rows[plan->chosen < plan->row_count ? plan->chosen : 0];
    const double             sent = sent_by(row), sends = sent_by(ddp);
    printf("\nwithout replicas, ddp would ");
    if (plan->timed)
        printf("take %.3f ms for a step (%.2f times as long), ", 1e3 * ddp->step.seconds,
               ddp->step.seconds / row->step.seconds);
    printf("send %.2f MiB", mebi(sends));
    if (sent > 0)
        printf(" (%.1f times as much)", sends / sent);
    printf(", and need %.2f MiB of a host\n", mebi(ddp->bytes));
}

static void print_points(const lk_train_plan *plan)
{
    printf("\n%7s %7s   %-31s   %s\n", "", "", "as much for each worker", "this batch for all");
    printf("%7s %7s   %12s %18s   %7s %12s %9s\n", "workers", "hosts", "step, ms", "efficiency",
           "rounds", "step, ms", "speed-up");
    for (uint32_t i = 0; i < plan->point_count; i++) {
        const lk_train_plan_point *p = &plan->points[i];
        printf("%7u %7u   %12.3f %18.3f", p->workers, p->hosts, 1e3 * p->each.seconds,
               p->each.efficiency);
        if (p->dealt)
            printf("   %7u %12.3f %9.2f", p->same.rounds, 1e3 * p->same.seconds,
                   plan->alone / p->same.seconds);
        printf("\n");
    }
}

/* Prints the bytes of the steps before compression begins. */
static void print_start(const plan_options *o, const lk_train_plan *plan)
{
    const lk_train_exchange *x = &o->train.config.exchange;
    if (x->start < 2 && x->freeze_step == 0)
        return;
    printf("\nsent before --%s, MiB: ", x->freeze_step > 0 ? "freeze-step" : "compress-start");
    for (uint32_t i = 0; i < plan->row_count; i++)
        printf("%s %.2f%s", plan->rows[i].strategy,
               mebi((double)plan->rows[i].cost.shared.sent_before),
               i + 1 < plan->row_count ? ", " : "\n");
}

/* Names the staleness of the gradients in a bin. */
static void bin_text(uint32_t bin, char text[32])
{
    const unsigned first = bin > 0 ? 1U << (bin - 1) : 0;
    if (bin < 2)
        (void)snprintf(text, 32, "%u", first);
    else if (bin + 1 < LK_STALENESS_BINS)
        (void)snprintf(text, 32, "%u-%u", first, 2 * first - 1);
    else
        (void)snprintf(text, 32, "%u+", first);
}

/* Prints which part of the gradients has which staleness. */
static void print_staleness(const lk_async_forecast *f)
{
    uint32_t bins = LK_STALENESS_BINS;
    char     text[32];
    while (bins > 1 && f->staleness_bins[bins - 1] <= 0)
        bins--;
    printf("  versions behind ");
    for (uint32_t i = 0; i < bins; i++) {
        bin_text(i, text);
        printf(" %7s", text);
    }
    printf("\n  gradients, %%    ");
    for (uint32_t i = 0; i < bins; i++)
        printf(" %7.2f", 100 * f->staleness_bins[i]);
    printf("\n");
}

/* Prints the staleness of asynchronous training, and how busy its schedule keeps the workers. */
static void print_async(const plan_options *o, const lk_train_plan *plan)
{
    const lk_train_config *c = &o->train.config;
    if (c->exchange.async.mode == LK_ASYNC_OFF)
        return;
    if (c->exchange.async.mode == LK_ASYNC_LIVE) {
        printf("\n%u groups, live: arrival decides on the staleness\n", c->exchange.groups);
        return;
    }
    printf("\n%u groups, staleness: %.2f on average, at most %u\n", c->exchange.groups,
           plan->async.staleness_mean, plan->async.staleness_max);
    print_staleness(&plan->async);
    if (c->exchange.async.staleness > 0)
        printf("groups wait for others in %.1f %% of their simulated time\n",
               100 * plan->async.group_waiting);
    if (c->exchange.async.drops_late)
        printf("late gradients that are dropped: %.2f for each that is applied\n",
               plan->async.dropped);
    printf("%u worker%s of equal speed: %.2f of the sum of their speeds, waiting %.1f %% of the "
           "time\n",
           c->workers, c->workers == 1 ? "" : "s", plan->async.equal,
           100 * plan->async.equal_waiting);
    if (c->workers > 1)
        printf("with one of them at half speed: %.2f, waiting %.1f %%\n", plan->async.slow,
               100 * plan->async.slow_waiting);
    if (o->plan.measure || o->plan.rates.flops > 0)
        printf("no times: what updates of versions take is not predicted\n");
}

/* Prints advice on the number of groups, and why no times are predicted. */
static void print_groups(const plan_options *o, bool timed)
{
    const lk_train_exchange *x = &o->train.config.exchange;
    const lk_compressor     *compressor;
    if (x->compressor == NULL || lk_compressor_find(&compressor, x->compressor) != LK_OK)
        return;
    if (compressor->combine == LK_COMBINE_TREE && x->groups > o->plan.hosts)
        printf("\n%u groups: with %s fewer groups change only roundings, and take less memory and "
               "time; a group for each host is enough (--groups)\n",
               x->groups, x->compressor);
    if (!timed && (o->plan.measure || o->plan.rates.flops > 0))
        printf("\nno times: what compression takes and saves is not predicted\n");
}

void lki_plan_print(const plan_options *o, const lk_train_plan *plan)
{
    print_head(o, plan);
    print_memory(o, plan);
    print_frozen(plan);
    print_refused(plan);
    print_unknown(o);
    print_spilled(plan);
    print_files(o, plan);
    if (plan->timed)
        print_times(o, plan);
    if (plan->point_count > 0)
        print_points(plan);
    if (has_replicas(plan)) {
        print_rounds(o, plan);
        print_whole(plan);
    }
    print_start(o, plan);
    print_groups(o, plan->timed);
    print_async(o, plan);
    if (plan->chosen == plan->row_count)
        printf("\n%s\n", plan->why);
    else
        printf("\nchoose %s: %s\n", plan->rows[plan->chosen].strategy, plan->why);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static void print_json_row(const plan_options *o, const lk_train_plan *plan,
                           const lk_train_plan_row *row)
{
    const lk_parallel_cost *c = &row->cost.shared;
    printf("{\"strategy\": \"%s\", \"parameters\": %zu, \"optimizer\": %zu, \"gradients\": %zu, "
           "\"activations\": %.0f, \"buffers\": %.0f, \"all\": %.0f, \"sent_gradients\": "
           "%" PRIu64 ", \"sent_parameters\": %" PRIu64 ", \"snapshot\": %zu, \"frozen\": "
           "%zu, \"files\": %zu, \"spilled\": %" PRIu64 ", \"sent_before\": %" PRIu64,
           row->strategy, c->params, c->optimizer, c->gradients, activations_of(&row->cost),
           buffers_of(&row->cost), row->bytes, c->sent_gradients, c->sent_params,
           row->cost.snapshot, row->cost.frozen, c->files,
           row->cost.workers * row->cost.spilled, c->sent_before);
    if (o->plan.memory > 0)
        printf(", \"fits\": %s", row->fits ? "true" : "false");
    if (plan->timed)
        printf(", \"step_ms\": %.6f, \"compute_ms\": %.6f, \"communication_ms\": %.6f, "
               "\"exposed_ms\": %.6f, \"update_ms\": %.6f, \"files_ms\": %.6f, "
               "\"stalled_ms\": %.6f, \"samples_per_s\": %.3f, \"efficiency\": %.6f",
               1e3 * row->step.seconds, 1e3 * row->step.compute, 1e3 * row->step.communication,
               1e3 * row->step.exposed, 1e3 * update_of(row), 1e3 * row->step.files,
               1e3 * row->step.stalled, samples_per_second(o, row), row->step.efficiency);
    if (plan->timed && row->local.served > 0)
        printf(", \"inner_ms\": %.6f, \"outer_ms\": %.6f", 1e3 * row->round.inner.seconds,
               1e3 * row->round.outer.seconds);
    if (has_replicas(plan))
        printf(", \"sent_outer\": %" PRIu64, c->sent_outer);
    printf("}");
}

static void print_json_points(const lk_train_plan *plan)
{
    printf(", \"flops\": %.0f, \"scaling\": [", plan->flops);
    for (uint32_t i = 0; i < plan->point_count; i++) {
        const lk_train_plan_point *p = &plan->points[i];
        printf("%s{\"workers\": %u, \"hosts\": %u, \"step_ms\": %.6f, \"efficiency\": %.6f",
               i > 0 ? ", " : "", p->workers, p->hosts, 1e3 * p->each.seconds, p->each.efficiency);
        if (p->dealt)
            printf(", \"rounds\": %u, \"same_batch_ms\": %.6f, \"speed_up\": %.6f", p->same.rounds,
                   1e3 * p->same.seconds, plan->alone / p->same.seconds);
        printf("}");
    }
    printf("]");
}

/* Prints a one-line message as a JSON string. */
static void print_json_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++)
        printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    putchar('"');
}

static void print_json_refused(const lk_train_plan *plan)
{
    printf(", \"refused\": [");
    for (uint32_t i = 0; i < plan->refused_count; i++) {
        printf("%s{\"strategy\": \"%s\", \"why\": ", i > 0 ? ", " : "", plan->refused[i].strategy);
        print_json_text(plan->refused[i].why);
        printf("}");
    }
    printf("]");
}

static void print_json_async(const lk_async_forecast *f)
{
    printf(", \"async\": {\"staleness_mean\": %.6f, \"staleness_max\": %u, "
           "\"staleness_bins\": [",
           f->staleness_mean, f->staleness_max);
    for (uint32_t i = 0; i < LK_STALENESS_BINS; i++)
        printf("%s%.6f", i > 0 ? ", " : "", f->staleness_bins[i]);
    printf("], \"group_waiting\": %.6f, \"dropped\": %.6f, \"equal\": %.6f, "
           "\"equal_waiting\": %.6f, \"slow\": %.6f, \"slow_waiting\": %.6f}",
           f->group_waiting, f->dropped, f->equal, f->equal_waiting, f->slow, f->slow_waiting);
}

void lki_plan_print_json(const plan_options *o, const lk_train_plan *plan)
{
    const lk_train_config *c = &o->train.config;
    char                   text[128];
    printf("{\"model\": \"%s\", \"elements\": %zu, \"workers\": %u, \"hosts\": %u, "
           "\"label\": \"%s\", ",
           c->model, plan->rows[0].cost.parameters, c->workers, o->plan.hosts,
           lk_label_name(label_of(o, text, sizeof text)));
    if (strcmp(c->model, "bare") == 0)
        printf("\"largest_layer\": %llu, \"activations_known\": %s, ",
               largest_layer(c),
               c->model_options.activation_bytes > 0 ? "true" : "false");
    printf("\"strategies\": [");
    for (uint32_t i = 0; i < plan->row_count; i++) {
        printf("%s", i > 0 ? ", " : "");
        print_json_row(o, plan, &plan->rows[i]);
    }
    printf("]");
    print_json_refused(plan);
    if (has_replicas(plan)) {
        printf(", \"without_replicas\": ");
        print_json_row(o, plan, &plan->whole);
    }
    if (plan->timed)
        print_json_points(plan);
    if (c->exchange.async.mode == LK_ASYNC_VIRTUAL)
        print_json_async(&plan->async);
    if (plan->chosen < plan->row_count)
        printf(", \"choice\": \"%s\"", plan->rows[plan->chosen].strategy);
    else
        printf(", \"choice\": null");
    printf(", \"why\": \"%s\"}\n", plan->why);
}
