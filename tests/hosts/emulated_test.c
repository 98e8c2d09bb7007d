/* emulated_test.c -- --hosts H: tests jobs on several emulated hosts, whose launchers are killed or
 * stopped.
 *
 * Goal:   such a job differs from a job on H hosts only in its network: the bits and the ends are
 *         the same.  A launcher that is killed or stopped is a lost host, which is named, and no
 *         process is left behind.
 * Method: nodes.h with one node: the parent process of the hosts' launchers.
 */
#include "hosts/nodes.h"
#include "launch/self_testing.h"
#include "launch/job/side_by_side_testing.h"

#define MLP                                                                                      \
    "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 6 "            \
    "--hidden 8 --global-batch 12 --micro-batch 2 --momentum 0.9 --lr 0.05 --steps 20 "

static void emulated_hosts_give_the_bits_of_one_host(void **state)
{
    static command_result r;
    char                  wanted[65], got[65];

    run_command(&r, *state, MLP "--workers 1 --strategy single");
    read_weights(&r, wanted);
    for (uint32_t hosts = 1; hosts <= 4; hosts++) {
        char line[512];
        (void)snprintf(line, sizeof line, MLP "--workers %u --hosts %u", hosts == 3 ? 5 : 4, hosts);
        run_command(&r, *state, line);
        if (r.status != 0)
            fail_msg("%s: %s", line, r.err);
        read_weights(&r, got);
        assert_string_equal(got, wanted);
    }
    assert_says(r.err, "rank 3 (pid ");
    assert_says(r.err, "on host 3) runs virtual workers");
}

static void write_constants(const char *folder, double alpha, double gamma)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/constants", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "alpha %g\nomega 1e-6\nbeta 1e-9\ngamma %g\n", alpha, gamma) > 0);
    assert_int_equal(fclose(file), 0);
}

/* Runs with an algorithm for the gradients.  Expects the weights of one worker, and a line that
 * names the algorithm. */
static void expect_algorithm(const char *folder, const char *options, const char *line,
                             const char *wanted)
{
    static command_result r;
    char                  words[512], got[65];
    (void)snprintf(words, sizeof words, MLP "%s", options);
    run_command(&r, folder, words);
    if (r.status != 0)
        fail_msg("%s: %s", words, r.err);
    read_weights(&r, got);
    assert_string_equal(got, wanted);
    assert_says(r.err, line);
}

static void algorithms_of_gradients_give_the_same_bits(void **state)
{
    static command_result r;
    char                  wanted[65];

    run_command(&r, *state, MLP "--workers 1 --strategy single");
    read_weights(&r, wanted);
    expect_algorithm(*state, "--workers 3 --hosts 3 --grad-algorithm linear",
                     "gradients between hosts: linear\n", wanted);
    expect_algorithm(*state, "--workers 4 --hosts 2 --grad-algorithm direct",
                     "gradients between hosts: direct\n", wanted);
    write_constants(*state, 0.5, 1e-10);
    expect_algorithm(*state, "--workers 2 --hosts 2 --tuning constants",
                     "gradients between hosts: linear up to 25600 KiB if each host has one "
                     "subtree, else direct (constants: of constants)\n", wanted);
    expect_algorithm(*state, "--workers 3 --hosts 3 --tuning constants",
                     "gradients between hosts: direct (constants: of constants)\n", wanted);
    write_constants(*state, 1e-6, 1);
    expect_algorithm(*state, "--workers 2 --hosts 2 --tuning constants",
                     "gradients between hosts: direct (constants: of constants)\n", wanted);
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --tuning nowhere");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "tuning file: cannot open 'nowhere'");
}

static void ranks_and_output_lines_follow_the_hosts(void **state)
{
    static command_result r;
    run_command(&r, *state, "run -n 5 --hosts 2 sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/"
                            "$LOCAL_WORLD_SIZE $NODE_RANK; seq 1 500 | tr \"\\n\" x'");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "");
    assert_says(r.out, "[0] 0/5 0/2 0\n");
    assert_says(r.out, "[1] 1/5 1/2 0\n");
    assert_says(r.out, "[2] 2/5 0/3 1\n");
    assert_says(r.out, "[4] 4/5 2/3 1\n");
    for (const char *at = r.out; *at != '\0'; at = strchr(at, '\n') + 1) /* lines stay whole */
        assert_int_equal(*at, '[');
    run_command(&r, *state, "run -n 3 --hosts 3 --no-prefix sh -c 'test $RANK = 1 && exit 6; sleep "
                            "100'");
    assert_int_equal(r.status, 6);
    assert_says(r.err, "lockstep run: rank 1 (host host1, pid ");
    assert_null(strchr(strchr(r.err, '\n') + 1, '\n')); /* the message is printed only once */
    run_command(&r, *state, "run -n 2 --hosts 2 no-such-program");
    assert_int_equal(r.status, 127);
    assert_says(r.err, "cannot run no-such-program");
}

/* ---- The job's processes ----------------------------------------------------------------- */

enum { HOSTS = 3 };

static uint32_t children_of(pid_t pid, pid_t *out, uint32_t capacity)
{
    char     path[64];
    uint32_t count = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && count < capacity && fscanf(file, "%d", &out[count]) == 1)
        count++;
    if (file != NULL)
        (void)fclose(file);
    return count;
}

static bool is_gone(pid_t pid)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return true;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    const char *state = strrchr(text, ')');
    return state == NULL || state[2] == 'Z' || state[2] == 'X';
}

typedef struct {
    nodes j;
    pid_t launchers[HOSTS], workers[HOSTS * 2];
} job;

/* Starts three hosts with two workers each, and waits until all workers have started. */
static void start(job *j, const char *folder, const char *options, const char *script)
{
    char line[512];
    nodes_begin(&j->j, folder);
    (void)snprintf(line, sizeof line, "exec $L run --hosts %d -n %d %s sh -c '%s'", HOSTS,
                   HOSTS * 2, options, script);
    (void)node_start(&j->j, line);
    for (uint32_t rank = 0; rank < HOSTS * 2; rank++) {
        char word[32];
        (void)snprintf(word, sizeof word, "[%u] ready\n", rank);
        node_await_word(&j->j, 0, word);
    }
    assert_int_equal(children_of(j->j.pid[0], j->launchers, HOSTS), HOSTS);
    for (uint32_t h = 0; h < HOSTS; h++)
        assert_int_equal(children_of(j->launchers[h], &j->workers[2 * h], 2), 2);
}

static void nobody_is_left(job *j)
{
    double since = seconds_now();
    for (uint32_t i = 0; i < HOSTS * 3; i++)
        while (!is_gone(i < HOSTS ? j->launchers[i] : j->workers[i - HOSTS])) {
            if (seconds_now() - since > LIMIT_SECONDS)
                nodes_fail(&j->j, "process %u is left", i);
            nap();
        }
}

#define SLEEPS "echo ready; exec sleep 1000"
#define POLITE "trap \"exit 75\" TERM INT; echo ready; while :; do sleep 0.05; done"

static void a_killed_launcher_is_a_lost_host(void **state)
{
    static job j;
    for (uint32_t lost = 0; lost < HOSTS; lost++) {
        char words[96];
        start(&j, *state, "", SLEEPS);
        assert_int_equal(kill(j.launchers[lost], SIGKILL), 0);
        (void)snprintf(words, sizeof words,
                       "lockstep run: host host%u (node %u, ranks %u to %u) is lost: its launcher "
                       "was killed by SIGKILL\n", lost, lost, 2 * lost, 2 * lost + 1);
        node_ends(&j.j, 0, 1, words);
        assert_string_equal(j.j.ended[0].err, words);
        nobody_is_left(&j);
    }
}

static void a_stopped_launcher_is_a_lost_host(void **state)
{
    static job j;
    start(&j, *state, "--timeout 6", SLEEPS);
    assert_int_equal(kill(j.launchers[1], SIGSTOP), 0);
    node_ends(&j.j, 0, 1, "host host1 (node 1, ranks 2 to 3) is lost: its launcher ");
    nobody_is_left(&j);
}

/* Stops all launchers, or all but one that is killed.  Then only the parent process can detect that
 * the launchers are stopped.  Expects that the parent kills them. */
static void stop_all(const char *folder, const char *options, bool one_dies)
{
    static job j;
    char       words[192];

    start(&j, folder, options, SLEEPS);
    for (uint32_t h = one_dies; h < HOSTS; h++)
        assert_int_equal(kill(j.launchers[h], SIGSTOP), 0);
    if (one_dies)
        assert_int_equal(kill(j.launchers[0], SIGKILL), 0);
    node_ends(&j.j, 0, 1, one_dies ? "lockstep run: host host0 (node 0, ranks 0 to 1) is lost: "
                                     "its launcher was killed by SIGKILL\n"
                                   : "lockstep run: host host0 (node 0, ranks 0 to 1) is lost: "
                                     "its launcher did not run, and was killed\n");
    (void)snprintf(words, sizeof words, "note: the launcher of host1 (node 1, pid %d) has been "
                   "stopped (by SIGSTOP or a debugger) for 6 s, no other host is left to miss "
                   "it, and it is killed\n", (int)j.launchers[1]);
    assert_says(j.j.ended[0].err, words);
    nobody_is_left(&j);
}

static void stopped_launchers_are_lost_if_no_other_runs(void **state)
{
    stop_all(*state, "--timeout 6", false);
}

static void stopped_launchers_are_lost_if_the_other_dies(void **state)
{
    stop_all(*state, "--timeout 6 --on-failure continue", true);
}

static void a_killed_worker_is_named_with_its_host(void **state)
{
    static job j;
    char       words[96];
    start(&j, *state, "", SLEEPS);
    assert_int_equal(kill(j.workers[3], SIGKILL), 0);
    (void)snprintf(words, sizeof words, "rank 3 (host host1, pid %d) was killed by SIGKILL\n",
                   (int)j.workers[3]);
    node_ends(&j.j, 0, 128 + SIGKILL, words);
    nobody_is_left(&j);
}

static void all_processes_end_with_the_parent_launcher(void **state)
{
    static job j;
    start(&j, *state, "", SLEEPS);
    assert_int_equal(kill(j.j.pid[0], SIGKILL), 0);
    (void)node_wait(&j.j, 0);
    nobody_is_left(&j);
}

/* Requests a stop in three ways: from the command only, like a shell's kill; from the whole process
 * group, like timeout(1) and a terminal; and from the launcher of one host. */
static void a_request_to_stop_counts_once(void **state)
{
    static job j;
    for (int how = 0; how < 3; how++) {
        start(&j, *state, "", POLITE);
        pid_t to = how == 0 ? j.j.pid[0] : how == 1 ? -j.j.pid[0] : j.launchers[2];
        assert_int_equal(kill(to, SIGTERM), 0);
        node_ends(&j.j, 0, 75, "");
        assert_says_not(j.j.ended[0].err, "lockstep run");
        nobody_is_left(&j);
    }
}

static void a_second_request_ends_all(void **state)
{
    static job j;
    start(&j, *state, "--grace 0.2", "trap \"\" TERM INT; echo ready; sleep 100 & wait; wait");
    assert_int_equal(kill(j.j.pid[0], SIGINT), 0);
    node_await_signals_taken(&j.j, 0);
    pass(0.3); /* an immediate signal would count as the first one */
    assert_int_equal(kill(j.j.pid[0], SIGINT), 0);
    node_ends(&j.j, 0, 128 + SIGINT, "a second SIGINT ended the workers");
    nobody_is_left(&j);
}

/* Pauses the job by Ctrl-Z, longer than any timeout, and continues it by fg. */
static void a_pause_by_ctrl_z_is_no_failure(void **state)
{
    static job            j;
    const struct timespec pause = { .tv_sec = 5 };
    start(&j, *state, "--timeout 4", "echo ready; sleep 6; exit 0");
    assert_int_equal(kill(-j.j.pid[0], SIGSTOP), 0);
    (void)nanosleep(&pause, NULL);
    assert_int_equal(kill(-j.j.pid[0], SIGCONT), 0);
    node_ends(&j.j, 0, 0, "");
    assert_string_equal(j.j.ended[0].err, "");
}

/* clang-format off */
#define WAITING(X)                                                                               \
    X(a_stopped_launcher_is_a_lost_host), X(stopped_launchers_are_lost_if_no_other_runs),        \
    X(stopped_launchers_are_lost_if_the_other_dies), X(a_pause_by_ctrl_z_is_no_failure)
#define NAME(test) (char[]){ #test }
/* clang-format on */

static char self[SELF_BYTES];

static void stopped_launchers_are_detected_in_time(void **state)
{
    char *const names[] = { WAITING(NAME) };

    (void)state;
    run_side_by_side(self, names, sizeof names / sizeof names[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest waiting[] = { WAITING(cmocka_unit_test) };
    const struct CMUnitTest tests[]   = {
        cmocka_unit_test(emulated_hosts_give_the_bits_of_one_host),
        cmocka_unit_test(algorithms_of_gradients_give_the_same_bits),
        cmocka_unit_test(ranks_and_output_lines_follow_the_hosts),
        cmocka_unit_test(a_killed_launcher_is_a_lost_host),
        cmocka_unit_test(stopped_launchers_are_detected_in_time),
        cmocka_unit_test(a_killed_worker_is_named_with_its_host),
        cmocka_unit_test(all_processes_end_with_the_parent_launcher),
        cmocka_unit_test(a_request_to_stop_counts_once),
        cmocka_unit_test(a_second_request_ends_all),
    };
    (void)self_is_worker(self, argc, argv);
    return only_one(argc, argv)
               ? cmocka_run_group_tests_name("hosts.emulated", waiting, make_folder, remove_folder)
               : cmocka_run_group_tests_name("hosts.emulated", tests, make_folder, remove_folder);
}
