/* cmd_run.c -- `lockstep run`: any program, N times, as ranks of one group. */
#include "cli/chaos.h"
#include "cli/commands.h"
#include "cli/nodes.h"

typedef struct {
    uint32_t    workers, timeout_ms, grace_ms;
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

static const lki_choice endings[] = {
    { "stop", LK_ON_FAILURE_STOP, NULL },
    { "continue", LK_ON_FAILURE_CONTINUE, NULL },
    { NULL, 0, NULL },
};

/* clang-format off */
static const lki_option table[] = {
    { .name = "workers", .type = LKI_OPTION_U32, .value = "N", .letter = 'n', .offset = AT(workers),
      .required = true, .low = 1, .high = 1024,
      .help = "how many copies of the program to start on this host" },
    { .name = "timeout", .type = LKI_OPTION_SECONDS, .value = "S", .offset = AT(timeout_ms),
      .range = &lki_range_positive, .preset = "30",
      .help = "how long a worker waits for the others before it says who is missing" },
    { .name = "grace", .type = LKI_OPTION_SECONDS, .value = "S", .offset = AT(grace_ms),
      .range = &lki_range_positive, .preset = "1",
      .help = "how long the others may go on once one has failed, before they are killed" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "on-failure", "WHAT", AT(on_failure), endings, "stop",
               "what becomes of the others when one that had joined fails: they are ended, or they "
               "go on without it, if the program calls lk_comm_rebuild()"),
    { .name = "chaos", .type = LKI_OPTION_CUSTOM, .value = "SEED,RATE", .read = read_chaos,
      .preset = "none", .help = LKI_CHAOS_HELP },
    LKI_FLAG("prefix", AT(prefix),
             "put [rank] before every line of output; --no-prefix lets it through as it is"),
    LKI_STRING("flight", "DIR", AT(flight), NULL,
               "keep a record of what each worker that joined did last, for inspect --flight DIR"),
    { .name = "PROGRAM ARGS", .type = LKI_OPTION_REST, .offset = AT(argv), .required = true,
      .help = "the program and its arguments; write -- before it if one of them is --help" },
    LKI_NODE_OPTIONS(AT(nodes)),
    LKI_OPTIONS_END,
};
/* clang-format on */

static int run_main(int argc, char **argv)
{
    run_options options = { .prefix = true, .nodes = LKI_NODES_INIT };
    int         done    = lki_options_parse(&lki_command_run, argc, argv, &options);
    if (done >= 0)
        return done;

    lk_launch_options how = {
        .workers       = options.workers,
        .argv          = options.argv,
        .prefix_output = options.prefix,
        .timeout_ms    = options.timeout_ms,
        .grace_ms      = options.grace_ms,
        .flight        = options.flight,
        .on_failure    = (lk_on_failure)options.on_failure,
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
        fprintf(stderr, "lockstep run: %s\n", lk_error_last()->message);
    else if (result.failed)
        fprintf(stderr, "lockstep run: %s\n", result.cause);
    return result.exit_code;
}

const lki_command lki_command_run = {
    .name    = "run",
    .summary = "start any program as N workers",
    .usage   = "-n N [options] [--] PROGRAM ARGS...",
    .about =
        "Starts N copies of a program on this machine and watches them.  Each finds who it is\n"
        "in its environment: RANK (0 to N-1), WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
        "NODE_RANK, MASTER_ADDR and MASTER_PORT, as programs for other launchers expect;\n"
        "lk_join() finds its group there.\n"
        "OMP_NUM_THREADS is 1 unless it is set, so that N copies do not fight for the cores.\n"
        "Rank 0 reads standard input; the others have none.  Where there are enough cores each\n"
        "copy runs on an equal share of them; see --bind.\n"
        "\n"
        "When one copy fails, the others are woken and ended, and the last line on stderr tells\n"
        "which rank failed first and why; the exit status is that rank's, or 128 plus the number\n"
        "of the signal that killed it; 127 if there is no such program.  Ctrl-C and SIGTERM ask\n"
        "all copies to save and leave (status 75 if they did); a second one ends them.\n"
        "\n"
        "With --on-failure continue a copy that fails is lost, a note on stderr says which, and\n"
        "the others are left alone: they get a group without it from lk_comm_rebuild(), or end.\n"
        "The exit status is then that of the copies that were in the last group.  On several\n"
        "hosts all need it; a host may be lost as a whole, save that of node 0.\n"
        "\n"
        "On several hosts, run it on each of them with the same --nnodes, --rendezvous and\n"
        "--job-key.  What happens on one host, happens on all: each ends with the same line and\n"
        "the same status.",
    .examples =
        "  lockstep run -n 4 ./my_training --epochs 3\n"
        "  lockstep run -n 2 -- sh -c 'echo I am $RANK of $WORLD_SIZE'\n"
        "  lockstep run --nnodes 2 --node-rank 0 --rendezvous tcp://10.0.0.1:29400 \\\n"
        "      --job-key job.key -n 8 ./my_training   (and --node-rank 1 on the other host)",
    .options = table,
    .main    = run_main,
};
