/* cmd_verify.c -- `lockstep verify`: computes one virtual worker of one step again, in one
 * process. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    bool          names_log; /* --log was given, and is not that of the run */
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

static bool is_evaluated(void *context, uint64_t step)
{
    return lki_verdict_evaluates(&((const verify_options *)context)->verdict, step);
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
static bool print_verdict(verify_options *o, const lk_replay *r)
{
    char label[128];
    if (lk_train_label(&o->train.config, label, sizeof label) <= LK_LABEL_INVARIANT)
        return lki_verdict_print(&o->verdict, r);
    printf("not compared: the run is %s\n", label);
    return o->verdict.alone;
}

static int verify(verify_options *o)
{
    const lk_train_config *c = &o->train.config;
    if (o->train.kernels != NULL && strcmp(o->train.kernels, "onednn") == 0)
        return lki_usage_error_of(o->train.command, &o->train.file,
                                  "--kernels onednn is timed, so no step of it can be "
                                  "computed again");
    if (o->names_log && access(c->log, R_OK) != 0) {
        fprintf(stderr, "lockstep verify: cannot read the log '%s': %s; give another --log, or "
                        "leave it out\n", c->log, strerror(errno));
        return LKI_EXIT_FAILURE;
    }
    lk_replay replay = { .step = o->step, .virtual_worker = o->virtual_worker, .odd = print_odd,
                         .evaluates = is_evaluated, .context = o };
    lki_verdict_open(&o->verdict, c->checkpoint.folder, c->log, o->names_log, &replay);
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

static int verify_run(int argc, char **argv, bool names_log)
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
        options.names_log = names_log && options.train.config.log != NULL;
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

/* Returns true if an option is among the arguments, with or without a value. */
static bool has(char **argv, const char *name)
{
    const size_t bytes = strlen(name);
    for (; *argv != NULL; argv++)
        if (strncmp(*argv, name, bytes) == 0 && ((*argv)[bytes] == '\0' || (*argv)[bytes] == '='))
            return true;
    return false;
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
    if (has(argv + 2, "--step"))
        return lki_usage_error(&lki_command_verify,
                               "%.200s is a file, and --step goes with the --checkpoint directory "
                               "of a run; of a statement of lockstep attest, --segments K are "
                               "replayed", argv[1]);
    return lki_verify_statement(argc, argv);
}

/* Verifies a step of the run in a directory, with the options that the run keeps there.  Options of
 * `verify FILE` need a statement. */
static int verify_directory(char **argv)
{
    static const char *const others[] = { "--segments", "--signers", "--identity" };
    int                      count, length = (int)strlen(argv[1]);
    while (length > 1 && argv[1][length - 1] == '/')
        length--;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (has(argv + 2, others[i]))
            return lki_usage_error(&lki_command_verify,
                                   "%s goes with a statement, and %.*s is a run: lockstep attest "
                                   "%.*s writes one, and lockstep verify %.*s.attest.json replays "
                                   "segments of it; of a run, --step S is computed again",
                                   others[i], length, argv[1], length, argv[1], length, argv[1]);
    char **line   = lki_record_arguments("verify", "verify", argv[1], argv + 2, &count);
    int    result = line != NULL ? verify_run(count, line, has(argv + 2, "--log"))
                                 : LKI_EXIT_USAGE;
    lki_record_free(line);
    return result;
}

/* Refuses arguments that name neither a run nor a model.  If a run or a file comes later, it should
 * have come first. */
static int refuse_nothing(char **argv)
{
    struct stat info;
    for (int i = 1; argv[i] != NULL; i++)
        if (argv[i][0] != '-' && stat(argv[i], &info) == 0)
            return lki_usage_error(&lki_command_verify,
                                   "RUN or FILE must be the first argument, before %s: lockstep "
                                   "verify %.200s ...", argv[1], argv[i]);
    return lki_usage_error(&lki_command_verify,
                           "RUN or FILE is missing: give the --checkpoint directory of a run and a "
                           "step, as in lockstep verify run1 --step 312, or a statement of "
                           "lockstep attest, as in lockstep verify run1.attest.json --segments 3");
}

/* `verify RUN` takes the options from the directory of the run; `verify FILE` verifies a
 * statement. */
static int verify_main(int argc, char **argv)
{
    struct stat info;
    const bool  there = argc > 1 && stat(argv[1], &info) == 0;
    if (there && S_ISREG(info.st_mode))
        return verify_file(argc, argv);
    if (there && S_ISDIR(info.st_mode))
        return verify_directory(argv);
    if (argc > 1 && argv[1][0] != '-' && !lki_is_model(argv[1]))
        return lki_usage_error(&lki_command_verify,
                               "%.120s is no directory of a run, no statement, and no "
                               "model; give its --checkpoint directory, or gpt, llama, resnet "
                               "or mlp and the options of the run",
                               argv[1][0] != '\0' ? argv[1] : "\"\"");
    if (!names_model(argv))
        return refuse_nothing(argv);
    return verify_run(argc, argv, true);
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
        "the last block to the first (the status is then 3).  Compares all values in the log of\n"
        "the run (or --log FILE) that can be computed again, and the weights with the checkpoint\n"
        "of step S, if they are there; the last line is `equal`, or, with the status 1, `not\n"
        "equal`, or `not compared` if the log or else the checkpoint does not have step S, or\n"
        "nobody could repeat the run.  RUN is the --checkpoint directory of the run, which has\n"
        "its options.  Otherwise give MODEL and the options of the run; options that cannot\n"
        "change the result are ignored.  Nothing is written, and the run may still be active.\n"
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
