/* cmd_key.c -- `lockstep key`: creates a key for a job on several hosts. */
#include "cli/commands.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/launch.h"

typedef struct {
    const char *path;
} key_options;

static const lki_option table[] = {
    LKI_POSITIONAL("FILE", offsetof(key_options, path), true, "the file to write"),
    LKI_OPTIONS_END,
};

static int key_main(int argc, char **argv)
{
    key_options options = { 0 };
    int         done    = lki_options_parse(&lki_command_key, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_key, NULL);
    if (done >= 0)
        return done;
    if (lk_job_key_new(options.path) == LK_OK)
        return 0;
    lki_print_error("key");
    return LKI_EXIT_FAILURE;
}

const lki_command lki_command_key = {
    .name    = "key",
    .summary = "create the secret key for a job on several hosts",
    .usage   = "FILE",
    .about =
        "Writes a new key to FILE, which only its owner can read; an existing file is never\n"
        "replaced.  Copy it to every host of the job over a channel that you trust (scp), and\n"
        "pass it there with --job-key FILE.  Anybody who has the key can take part in the job.",
    .examples = "  lockstep key job.key",
    .options  = table,
    .main     = key_main,
};
