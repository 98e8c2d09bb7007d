/* cmd_plan.c -- `lockstep plan`: what a training run takes, before it runs.
 *
 * The options are those of train, so that a command line can be tried with `plan` in place of
 * `train`.  Every number comes from the arithmetic that places things in a run.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/train.h"

typedef struct {
    train_options train; /* first: its table is part of ours */
    bool          json, paper;
    double        parameters, memory;
} plan_options;

static const char *const strategies[] = { "ddp", "zero1" };
enum { STRATEGIES = sizeof strategies / sizeof strategies[0], STAGES = 4 };

/* ---- Options ----------------------------------------------------------------------------- */

#define AT(field) offsetof(plan_options, field)

static const char *const left_out[] = { "restart", NULL };
static const lki_need    need_paper = { "paper", { NULL, NULL } };

/* clang-format off */
static const lki_option own[] = {
    { .group = "planning", .name = "json", .type = LKI_OPTION_FLAG, .offset = AT(json),
      .help = "one JSON object" },
    LKI_FLAG("paper", AT(paper), "the ZeRO paper's formulas instead: parameters and gradients of 2 "
             "bytes, every worker with memory of its own"),
    { .needs = &need_paper, .name = "parameters", .type = LKI_OPTION_REAL, .value = "P",
      .offset = AT(parameters), .range = &lki_range_positive, .preset = "the model's",
      .help = "how many parameters, such as 7.5e9" },
    { .needs = &need_paper, .name = "memory", .type = LKI_OPTION_REAL, .value = "BYTES",
      .offset = AT(memory), .range = &lki_range_positive, .preset = "none",
      .help = "says the largest model whose states fit into so much, such as 32e9" },
    LKI_OPTIONS_END,
};
/* clang-format on */

static uint32_t hosts_of(const plan_options *o)
{
    const lki_nodes *nodes = &o->train.nodes;
    return nodes->hosts > 1 ? nodes->hosts : nodes->count > 1 ? nodes->count : 1;
}

/* ---- Our own memory ---------------------------------------------------------------------- */

static size_t whole(const lk_train_cost *c)
{
    return c->shared.params + c->shared.optimizer + c->shared.gradients + c->shared.tables +
           c->workers * c->activations;
}

static double mebi(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_head(const plan_options *o, const lk_train_cost *cost)
{
    const lk_train_config *c = &o->train.config;
    printf("%s, %zu parameters, %s; batch %u as V %u x %u; %u x %u threads on %u host%s\n\n",
           c->model, cost->parameters, lk_precision_name(c->precision), c->global_batch,
           c->virtual_workers, c->global_batch / c->virtual_workers, c->workers, c->threads,
           hosts_of(o), hosts_of(o) == 1 ? "" : "s");
    printf("%-9s %12s %12s %12s %12s %12s %12s   %s\n", "a host", "parameters", "optimizer",
           "gradients", "activations", "tables", "all, MiB", "sends in a step, MiB");
}

static void print_row(const char *strategy, const lk_train_cost *c)
{
    printf("%-9s %12.2f %12.2f %12.2f %12.2f %12.2f %12.2f   %.2f\n", strategy,
           mebi(c->shared.params), mebi(c->shared.optimizer), mebi(c->shared.gradients),
           mebi(c->workers * c->activations), mebi(c->shared.tables), mebi(whole(c)),
           mebi(c->shared.sent_gradients + c->shared.sent_params));
}

static void print_json(const char *strategy, const lk_train_cost *c, bool first)
{
    printf("%s{\"strategy\": \"%s\", \"parameters\": %zu, \"optimizer\": %zu, "
           "\"gradients\": %zu, \"activations\": %zu, \"tables\": %zu, \"all\": %zu, "
           "\"sent_gradients\": %" PRIu64 ", \"sent_parameters\": %" PRIu64 "}",
           first ? "" : ", ", strategy, c->shared.params, c->shared.optimizer, c->shared.gradients,
           c->workers * c->activations, c->shared.tables, whole(c), c->shared.sent_gradients,
           c->shared.sent_params);
}

static int fail(const plan_options *o, lk_status status)
{
    if (status == LK_EINVAL)
        return lki_usage_error(o->train.command, "%s", lk_error_last()->message);
    fprintf(stderr, "lockstep plan: %s\n", lk_error_last()->message);
    return LKI_EXIT_FAILURE;
}

/* All strategies, or the one that was asked for. */
static int plan_memory(plan_options *o)
{
    const char *asked = o->train.config.strategy;
    bool        first = true;
    for (size_t i = 0; i < STRATEGIES; i++) {
        lk_train_cost cost;
        if (asked != NULL && strcmp(asked, "single") != 0 && strcmp(asked, strategies[i]) != 0)
            continue;
        o->train.config.strategy =
            asked != NULL && strcmp(asked, "single") == 0 ? asked : strategies[i];
        lk_status status = lk_train_estimate(&o->train.config, hosts_of(o), &cost);
        if (status != LK_OK)
            return fail(o, status);
        if (first && !o->json)
            print_head(o, &cost);
        if (first && o->json)
            printf("{\"model\": \"%s\", \"elements\": %zu, \"workers\": %u, \"hosts\": %u, "
                   "\"strategies\": [", o->train.config.model, cost.parameters,
                   o->train.config.workers, hosts_of(o));
        if (o->json)
            print_json(o->train.config.strategy, &cost, first);
        else
            print_row(o->train.config.strategy, &cost);
        first = false;
        if (o->train.config.strategy == asked)
            break;
    }
    if (o->json)
        printf("]}\n");
    return 0;
}

/* ---- The paper's ------------------------------------------------------------------------- */

static double state_bytes(const lk_optimizer *optimizer)
{
    return 4 + 4 * lk_optimizer_state_count(optimizer); /* with the FP32 weights */
}

static void print_paper(const plan_options *o, double parameters)
{
    static const char *const names[STAGES] = { "baseline", "zero1 (os)", "zero2 (os+g)",
                                               "zero3 (os+g+p)" };
    const lk_train_config *c = &o->train.config;
    double                 k = state_bytes(&c->optimizer);
    printf("%.6g parameters, %u workers, K %g: model states of a worker (ZeRO, section 5)\n\n",
           parameters, c->workers, k);
    printf("%-16s %14s %14s%s\n", "", "GB", "elements sent",
           o->memory > 0 ? "   largest model" : "");
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        double bytes = lk_zero_paper_bytes(stage, parameters, c->workers, k);
        printf("%-16s %14.4f %14.6g", names[stage], bytes / 1e9, (stage < 3 ? 2 : 3) * parameters);
        if (o->memory > 0)
            printf("   %.6g", o->memory / (bytes / parameters));
        printf("\n");
    }
}

static void print_paper_json(const plan_options *o, double parameters)
{
    const lk_train_config *c = &o->train.config;
    double                 k = state_bytes(&c->optimizer);
    printf("{\"parameters\": %.17g, \"workers\": %u, \"state_bytes\": %g, \"stages\": [",
           parameters, c->workers, k);
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        double bytes = lk_zero_paper_bytes(stage, parameters, c->workers, k);
        printf("%s{\"stage\": %u, \"bytes\": %.17g, \"elements_sent\": %.17g",
               stage > 0 ? ", " : "", stage, bytes, (stage < 3 ? 2 : 3) * parameters);
        if (o->memory > 0)
            printf(", \"largest\": %.17g", o->memory / (bytes / parameters));
        printf("}");
    }
    printf("]}\n");
}

/* The model is asked only if the number of its parameters was not given. */
static int plan_paper(plan_options *o)
{
    double parameters = o->parameters;
    if (o->train.config.workers == 0)
        return lki_usage_error(o->train.command, "--paper needs --workers N");
    if (parameters == 0) {
        lk_train_config config = o->train.config;
        lk_train_cost   cost;
        config.workers   = 1;
        lk_status status = lk_train_estimate(&config, 1, &cost);
        if (status != LK_OK)
            return fail(o, status);
        parameters = (double)cost.parameters;
    }
    if (o->json)
        print_paper_json(o, parameters);
    else
        print_paper(o, parameters);
    return 0;
}

/* ---- The command ------------------------------------------------------------------------- */

static int plan_main(int argc, char **argv)
{
    plan_options options = { .train = LKI_TRAIN_OPTIONS_INIT };
    lki_command  command = lki_command_plan;
    lki_option  *rows    = lki_train_rows(left_out, own);
    if (rows == NULL) {
        fprintf(stderr, "lockstep plan: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    command.options       = rows;
    options.train.command = &command;
    int result            = lki_options_parse(&command, argc, argv, &options);
    if (result < 0) {
        lki_train_defaults(&options.train.config);
        if (options.train.config.steps == 0 && options.train.config.epochs == 0)
            options.train.config.steps = 1;
        result = options.paper ? plan_paper(&options) : plan_memory(&options);
    }
    free(options.train.file.text);
    free(rows);
    return result;
}

const lki_command lki_command_plan = {
    .name    = "plan",
    .summary = "say what a training run takes, before it runs",
    .usage   = "MODEL [options of train]",
    .about =
        "For each strategy: the memory of a host by what it is for, and what a host sends to\n"
        "others in a step.  Workers of a host share parameters, optimizer state and gradients;\n"
        "activations are each worker's own.  The numbers come from the arithmetic that places\n"
        "things in a run.  Of hosts that differ, the one with the most is told; the command, its\n"
        "data and what ranks send to agree are not counted.  Nothing is allocated: the model may\n"
        "be larger than this machine.",
    .examples = "  lockstep plan gpt --layers 12 --heads 12 --width 768 --optimizer adamw \\\n"
                "      --global-batch 64 --workers 8 --hosts 4\n"
                "  lockstep plan gpt --paper --parameters 7.5e9 --workers 64 --optimizer adamw \\\n"
                "      --memory 32e9",
    .options  = own,
    .main     = plan_main,
};
