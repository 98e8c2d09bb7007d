/* plan_print.c -- what `lockstep plan` found out, for people and for programs. */
#include <inttypes.h>
#include <math.h>
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

/* To what is printed of it. */
static double round_down(double count)
{
    double unit = count < 1e4 ? 1 : pow(10, floor(log10(count)) - 3);
    return floor(count / unit) * unit;
}

static double samples_per_second(const plan_options *o, const plan_row *row)
{
    return o->train.config.global_batch / row->step.seconds;
}

/* Of what travels nothing is quantised, and nothing is dropped. */
static bool is_exact(const plan_options *o)
{
    lk_dtype gradients = o->train.config.comm_dtype;
    return gradients != LK_I8 && gradients != LK_I4 && o->train.config.gather_dtype != LK_I8 &&
           o->train.config.backup_workers == 0;
}

/* ---- Text -------------------------------------------------------------------------------- */

static void print_head(const plan_options *o, const plan_table *plan)
{
    const lk_train_config *c     = &o->train.config;
    uint32_t               hosts = lki_plan_hosts(o);
    printf("%s, %zu parameters, %s%s%s%s%s; batch %u as V %u x %u; %u x %u threads on %u "
           "host%s\n\n",
           c->model, plan->rows[0].cost.parameters, lk_precision_name(c->precision),
           c->comm_dtype == LK_F32 ? "" : ", gradients travel as ",
           c->comm_dtype == LK_F32 ? "" : lk_precision_name(c->comm_dtype),
           c->gather_dtype == LK_I8 ? ", parameters are read as int8" : "",
           is_exact(o) ? "" : " (not exact)", c->global_batch,
           c->virtual_workers, c->global_batch / c->virtual_workers, c->workers, c->threads, hosts,
           hosts == 1 ? "" : "s");
}

static void print_memory(const plan_options *o, const plan_table *plan)
{
    printf("%-9s %12s %12s %12s %12s %12s %12s   %s%s\n", "a host", "parameters", "optimizer",
           "gradients", "activations", "buffers", "all, MiB", "sends in a step, MiB",
           o->memory > 0 ? "   fits   largest model" : "");
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const plan_row         *row = &plan->rows[i];
        const lk_parallel_cost *c   = &row->cost.shared;
        printf("%-9s %12.2f %12.2f %12.2f %12.2f %12.2f %12.2f   ", row->strategy,
               mebi((double)c->params), mebi((double)c->optimizer), mebi((double)c->gradients),
               mebi(activations_of(&row->cost)), mebi(buffers_of(&row->cost)), mebi(row->whole));
        if (o->memory > 0)
            printf("%-20.2f   %-4s   %.4g%s", mebi((double)(c->sent_gradients + c->sent_params)),
                   row->fits ? "yes" : "no", round_down(row->largest),
                   row->larger_may_fit ? " or more" : "");
        else
            printf("%.2f", mebi((double)(c->sent_gradients + c->sent_params)));
        printf("\n");
    }
    for (uint32_t i = 0; i < plan->row_count && plan->rows[i].cost.snapshot > 0; i++)
        printf("%s%s %.2f%s", i == 0 ? "all: with what checkpoints are written from, MiB: " : ", ",
               plan->rows[i].strategy, mebi((double)plan->rows[i].cost.snapshot),
               i + 1 == plan->row_count ? "\n" : "");
}

static void print_refused(const plan_table *plan)
{
    for (uint32_t i = 0; i < plan->refused_count; i++)
        printf("%s cannot: %s\n", plan->refused[i].strategy, plan->refused[i].why);
}

static void print_widths(const lk_model_options *mlp)
{
    for (uint32_t i = 0; i < mlp->hidden_count; i++)
        printf("%s%u", i > 0 ? "," : "", mlp->hidden[i]);
}

static void print_larger(const lk_model_options *model)
{
    if (model->width > 0)
        printf("--width %u", model->width);
    else if (model->hidden_count > 0)
        printf("--hidden ");
    else
        printf("none");
    print_widths(model);
}

/* In what the largest models are larger, and why they are not larger still. */
static void print_largest(const plan_options *o, const plan_table *plan)
{
    const char *model = o->train.config.model;
    bool        more  = false;
    for (uint32_t i = 0; i < plan->row_count; i++)
        more = more || plan->rows[i].larger_may_fit;
    if (more)
        printf("or more: a plan is of at most 4096 layers (--largest-layer), 1e15 parameters and a "
               "--width of %d\n", 1 << 20);
    if (o->memory == 0 || strcmp(model, "bare") == 0)
        return;
    if (strcmp(model, "resnet") == 0) {
        printf("largest models are told in proportion to the parameters of this one\n");
        return;
    }
    for (uint32_t i = 0; i < plan->row_count; i++) {
        printf("%s%s ", i == 0 ? "largest models: " : ", ", plan->rows[i].strategy);
        print_larger(&plan->rows[i].largest_model);
    }
    printf("\n");
}

static const char *in_files(const lk_train_config *c)
{
    static const char *const words[] = { "optimizer state", "optimizer state", "parameters",
                                         "parameters and optimizer state" };
    return words[c->offloaded & (LK_OFFLOADED_STATES | LK_OFFLOADED_PARAMETERS)];
}

static void print_spilled(const plan_table *plan)
{
    const lk_train_cost *c = &plan->rows[0].cost;
    if (c->spilled > 0)
        printf("all: activations of %.2f MiB a host in files\n",
               mebi((double)c->workers * (double)c->spilled));
}

/* What a plan by --parameters had to do without. */
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
               (unsigned long long)lk_model_resolve("bare", model).largest_layer);
}

static void print_files(const plan_options *o, const plan_table *plan)
{
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const plan_row *row = &plan->rows[i];
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

static void print_times(const plan_options *o, const plan_table *plan)
{
    const plan_row *first = &plan->rows[0];
    printf("\nstep: %.3f GFLOP on %u workers, %s; %u x (forward %.3f ms + backward %.3f "
           "ms), update %.3f ms\n",
           1e-9 * plan->flops, first->model.workers,
           o->measure ? "by what this machine takes" : "by the rate given", first->step.rounds,
           1e3 * first->model.forward, 1e3 * first->model.backward, 1e3 * first->model.update);
    printf("%-9s %12s %14s %12s %12s %12s\n", "", "step, ms", "communication", "of it bare",
           "samples/s", "efficiency");
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const plan_row *row = &plan->rows[i];
        printf("%-9s %12.3f %14.3f %12.3f %12.1f %12.3f\n", row->strategy, 1e3 * row->step.seconds,
               1e3 * row->step.communication, 1e3 * row->step.exposed, samples_per_second(o, row),
               row->step.efficiency);
    }
}

static void print_points(const plan_table *plan)
{
    printf("\n%7s %7s   %-31s   %s\n", "", "", "as much for each worker", "this batch for all");
    printf("%7s %7s   %12s %18s   %7s %12s %9s\n", "workers", "hosts", "step, ms", "efficiency",
           "rounds", "step, ms", "speed-up");
    for (uint32_t i = 0; i < plan->point_count; i++) {
        const plan_point *p = &plan->points[i];
        printf("%7u %7u   %12.3f %18.3f", p->workers, p->hosts, 1e3 * p->each.seconds,
               p->each.efficiency);
        if (p->dealt)
            printf("   %7u %12.3f %9.2f", p->same.rounds, 1e3 * p->same.seconds,
                   plan->alone / p->same.seconds);
        printf("\n");
    }
}

void lki_plan_print(const plan_options *o, const plan_table *plan)
{
    print_head(o, plan);
    print_memory(o, plan);
    print_refused(plan);
    print_unknown(o);
    print_largest(o, plan);
    print_spilled(plan);
    print_files(o, plan);
    if (plan->timed) {
        print_times(o, plan);
        print_points(plan);
    }
    if (plan->chosen == plan->row_count)
        printf("\n%s\n", plan->why);
    else
        printf("\nchoose %s: %s\n", plan->rows[plan->chosen].strategy, plan->why);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static void print_json_row(const plan_options *o, const plan_table *plan, const plan_row *row)
{
    const lk_parallel_cost *c = &row->cost.shared;
    printf("{\"strategy\": \"%s\", \"parameters\": %zu, \"optimizer\": %zu, \"gradients\": %zu, "
           "\"activations\": %.0f, \"buffers\": %.0f, \"all\": %.0f, \"sent_gradients\": "
           "%" PRIu64 ", \"sent_parameters\": %" PRIu64 ", \"snapshot\": %zu, \"files\": %zu, "
           "\"spilled\": %" PRIu64,
           row->strategy, c->params, c->optimizer, c->gradients, activations_of(&row->cost),
           buffers_of(&row->cost), row->whole, c->sent_gradients, c->sent_params,
           row->cost.snapshot, c->files, row->cost.workers * row->cost.spilled);
    if (o->memory > 0)
        printf(", \"fits\": %s, \"largest\": %.0f, \"larger_may_fit\": %s",
               row->fits ? "true" : "false", row->largest, row->larger_may_fit ? "true" : "false");
    if (row->largest_model.width > 0)
        printf(", \"largest_width\": %u", row->largest_model.width);
    if (row->largest_model.hidden_count > 0) {
        printf(", \"largest_hidden\": [");
        print_widths(&row->largest_model);
        printf("]");
    }
    if (plan->timed)
        printf(", \"step_ms\": %.6f, \"compute_ms\": %.6f, \"communication_ms\": %.6f, "
               "\"exposed_ms\": %.6f, \"update_ms\": %.6f, \"files_ms\": %.6f, "
               "\"stalled_ms\": %.6f, \"samples_per_s\": %.3f, \"efficiency\": %.6f",
               1e3 * row->step.seconds, 1e3 * row->step.compute, 1e3 * row->step.communication,
               1e3 * row->step.exposed, 1e3 * row->model.update, 1e3 * row->step.files,
               1e3 * row->step.stalled, samples_per_second(o, row), row->step.efficiency);
    printf("}");
}

static void print_json_points(const plan_table *plan)
{
    printf(", \"flops\": %.0f, \"scaling\": [", plan->flops);
    for (uint32_t i = 0; i < plan->point_count; i++) {
        const plan_point *p = &plan->points[i];
        printf("%s{\"workers\": %u, \"hosts\": %u, \"step_ms\": %.6f, \"efficiency\": %.6f",
               i > 0 ? ", " : "", p->workers, p->hosts, 1e3 * p->each.seconds, p->each.efficiency);
        if (p->dealt)
            printf(", \"rounds\": %u, \"same_batch_ms\": %.6f, \"speed_up\": %.6f", p->same.rounds,
                   1e3 * p->same.seconds, plan->alone / p->same.seconds);
        printf("}");
    }
    printf("]");
}

/* A message: one line. */
static void print_json_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++)
        printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    putchar('"');
}

static void print_json_refused(const plan_table *plan)
{
    printf(", \"refused\": [");
    for (uint32_t i = 0; i < plan->refused_count; i++) {
        printf("%s{\"strategy\": \"%s\", \"why\": ", i > 0 ? ", " : "",
               plan->refused[i].strategy);
        print_json_text(plan->refused[i].why);
        printf("}");
    }
    printf("]");
}

void lki_plan_print_json(const plan_options *o, const plan_table *plan)
{
    const lk_train_config *c = &o->train.config;
    printf("{\"model\": \"%s\", \"elements\": %zu, \"workers\": %u, \"hosts\": %u, \"exact\": %s, ",
           c->model, plan->rows[0].cost.parameters, c->workers, lki_plan_hosts(o),
           is_exact(o) ? "true" : "false");
    if (strcmp(c->model, "bare") == 0)
        printf("\"largest_layer\": %llu, \"activations_known\": %s, ",
               (unsigned long long)lk_model_resolve("bare", &c->model_options).largest_layer,
               c->model_options.activation_bytes > 0 ? "true" : "false");
    printf("\"strategies\": [");
    for (uint32_t i = 0; i < plan->row_count; i++) {
        printf("%s", i > 0 ? ", " : "");
        print_json_row(o, plan, &plan->rows[i]);
    }
    printf("]");
    print_json_refused(plan);
    if (plan->timed)
        print_json_points(plan);
    if (plan->chosen < plan->row_count)
        printf(", \"choice\": \"%s\"", plan->rows[plan->chosen].strategy);
    else
        printf(", \"choice\": null");
    printf(", \"why\": \"%s\"}\n", plan->why);
}
