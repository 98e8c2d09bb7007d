/* cmd_plan.c -- `lockstep plan`: predicts the memory, traffic and time of a training run.
 *
 * The options are those of train, so `plan` can replace `train` in a command line.  The plan comes
 * from lk_train_plan_make(), and plan_print.c prints it.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/plan.h"
#include "cli/words.h"
#include "cli/workers.h"

/* ---- Options ----------------------------------------------------------------------------- */

#define AT(field) offsetof(plan_options, field)

static const lki_need    need_offload = { "offload", { NULL, NULL } };
static const lki_need    need_flops = { "flops", { NULL } };
static const lki_need    need_parameters = { "parameters", { NULL, NULL } };

static const lki_range count_range = {
    .low = 1, .high = 1e15, .whole = true, .text = "a whole number from 1 to 1e15, as 1.5e9 is"
};
static const lki_range rate_range = { .low = 1, .high = 1e24, .text = "a number from 1 to 1e24" };

/* clang-format off */
static const lki_option own[] = {
    { .group = "planning", .name = "json", .type = LKI_OPTION_FLAG, .offset = AT(json),
      .help = "print one JSON object" },
    LKI_REAL("memory", "BYTES", AT(plan.memory), &lki_range_positive, "none",
             "memory of a host in bytes, such as 32e9; shows which strategies fit"),
    { .group = "time (needs --measure or --flops)", .name = "measure",
      .type = LKI_OPTION_FLAG, .offset = AT(plan.measure),
      .help = "measure for some seconds how fast this machine computes models of this kind" },
    LKI_REAL("flops", "RATE", AT(plan.rates.flops), &rate_range, "none",
             "operations per second of a worker; predicts the time of a step without measuring"),
    { .needs = &need_flops, .name = "memory-bandwidth", .type = LKI_OPTION_REAL, .value = "RATE",
      .offset = AT(plan.rates.memory_bandwidth), .range = &rate_range, .preset = "none",
      .help = "with --flops: memory bandwidth of a worker in bytes per second; without it, the "
              "prediction counts no time for updates" },
    LKI_REAL("bandwidth", "RATE", AT(plan.rates.bandwidth), &rate_range, "none",
             "bytes per second that a host sends; several hosts need it, or --tuning FILE"),
    LKI_REAL("latency", "SECONDS", AT(plan.rates.latency), &lki_range_not_negative, "0",
             "seconds per message between hosts, in addition to the time for its bytes"),
    { .needs = &need_offload, .name = "file-bandwidth", .type = LKI_OPTION_REAL, .value = "RATE",
      .offset = AT(plan.rates.file_bandwidth), .range = &rate_range,
      .preset = "measured with --measure",
      .help = "bytes per second that a host reads or writes in offload files" },
    LKI_U32("most-workers", "N", AT(plan.most_workers), 1, 1 << 20, "4096",
            "largest number of workers for which to predict the efficiency"),
    { .group = "a model given by its sizes, instead of MODEL", .name = "parameters",
      .type = LKI_OPTION_REAL, .value = "P", .offset = AT(parameters),
      .range = &count_range, .preset = "the model's",
      .help = "number of parameters, such as 7.5e9" },
    { .needs = &need_parameters, .name = "largest-layer", .type = LKI_OPTION_REAL, .value = "P",
      .offset = AT(largest_layer), .range = &count_range, .preset = "as in a GPT of that size",
      .help = "parameters of the largest layer, which zero3 gathers at once" },
    { .needs = &need_parameters, .name = "sample-tokens", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(sample_tokens), .low = 1, .high = UINT32_MAX, .preset = "1",
      .help = "tokens per sample; a token takes 6 operations per parameter" },
    { .needs = &need_parameters, .name = "activation-bytes", .type = LKI_OPTION_REAL,
      .value = "BYTES", .offset = AT(activation_bytes), .range = &count_range,
      .preset = "not counted",
      .help = "bytes of activations per sample that a worker stores from forward to backward" },
    LKI_OPTIONS_END,
};
/* clang-format on */

static int fail(const plan_options *o, lk_status status)
{
    if (status == LK_EINVAL)
        return lki_usage_error(o->train.command, "%s", lk_error_last()->message);
    lki_print_error("plan");
    return LKI_EXIT_FAILURE;
}

/* ---- The plan ---------------------------------------------------------------------------- */

static bool is_timed(const plan_options *o)
{
    return o->plan.measure || o->plan.rates.flops > 0;
}

/* Translates a reason from the library into terms of the command. */
static void reword(char *why, size_t bytes)
{
    char text[LKI_WORDS_BYTES];
    (void)snprintf(text, sizeof text, "%s", why);
    lki_words(why, bytes, text);
}

static lk_status make_plan(plan_options *o, lk_train_plan *plan)
{
    lk_status found = LK_OK;
    if (o->plan.measure) /* the module is only needed for measuring */
        found = lki_train_find_kernels(&o->train);
    if (found == LK_OK)
        found = lk_train_plan_make(plan, &o->train.config, &o->plan);
    if (found != LK_OK)
        return found;
    for (uint32_t i = 0; i < plan->refused_count; i++)
        reword(plan->refused[i].why, sizeof plan->refused[i].why);
    reword(plan->why, sizeof plan->why);
    return LK_OK;
}

static int run_plan(plan_options *o)
{
    const lki_nodes *nodes  = &o->train.nodes;
    lk_train_plan   *plan   = calloc(1, sizeof *plan);
    int              result = 0;
    if (plan == NULL) {
        fprintf(stderr, "lockstep plan: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    o->plan.hosts    = nodes->hosts > 1 ? nodes->hosts : nodes->count > 1 ? nodes->count : 1;
    lk_status status = LK_OK;
    o->plan.tuning   = o->train.tuning;
    if (is_timed(o) && o->plan.hosts > 1 && o->plan.rates.bandwidth == 0 && o->plan.tuning == NULL)
        result = lki_usage_error(o->train.command, "the time of a step on %u hosts needs "
                                 "--bandwidth, or --tuning with a file of bench --tune",
                                 o->plan.hosts);
    else if ((status = make_plan(o, plan)) != LK_OK)
        result = fail(o, status);
    else if (o->json)
        lki_plan_print_json(o, plan);
    else
        lki_plan_print(o, plan);
    lk_train_plan_deinit(plan);
    free(plan);
    return result;
}

/* ---- The command ------------------------------------------------------------------------- */

/* Returns true if the run continues after losses, by --on-failure or by --workers MIN:MAX. */
static bool goes_on(const train_options *o)
{
    return o->on_failure == LK_ON_FAILURE_CONTINUE ||
           (o->on_failure == LKI_UNSAID && o->config.elastic.workers_least > 0);
}

static bool uses_onednn(const plan_options *o)
{
    return o->train.kernels != NULL && strcmp(o->train.kernels, "onednn") == 0;
}

/* Returns the reason why times cannot be predicted with these options; NULL if times can be
 * predicted or are not requested. */
static const char *cannot_time(const plan_options *o)
{
    bool timed = is_timed(o);
    bool sends = o->plan.rates.bandwidth > 0 || o->plan.rates.latency > 0;
    if (o->plan.measure && o->plan.rates.flops > 0)
        return "--measure measures what --flops states: leave out one of the two";
    if (!timed && (sends || o->plan.most_workers > 0 || o->plan.rates.file_bandwidth > 0))
        return "--bandwidth, --latency, --file-bandwidth and --most-workers are for a step's time: "
               "give --flops or --measure, too";
    return NULL;
}

/* Returns the reason why these options cannot be planned; NULL if they can be planned.  The options
 * must name a model or have a number of parameters. */
static const char *cannot_plan(const plan_options *o)
{
    bool named = o->train.config.model != NULL;
    if (!named && o->parameters == 0)
        return "MODEL is missing (gpt, llama, resnet or mlp), or --parameters P in its place";
    if (named && strcmp(o->train.config.model, "bare") == 0)
        return "a model of which only sizes are known has no name: --parameters P in its place";
    if (named && o->parameters > 0)
        return "--parameters replaces MODEL: leave out one of the two";
    if (o->train.config.precision == LK_BF16 && uses_onednn(o))
        return "--kernels onednn multiplies FP32 values alone; leave out --precision bf16, or use "
               "--kernels own";
    if (!named && o->train.config.data.source != NULL)
        return "--data is for a MODEL: with --parameters no data are read";
    if (o->plan.measure && !named)
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

/* Plans the run of options that have been parsed.  `result` is below 0, or an exit status. */
static int plan_parsed(const lki_command *command, plan_options *o, int result)
{
    if (result < 0)
        result = lki_refuse_half_job(command, &o->train.nodes);
    if (result < 0 && cannot_plan(o) != NULL)
        result = lki_usage_error(command, "%s", cannot_plan(o));
    if (result >= 0)
        return result;
    if (o->train.config.model != NULL) /* as `train` chooses them */
        lki_train_suit(&o->train);
    name_model(o);
    lki_train_defaults(&o->train);
    if (o->train.config.steps == 0 && o->train.config.epochs == 0)
        o->train.config.steps = 1;
    o->train.config.elastic.survives = goes_on(&o->train);
    return run_plan(o);
}

static int plan_main(int argc, char **argv)
{
    static const plan_options unset = { .train = LKI_TRAIN_OPTIONS_INIT,
                                        .plan  = LK_TRAIN_PLAN_OPTIONS_INIT };
    lki_command   command = lki_command_plan;
    lki_option   *rows    = lki_train_rows(NULL, own, true);
    plan_options *options = malloc(sizeof *options);
    int           result  = LKI_EXIT_FAILURE;
    if (rows == NULL || options == NULL) {
        fprintf(stderr, "lockstep plan: out of memory\n");
    } else {
        *options               = unset;
        rows[0].required       = false; /* MODEL may be omitted */
        command.options        = rows;
        options->train.command = &command;
        result = plan_parsed(&command, options, lki_options_parse(&command, argc, argv, options));
        free(options->train.file.text);
        free(options->train.tokenizer);
    }
    free(options);
    free(rows);
    return result;
}

const lki_command lki_command_plan = {
    .name    = "plan",
    .summary = "predict memory, traffic and time of a training run",
    .usage   = "MODEL [options of train]\n"
               "       lockstep plan --parameters P [options of train]",
    .about =
        "Prints for each strategy how much memory a host needs, by purpose, and how much it sends\n"
        "to other hosts in a step.  Workers of a host share parameters, optimizer state and\n"
        "gradients; each worker has its own activations.  The numbers are computed as in a run.\n"
        "If hosts differ, the numbers are those of the host that needs the most.  The program\n"
        "itself, its data and control messages are not counted.  Nothing is allocated, so the\n"
        "model may be larger than this machine.  --measure or --flops also predicts the time of a\n"
        "step, and the efficiency with more workers.  For a model that is not built in, give\n"
        "--parameters.  docs/plan.md explains the numbers.",
    .examples = "  lockstep plan gpt --layers 12 --heads 12 --width 768 --optimizer adamw \\\n"
                "      --global-batch 64 --workers 8 --hosts 4\n"
                "  lockstep plan resnet --global-batch 128 --workers 2 --measure\n"
                "  lockstep plan --parameters 7e9 --sample-tokens 2048 --optimizer adamw \\\n"
                "      --precision bf16 --global-batch 512 --workers 32 --hosts 32 \\\n"
                "      --memory 64e9 --flops 1e14 --bandwidth 25e9",
    .options  = own,
    .inherits = "train",
    .main     = plan_main,
    .check    = lki_train_check_model,
    .choose   = lki_train_choose,
};
