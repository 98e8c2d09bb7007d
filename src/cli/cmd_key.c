/* cmd_key.c -- `lockstep key`: a new key for a job on several hosts. */
#include "cli/commands.h"
#include "lockstep/launch.h"

typedef struct {
    const char *path;
} key_options;

static const lki_option table[] = {
    LKI_POSITIONAL("FILE", offsetof(key_options, path), true, "where to write it"),
    LKI_OPTIONS_END,
};

static int key_main(int argc, char **argv)
{
    key_options options = { 0 };
    int         done    = lki_options_parse(&lki_command_key, argc, argv, &options);
    if (done >= 0)
        return done;
    if (lk_job_key_new(options.path) == LK_OK)
        return 0;
    fprintf(stderr, "lockstep key: %s\n", lk_error_last()->message);
    return LKI_EXIT_FAILURE;
}

const lki_command lki_command_key = {
    .name    = "key",
    .summary = "make the secret key of a job on several hosts",
    .usage   = "FILE",
    .about =
        "Writes a new key to FILE, which only its owner can read; an existing file is never\n"
        "replaced.  Copy it to every host of the job by a way that you trust (scp), and name it\n"
        "there with --job-key FILE.  Whoever has the key can take part in the job.",
    .examples = "  lockstep key job.key",
    .options  = table,
    .main     = key_main,
};
