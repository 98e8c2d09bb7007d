/* foreign_test.c -- tests training that another launcher starts: mpirun, mpiexec, or variables set
 * by hand.
 *
 * Goal:   on one host and on two, training gives the bits of one worker.  If a worker dies, the
 *         other workers name it, and the trace is written.  A request to stop saves.  All workers
 *         refuse settings that do not fit.  Waiting for a worker that does not come has a limit.
 *         No agent is left behind.
 * Method: the processes are a shell's children with the names that a launcher would set.  Two hosts
 *         are two agents on this machine, which treat their workers as two jobs because one name
 *         differs.  The real launchers run if they are installed.
 */
#include <dirent.h>

#include "hosts/nodes.h"
#include "launch/self_testing.h"
#include "lockstep/launch.h"

#define MLP                                                                                      \
    "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 6 "            \
    "--hidden 8 --global-batch 12 --micro-batch 2 --momentum 0.9 --lr 0.05 --quiet "

static char wanted[65];

static int weights_of_one_worker(void **state)
{
    static command_result r;
    if (make_folder_with_key(state) != 0)
        return 1;
    run_command(&r, *state, MLP "--steps 20 --workers 1 --strategy single");
    read_weights(&r, wanted);
    return 0;
}

/* Counts the agents of this test's jobs, which end a moment after their workers. */
static uint32_t count_agents(void)
{
    DIR     *proc  = opendir("/proc");
    uint32_t count = 0;
    for (const struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        char path[300], name[32] = "", target[256];
        (void)snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        (void)!fgets(name, sizeof name, file);
        (void)fclose(file);
        (void)snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
        ssize_t bytes = readlink(path, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        count += strcmp(name, "lockstep-agent\n") == 0 && strcmp(target, LK_TEST_COMMAND) == 0;
    }
    (void)closedir(proc);
    return count;
}

static void no_agent_is_left(void)
{
    for (double since = seconds_now(); count_agents() > 0; nap())
        if (seconds_now() - since > LIMIT_SECONDS)
            fail_msg("%u agents are left", count_agents());
}

/* Runs a shell loop over ranks 0 to n-1, with the rank in $r.  Each process has output files of its
 * own.  The status is that of the last process that failed. */
static void run_ranks(command_result *r, const char *folder, uint32_t n, const char *names,
                      const char *arguments)
{
    char line[2000];
    (void)snprintf(line, sizeof line,
                   "st=0; for r in $(seq 0 %u); do %s timeout 600 %s %s >out.$r 2>err.$r & pids="
                   "\"$pids $!\"; done; for p in $pids; do wait $p || st=$?; done; cat out.*; "
                   "cat err.* >&2; (exit $st)", n - 1, names, LK_TEST_COMMAND, arguments);
    (void)run_shell(r, folder, line);
}

static void assert_weights(const command_result *r)
{
    char got[65];
    if (r->status != 0)
        fail_msg("status %d: %s", r->status, r->err);
    read_weights(r, got);
    assert_string_equal(got, wanted);
    no_agent_is_left();
}

/* ---- Variables set by hand --------------------------------------------------------------- */

/* Names set by hand.  $$, the shell's process number, makes a job different from all others. */
#define TORCH                                                                                    \
    "RANK=$r WORLD_SIZE=3 LOCAL_RANK=$r LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 " \
    "TORCHELASTIC_RUN_ID=$$ "
#define MPICH "PMI_RANK=$r PMI_SIZE=3 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=3 "
#define SLURM                                                                                    \
    "SLURM_PROCID=$r SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=$r SLURM_STEP_TASKS_PER_NODE=3 "       \
    "SLURM_NODEID=0 SLURM_JOB_ID=7 SLURM_STEP_ID=$$ "
#define TF                                                                                       \
    "TF_CONFIG='{\"cluster\":{\"worker\":[\"h'$$':1\",\"h'$$':2\",\"h'$$':3\"]},"                \
    "\"task\":{\"type\":\"worker\",\"index\":'$r'}}' "

static void variables_set_by_hand_start_a_job(void **state)
{
    static const char *const names[] = { TORCH, MPICH, SLURM, TF };
    static command_result    r;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        run_ranks(&r, *state, 3, names[i], MLP "--steps 20");
        assert_weights(&r);
    }
}

/* Names of a job with ranks 0 and 1 on one "host", 2 and 3 on another. */
#define TWO_HOSTS                                                                                  \
    "TORCHELASTIC_RUN_ID=host$((r/2))-$$ RANK=$r WORLD_SIZE=4 LOCAL_RANK=$((r%%2)) "               \
    "LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%u "

static void two_hosts(command_result *r, const char *folder, const char *more,
                      const char *arguments)
{
    char names[512], base[256];
    (void)snprintf(base, sizeof base, TWO_HOSTS, free_port());
    (void)snprintf(names, sizeof names, "%s %s", base, more);
    run_ranks(r, folder, 4, names, arguments);
}

static void variables_set_by_hand_start_two_hosts(void **state)
{
    static command_result r;
    two_hosts(&r, *state, "LOCKSTEP_JOB_KEY_FILE=key", MLP "--steps 20");
    assert_weights(&r);
    two_hosts(&r, *state, "LOCKSTEP_INSECURE=1", MLP "--steps 20");
    assert_weights(&r);
}

static void contradicting_settings_are_refused(void **state)
{
    static command_result r;
    two_hosts(&r, *state, "", MLP "--steps 20");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "set LOCKSTEP_JOB_KEY_FILE to a file with the job's key");
    two_hosts(&r, *state,
              "LOCKSTEP_JOB_KEY_FILE=key LOCAL_RANK=$((r/2)) TORCHELASTIC_RUN_ID=host"
              "$((r%2))-$$",
              MLP "--steps 20");   /* ranks are placed round robin */
    assert_int_equal(r.status, 2); /* the agents refuse the workers */
    assert_says(r.err, "the ranks of a host must be consecutive");
    run_ranks(&r, *state, 2, TORCH "LOCKSTEP_TIMEOUT_MS=15000",
              MLP "--steps 20"); /* one worker is absent */
    assert_int_equal(r.status, 1);
    assert_says(r.err, "rank 2, with local rank 2, has not joined within 15 s");
    no_agent_is_left();
}

/* Kills rank 2 in the middle of a run.  All other ranks must name rank 2, on its host and on the
 * other host. */
static void a_death_is_named(void **state)
{
    static command_result r;
    char                  line[2500], names[256];
    (void)snprintf(names, sizeof names, TWO_HOSTS, free_port());
    (void)snprintf(line, sizeof line,
                   "mkfifo pipe; for r in 0 1 2 3; do %s LOCKSTEP_JOB_KEY_FILE=key %s " MLP
                   "--steps 1000000 --log pipe >out.$r 2>err.$r & eval p$r=$!; done; "
                   "{ head -n 5; kill -9 $p2; cat; } <pipe >/dev/null & "
                   "for p in $p0 $p1 $p3; do wait $p; echo $?; done; wait $p2; "
                   "cat err.0 err.1 err.3 >&2", names, LK_TEST_COMMAND);
    (void)run_shell(&r, *state, line);
    assert_string_equal(r.out, "1\n1\n1\n");
    uint32_t said = 0;
    for (const char *at = r.err; (at = strstr(at, "rank 2 (host ")) != NULL; at++)
        said++;
    if (said < 3)
        fail_msg("not all name rank 2: %s", r.err);
    no_agent_is_left();
}

/* ---- Signals and agents ------------------------------------------------------------------ */

/* Waits for a file that a process of this job writes. */
static void await_file(const char *folder, const char *name)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    for (double since = seconds_now(); access(path, F_OK) != 0; nap())
        if (seconds_now() - since > LIMIT_SECONDS)
            fail_msg("%s does not come", path);
}

/* A shell loop that runs until the log has some steps. */
#define UNTIL_STEPS "until [ $(wc -l <log) -gt 5 ]; do sleep 0.02; done 2>/dev/null; "

/* Requests a stop from one worker.  All workers save, and exit with 75. */
static void a_request_to_stop_saves(void **state)
{
    static command_result r;
    char                  line[2500];
    (void)snprintf(line, sizeof line,
                   "rm -f log; for r in 0 1 2; do " TORCH " %s " MLP
                   "--steps 1000000 --log log --checkpoint saved --flight-recorder records >out.$r "
                   "2>err.$r & eval p$r=$!; done; " UNTIL_STEPS "kill -TERM $p1; "
                   "for p in $p0 $p1 $p2; do wait $p; echo $?; done; cat err.0 >&2; "
                   "ls saved >&2; ls records >&2", LK_TEST_COMMAND);
    (void)run_shell(&r, *state, line);
    assert_string_equal(r.out, "75\n75\n75\n");
    assert_says(r.err, "step-");
    assert_says(r.err, "rank-2.flight"); /* --flight-recorder needs no LOCKSTEP_FLIGHT */
    no_agent_is_left();
}

/* Starts three workers whose log is a pipe, and waits until one says that nobody reads it. */
#define UNREAD                                                                                   \
    "rm -f late; mkfifo late; for r in 0 1 2; do " TORCH LK_TEST_COMMAND " " MLP                   \
    "--steps 20 --timeout 1 --log late %s >out.$r 2>err.$r & eval p$r=$!; done; "                \
    "until grep -q 'waiting for a reader' err.0; do sleep 0.1; done; "

/* The reader comes after the timeout of a rank.  Or the workers are killed before, in a run that
 * would have gone back to an earlier checkpoint. */
static void a_log_waits_for_its_reader(void **state)
{
    static command_result r;
    char                  line[2500];
    (void)snprintf(line, sizeof line, UNREAD "sleep 2; cat late >read; st=0; "
                   "for p in $p0 $p1 $p2; do wait $p || st=$?; done; cat out.*; cat err.* >&2; "
                   "test $(grep -c loss_bits read) = 20 || exit 9; exit $st", "");
    (void)run_shell(&r, *state, line);
    assert_weights(&r);
    run_ranks(&r, *state, 3, TORCH, MLP "--steps 20 --checkpoint back --checkpoint-every 10");
    assert_weights(&r);
    (void)snprintf(line, sizeof line, UNREAD "kill -9 $p0 $p1 $p2; wait; cat err.0 >&2; ls back",
                   "--checkpoint back --resume=10");
    (void)run_shell(&r, *state, line);
    assert_says(r.out, "step-00000020");
    assert_says_not(r.out, "set-aside");
    no_agent_is_left();
}

static char self[SELF_BYTES];

/* Runs like a program that never checks for a request to stop. */
static int be_deaf(void)
{
    lk_comm *comm;
    if (lk_join(&comm) != LK_OK || lk_barrier(comm) != LK_OK)
        return 1;
    FILE *there = fopen("there", "w");
    for (;;)
        pass(there != NULL ? 1 : 0);
}

/* Sends SIGTERM to one program that never checks for requests.  Expects that, a moment later, the
 * signal ends this program and all other programs of the job. */
static void a_signal_ends_a_deaf_program(void **state)
{
    static command_result r;
    static char           line[SELF_BYTES + 1000];
    (void)snprintf(line, sizeof line,
                   "for r in 0 1 2; do " TORCH " %s worker & eval p$r=$!; done; "
                   "until [ -e there ]; do sleep 0.02; done; kill -TERM $p0; "
                   "for p in $p0 $p1 $p2; do wait $p; echo $?; done", self);
    (void)run_shell(&r, *state, line);
    assert_string_equal(r.out, "143\n143\n143\n");
}

static void a_failed_run_writes_its_trace(void **state)
{
    static command_result r;
    char                  line[2500];
    (void)snprintf(line, sizeof line,
                   "rm -f log; for r in 0 1 2; do " TORCH " %s " MLP
                   "--steps 1000000 --log log --trace t.json >out.$r 2>err.$r & eval p$r=$!; done; "
                   UNTIL_STEPS "kill -9 $p1; for p in $p0 $p1 $p2; do wait $p; done; true",
                   LK_TEST_COMMAND);
    (void)run_shell(&r, *state, line);
    await_file(*state, "t.json");
    no_agent_is_left();
    (void)run_shell(&r, *state, "ls t.json*; grep -c '\"rank [012] (host' t.json");
    assert_string_equal(r.out, "t.json\n3\n");
}

/* Starts the first host's workers, which wait for a second host that does not come. */
static void start_half(command_result *r, const char *folder, const char *names, const char *then)
{
    char line[2000], base[256];
    (void)snprintf(base, sizeof base, TWO_HOSTS, free_port());
    (void)snprintf(line, sizeof line,
                   "for r in 0 1; do %s LOCKSTEP_INSECURE=1 %s %s " MLP
                   "--steps 20 >out.$r 2>err.$r & eval p$r=$!; done; %s; for p in $p0 $p1; do "
                   "wait $p; echo $?; done; cat err.0 err.1 >&2", base, names, LK_TEST_COMMAND,
                   then);
    (void)run_shell(r, folder, line);
}

/* A shell loop that finds the process of this test's agent, by its name and command. */
#define UNTIL_AGENT                                                                              \
    "until [ -n \"$a\" ]; do for d in $(grep -lx lockstep-agent /proc/[0-9]*/comm 2>/dev/null); " \
    "do d=${d%/comm}; [ \"$(readlink $d/exe)\" != " LK_TEST_COMMAND " ] || a=${d#/proc/}; done; " \
    "done; until [ $((0x$(sed -n 's/^SigBlk:.//p' /proc/$a/status) >> 14 & 1)) = 1 ]; do "         \
    "sleep 0.02; done; "

static void no_agent_outlives_its_workers(void **state)
{
    static command_result r;
    start_half(&r, *state, "", UNTIL_AGENT "kill -9 $p0 $p1");
    no_agent_is_left();
    start_half(&r, *state, "", UNTIL_AGENT "kill -TERM $a");
    assert_says(r.err, "SIGTERM came while");
    no_agent_is_left();
}

static void the_rendezvous_has_a_time_limit(void **state)
{
    static command_result r;
    start_half(&r, *state, "LOCKSTEP_TIMEOUT_MS=3000", "true");
    assert_string_equal(r.out, "1\n1\n");
    assert_says(r.err, "within 3 s");
    no_agent_is_left();
}

/* ---- Real launchers ---------------------------------------------------------------------- */

static void runs_under(void **state, const char *program, const char *options)
{
    static command_result r;
    char                  line[1500];
    (void)snprintf(line, sizeof line, "command -v %s", program);
    (void)run_shell(&r, *state, line);
    if (r.status != 0) {
        print_message("%s is not installed\n", program);
        skip();
    }
    for (int n = 1; n <= 3; n += 2) {
        (void)snprintf(line, sizeof line, "timeout 600 %s %s -n %d %s " MLP "--steps 20 %s",
                       program, options, n, LK_TEST_COMMAND, n == 1 ? "--workers 1" : "");
        (void)run_shell(&r, *state, line);
        assert_weights(&r);
    }
}

static void training_runs_under_open_mpi(void **state)
{
    runs_under(state, "mpirun.openmpi", "--allow-run-as-root --oversubscribe");
}

static void training_runs_under_mpich(void **state)
{
    runs_under(state, "mpirun.mpich", "");
}

/* srun is of use only where it knows a cluster. */
static void training_runs_under_slurm(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "timeout 60 srun --overlap -n 1 true");
    if (r.status != 0) {
        print_message("srun cannot start a task\n");
        skip();
    }
    runs_under(state, "srun", "--overlap");
}

/* Finds a torchrun that works: beside the Python of LK_TORCH_PYTHON, or in PATH.  That of PyTorch
 * 1.13, for example, is too old for Python 3.11. */
static void find_torchrun(char out[300], const char *folder)
{
    static command_result r;
    (void)run_shell(&r, folder,
                    "t=torchrun; [ -z \"$LK_TORCH_PYTHON\" ] || "
                    "t=$(dirname \"$LK_TORCH_PYTHON\")/torchrun; command -v $t || exit 1; "
                    "$t --no-python --nproc-per-node 1 --master-port 0 true >&2");
    if (r.status != 0) {
        print_message("there is no torchrun that works\n");
        skip();
    }
    (void)snprintf(out, 300, "%.*s", (int)strcspn(r.out, "\n"), r.out);
}

/* Runs two agents of torchrun, each with two workers.  Both are on this machine, but Lockstep
 * treats them as two hosts.  torchrun's store listens at MASTER_PORT. */
static void training_runs_under_torchrun_on_two_hosts(void **state)
{
    static const char *const ways[] = { /* static rendezvous, and c10d */
        "--node-rank $r --master-addr 127.0.0.1 --master-port $port",
        "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$port --local-addr 127.0.0.1 --rdzv-id job",
    };
    static command_result r;
    char                  torchrun[300], line[2000];
    find_torchrun(torchrun, *state);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(line, sizeof line,
                       "port=%u; st=0; for r in 0 1; do LOCKSTEP_JOB_KEY_FILE=key timeout 600 "
                       "%s --no-python --nnodes 2 --nproc-per-node 2 %s %s " MLP "--steps 20 "
                       ">out.$r 2>err.$r & pids=\"$pids $!\"; done; for p in $pids; do wait $p || "
                       "st=$?; done; cat out.0 out.1; cat err.0 err.1 >&2; (exit $st)",
                       free_port(), torchrun, ways[i], LK_TEST_COMMAND);
        (void)run_shell(&r, *state, line);
        assert_weights(&r);
    }
}

int main(int argc, char **argv)
{
    if (self_is_worker(self, argc, argv))
        return be_deaf();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variables_set_by_hand_start_a_job),
        cmocka_unit_test(variables_set_by_hand_start_two_hosts),
        cmocka_unit_test(contradicting_settings_are_refused),
        cmocka_unit_test(a_death_is_named),
        cmocka_unit_test(a_request_to_stop_saves),
        cmocka_unit_test(a_log_waits_for_its_reader),
        cmocka_unit_test(a_signal_ends_a_deaf_program),
        cmocka_unit_test(a_failed_run_writes_its_trace),
        cmocka_unit_test(no_agent_outlives_its_workers),
        cmocka_unit_test(the_rendezvous_has_a_time_limit),
        cmocka_unit_test(training_runs_under_open_mpi),
        cmocka_unit_test(training_runs_under_mpich),
        cmocka_unit_test(training_runs_under_slurm),
        cmocka_unit_test(training_runs_under_torchrun_on_two_hosts),
    };
    return cmocka_run_group_tests_name("hosts.foreign", tests, weights_of_one_worker,
                                       remove_folder);
}
