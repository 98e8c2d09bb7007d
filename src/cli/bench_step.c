/* bench_step.c -- `lockstep bench step`: the duration of a training step, and of its parts.
 *
 * Runs `train` and keeps only the times.  The options are those of train, except options for files
 * and for the length of a run.  Data and batch have defaults, since the trained values do not
 * matter.
 */
#include "cli/bench_step.h"

#include <stdlib.h>
#include <string.h>

#include "cli/bench_sweep.h"
#include "cli/commands.h"
#include "cli/train.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/launch.h"
#include "lockstep/plan.h"

typedef struct {
    train_options  train; /* first member, as train's table has offsets in it */
    lk_step_report report;
    uint32_t       warm_up;
    bool           json, predict;
    const char    *sweep; /* "bucket"; NULL or "none": none */
    double         predicted_ms; /* prediction that the launcher passes to the workers; 0: none */
} step_options;

enum { STEPS = 20, WARM_UP = 3 };

/* ---- Options ----------------------------------------------------------------------------- */

/* Groups of train's options without a meaning for `bench step`: lengths and ends of runs, and
 * files. */
static const char *const left_out[] = { "evaluation and stopping", "checkpoints", NULL };

/* clang-format off */
static const lki_choice sweeps[] = { { .name = "none" }, { .name = "bucket" },
                                     { .name = NULL } };

static const lki_option own[] = {
    { .group = "measuring", .name = "steps", .type = LKI_OPTION_U64, .value = "N",
      .offset = offsetof(step_options, train.config.steps), .low = 1, .high = UINT32_MAX,
      .preset = "20", .help = "number of measured steps" },
    { .name = "warm-up", .type = LKI_OPTION_U32, .value = "N",
      .offset = offsetof(step_options, warm_up), .low = 1, .high = 1 << 20, .preset = "3",
      .help = "number of steps before the measured ones" },
    LKI_FLAG("json", offsetof(step_options, json), "print one JSON object"),
    LKI_FLAG("predict", offsetof(step_options, predict),
             "before the run, predict the time of a step as plan --measure does, and print it"),
    LKI_CHOICE(LKI_OPTION_NAME, "sweep", "WHAT", offsetof(step_options, sweep), sweeps, "none",
               "time the steps with several sizes of buckets, and print the best --bucket-mb"),
    { .name = "predicted-ms", .type = LKI_OPTION_REAL, .value = "MS",
      .offset = offsetof(step_options, predicted_ms), .range = &lki_range_positive,
      .preset = "none",
      .help   = "predicted time of a step in ms, to print next to the measured one" },
    LKI_OPTIONS_END,
};
/* clang-format on */

/* ---- Output ------------------------------------------------------------------------------ */

static const char *const part_names[] = {
#define PART_NAME(name, text) text,
    LK_STEP_PARTS(PART_NAME)
#undef PART_NAME
};

static double rate_of(const lk_step_report *r, uint64_t units)
{
    return r->seconds > 0 ? (double)units / r->seconds : 0;
}

static double mean_of(const lk_step_report *r)
{
    return r->steps > 0 ? r->seconds / (double)r->steps : 0;
}

/* Returns the step's operations as a fraction of the peak of all threads in the same time. */
static double utilisation(const lk_step_report *r)
{
    double possible = mean_of(r) * r->peak;
    return possible > 0 ? r->flops / possible : 0;
}

static void print_head(const step_options *o)
{
    const lk_step_report  *r = &o->report;
    const lk_train_config *c = &o->train.config;
    printf("%s, batch %u as V %u x %u: %u x %u threads, %llu steps after %u\n", c->model,
           c->global_batch, c->virtual_workers, c->global_batch / c->virtual_workers, c->workers,
           c->threads > 0 ? c->threads : 1, (unsigned long long)r->steps, o->warm_up);
    printf("  %.1f samples/s", rate_of(r, r->samples));
    if (r->tokens > 0)
        printf(", %.1f tokens/s", rate_of(r, r->tokens));
    printf("; a step takes %.3f ms (median; from %.3f to %.3f)\n", 1e3 * r->median,
           1e3 * r->fastest, 1e3 * r->slowest);
    if (o->predicted_ms > 0)
        printf("  predicted %.3f ms, %.2f of the median\n", o->predicted_ms,
               o->predicted_ms / (1e3 * r->median));
    printf("  %.1f %% of the peak: %.3f GFLOP a step, %.1f GFLOP/s of %.1f measured here%s\n",
           100 * utilisation(r), 1e-9 * r->flops, 1e-9 * r->flops / mean_of(r), 1e-9 * r->peak,
           c->precision == LK_BF16 ? " in bf16" : "");
    printf("  memory of all workers (PSS) %.1f MiB\n", (double)r->pss_bytes / (1 << 20));
    if (r->lost > 0)
        printf("  %llu spans did not fit into the trace and are missing below\n",
               (unsigned long long)r->lost);
}

static void print_tables(const lk_step_report *r)
{
    double step = 0; /* time of the traced steps */
    for (int i = 0; i < LK_STEP_PART_COUNT; i++)
        step += r->parts[i];
    printf("\n%-24s %10s %7s\n", "step", "ms", "share");
    for (int i = 0; i < LK_STEP_PART_COUNT; i++)
        if (r->parts[i] > 0)
            printf("%-24s %10.3f %6.1f%%\n", part_names[i], 1e3 * r->parts[i],
                   100 * r->parts[i] / step);
    printf("%-24s %10.3f %6.1f%%  beside the steps\n", "loader's threads", 1e3 * r->loading,
           100 * r->loading / step);
    printf("\n%-14s %6s %12s %12s %7s %9s\n", "blocks", "count", "forward ms", "backward ms",
           "share", "GFLOP/s");
    for (uint32_t t = 0; t < r->type_count; t++) {
        const lk_step_blocks *b    = &r->types[t];
        double                took = b->forward + b->backward;
        printf("%-14s %6u %12.3f %12.3f %6.1f%%", b->name, b->blocks, 1e3 * b->forward,
               1e3 * b->backward, 100 * took / step);
        if (b->flops > 0 && took > 0)
            printf(" %9.1f", 1e-9 * b->flops / took);
        printf("\n");
    }
}

static void print_json(const step_options *o)
{
    const lk_step_report  *r = &o->report;
    const lk_train_config *c = &o->train.config;
    printf("{\"model\": \"%s\", \"global_batch\": %u, \"virtual_workers\": %u, \"workers\": %u, "
           "\"threads\": %u, \"precision\": \"%s\", \"steps\": %llu, \"samples_per_s\": %.3f, "
           "\"tokens_per_s\": %.3f, \"step_ms\": %.6f, \"median_ms\": %.6f, \"fastest_ms\": %.6f, "
           "\"slowest_ms\": %.6f, \"flops\": %.0f, \"peak_flops_per_s\": %.0f, "
           "\"utilisation\": %.4f, \"pss_bytes\": %llu, \"lost_spans\": %llu, "
           "\"loading_ms\": %.6f, \"parts_ms\": {",
           c->model, c->global_batch, c->virtual_workers, c->workers,
           c->threads > 0 ? c->threads : 1, lk_precision_name(c->precision),
           (unsigned long long)r->steps,
           rate_of(r, r->samples), rate_of(r, r->tokens), 1e3 * mean_of(r), 1e3 * r->median,
           1e3 * r->fastest, 1e3 * r->slowest, r->flops, r->peak, utilisation(r),
           (unsigned long long)r->pss_bytes, (unsigned long long)r->lost, 1e3 * r->loading);
    for (int i = 0; i < LK_STEP_PART_COUNT; i++)
        printf("%s\"%s\": %.6f", i > 0 ? ", " : "", part_names[i], 1e3 * r->parts[i]);
    if (o->predicted_ms > 0)
        printf("}, \"predicted_ms\": %.6f", o->predicted_ms);
    else
        printf("}");
    printf(", \"blocks\": [");
    for (uint32_t t = 0; t < r->type_count; t++)
        printf("%s{\"type\": \"%s\", \"count\": %u, \"forward_ms\": %.6f, \"backward_ms\": %.6f, "
               "\"flops\": %.0f}", t > 0 ? ", " : "", r->types[t].name, r->types[t].blocks,
               1e3 * r->types[t].forward, 1e3 * r->types[t].backward, r->types[t].flops);
    printf("]}\n");
}

static void print_report(const train_options *train)
{
    const step_options *options = (const step_options *)(const void *)train;
    if (options->json) {
        print_json(options);
        return;
    }
    print_head(options);
    print_tables(&options->report);
}

/* ---- A sweep ----------------------------------------------------------------------------- */

static bool sweeps_buckets(const step_options *o)
{
    return o->sweep != NULL && strcmp(o->sweep, "none") != 0;
}

/* Returns an exit status if other options contradict a sweep, or a negative number. */
static int check_sweep(const step_options *o, bool launched)
{
    const lk_train_config *c    = &o->train.config;
    bool                   goes = o->train.on_failure == LK_ON_FAILURE_CONTINUE
                || c->elastic.workers_least > 0;
    const char *why = c->bucket_bytes > 0 ? "--sweep bucket tries several sizes: leave out "
                                            "--bucket-mb"
                      : c->log != NULL || c->trace != NULL
                          ? "--sweep makes several runs, and --log and --trace are for one"
                      : o->predict ? "--predict is for one size of buckets: leave out --sweep"
                      : launched && goes
                          ? "--sweep makes several runs in the job of the launcher, which must not "
                            "lose workers: leave out --on-failure continue and MIN:MAX"
                          : NULL;
    return why != NULL ? lki_usage_error(o->train.command, "%s", why) : -1;
}

enum { SIZE_BYTES = 16 };

/* A command that runs one size as a job of its own. */
typedef struct {
    char **words, *size; /* `size`: the word with the size in MiB */
} sweep_job;

static int measure_job(void *context, size_t bytes, double *seconds)
{
    const sweep_job *job = context;
    (void)snprintf(job->size, SIZE_BYTES, "%g", (double)bytes / (1 << 20));
    int result  = lki_bench_run(seconds, job->words, "median_ms");
    *seconds   /= 1e3;
    return result;
}

/* Copies the words of the command without --sweep and --json, and adds those of a run. */
static void list_words(char **out, int argc, char **argv, char *size)
{
    static char json[] = "--json", none[] = "--sweep=none", bucket[] = "--bucket-mb";
    int         count = 0;

    for (int i = 0; i < argc; i++) {
        int from = i;
        if (i > 1 && (lki_bench_is_option(argv, argc, &i, "sweep", true) ||
                      lki_bench_is_option(argv, argc, &i, "json", false)))
            continue;
        out[count++] = argv[from];
    }
    out[count++] = json;
    out[count++] = none; /* in case the config file has a sweep */
    out[count++] = bucket;
    out[count]   = size;
}

/* Runs all sizes.  On several machines each runs the same jobs, and that of node 0 prints. */
static int start_sweep(step_options *o, int argc, char **argv)
{
    const lki_nodes *nodes  = &o->train.nodes;
    const uint32_t   hosts  = nodes->hosts > 1 ? nodes->hosts : 1;
    lk_train_config *config = &o->train.config;
    char             name[] = "lockstep", size[SIZE_BYTES] = "";
    char           **words  = calloc((size_t)argc + 8, sizeof *words);
    sweep_job        job    = { words, size };
    lki_sweep        sweep  = { .count = 0 };

    if (words == NULL) {
        fprintf(stderr, "lockstep bench step: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    /* All machines must run the same jobs, whatever each of them can estimate. */
    lki_sweep_choose(&sweep, config, hosts, nodes->count > 1);
    words[0] = name;
    list_words(words + 1, argc, argv, size);
    int result = lki_sweep_measure(&sweep, measure_job, &job);
    if (result == 0 && sweep.medians[0][0] > 0)
        lki_sweep_print(&sweep, config, o->json);
    free(words);
    return result;
}

/* ---- A sweep in the job of another launcher ---------------------------------------------- */

typedef struct {
    lk_comm      *comm;
    step_options *options;
} sweep_runs;

static void print_nothing(const train_options *train)
{
    (void)train;
}

static int measure_run(void *context, size_t bytes, double *seconds)
{
    const sweep_runs *runs = context;
    step_options     *o    = runs->options;

    o->train.config.bucket_bytes = bytes;
    o->report                    = (lk_step_report){ .steps = 0 };
    lk_status status             = lki_train_work(runs->comm, &o->train);
    *seconds                     = o->report.median;
    return (int)status;
}

/* Runs all sizes one after another on the same ranks, because such a job can be joined only once.
 * Rank 0 has the times, and prints. */
static lk_status sweep_in_job(lk_comm *comm, train_options *train)
{
    step_options *o     = (step_options *)(void *)train;
    uint32_t      hosts = lk_comm_hosts(comm);
    sweep_runs    runs  = { comm, o };
    lki_sweep     sweep = { .count = 0 };

    train->print = print_nothing;
    lki_sweep_choose(&sweep, &train->config, hosts, hosts > 1);
    lk_status status = (lk_status)lki_sweep_measure(&sweep, measure_run, &runs);
    if (status == LK_OK && lk_comm_rank(comm) == 0)
        lki_sweep_print(&sweep, &train->config, o->json);
    return status;
}

/* ---- A prediction ------------------------------------------------------------------------ */

/* Predicts the seconds of a step.  Completes *config, a copy of the options. */
static lk_status predict(step_options *o, lk_train_config *config, double *seconds)
{
    lk_status          found       = lki_train_find_kernels(&o->train);
    lk_calibration    *calibration = NULL;
    lk_step_model      model = { 0 };
    lk_step_prediction step;
    const lk_rates     none = { 0 };
    *config                 = o->train.config;
    lk_status status        = found != LK_OK ? found : lk_calibrate(&calibration, config, 1);
    if (status == LK_OK)
        status = lk_train_model_step(&model, NULL, config, 1, &none, calibration);
    if (status == LK_OK)
        status = lk_step_predict(&step, &model);
    if (status == LK_OK)
        *seconds = step.seconds;
    lk_step_model_deinit(&model);
    lk_calibration_free(calibration);
    return status;
}

/* Predicts the step before the workers run, then starts the workers with the prediction as an
 * option. */
static int start_predicted(step_options *o, int argc, char **argv)
{
    static char name[] = "--predicted-ms";
    char        value[32];
    double      seconds = 0;
    if (o->train.nodes.hosts > 1 || o->train.nodes.count > 1)
        return lki_usage_error(o->train.command, "--predict is for workers of one host");
    char           **words  = calloc((size_t)argc + 3, sizeof *words);
    lk_train_config *config = malloc(sizeof *config);
    if (words == NULL || config == NULL) {
        fprintf(stderr, "lockstep bench step: out of memory\n");
        free(words);
        free(config);
        return LKI_EXIT_FAILURE;
    }
    lk_status status = predict(o, config, &seconds);
    free(config);
    if (status != LK_OK) {
        lki_print_error("bench step");
        free(words);
        return LKI_EXIT_FAILURE;
    }
    (void)snprintf(value, sizeof value, "%.6f", 1e3 * seconds);
    memcpy(words, argv, (size_t)argc * sizeof *words);
    words[argc]     = name;
    words[argc + 1] = value;
    int result      = lki_train_start(&o->train, words);
    free(words);
    return result;
}

/* ---- The command ------------------------------------------------------------------------- */

const lki_command lki_command_bench_step = {
    .name    = "bench step",
    .summary = "time training steps",
    .usage   = "MODEL [options of train]",
    .about =
        "Trains a model for some steps and prints how fast that was and where the time went:\n"
        "samples and tokens per second; the share of the peak, which is the speed of independent\n"
        "multiply-adds (of bf16 with --precision bf16) on all threads in the same process; the\n"
        "parts of a step; and the blocks by type.  All values are means over the workers.\n"
        "docs/tracing.md explains what is counted.",
    .options  = own,
    .inherits = "train",
    .left_out = left_out,
    .check    = lki_train_check_options,
    .choose   = lki_train_choose_model,
    .examples = "  lockstep bench step gpt --layers 12 --heads 12 --width 768 --global-batch 4 \\\n"
                "      --workers 1 --threads 2 --optimizer adamw\n"
                "  lockstep bench step resnet --global-batch 128 --workers 2 --json\n"
                "  lockstep bench step gpt --workers 2 --hosts 2 --sweep bucket",
};

int lki_bench_step(int argc, char **argv)
{
    step_options options = { .train = LKI_TRAIN_OPTIONS_INIT };
    lki_command  command = lki_command_bench_step;
    lki_option  *rows    = lki_train_rows(command.left_out, own, true);
    if (rows == NULL) {
        fprintf(stderr, "lockstep bench step: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    command.options       = rows;
    options.train.command = &command;
    options.train.print   = print_report;
    bool launched         = false;
    int  result           = lki_options_parse(&command, argc - 1, argv + 1, &options);
    if (result < 0 && options.train.mpi == LK_MPI_ON)
        launched = true; /* MPI tells the ranks: lki_train_find_launcher() */
    else if (result < 0)
        result = lki_find_launcher(&command, &options.train.nodes, &launched);
    if (result < 0) {
        lk_train_config *config = &options.train.config;
        lki_train_defaults(&options.train);
        config->steps    = config->steps > 0 ? config->steps : STEPS;
        config->quiet    = true;
        options.warm_up  = options.warm_up > 0 ? options.warm_up : WARM_UP;
        config->warm_up  = options.warm_up;
        config->steps   += options.warm_up;
        config->report   = &options.report;
        const bool several = sweeps_buckets(&options);
        result             = several ? check_sweep(&options, launched) : -1;
        if (several && launched)
            options.train.run = sweep_in_job;
        else if (several && result < 0)
            result = start_sweep(&options, argc, argv);
        if (result >= 0)
            free(options.train.file.text);
        else if (options.predict && !launched)
            result = start_predicted(&options, argc, argv);
        else
            result = lki_train_start(&options.train, argv);
    } else {
        free(options.train.file.text);
    }
    free(rows);
    return result;
}
