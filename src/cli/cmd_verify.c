/* cmd_verify.c -- `lockstep verify`: computes one virtual worker of one step again, in one
 * process. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/commands.h"
#include "cli/record.h"
#include "cli/statement.h"
#include "cli/train.h"
#include "cli/values.h"
#include "cli/verdict.h"
#include "cli/words.h"
#include "cli/workers.h"

typedef struct {
    train_options train; /* first, as lki_train_rows() expects */
    uint64_t      step;
    uint32_t      virtual_worker;
    bool          odd;
    lki_verdict   verdict;
} verify_options;

#define AT(field) offsetof(verify_options, field)

/* clang-format off */
static const lki_option own[] = {
    { .group = "what to compute again", .required = true, .name = "step", .type = LKI_OPTION_U64,
      .value = "S", .offset = AT(step), .low = 1, .high = UINT64_MAX >> 16,
      .help = "step of the run, from 1" },
    { .name = "virtual-worker", .preset = "0", .type = LKI_OPTION_U32, .value = "K",
      .offset = AT(virtual_worker), .high = 4095, .help = "virtual worker of that step, from 0" },
    LKI_OPTIONS_END,
};
/* clang-format on */

static void print_odd(void *context, const lk_replay_odd *odd)
{
    ((verify_options *)context)->odd = true;
    printf("not finite: block %u, gradient of '%s': element %zu of %zu is %g\n", odd->block,
           odd->param, odd->element, odd->count, (double)odd->value);
}

static void compare_step(void *context, uint64_t step, double loss)
{
    lki_verdict_step(&((verify_options *)context)->verdict, step, loss);
}

static void print_result(const verify_options *o, const lk_replay *r)
{
    char loss[LK_NUMBER_BYTES];
    lk_number_text(loss, r->loss);
    printf("step %llu, virtual worker %u, from step %llu on\n", (unsigned long long)o->step,
           o->virtual_worker, (unsigned long long)r->from);
    printf("samples %llu\nloss %s (a mean over %llu)\ngradient %s\n",
           (unsigned long long)r->samples, loss, (unsigned long long)r->count, r->gradient);
}

/* Compares the replay with the run, unless nobody could repeat the run. */
static bool print_verdict(const verify_options *o, const lk_replay *r)
{
    char label[128];
    if (lk_train_label(&o->train.config, label, sizeof label) <= LK_LABEL_INVARIANT)
        return lki_verdict_print(&o->verdict, r);
    printf("not compared: the run is %s\n", label);
    return true;
}

static int verify(verify_options *o)
{
    const lk_train_config *c = &o->train.config;
    if (o->train.kernels != NULL && strcmp(o->train.kernels, "onednn") == 0)
        return lki_usage_error_of(o->train.command, &o->train.file,
                                  "--kernels onednn is timed, so no step of it can be "
                                  "computed again");
    lk_replay replay = { .step = o->step, .virtual_worker = o->virtual_worker, .odd = print_odd,
                         .after = compare_step, .context = o };
    lki_verdict_open(&o->verdict, c->checkpoint.folder, c->log, &replay);
    lk_status status = lk_train_replay(c, &replay);
    int       result = LKI_EXIT_FAILURE;
    if (status == LK_EINVAL) {
        result = lki_usage_error_of(o->train.command, &o->train.file, "%s",
                                    lk_error_last()->message);
    } else if (status != LK_OK) {
        lki_print_error("verify");
    } else {
        print_result(o, &replay);
        bool good = print_verdict(o, &replay);
        result    = !isfinite(replay.loss) || o->odd ? LKI_EXIT_NONFINITE
                    : good                           ? 0 : LKI_EXIT_FAILURE;
    }
    lki_verdict_close(&o->verdict);
    return result;
}

static int verify_run(int argc, char **argv)
{
    verify_options options = { .train = LKI_TRAIN_OPTIONS_INIT };
    lki_command    command = lki_command_verify;
    lki_option    *rows    = lki_train_rows(NULL, own, false);
    if (rows == NULL) {
        fprintf(stderr, "lockstep verify: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    command.options       = rows;
    options.train.command = &command;
    int result            = lki_options_parse(&command, argc, argv, &options);
    if (result < 0)
        result = lki_refuse_half_job(&command, &options.train.nodes);
    if (result < 0) {
        lki_train_suit(&options.train);
        result = verify(&options);
    }
    free(options.train.file.text);
    free(options.train.tokenizer);
    free(rows);
    return result;
}

/* Returns true if the arguments have a model, or an option that has one or asks for the help. */
static bool names_model(char **argv)
{
    static const char *const options[] = { "--init", "--config", "--help" };
    bool                     found     = false;
    for (int i = 1; argv[i] != NULL && !found; i++) {
        found = lki_is_model(argv[i]) || strcmp(argv[i], "-h") == 0;
        for (size_t k = 0; k < sizeof options / sizeof options[0]; k++)
            found = found || strncmp(argv[i], options[k], strlen(options[k])) == 0;
    }
    return found;
}

/* Returns true if the first line of a file is that of a log. */
static bool is_log(const char *path)
{
    static const char head[] = "{\"step\":";
    char              text[sizeof head] = "";
    FILE             *file = fopen(path, "re");
    size_t            got  = file != NULL ? fread(text, 1, sizeof head - 1, file) : 0;
    if (file != NULL)
        (void)fclose(file);
    return got == sizeof head - 1 && strcmp(text, head) == 0;
}

/* Returns true if --step is among the arguments. */
static bool has_step(char **argv)
{
    while (*argv != NULL && strncmp(*argv, "--step", 6) != 0)
        argv++;
    return *argv != NULL;
}

/* Verifies a statement.  Refuses a log, which does not say what the run was, and a step of it. */
static int verify_file(int argc, char **argv)
{
    if (is_log(argv[1]))
        return lki_usage_error(&lki_command_verify,
                               "%.200s is the log of a run: give the run's --checkpoint directory "
                               "and a step, as in lockstep verify run1 --step 312, which reads the "
                               "log, or a statement of lockstep attest; lockstep diff compares two "
                               "logs", argv[1]);
    if (has_step(argv + 2))
        return lki_usage_error(&lki_command_verify,
                               "%.200s is a file, and --step goes with the --checkpoint directory "
                               "of a run; of a statement of lockstep attest, --segments K are "
                               "replayed", argv[1]);
    return lki_verify_statement(argc, argv);
}

/* `verify RUN` takes the options from the directory of the run; `verify FILE` verifies a
 * statement. */
static int verify_main(int argc, char **argv)
{
    struct stat info;
    bool        there = argc > 1 && stat(argv[1], &info) == 0 && S_ISDIR(info.st_mode);
    if (argc > 1 && stat(argv[1], &info) == 0 && S_ISREG(info.st_mode))
        return verify_file(argc, argv);
    if (argc > 1 && argv[1][0] != '-' && !there && !lki_is_model(argv[1]))
        return lki_usage_error(&lki_command_verify,
                               "%.120s is no directory of a run, no statement, and no "
                               "model; give its --checkpoint directory, or gpt, llama, resnet "
                               "or mlp and the options of the run",
                               argv[1][0] != '\0' ? argv[1] : "\"\"");
    if (!there && !names_model(argv))
        return lki_usage_error(&lki_command_verify,
                               "RUN or FILE is missing: give the --checkpoint directory of a run "
                               "and a step, as in lockstep verify run1 --step 312, or a statement "
                               "of lockstep attest, as in lockstep verify run1.attest.json "
                               "--segments 3");
    if (!there)
        return verify_run(argc, argv);
    int    count;
    char **line   = lki_record_arguments("verify", "verify", argv[1], argv + 2, &count);
    int    result = line != NULL ? verify_run(count, line) : LKI_EXIT_USAGE;
    lki_record_free(line);
    return result;
}

const lki_command lki_command_verify = {
    .name    = "verify",
    .summary = "compute one virtual worker of one step again",
    .usage   = "RUN --step S [--virtual-worker K], or with the options of train instead of RUN; "
               "or FILE --segments K",
    .about =
        "Trains from the newest checkpoint before step S (in --checkpoint DIR; else from the\n"
        "beginning) to that step, and computes its virtual worker K again, alone and in this\n"
        "process.  Prints the number of its samples, its loss and the hash of its gradient, which\n"
        "are the same on every machine, and each block with a gradient that is not finite, from\n"
        "the last block to the first (the status is then 3).  Compares the losses with the log of\n"
        "the run, and the weights with the checkpoint of step S, if they are there; the last line\n"
        "is `equal`, `not equal` with the status 1, or `not compared` if neither has step S or\n"
        "nobody could repeat the run.  RUN is the --checkpoint directory\n"
        "of the run, which has its options.  Otherwise give MODEL and the options of the run;\n"
        "options that cannot change the result are ignored.  Nothing is written, and the run may\n"
        "still be active.\n"
        "\n"
        "With FILE, a statement of `lockstep attest`, it verifies the statement and replays K\n"
        "segments of the run; `lockstep verify FILE --help` has the options.",
    .examples = "  lockstep verify run1 --step 312\n"
                "  lockstep verify gpt --data text:book.txt --global-batch 32 --steps 500 \\\n"
                "      --optimizer adamw --lr 1e-3 --checkpoint run1 --step 312 --virtual-worker 5",
    .options  = own,
    .inherits = "train",
    .main     = verify_main,
    .check    = lki_train_check_model,
    .choose   = lki_train_choose,
};
