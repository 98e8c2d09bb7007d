/* cmd_resume.c -- `lockstep resume`: continues a run with the options that it was started with. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/record.h"
#include "lockstep/checkpoint.h"

typedef struct {
    const char *run;
} resume_options;

static const lki_option table[] = {
    LKI_POSITIONAL("RUN", offsetof(resume_options, run), true,
                   "the --checkpoint directory of the run"),
    LKI_OPTIONS_END,
};

/* Splits the arguments: RUN is the first one; all others are for train.  Returns NULL, after the
 * help or an error, if there is no RUN. */
static const char *find_run(int argc, char **argv, int *status)
{
    resume_options options = { NULL };
    if (argc > 1 && argv[1][0] != '-')
        return argv[1];
    bool help = argc > 1 && (strncmp(argv[1], "--help", 6) == 0 || strcmp(argv[1], "-h") == 0);
    if (argc > 1 && !help)
        *status = lki_usage_error(&lki_command_resume, "RUN must be the first argument, before %s",
                                  argv[1]);
    else
        *status = lki_options_parse(&lki_command_resume, argc < 3 ? argc : 2, argv, &options);
    return NULL;
}

/* Returns true if the option `name` is among the arguments, with or without a value. */
static bool has(char *const *more, const char *name)
{
    const size_t bytes = strlen(name);
    for (; *more != NULL; more++)
        if (strncmp(*more, name, bytes) == 0 && ((*more)[bytes] == '\0' || (*more)[bytes] == '='))
            return true;
    return false;
}

/* Returns true if --resume=STEP is among the arguments. */
static bool has_step(char *const *more)
{
    for (; *more != NULL; more++)
        if (strncmp(*more, "--resume=", 9) == 0 && strspn(*more + 9, "0123456789") > 0)
            return true;
    return false;
}

/* Refuses to continue with the recorded options after a run was killed that went back, perhaps with
 * others.  Returns false, with the reason, if that is so. */
static bool is_recorded(const char *run)
{
    char     aside[32];
    uint64_t step;
    if (!lk_checkpoint_goes_back(run, &step, aside))
        return true;
    fprintf(stderr, "lockstep resume: a run that goes back to step %llu of '%s' has not begun its "
                    "first step, and its options are not recorded yet.  If it was killed, give its "
                    "whole command again, with --resume=%llu.  To continue the former run instead, "
                    "move the checkpoints in '%s/%s' back to '%s', replace the lines after step "
                    "%llu in the log by those of log.jsonl there (if it is there), and then remove "
                    "'%s/.going-back'\n", (unsigned long long)step, run, (unsigned long long)step,
            run, aside, run, (unsigned long long)step, run);
    return false;
}

static int resume_main(int argc, char **argv)
{
    int         status = LKI_EXIT_USAGE, count;
    const char *run    = find_run(argc, argv, &status);
    if (run == NULL)
        return status;
    for (int i = 2; i < argc; i++) /* the help of train has the options that may be added */
        if (strcmp(argv[i], "--help") == 0 || strncmp(argv[i], "--help=", 7) == 0)
            return lki_options_parse(&lki_command_resume, 2, (char *[]){ argv[0], argv[i], NULL },
                                     &(resume_options){ NULL });
    if (has(argv + 2, "--adapter"))
        return lki_usage_error(&lki_command_resume, "--adapter: a run goes on with the adapters of "
                               "its checkpoint; leave it out, or start a new run with it");
    if (!has_step(argv + 2) && !is_recorded(run))
        return LKI_EXIT_USAGE;
    char **more = calloc((size_t)argc + 1, sizeof *more);
    if (more == NULL) {
        fprintf(stderr, "lockstep resume: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    static char again[] = "--resume";
    int         added   = 0;
    if (!has(argv + 2, "--resume"))
        more[added++] = again;
    memcpy(more + added, argv + 2, (size_t)(argc - 2) * sizeof *more);
    (void)setenv(LKI_TRAIN_FOR, "resume", 1);
    char **line = lki_record_arguments("resume", "train", run, more, &count);
    status      = line != NULL ? lki_command_train.main(count, line) : LKI_EXIT_USAGE;
    lki_record_free(line);
    free(more);
    return status;
}

const lki_command lki_command_resume = {
    .name    = "resume",
    .summary = "continue a run with its own options",
    .usage   = "RUN [options of train]",
    .about =
        "Continues the run in the directory RUN from its newest checkpoint, with the options that\n"
        "it was started with.  Options of train after RUN replace them: --workers 3 continues on\n"
        "three workers with the same bits, --steps 2000 goes on for longer.  An option that would\n"
        "change the result of the steps so far is refused.  Paths among the options are those of\n"
        "the directory in which the run was started.",
    .examples = "  lockstep resume run1\n"
                "  lockstep resume run1 --workers 3 --steps 2000",
    .options  = table,
    .inherits = "train",
    .main     = resume_main,
};
