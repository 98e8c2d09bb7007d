/* main.c -- the `lockstep` command: runs a subcommand, or lists the subcommands. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/completion.h"
#include "lockstep/base.h"

static const lki_command *const commands[] = {
    &lki_command_train, &lki_command_resume, &lki_command_sample, &lki_command_eval,
    &lki_command_tokenize, &lki_command_run, &lki_command_top, &lki_command_inspect,
    &lki_command_export, &lki_command_plan, &lki_command_verify, &lki_command_key,
    &lki_command_bench, &lki_command_doctor, &lki_command_diff, &lki_command_attest,
    &lki_command_report, &lki_command_watch, &lki_command_help, &lki_command_version,
    &lki_command_completion,
    /* Commands of two words, which the command of their first word runs. */
    &lki_command_bench_step, &lki_command_bench_scaling,
};

enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };
_Static_assert(COMMAND_COUNT <= (int)LKI_COMPLETION_COMMANDS, "a set of commands has 32 bits");

static void write_overview(FILE *out)
{
    fprintf(out,
            "lockstep trains one model on many workers, with the same bits for every number of "
            "workers.\n\nusage: lockstep COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i]->main != NULL)
            fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(
        out,
        "\nTrain a small GPT on a text file, with all cores, and continue it:\n\n"
        "  lockstep train gpt --data book.txt --checkpoint run1\n"
        "  lockstep resume run1 --steps 2000\n"
        "  lockstep sample run1 --prompt \"static int \"\n\n"
        "The last line of a training run is the hash of its weights: run it again with another\n"
        "--workers and compare.  `lockstep COMMAND --help` explains a command.\n");
}

static void write_man(FILE *out)
{
    fprintf(out, ".TH LOCKSTEP 1 \"\" \"Lockstep " LK_VERSION "\" \"User Commands\"\n.SH NAME\n"
                 "lockstep \\- train one model on many workers, with the same bits for any number\n"
                 ".SH SYNOPSIS\n.B lockstep\nCOMMAND [options]\n.SH COMMANDS\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(out, ".TP\n.BR ");
        lki_man_name(commands[i]->name, out);
        fprintf(out, " (1)\n%s\n", commands[i]->summary);
    }
}

static const lki_command *find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i]->name, name) == 0 ||
            (commands[i]->other_name != NULL && strcmp(commands[i]->other_name, name) == 0))
            return commands[i];
    return NULL;
}

static int refuse_unknown(const char *name)
{
    const char *names[COMMAND_COUNT];
    size_t      count = 0;
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i]->main != NULL)
            names[count++] = commands[i]->name;
    const char *meant = lki_suggest(name, names, count);
    if (strcmp(name, "prepare") == 0) {
        fprintf(stderr, "lockstep: prepare is a command of the Python package: python -m lockstep "
                        "prepare (docs/data.md)\n");
        return LKI_EXIT_USAGE;
    }
    fprintf(stderr, "lockstep: there is no command %.60s%s%s%s\n(lockstep --help lists them)\n",
            *name != '\0' ? name : "\"\"", meant != NULL ? "; did you mean " : "",
            meant != NULL ? meant : "", meant != NULL ? "?" : "");
    return LKI_EXIT_USAGE;
}

/* ---- help and version -------------------------------------------------------------------- */

typedef struct {
    const char *command, *topic;
    bool        man, names;
} help_options;

static const lki_option help_table[] = {
    LKI_POSITIONAL("COMMAND", offsetof(help_options, command), false, "the command to explain"),
    LKI_POSITIONAL("GROUP", offsetof(help_options, topic), false,
                   "the group of options to list, or all"),
    LKI_FLAG("man", offsetof(help_options, man), "write a man page instead"),
    LKI_FLAG("names", offsetof(help_options, names), "only list the names of the commands"),
    LKI_OPTIONS_END,
};

static int help_main(int argc, char **argv)
{
    help_options options = { 0 };
    int          done    = lki_options_parse(&lki_command_help, argc, argv, &options);
    if (done >= 0)
        return done;
    if (options.names) {
        for (size_t i = 0; i < COMMAND_COUNT; i++)
            printf("%s\n", commands[i]->name);
        return 0;
    }
    if (options.command == NULL) {
        (options.man ? write_man : write_overview)(stdout);
        return 0;
    }
    const lki_command *command = find(options.command), *nested = NULL;
    if (command == NULL)
        return refuse_unknown(options.command);
    if (options.topic != NULL) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s %s", options.command, options.topic);
        nested = find(name);
    }
    if (nested != NULL) {
        command       = nested;
        options.topic = NULL;
    }
    if (options.man)
        lki_options_man(command, stdout);
    else if (!lki_options_help(command, options.topic, NULL, stdout))
        return lki_usage_error(command, "there is no group of options named %s", options.topic);
    return 0;
}

const lki_command lki_command_help = {
    .name     = "help",
    .summary  = "explain a command",
    .usage    = "[COMMAND [GROUP]]",
    .about    = "Prints what a command does and its options.",
    .examples = "  lockstep help version",
    .options  = help_table,
    .main     = help_main,
};

static const lki_option version_table[] = { LKI_OPTIONS_END };

static int version_main(int argc, char **argv)
{
    int unused = 0, done = lki_options_parse(&lki_command_version, argc, argv, &unused);
    if (done >= 0)
        return done;
    printf("lockstep %s\n", LK_VERSION);
    return 0;
}

const lki_command lki_command_version = {
    .name    = "version",
    .summary = "print the version",
    .usage   = "",
    .about   = "Prints the version of the command.",
    .options = version_table,
    .main    = version_main,
};

/* ---- completion -------------------------------------------------------------------------- */

typedef struct {
    const char *shell;
} completion_options;

static const lki_choice shells[] = { { .name = "bash" }, { .name = "zsh" }, { .name = "fish" },
                                     { .name = NULL } };

static const lki_option completion_table[] = {
    { .name = "SHELL", .type = LKI_OPTION_POSITIONAL, .required = true, .choices = shells,
      .offset = offsetof(completion_options, shell), .help = "the shell" },
    LKI_OPTIONS_END,
};

static int completion_main(int argc, char **argv)
{
    completion_options options = { 0 };
    int                done = lki_options_parse(&lki_command_completion, argc, argv, &options);
    if (done >= 0)
        return done;
    lk_status status = lki_completion_write(options.shell, commands, COMMAND_COUNT, stdout);
    if (status == LK_EINVAL)
        return lki_usage_error(&lki_command_completion, "SHELL %.40s: must be bash, zsh or fish",
                               options.shell);
    if (status != LK_OK)
        fprintf(stderr, "lockstep completion: out of memory\n");
    return status == LK_OK ? 0 : LKI_EXIT_FAILURE;
}

const lki_command lki_command_completion = {
    .name    = "completion",
    .summary = "print a script that completes command lines in a shell",
    .usage   = "SHELL",
    .about =
        "Prints a script that completes commands, options, their values, models and files in\n"
        "bash, zsh or fish.  The packages install it.  Otherwise let your shell read it: in\n"
        "~/.bashrc or ~/.zshrc (after compinit) by source, in fish from its own folder.",
    .examples = "  source <(lockstep completion bash)\n"
                "  source <(lockstep completion zsh)\n"
                "  lockstep completion fish > ~/.config/fish/completions/lockstep.fish",
    .options  = completion_table,
    .main     = completion_main,
};

/* ---- main -------------------------------------------------------------------------------- */

static int run(int argc, char **argv)
{
    if (argc < 2) {
        write_overview(stderr);
        return LKI_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        write_overview(stdout);
        return 0;
    }
    const char        *name    = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    const lki_command *command = find(name);
    if (command == NULL || command->main == NULL)
        return refuse_unknown(argv[1]);
    return command->main(argc - 1, argv + 1);
}

/* Reserves descriptors 0, 1 and 2, if they are closed, since a file that is opened as one of them
 * would get output that is not for it.  With O_PATH reading and writing still fail. */
static void reserve_standard(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", O_PATH);
}

/* Runs the command, and reports an error if the command's output could not be written.  If an
 * earlier write failed, its errno is not known. */
int main(int argc, char **argv)
{
    reserve_standard();
    int status = run(argc, argv);
    if (fflush(stdout) != 0)
        perror("lockstep: writing to standard output");
    else if (ferror(stdout) != 0)
        fputs("lockstep: not all could be written to standard output\n", stderr);
    else
        return status;
    return LKI_EXIT_FAILURE;
}
