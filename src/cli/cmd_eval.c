/* cmd_eval.c -- `lockstep eval`: the loss of a trained model on data. */
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/commands.h"
#include "cli/record.h"
#include "cli/settings.h"
#include "cli/source.h"
#include "cli/values.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/train.h"

typedef struct {
    lk_evaluate_options evaluate;
    const char         *init; /* in place of evaluate.path */
    bool                json;
} eval_options;

#define AT(field) offsetof(eval_options, evaluate.field)

/* clang-format off */
static const lki_option table[] = {
    LKI_TRAINED("RUN", AT(path), offsetof(eval_options, init), AT(adapter)),
    { .name = "data", .type = LKI_OPTION_STRING, .value = "SOURCE", .offset = AT(source),
      .preset = "the validation part of the run", .once = true,
      .help = "what to evaluate on: a file or folder, or KIND:FILE as for train" },
    { .name = "tokenizer", .type = LKI_OPTION_STRING, .value = "FILE", .offset = AT(tokenizer),
      .preset = "tokenizer.json beside the weights", .once = true,
      .help = "the tokenizer.json of the model" },
    LKI_U32("context", "N", AT(context), 1, 1 << 24, "the positions of the model, at most 1024",
            "tokens of a sample, for a folder as transformers writes it"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "weights", "WHICH", AT(weights), lki_weights_choices,
               "ema, if there is one", "use the model's weights, or their moving average"),
    LKI_U32("heads", "N", AT(heads), 1, 1024, "as in the checkpoint",
            "number of attention heads of a gpt in a .safetensors file, which does not store it"),
    { .name = "workers", .type = LKI_OPTION_U32, .value = "N", .letter = 'n', .offset = AT(workers),
      .low = 1, .high = 1024, .preset = "the cores",
      .help = "number of threads that evaluate samples, at most the virtual workers of the run" },
    LKI_FLAG("json", offsetof(eval_options, json), "print one line of JSON"),
    LKI_OPTIONS_END,
};
/* clang-format on */

/* Prints a member of an object.  JSON has no numbers that are not finite. */
static void print_number(const char *key, double value)
{
    char text[LK_NUMBER_BYTES];
    lk_number_text(text, value);
    printf(", \"%s\": %s", key, isfinite(value) ? text : "null");
}

static void print_json(const lk_evaluation *e)
{
    uint64_t bits;
    memcpy(&bits, &e->loss, sizeof bits);
    printf("{\"samples\": %llu, \"count\": %llu, \"loss_bits\": \"%016llx\"",
           (unsigned long long)e->samples, (unsigned long long)e->count, (unsigned long long)bits);
    print_number("loss", e->loss);
    if (!isnan(e->accuracy))
        print_number("accuracy", e->accuracy);
    else {
        print_number("rmse", e->rmse);
        print_number("mae", e->mae);
    }
    if (e->tokens)
        print_number("perplexity", exp(e->loss));
    if (e->bytes > 0) {
        printf(", \"bytes\": %llu", (unsigned long long)e->bytes);
        print_number("bits_per_byte", e->bits_per_byte);
    }
    printf("}\n");
}

static void print_text(const lk_evaluation *e)
{
    printf("loss           %.6f (a mean over %llu targets of %llu samples)\n", e->loss,
           (unsigned long long)e->count, (unsigned long long)e->samples);
    if (e->tokens)
        printf("perplexity     %.4f\n", exp(e->loss));
    if (e->bytes > 0)
        printf("bits per byte  %.5f\n", e->bits_per_byte);
    if (!isnan(e->accuracy))
        printf("accuracy       %.4f\n", e->accuracy);
    else
        printf("RMSE           %.6g\nMAE            %.6g\n", e->rmse, e->mae);
}

/* Finds the data among the recorded options of a run, whose directory is `path` or the one that has
 * `path`.  The directory in which it was started becomes the current one.  The caller frees
 * *line. */
static const char *recorded_data(const char *path, char ***line)
{
    static char *const none[] = { NULL };
    static const char  head[] = "--data=";
    int                count  = 0;
    char               above[4096];
    (void)snprintf(above, sizeof above, "%s", path);
    const char *run = lki_record_exists(path) ? path : dirname(above);
    if (!lki_record_exists(run))
        return NULL;
    *line = lki_record_arguments("eval", "train", run, none, &count);
    for (int i = 0; *line != NULL && i < count; i++)
        if (strncmp((*line)[i], head, sizeof head - 1) == 0)
            return (*line)[i] + sizeof head - 1;
    return NULL;
}

/* The line on a terminal that shows how much is done. */
typedef struct {
    struct timespec begun;
    double          shown; /* seconds since then */
} progress;

static double seconds_since(const struct timespec *begun)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begun->tv_sec) + 1e-9 * (double)(now.tv_nsec - begun->tv_nsec);
}

static void show(void *context, uint64_t done, uint64_t samples)
{
    progress    *p   = context;
    const double now = seconds_since(&p->begun);
    if (p->shown > 0 && now - p->shown < 0.1)
        return;
    p->shown = now;
    fprintf(stderr, "\r\033[K%llu of %llu samples, %.0f s left", (unsigned long long)done,
            (unsigned long long)samples, now / (double)done * (double)(samples - done));
}

static int evaluate(eval_options *o)
{
    lk_evaluation e;
    progress      p = { .shown = 0 };
    if (o->evaluate.workers == 0)
        o->evaluate.workers = lk_allowance_read().cores;
    if (lki_shows_progress()) {
        (void)clock_gettime(CLOCK_MONOTONIC, &p.begun);
        o->evaluate.progress         = show;
        o->evaluate.progress_context = &p;
    }
    lk_status status = lk_evaluate(&o->evaluate, &e);
    if (p.shown > 0)
        fprintf(stderr, "\r\033[K");
    if (status != LK_OK) {
        lki_print_error("eval");
        return lk_error_last()->status == LK_EINVAL ? LKI_EXIT_USAGE : LKI_EXIT_FAILURE;
    }
    if (o->json)
        print_json(&e);
    else
        print_text(&e);
    if (e.left_out > 0)
        fprintf(stderr, "note: bytes without a token are left out of the data, and not counted in "
                        "bits per byte: %llu in all\n", (unsigned long long)e.left_out);
    return isfinite(e.loss) ? 0 : LKI_EXIT_NONFINITE;
}

/* Prints why there is no such path. */
static int refuse_path(const char *path)
{
    const char *why = strerror(errno);
    char        hint[LKI_WORDS_BYTES];
    const bool  hub = lki_hub_hint(hint, path);
    return lki_usage_error(&lki_command_eval, "cannot find '%.300s': %s%s%s", path, why,
                           hub ? "; " : "", hub ? hint : "");
}

static int eval_main(int argc, char **argv)
{
    eval_options options = { .evaluate = { .struct_size = sizeof(lk_evaluate_options) } };
    int          done    = lki_options_parse(&lki_command_eval, argc, argv, &options);
    char         source[LKI_SOURCE_BYTES], **line = NULL;
    lki_message  error;
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_eval, NULL);
    if (done < 0)
        done = lki_take_init(&lki_command_eval, &options.evaluate.path, options.init);
    if (done < 0)
        done = lki_check_trained(&lki_command_eval, options.evaluate.path);
    if (done >= 0)
        return done;
    char *tokenizer = NULL; /* the current directory may change */
    if (options.evaluate.tokenizer != NULL)
        tokenizer = realpath(options.evaluate.tokenizer, NULL);
    char *path = realpath(options.evaluate.path, NULL);
    if (path == NULL)
        done = refuse_path(options.evaluate.path);
    if (tokenizer != NULL)
        options.evaluate.tokenizer = tokenizer;
    if (done < 0 && options.evaluate.source == NULL) {
        options.evaluate.own_part = true;
        options.evaluate.source   = recorded_data(path, &line);
        options.evaluate.path     = path;
    } else if (done < 0) {
        const char *given       = options.evaluate.source;
        options.evaluate.source = lki_source_of(given, source, &error);
        if (options.evaluate.source == NULL)
            done = lki_usage_error(&lki_command_eval, "--data %.300s: %s", given, error.text);
    }
    if (done < 0 && options.evaluate.source == NULL)
        done = lki_usage_error(&lki_command_eval, "give --data SOURCE: '%s' does not say on what "
                                                  "it was trained", options.evaluate.path);
    if (done < 0)
        done = evaluate(&options);
    lki_record_free(line);
    free(path);
    free(tokenizer);
    return done;
}

const lki_command lki_command_eval = {
    .name     = "eval",
    .summary  = "compute the loss of a trained model on data",
    .usage    = "RUN [--data SOURCE] [options]",
    .about =
        "Evaluates a model of `lockstep train` on data, each sample once, and prints the mean\n"
        "loss, the perplexity and the bits per byte of text, and the accuracy or, if the targets\n"
        "are numbers, RMSE and MAE.  Model, context, precision, normalization, columns and\n"
        "tokenizer are those of the run.  Without --data it\n"
        "evaluates the validation part of the run, with the bits that the run had.  The same\n"
        "checkpoint and data give the same bits everywhere, with any --workers.\n"
        "RUN may also be a folder as transformers writes it, which is evaluated in FP32.",
    .examples = "  lockstep eval run1 --data other.txt\n"
                "  lockstep eval run1/step-00000500 --json\n"
                "  lockstep eval --init Qwen3-0.6B --adapter adapters --data notes.txt",
    .options  = table,
    .main     = eval_main,
};
