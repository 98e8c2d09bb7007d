/* cmd_attest.c -- `lockstep attest`: writes a statement about a run, and has it signed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/signature.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/report.h"

typedef struct {
    const char *run, *key, *out;
} attest_options;

#define AT(field) offsetof(attest_options, field)

static const lki_option table[] = {
    LKI_POSITIONAL("RUN", AT(run), true, "the --checkpoint directory of the run, which has a log"),
    LKI_STRING("key", "FILE", AT(key), "none; the statement is not signed",
               "sign with this SSH key: a private key, or a public key whose private key ssh-agent "
               "has"),
    LKI_STRING("out", "FILE", AT(out), "RUN.attest.json", "file for the statement"),
    LKI_OPTIONS_END,
};

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
    if (options.key != NULL && access(options.key, R_OK) != 0) {
        fprintf(stderr, "lockstep attest: cannot read the key '%s': %s; `ssh-keygen -t ed25519` "
                        "makes a pair of keys\n", options.key, strerror(errno));
        return LKI_EXIT_FAILURE;
    }
    if (lk_attest(options.run, file) != LK_OK) {
        lki_print_error("attest");
        return LKI_EXIT_FAILURE;
    }
    if (options.key != NULL && !lki_sign("attest", file, options.key))
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
