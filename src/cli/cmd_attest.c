/* cmd_attest.c -- `lockstep attest`: writes a statement about a run, and has it signed. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/paths.h"
#include "cli/record.h"
#include "cli/signals.h"
#include "cli/signature.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/checkpoint.h"
#include "lockstep/report.h"

typedef struct {
    const char *run, *key, *out;
} attest_options;

#define AT(field) offsetof(attest_options, field)

enum { PATH = 4096 };

static const lki_option table[] = {
    LKI_POSITIONAL("RUN", AT(run), true, "the --checkpoint directory of the run, which has a log"),
    LKI_STRING("key", "FILE", AT(key), "none; the statement is not signed",
               "sign with this SSH key: a private key, or a public key whose private key ssh-agent "
               "has"),
    LKI_STRING("out", "FILE", AT(out), "RUN.attest.json", "file for the statement"),
    LKI_OPTIONS_END,
};

/* Returns true if a run that was to end at a step has a checkpoint after it. */
static bool is_past(const lk_train_config *c)
{
    lk_checkpoint *checkpoint;
    if (c->steps == 0 ||
        lk_checkpoint_open_manifest(&checkpoint, c->checkpoint.folder, NULL, 0) != LK_OK)
        return false;
    const bool past = lk_checkpoint_describe(checkpoint)->step > c->steps;
    lk_checkpoint_free(checkpoint);
    return past;
}

/* Prints why the recorded options of a run are not those of its checkpoints. */
static void print_contradiction(const lk_train_config *c, const char *run, const char *why)
{
    const char *advice = strstr(why, "; resume with the same"); /* of resume */
    const int   length = (int)(advice != NULL ? advice - why : (ptrdiff_t)strlen(why));
    if (is_past(c))
        fprintf(stderr, "lockstep attest: '%s/" LK_RUN_COMMAND "' has --steps %" PRIu64 ", and "
                        "there are checkpoints of later steps: restore --steps, or move these "
                        "checkpoints away\n", run, c->steps);
    else
        fprintf(stderr, "lockstep attest: '%s/" LK_RUN_COMMAND "' contradicts the run: %.*s; "
                        "restore what was changed or, if a resume has changed it, resume the run "
                        "until it writes a checkpoint; else the statement would be false\n", run,
                length, why);
}

/* Returns true if a run with these options can be replayed.  Prints why not. */
static bool can_replay(const lk_train_config *c, const char *run)
{
    char text[256];
    if (lk_train_label(c, text, sizeof text) < LK_LABEL_RECORDED)
        return true;
    fprintf(stderr, "lockstep attest: '%s/" LK_RUN_COMMAND "' has the options of a run that is %s, "
                    "so nobody could replay it from configuration, seed and data\n", run, text);
    return false;
}

/* Checks the recorded options of a run almost as `resume` would: they must be those of its newest
 * checkpoint, also those that a run may change.  Prints what contradicts them and returns false;
 * prints a note if they cannot be compared.  Not inlined, because the options are large. */
__attribute__((noinline)) static bool check_record(char **line, int count, const char *run)
{
    lki_command   command = lki_command_train;
    train_options options = LKI_TRAIN_OPTIONS_INIT;
    command.name          = "attest";
    command.check         = NULL;
    options.command       = &command;
    if (lki_options_parse(&command, count, line, &options) >= 0) {
        free(options.file.text);
        return false;
    }
    lki_train_suit(&options);
    lk_train_config *c       = &options.config;
    c->workers               = 0; /* those of this machine */
    c->elastic.workers_least = 0;
    c->buddies               = false; /* nothing is lost */
    c->log                   = NULL; /* nothing is written */
    c->trace                 = NULL;
    c->outputs               = (lk_train_outputs){ .terminal = 0 };
    c->checkpoint.same_bits  = true;
    lk_status status         = lk_train_check(c);
    char      why[LKI_WORDS_BYTES];
    lki_words(why, sizeof why, lk_error_last()->message);
    if (status == LK_EINVAL)
        print_contradiction(c, run, why);
    else if (status != LK_OK)
        fprintf(stderr, "lockstep attest: note: the options of the run were not compared with its "
                        "checkpoints: %s\n", why);
    if (options.kernels != NULL && strcmp(options.kernels, "onednn") == 0)
        c->onednn = options.kernels; /* for the label */
    free(options.tokenizer);
    free(options.file.text);
    return status != LK_EINVAL && can_replay(c, run);
}

/* Returns true if nothing contradicts the recorded options of a run, or it has none.  Its paths are
 * those of the directory in which it was started, so the current directory changes meanwhile. */
static bool agrees(const char *run)
{
    static char        newest[] = "--resume";
    static char *const more[]   = { newest, NULL };
    int                count, here;
    if (!lki_record_exists(run))
        return true; /* lk_attest() reports it */
    here        = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char **line = lki_record_arguments("attest", "train", run, more, &count);
    bool   good = line != NULL && check_record(line, count, run);
    if (here < 0 || fchdir(here) != 0) {
        perror("lockstep attest: cannot return to the current directory");
        good = false;
    }
    if (here >= 0)
        (void)close(here);
    lki_record_free(line);
    return good;
}

/* Returns true if a run has a checkpoint.  Prints why it cannot be attested if not. */
static bool has_checkpoint(const char *run)
{
    bool exists = false;
    if (access(run, F_OK) != 0)
        fprintf(stderr, "lockstep attest: cannot find '%s': %s; give the --checkpoint directory of "
                        "a run that wrote a --log\n", run, strerror(errno));
    else if (!lki_record_exists(run) || lk_checkpoint_exists(run, &exists) != LK_OK)
        return true; /* lk_attest() reports it */
    else if (!exists)
        fprintf(stderr, "lockstep attest: the run in '%s' has no checkpoint yet, so there is "
                        "nothing to attest: it still runs, or it ended before its first one; start "
                        "it again by its first command and --resume=auto, and with a smaller "
                        "--checkpoint-every\n", run);
    return exists;
}

/* Returns true if a file can be made in its directory.  Prints why not. */
static bool can_make(const char *file)
{
    char copy[4096];
    (void)snprintf(copy, sizeof copy, "%s", file);
    if (access(dirname(copy), W_OK | X_OK) == 0)
        return true;
    fprintf(stderr, "lockstep attest: cannot write '%s': %s; give another --out\n", file,
            strerror(errno));
    return false;
}

/* Writes a statement.  Does not replace one that is signed.  Not inlined, because of its large
 * path. */
__attribute__((noinline)) static bool state(const char *run, const char *file)
{
    char signature[PATH + 4];
    (void)snprintf(signature, sizeof signature, "%s.sig", file);
    if (access(signature, F_OK) == 0) {
        fprintf(stderr, "lockstep attest: '%s' is the signature of an earlier statement, and "
                        "would not be one of the new: give --key to replace both, or another "
                        "--out\n", signature);
        return false;
    }
    if (lk_attest(run, file) == LK_OK)
        return true;
    lki_print_error("attest");
    return false;
}

/* Gives a draft and its signature their names.  The statement is first: if the second step fails,
 * an old signature does not fit, and nobody takes it for one of the new statement. */
static bool publish(const char *draft, const char *signature, const char *file)
{
    char to[PATH + 4];
    (void)snprintf(to, sizeof to, "%s.sig", file);
    if (rename(draft, file) == 0 && rename(signature, to) == 0)
        return true;
    fprintf(stderr, "lockstep attest: cannot write '%s' and its signature: %s\n", file,
            strerror(errno));
    return false;
}

/* Writes a statement and its signature as drafts, so that a failure leaves what was there.  A
 * signal that arrives while ssh-keygen works ends this process once the drafts are gone. */
__attribute__((noinline)) static bool state_and_sign(const char *run, const char *file,
                                                     const char *key)
{
    char     draft[PATH], signature[PATH + 4];
    sigset_t before;
    if (snprintf(draft, sizeof draft, "%s.%ld.new", file, (long)getpid()) >= PATH - 4) {
        fprintf(stderr, "lockstep attest: --out is too long for a path\n");
        return false;
    }
    (void)snprintf(signature, sizeof signature, "%s.sig", draft);
    bool good = lk_attest_draft(run, draft, file) == LK_OK;
    if (!good)
        lki_print_error("attest");
    lki_hold_signals(&before);
    good = good && lki_sign("attest", file, draft, key, &before) &&
           publish(draft, signature, file);
    (void)unlink(draft);
    (void)unlink(signature);
    lki_release_signals(&before);
    return good;
}

static int attest_main(int argc, char **argv)
{
    attest_options options = { .run = NULL };
    char           file[4096];
    int            done = lki_options_parse(&lki_command_attest, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_attest, NULL);
    if (done >= 0)
        return done;
    size_t length = strlen(options.run);
    while (length > 1 && options.run[length - 1] == '/')
        length--;
    if (options.out != NULL)
        (void)snprintf(file, sizeof file, "%s", options.out);
    else
        (void)snprintf(file, sizeof file, "%.*s.attest.json", (int)length, options.run);
    const char *why = options.key != NULL ? lki_why_unreadable(options.key) : NULL;
    if (why != NULL) {
        fprintf(stderr, "lockstep attest: cannot read the key '%s': %s; `ssh-keygen -t ed25519` "
                        "makes a pair of keys\n", options.key, why);
        return LKI_EXIT_FAILURE;
    }
    if (!has_checkpoint(options.run) || !can_make(file) || !agrees(options.run))
        return LKI_EXIT_FAILURE;
    if (!(options.key != NULL ? state_and_sign(options.run, file, options.key)
                              : state(options.run, file)))
        return LKI_EXIT_FAILURE;
    if (options.key != NULL)
        printf("statement %s\nsignature %s.sig\n", file, file);
    else
        printf("statement %s, not signed: anybody can change it; --key signs it\n", file);
    return 0;
}

const lki_command lki_command_attest = {
    .name    = "attest",
    .summary = "state what a run was, for others to verify",
    .usage   = "RUN [--key FILE] [--out FILE]",
    .about =
        "Writes a statement about a run that has checkpoints and a log: its options, the SHA-256\n"
        "of its data, the loss of each step, and a chain of hashes over losses and checkpoints.\n"
        "With --key, ssh-keygen signs it, into FILE.sig.  Others verify the statement with\n"
        "`lockstep verify FILE`, which replays parts of the run.",
    .examples = "  lockstep attest run1 --key ~/.ssh/id_ed25519\n"
                "  lockstep verify run1.attest.json --segments 3 --seed 7",
    .options  = table,
    .main     = attest_main,
};
