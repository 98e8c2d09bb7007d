/* cmd_plan.c -- `lockstep plan`: what a training run takes, before it runs.
 *
 * The options are those of train, so that a command line can be tried with `plan` in place of
 * `train`.  Memory and traffic come from the arithmetic that places things in a run; times from
 * lk_step_predict(), with rates that are given or measured.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/plan.h"

static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3",
                                         "hybrid" };
enum { STRATEGIES = sizeof strategies / sizeof strategies[0], MOST_WORKERS = 4096 };
_Static_assert(sizeof strategies / sizeof strategies[0] <= PLAN_ROWS_MAX, "a row for each");

/* ---- Options ----------------------------------------------------------------------------- */

#define AT(field) offsetof(plan_options, field)

static const char *const left_out[] = { "restart", "host-memory", "chaos", NULL };
static const lki_need    need_paper = { "paper", { NULL, NULL } };
static const lki_need    need_offload = { "offload", { NULL, NULL } };
static const lki_need    need_flops = { "flops", { NULL } };
static const lki_need    need_parameters = { "parameters", { NULL, NULL } };

#define PAPER_REAL(name_, value_, field_, preset_, help_)                                        \
    { .needs = &need_paper, .name = name_, .type = LKI_OPTION_REAL, .value = value_,             \
      .offset = AT(field_), .range = &lki_range_positive, .preset = preset_, .help = help_ }

static const lki_range count_range = {
    .low = 1, .high = 1e15, .whole = true, .text = "a whole number from 1 to 1e15, as 1.5e9 is"
};
static const lki_range rate_range = { .low = 1, .high = 1e24, .text = "a number from 1 to 1e24" };

/* clang-format off */
static const lki_option own[] = {
    { .group = "planning", .name = "json", .type = LKI_OPTION_FLAG, .offset = AT(json),
      .help = "one JSON object" },
    LKI_REAL("memory", "BYTES", AT(memory), &lki_range_positive, "none",
             "of a host, such as 32e9: which strategies fit, and what would (of a worker, with "
             "--paper)"),
    LKI_STRING("plot", "FILE.svg", AT(plot), "none", "draw memory, and efficiency if it is known"),
    { .group = "time (one of the first two is needed for it)", .name = "measure",
      .type = LKI_OPTION_FLAG, .offset = AT(measure),
      .help = "measure for some seconds what this machine takes for such models" },
    LKI_REAL("flops", "RATE", AT(rates.flops), &rate_range, "none",
             "operations a second that a worker reaches"),
    { .needs = &need_flops, .name = "memory-bandwidth", .type = LKI_OPTION_REAL, .value = "RATE",
      .offset = AT(rates.memory_bandwidth), .range = &rate_range, .preset = "none",
      .help = "with --flops: bytes a second of a worker; without it the update takes no time" },
    LKI_REAL("bandwidth", "RATE", AT(rates.bandwidth), &rate_range, "none",
             "bytes a second that a host sends; needed for several hosts"),
    LKI_REAL("latency", "SECONDS", AT(rates.latency), &lki_range_not_negative, "0",
             "of a message between hosts"),
    { .needs = &need_offload, .name = "file-bandwidth", .type = LKI_OPTION_REAL, .value = "RATE",
      .offset = AT(rates.file_bandwidth), .range = &rate_range,
      .preset = "measured with --measure",
      .help = "bytes a second of a host's files, read or written: the step's stall" },
    LKI_U32("most-workers", "N", AT(most_workers), 1, 1 << 20, "4096",
            "up to how many the efficiency is told"),
    { .group = "a model of which only sizes are known, in place of MODEL", .name = "parameters",
      .type = LKI_OPTION_REAL, .value = "P", .offset = AT(parameters),
      .range = &count_range, .preset = "the model's",
      .help = "how many parameters, such as 7.5e9; also with --paper" },
    LKI_REAL("largest-layer", "P", AT(largest_layer), &count_range, "as in a GPT of that size",
             "of them in a layer, what zero3 gathers at once; with --paper: says what DeepSpeed's "
             "estimators do"),
    { .needs = &need_parameters, .name = "sample-tokens", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(sample_tokens), .low = 1, .high = UINT32_MAX, .preset = "1",
      .help = "tokens of a sample: each takes 6 operations of every parameter" },
    { .needs = &need_parameters, .name = "activation-bytes", .type = LKI_OPTION_REAL,
      .value = "BYTES", .offset = AT(activation_bytes), .range = &count_range,
      .preset = "not counted",
      .help = "of a sample, that a worker keeps from forward to backward" },
    { .group = "formulas of others", .name = "paper", .type = LKI_OPTION_FLAG, .offset = AT(paper),
      .help = "the ZeRO paper's formulas instead: parameters and gradients of 2 bytes, every "
              "worker with memory of its own" },
    PAPER_REAL("forward-ms", "MS", forward_ms, "none", "of a virtual worker, for a step's time"),
    PAPER_REAL("backward-ms", "MS", backward_ms, "none", "the same"),
    PAPER_REAL("gradient-bytes", "BYTES", gradient_bytes, "2 P", "that travel in a step"),
    LKI_OPTIONS_END,
};
/* clang-format on */

uint32_t lki_plan_hosts(const plan_options *o)
{
    const lki_nodes *nodes = &o->train.nodes;
    return nodes->hosts > 1 ? nodes->hosts : nodes->count > 1 ? nodes->count : 1;
}

int lki_plan_fail(const plan_options *o, lk_status status)
{
    if (status == LK_EINVAL)
        return lki_usage_error(o->train.command, "%s", lk_error_last()->message);
    fprintf(stderr, "lockstep plan: %s\n", lk_error_last()->message);
    return LKI_EXIT_FAILURE;
}

/* ---- Strategies -------------------------------------------------------------------------- */

static void fill_memory(plan_row *row, double memory)
{
    const lk_train_cost *c     = &row->cost;
    double               fixed = (double)(c->workers * (c->activations + c->program) +
                                          c->shared.messages);
    row->whole   = (double)lk_train_cost_bytes(c);
    row->fits    = memory == 0 || row->whole <= memory;
    row->largest = floor(fmax(0, memory - fixed) / (row->whole - fixed) * (double)c->parameters);
}

/* As config->strategy says, which can be. */
static lk_status fill_row(plan_options *o, const lk_calibration *measured, plan_table *plan,
                          plan_row *row)
{
    lk_train_config *c      = &o->train.config;
    lk_status        status = lk_train_estimate(c, lki_plan_hosts(o), &row->cost);
    if (status != LK_OK)
        return status;
    row->strategy = c->strategy;
    fill_memory(row, o->memory);
    lki_plan_largest(o, row);
    if (plan->timed)
        status = lk_train_model_step(&row->model, &plan->flops, c, lki_plan_hosts(o), &o->rates,
                                     measured);
    return status == LK_OK && plan->timed ? lk_step_predict(&row->step, &row->model) : status;
}

/* Whether a strategy that nobody has asked for is told of; a number of hosts asks for hybrid. */
static bool is_told(const plan_options *o, const char *strategy)
{
    const lk_train_config *c    = &o->train.config;
    bool                   aside = c->offloaded & LK_OFFLOADED_PARAMETERS;
    if (strcmp(strategy, "hybrid") == 0)
        return c->shard_hosts > 0;
    return !aside || strcmp(strategy, "zero3") == 0; /* others read parameters where they are */
}

/* What one strategy does and another refuses is not for that one. */
static bool is_not_for_it(const plan_table *plan, lk_status status)
{
    return plan->row_count > 0 && (status == LK_EINVAL || status == LK_EUNSUPPORTED);
}

static void note_refusal(plan_table *plan, const char *strategy)
{
    plan_refusal *refusal = &plan->refused[plan->refused_count++];
    refusal->strategy     = strategy;
    (void)snprintf(refusal->why, sizeof refusal->why, "%s", lk_error_last()->message);
}

/* All strategies, or the one that was asked for.  If none can be, why the last cannot. */
static lk_status fill_rows(plan_options *o, const lk_calibration *measured, plan_table *plan)
{
    lk_train_config *c      = &o->train.config;
    lk_status        status = LK_OK;
    c->strategy             = lk_strategy_name(c->strategy);
    if (c->strategy != NULL) {
        status = lk_train_check_hosts(c, lki_plan_hosts(o));
        return status == LK_OK ? fill_row(o, measured, plan, &plan->rows[plan->row_count++])
                               : status;
    }
    for (size_t i = 0; status == LK_OK && i < STRATEGIES; i++) {
        c->strategy = strategies[i];
        if (!is_told(o, c->strategy))
            continue;
        status       = lk_train_check_hosts(c, lki_plan_hosts(o));
        bool refuses = status != LK_OK;
        if (!refuses)
            status = fill_row(o, measured, plan, &plan->rows[plan->row_count]);
        if (status == LK_OK)
            plan->row_count++;
        else if (refuses || is_not_for_it(plan, status)) {
            note_refusal(plan, c->strategy);
            status = LK_OK;
        }
    }
    return status == LK_OK && plan->row_count == 0 ? LK_EINVAL : status;
}

/* ---- The choice -------------------------------------------------------------------------- */

static double price_of(const plan_table *plan, const plan_row *row)
{
    return plan->timed ? row->step.seconds
                       : (double)(row->cost.shared.sent_gradients + row->cost.shared.sent_params);
}

/* Of what fits the fastest, or what sends the least; of equals the first, which is the simplest. */
static void choose(const plan_options *o, plan_table *plan)
{
    uint32_t least = 0, fitting = 0;
    plan->chosen = plan->row_count;
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const plan_row *row = &plan->rows[i];
        least               = row->whole < plan->rows[least].whole ? i : least;
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
                       o->memory, plan->rows[least].strategy, plan->rows[least].whole);
    else if (fitting < plan->row_count)
        (void)snprintf(plan->why, sizeof plan->why, "of the %u that fit into %.4g bytes of a host, "
                       "%s", fitting, o->memory, what);
    else
        (void)snprintf(plan->why, sizeof plan->why, "%s", what);
}

/* ---- More workers ------------------------------------------------------------------------ */

static lk_status add_point(plan_table *plan, const plan_row *row, uint32_t workers, uint32_t hosts)
{
    plan_point   *point = &plan->points[plan->point_count++];
    lk_step_model same  = row->model, each;
    point->workers = same.workers = workers;
    point->hosts = same.hosts = hosts;
    point->dealt              = workers <= row->model.virtual_workers;
    each                      = same;
    each.virtual_workers      = row->step.rounds * workers;
    lk_status status          = lk_step_predict(&point->each, &each);
    if (status == LK_OK && point->dealt)
        status = lk_step_predict(&point->same, &same);
    return status;
}

/* As many workers on each host as were asked for, up to where the network is not known. */
static lk_status fill_points(const plan_options *o, plan_table *plan)
{
    uint32_t        first = plan->chosen < plan->row_count ? plan->chosen : 0;
    const plan_row *row   = &plan->rows[first];
    uint32_t        here  = (row->model.workers + row->model.hosts - 1) / row->model.hosts;
    uint32_t        most  = o->most_workers > 0 ? o->most_workers : MOST_WORKERS;
    lk_status       status = LK_OK;
    for (uint32_t n = 1; status == LK_OK && n <= most; n *= 2) {
        uint32_t hosts = (n + here - 1) / here;
        if (plan->point_count == PLAN_POINTS_MAX || (hosts > 1 && o->rates.bandwidth == 0))
            break;
        status = add_point(plan, row, n, hosts);
    }
    plan->alone = plan->points[0].same.seconds;
    return status;
}

/* ---- The plan ---------------------------------------------------------------------------- */

static lk_status make_plan(plan_options *o, plan_table *plan)
{
    lk_train_config *c        = &o->train.config;
    const char      *files    = c->offload, *asked = c->strategy;
    lk_calibration  *measured = NULL;
    lk_status        status   = LK_OK;
    if (o->rates.file_bandwidth > 0)
        c->offload = NULL; /* not to be measured: it may be another machine's */
    if (asked == NULL && !is_told(o, "ddp")) /* whatever it is, the same is measured */
        c->strategy = "zero3";
    if (o->measure) /* of plans, only what is measured needs the module */
        status = lki_train_find_kernels(&o->train);
    if (o->measure && status == LK_OK)
        status = lk_calibrate(&measured, c, lki_plan_hosts(o));
    c->offload  = files;
    c->strategy = asked;
    if (status == LK_OK)
        status = fill_rows(o, measured, plan);
    if (status == LK_OK)
        choose(o, plan);
    if (status == LK_OK && plan->timed)
        status = fill_points(o, plan);
    lk_calibration_free(measured);
    return status;
}

static int plan_run(plan_options *o)
{
    plan_table *p = calloc(1, sizeof *p);
    lk_status status;
    int       result = 0;
    if (p == NULL) {
        fprintf(stderr, "lockstep plan: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    p->timed = o->measure || o->rates.flops > 0;
    if (p->timed && lki_plan_hosts(o) > 1 && o->rates.bandwidth == 0)
        result = lki_usage_error(o->train.command,
                                 "what %u hosts send takes --bandwidth to be told",
                                 lki_plan_hosts(o));
    else if ((status = make_plan(o, p)) != LK_OK)
        result = lki_plan_fail(o, status);
    else if (o->plot != NULL)
        result = lki_plan_plot(o, p);
    if (result == 0 && o->json)
        lki_plan_print_json(o, p);
    else if (result == 0)
        lki_plan_print(o, p);
    for (uint32_t i = 0; i < PLAN_ROWS_MAX; i++)
        lk_step_model_deinit(&p->rows[i].model);
    free(p);
    return result;
}

/* ---- The command ------------------------------------------------------------------------- */

/* --workers MIN:MAX means that, unless something else is said. */
static bool goes_on(const train_options *o)
{
    return o->on_failure == LK_ON_FAILURE_CONTINUE ||
           (o->on_failure == LKI_UNSAID && o->config.workers_least > 0);
}

static bool uses_onednn(const plan_options *o)
{
    return o->train.kernels != NULL && strcmp(o->train.kernels, "onednn") == 0;
}

/* Why times cannot be told so; NULL: they can, or are not asked for. */
static const char *cannot_time(const plan_options *o)
{
    bool timed = o->measure || o->rates.flops > 0;
    bool sends = o->rates.bandwidth > 0 || o->rates.latency > 0;
    if (o->paper && (timed || o->most_workers > 0 || o->rates.file_bandwidth > 0))
        return "--paper's formulas are of one step, with --forward-ms and --backward-ms: leave out "
               "--measure, --flops, --file-bandwidth and --most-workers, or --paper";
    if (o->paper && sends && o->forward_ms == 0 && o->backward_ms == 0)
        return "--bandwidth and --latency are for a step's time: with --paper give --forward-ms "
               "and --backward-ms, too";
    if (o->measure && o->rates.flops > 0)
        return "--measure finds out what --flops says: leave out one of the two";
    if (!o->paper && !timed && (sends || o->most_workers > 0 || o->rates.file_bandwidth > 0))
        return "--bandwidth, --latency, --file-bandwidth and --most-workers are for a step's time: "
               "give --flops or --measure, too";
    return NULL;
}

/* Why that cannot be planned; NULL: it can.  There is a model, or how many parameters it has. */
static const char *cannot_plan(const plan_options *o)
{
    bool named = o->train.config.model != NULL;
    if (!named && o->parameters == 0)
        return "MODEL is missing (gpt, resnet or mlp), or --parameters P in its place";
    if (named && strcmp(o->train.config.model, "bare") == 0)
        return "a model of which only sizes are known has no name: --parameters P in its place";
    if (named && o->parameters > 0 && !o->paper)
        return "--parameters stands in the place of MODEL, or for --paper: leave out one of the "
               "two, or give --paper";
    if (o->largest_layer > 0 && o->parameters == 0 && !o->paper)
        return "--largest-layer needs --parameters or --paper";
    if (o->paper && (o->sample_tokens > 0 || o->activation_bytes > 0))
        return "--sample-tokens and --activation-bytes are nothing to --paper's formulas: leave "
               "them out, or --paper";
    if (o->train.config.buddies && !goes_on(&o->train))
        return "--buddies keeps what a lost host had, for those who go on: give --on-failure "
               "continue, too";
    if (o->train.config.precision == LK_BF16 && uses_onednn(o))
        return "--kernels onednn multiplies FP32 values alone; leave out --precision bf16, or use "
               "--kernels own";
    if (!named && o->train.config.data != NULL)
        return "--data is for a MODEL: of --parameters alone nothing reads any";
    if (o->paper && o->plot != NULL)
        return "--paper draws nothing: leave out --plot, or --paper";
    if (o->measure && !named)
        return "--measure times the blocks of a MODEL; with --parameters give --flops";
    return cannot_time(o);
}

static void name_model(plan_options *o)
{
    lk_model_options *model = &o->train.config.model_options;
    if (o->train.config.model != NULL)
        return;
    o->train.config.model   = "bare";
    model->parameters       = (uint64_t)o->parameters;
    model->largest_layer    = (uint64_t)o->largest_layer;
    model->sample_tokens    = o->sample_tokens;
    model->activation_bytes = (uint64_t)o->activation_bytes;
}

static int plan_main(int argc, char **argv)
{
    plan_options options = { .train = LKI_TRAIN_OPTIONS_INIT };
    lki_command  command = lki_command_plan;
    lki_option  *rows    = lki_train_rows(left_out, own, true);
    if (rows == NULL) {
        fprintf(stderr, "lockstep plan: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    rows[0].required      = false; /* MODEL */
    command.options       = rows;
    options.train.command = &command;
    int result            = lki_options_parse(&command, argc, argv, &options);
    if (result < 0 && cannot_plan(&options) != NULL)
        result = lki_usage_error(&command, "%s", cannot_plan(&options));
    if (result < 0) {
        name_model(&options);
        lki_train_defaults(&options.train.config);
        if (options.train.config.steps == 0 && options.train.config.epochs == 0)
            options.train.config.steps = 1;
        options.train.config.survives = goes_on(&options.train);
        result = options.paper ? lki_plan_paper(&options) : plan_run(&options);
    }
    free(options.train.file.text);
    free(rows);
    return result;
}

const lki_command lki_command_plan = {
    .name    = "plan",
    .summary = "say what a training run takes, before it runs",
    .usage   = "MODEL [options of train]\n"
               "       lockstep plan --parameters P [options of train]",
    .about =
        "For each strategy: the memory of a host by what it is for, and what a host sends to\n"
        "others in a step.  Workers of a host share parameters, optimizer state and gradients;\n"
        "activations are each worker's own.  The numbers come from the arithmetic that places\n"
        "things in a run.  Of hosts that differ, the one with the most is told; the command, its\n"
        "data and what ranks send to agree are not counted.  Nothing is allocated: the model may\n"
        "be larger than this machine.  With --measure or --flops also how long a step takes, and\n"
        "how efficient more workers are.  Of a model that is not built in, --parameters will do.\n"
        "docs/plan.md says what is behind the numbers.",
    .examples = "  lockstep plan gpt --layers 12 --heads 12 --width 768 --optimizer adamw \\\n"
                "      --global-batch 64 --workers 8 --hosts 4\n"
                "  lockstep plan resnet --global-batch 128 --workers 2 --measure --plot plan.svg\n"
                "  lockstep plan --parameters 7e9 --sample-tokens 2048 --optimizer adamw \\\n"
                "      --precision bf16 --global-batch 512 --workers 32 --hosts 32 \\\n"
                "      --memory 64e9 --flops 1e14 --bandwidth 25e9\n"
                "  lockstep plan gpt --paper --parameters 7.5e9 --workers 64 --optimizer adamw \\\n"
                "      --memory 32e9",
    .options  = own,
    .main     = plan_main,
};
