/* cmd_run.c -- `lockstep run`: runs any program N times, as the ranks of one job. */
#include <string.h>
#include <unistd.h>

#include "cli/chaos.h"
#include "cli/commands.h"
#include "cli/foreign.h"
#include "cli/nodes.h"
#include "cli/words.h"
#include "cli/workers.h"

typedef struct {
    uint32_t    workers, timeout_ms, grace_ms, restart;
    int         on_failure;
    bool        prefix;
    const char *flight;
    char      **argv;
    lki_nodes   nodes;
    lk_chaos    chaos;
} run_options;

#define AT(field) offsetof(run_options, field)

static bool read_chaos(const char *text, void *target, lki_message *error)
{
    return lki_parse_chaos(text, &((run_options *)target)->chaos, error);
}

static bool read_restart(const char *text, void *target, lki_message *error)
{
    return lki_parse_restart(text, &((run_options *)target)->restart, error);
}

static const lki_choice endings[] = {
    { .name = "stop", .value = LK_ON_FAILURE_STOP },
    { .name = "continue", .value = LK_ON_FAILURE_CONTINUE },
    { .name = NULL },
};

/* clang-format off */
static const lki_option table[] = {
    { .name = "workers", .type = LKI_OPTION_U32, .value = "N", .letter = 'n', .offset = AT(workers),
      .required = true, .low = 1, .high = 1024,
      .help = "number of copies of the program to start on this host" },
    { .name = "timeout", .type = LKI_OPTION_SECONDS, .value = "S", .offset = AT(timeout_ms),
      .range = &lki_range_positive, .preset = "30",
      .help = "seconds for which a worker waits for the others before it reports the missing "
              "ones" },
    { .name = "grace", .type = LKI_OPTION_SECONDS, .value = "S", .offset = AT(grace_ms),
      .range = &lki_range_positive, .preset = "1",
      .help = "seconds for which the other workers may continue after a failure, before they are "
              "killed" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "on-failure", "WHAT", AT(on_failure), endings, "stop",
               "reaction to the failure of a worker that had joined: end the others, or let them "
               "continue without it, if the program calls lk_comm_rebuild()"),
    { .name = "restart", .type = LKI_OPTION_CUSTOM, .value = "N", .read = read_restart,
      .value_optional = true, .preset = "never; without N: 3",
      .help = "with --on-failure continue, start a new copy in place of each lost one, which the "
              "others let in if the program calls lk_comm_admit(); give up after N copies in a row "
              "that did not get in or were lost at once; output then has no prefixes" },
    { .name = "chaos", .type = LKI_OPTION_CUSTOM, .value = "SEED,RATE", .read = read_chaos,
      .preset = "none", .help = LKI_CHAOS_HELP },
    LKI_FLAG("prefix", AT(prefix),
             "begin every line of output with [rank]; --no-prefix leaves output unchanged"),
    { .name = "flight-recorder", .alias = "flight", .type = LKI_OPTION_STRING, .value = "DIR",
      .offset = AT(flight),
      .help = "record the last operations of each worker that joined in DIR, for lockstep inspect "
              "--flight DIR" },
    { .name = "PROGRAM ARGS", .type = LKI_OPTION_REST, .offset = AT(argv), .required = true,
      .help = "the program and its arguments; write -- before it if one of them is --help" },
    LKI_NODE_OPTIONS(AT(nodes)),
    LKI_OPTIONS_END,
};
/* clang-format on */

/* Returns true if a Python script is given as the program, as with torchrun, and cannot be run by
 * itself. */
static bool is_script(const char *program)
{
    size_t length = strlen(program);
    return length > 3 && strcmp(program + length - 3, ".py") == 0 &&
           access(program, F_OK) == 0 &&
           (strchr(program, '/') == NULL || access(program, X_OK) != 0);
}

static int run_program(int argc, char **argv)
{
    run_options options = { .prefix = true, .nodes = LKI_NODES_INIT };
    int         done    = lki_options_parse(&lki_command_run, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_run, &options.nodes);
    if (done >= 0)
        return done;

    if (is_script(options.argv[0]))
        return lki_usage_error(&lki_command_run, "%.120s is no program: write python before it, as "
                                                 "in -- python %.120s", options.argv[0],
                               options.argv[0]);
    if (options.restart > 0 && options.on_failure != LK_ON_FAILURE_CONTINUE)
        return lki_usage_error(&lki_command_run, "--restart replaces lost copies while the others "
                                                  "continue: give --on-failure continue, too");
    lk_launch_options how = {
        .struct_size   = sizeof(lk_launch_options),
        .workers       = options.workers,
        .argv          = options.argv,
        .prefix_output = options.prefix && options.restart == 0,
        .timeout_ms    = options.timeout_ms,
        .grace_ms      = options.grace_ms,
        .flight        = options.flight,
        .on_failure    = (lk_on_failure)options.on_failure,
        .replacements  = options.restart,
    };
    done = lki_nodes_apply(&options.nodes, &lki_command_run, &how);
    if (done >= 0)
        return done;
    how.chaos              = options.chaos;
    how.chaos.note         = how.note;
    how.chaos.note_context = how.note_context;
    lk_launch_result result;
    (void)fflush(NULL);
    if (lk_launch(&how, &result) != LK_OK)
        lki_print_error("run");
    else if (result.failed) { /* a program has its own names for fields of the library */
        fprintf(stderr, "lockstep run: %s\n", result.cause);
        const char *why = lki_why_killed(result.exit_code, result.cause);
        if (why != NULL)
            fprintf(stderr, "(%s)\n", why);
    }
    return result.exit_code;
}

static int run_main(int argc, char **argv)
{
    int    count;
    char **line = lki_foreign_run(argc, argv, &count);
    if (line == NULL) {
        fprintf(stderr, "lockstep run: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    int result = run_program(count, line);
    lki_foreign_free(line);
    return result;
}

const lki_command lki_command_run = {
    .name    = "run",
    .summary = "start any program as N workers",
    .usage   = "-n N [options] [--] PROGRAM ARGS...",
    .about =
        "Starts N copies of a program on this machine and watches them.  Each copy gets its place\n"
        "in the job through the environment: RANK (0 to N-1), WORLD_SIZE, LOCAL_RANK,\n"
        "LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT, as with other launchers;\n"
        "lk_join() reads them.\n"
        "OMP_NUM_THREADS is 1 unless it is set, so that N copies do not compete for the cores.\n"
        "Rank 0 reads standard input; the others have none.  If there are enough cores, each\n"
        "copy runs on an equal share of them; see --bind.\n"
        "\n"
        "When one copy fails, the others are woken and ended, and the last line on stderr says\n"
        "which rank failed first and why.  The exit status is that rank's, or 128 plus the number\n"
        "of the signal that killed it, or 127 if there is no such program.  Ctrl-C and SIGTERM\n"
        "ask all copies to save and leave (status 75 if they did); a second one ends them.\n"
        "\n"
        "With --on-failure continue, a note on stderr reports a copy that fails, and the others\n"
        "are not ended: they get a group without it from lk_comm_rebuild(), or end by themselves.\n"
        "With --restart, too, a new copy is started in its place.\n"
        "The exit status is then that of the copies in the last group.  On several hosts all\n"
        "commands need this option, and any host except that of node 0 may be lost.\n"
        "\n"
        "If the environment describes half of a job, such as RANK without WORLD_SIZE, nothing is\n"
        "started (status 2).  Otherwise each of several launchers might run the whole job.\n"
        "\n"
        "The spellings of torchrun and mpirun are read, too: --nproc-per-node, --node_rank,\n"
        "--rdzv-endpoint HOST:PORT, --standalone, -np.\n"
        "\n"
        "On several hosts, run the command on each of them with the same --nnodes, --rendezvous\n"
        "and --job-key.  A failure or request to stop on one host takes effect on all, and each\n"
        "command ends with the same line and the same status.",
    .examples =
        "  lockstep run -n 4 ./my_training --epochs 3\n"
        "  lockstep run -n 2 -- sh -c 'echo I am $RANK of $WORLD_SIZE'\n"
        "  lockstep run -n 4 --on-failure continue --restart -- python train.py\n"
        "  lockstep run --nnodes 2 --node-rank 0 --rendezvous tcp://10.0.0.1:29400 \\\n"
        "      --job-key job.key -n 8 ./my_training   (and --node-rank 1 on the other host)",
    .options = table,
    .main    = run_main,
};
