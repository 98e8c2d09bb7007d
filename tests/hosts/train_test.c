/* train_test.c -- tests that training on several hosts gives the bits of one worker, and tests
 * every kind of end.
 *
 * Goal:   the weights are those of one worker.  Every node names a dead worker with host, process
 *         and signal.  Ctrl-C on any node saves, and a resumed run has the same weights.  A node
 *         that returns before its loss is detected waits until the other nodes have continued
 *         without it.  The returning node then enters, if it has the key and the settings of the
 *         job.  Hosts that connect after the job has begun without them enter in the same way.
 * Method: nodes.h; the log of rank 0 is a pipe, which blocks the run while it is not read.
 */
#include "hosts/nodes.h"

#include <sys/ioctl.h>
#include <sys/stat.h>

enum { PIPE_BYTES = 4096 };

#define MLP                                                                                      \
    "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 6 "            \
    "--hidden 8 --global-batch 12 --micro-batch 2 --momentum 0.9 --lr 0.05 "

#define LONG "--steps 300 --timeout 300 "

static void weights_of_one_worker(const char *folder, const char *options, char digits[65])
{
    static command_result r;
    char                  line[512];
    (void)snprintf(line, sizeof line, MLP "--strategy single --workers 1 %s", options);
    run_command(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: %s", line, r.err);
    read_weights(&r, digits);
}

/* Starts node `i` with this number of workers. */
static void start(nodes *j, uint32_t count, uint32_t i, uint32_t workers, const char *options)
{
    char line[800];
    (void)snprintf(line, sizeof line,
                   "exec $L " MLP "$R --nnodes %u --node-rank %u --workers %u %s", count, i,
                   workers, options);
    (void)node_start(j, line);
}

static void several_hosts_give_the_bits_of_one_worker(void **state)
{
    static const uint32_t jobs[][5] = { { 2, 1, 1 }, { 2, 2, 1 }, { 2, 1, 3 }, { 3, 2, 1, 2 } };
    static nodes          j;
    char                  wanted[65], got[65];

    weights_of_one_worker(*state, "--steps 20", wanted);
    for (size_t k = 0; k < sizeof jobs / sizeof jobs[0]; k++) {
        nodes_begin(&j, *state);
        for (uint32_t i = 0; i < jobs[k][0]; i++)
            start(&j, jobs[k][0], i, jobs[k][1 + i], /* defaults may be given or not */
                  i == 0 ? "--steps 20 --bucket-mb 25 --strategy ddp" : "--steps 20");
        nodes_end(&j, 0, "");
        read_weights(&j.ended[0], got);
        assert_string_equal(got, wanted);
        assert_string_equal(j.ended[1].out, ""); /* only rank 0 prints */
    }
}

static void too_many_workers_are_refused_on_all_nodes(void **state)
{
    static nodes j;
    nodes_begin(&j, *state);
    for (uint32_t i = 0; i < 2; i++)
        start(&j, 2, i, 4, "--steps 20");
    nodes_end(&j, 1, "--workers 8 are more than the 6 virtual workers of this run");
}

/* Gives an option that decides what all ranks do to one node only. */
static void an_option_of_one_node_is_named(void **state)
{
    static nodes j;
    nodes_begin(&j, *state);
    start(&j, 2, 0, 2, "--steps 20 --checkpoint ck0 --resume=auto");
    start(&j, 2, 1, 2, "--steps 20 --checkpoint ck1");
    nodes_end(&j, 1, "of rank 0 and rank 2 (host 1) only one has --resume: give it on all ranks or "
              "on none");
}

/* ---- Runs that a full log pipe holds ----------------------------------------------------- */

typedef struct {
    nodes j;
    int   log; /* read end of the log's pipe */
} held;

static void make_pipe(held *h, const char *folder)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%s/pipe", folder);
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    h->log = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(h->log >= 0);
    assert_int_equal(fcntl(h->log, F_SETPIPE_SZ, PIPE_BYTES), PIPE_BYTES);
}

static void read_pipe(const held *h)
{
    char bytes[4096];
    while (read(h->log, bytes, sizeof bytes) > 0)
        continue;
}

/* Waits some steps, until the full pipe blocks rank 0. */
static void await_held(held *h)
{
    int held_bytes = 0;
    for (double since = seconds_now(); held_bytes < PIPE_BYTES * 3 / 4; nap()) {
        assert_int_equal(ioctl(h->log, FIONREAD, &held_bytes), 0);
        if (seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(&h->j, "too little in the log");
    }
}

/* Starts two nodes with two workers each. */
static void start_held_each(held *h, const char *folder, const char *const options[2])
{
    char line[256];
    make_pipe(h, folder);
    nodes_begin(&h->j, folder);
    for (uint32_t i = 0; i < 2; i++) {
        (void)snprintf(line, sizeof line, "--log pipe %s", options[i]);
        start(&h->j, 2, i, 2, line);
    }
    await_held(h);
}

static void start_held(held *h, const char *folder, const char *options)
{
    start_held_each(h, folder, (const char *const[2]){ options, options });
}

/* Returns the process that ran a rank, from rank 0's introduction. */
static pid_t worker(held *h, uint32_t rank)
{
    char        wanted[32];
    const char *found, *text = node_said(&h->j, 0, "err");
    (void)snprintf(wanted, sizeof wanted, "rank %u (pid ", rank);
    found = strstr(text, wanted);
    assert_non_null(found);
    return (pid_t)atoi(found + strlen(wanted));
}

static void wait_all(held *h)
{
    uint32_t left = h->j.count;
    for (double since = seconds_now(); left > 0; nap()) {
        read_pipe(h);
        for (uint32_t i = 0; i < h->j.count; i++) {
            int status;
            if (h->j.pid[i] > 0 && waitpid(h->j.pid[i], &status, WNOHANG) == h->j.pid[i]) {
                h->j.pid[i] = 0;
                left--;
                h->j.ended[i].status = WIFEXITED(status) ? WEXITSTATUS(status)
                                                         : 128 + WTERMSIG(status);
            }
        }
        if (seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(&h->j, "the job does not end");
    }
    for (uint32_t i = 0; i < h->j.count; i++) {
        (void)node_said(&h->j, i, "out");
        (void)node_said(&h->j, i, "err");
    }
    (void)close(h->log);
}

/* Returns the last line of stderr. */
static const char *last_line(const command_result *r)
{
    const char *at = r->err, *line = at;
    for (; (at = strchr(at, '\n')) != NULL && at[1] != '\0'; line = ++at)
        continue;
    return line;
}

static void a_death_is_named_on_every_node(void **state)
{
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        static held h;
        char        wanted[64];
        start_held(&h, *state, "--steps 100000");
        pid_t pid = worker(&h, rank);
        assert_int_equal(kill(pid, SIGKILL), 0);
        double since = seconds_now();
        wait_all(&h);
        print_message("rank %u: both nodes have ended after %.0f ms\n", rank,
                      1e3 * (seconds_now() - since));
        (void)snprintf(wanted, sizeof wanted, "lockstep train: rank %u (host ", rank);
        for (uint32_t i = 0; i < 2; i++) {
            const char *line = last_line(&h.j.ended[i]);
            assert_int_equal(h.j.ended[i].status, 128 + SIGKILL);
            assert_int_equal(strncmp(line, wanted, strlen(wanted)), 0);
            assert_says(line, "was killed by SIGKILL at step ");
            assert_string_equal(line, last_line(&h.j.ended[0]));
            assert_int_equal(atoi(strstr(line, "pid ") + 4), pid);
        }
    }
}

static void a_signal_on_any_node_saves(void **state)
{
    static command_result r;
    char                  wanted[65], got[65];

    weights_of_one_worker(*state, "--steps 60", wanted);
    for (uint32_t to = 0; to < 2; to++) {
        static held h;
        start_held(&h, *state, "--steps 60 --checkpoint ck");
        assert_int_equal(kill(h.j.pid[to], to == 0 ? SIGINT : SIGTERM), 0);
        node_await_signals_taken(&h.j, to);
        wait_all(&h);
        for (uint32_t i = 0; i < 2; i++)
            if (h.j.ended[i].status != 75)
                fail_msg("node %u: status %d: %s", i, h.j.ended[i].status, h.j.ended[i].err);
        run_command(&r, *state, MLP "--steps 60 --checkpoint ck --resume --workers 3");
        if (r.status != 0)
            fail_msg("resuming: %s", r.err);
        read_weights(&r, got);
        assert_string_equal(got, wanted);
        (void)run_shell(&r, *state, "rm -rf ck");
    }
}

/* Starts a second command for node 1 while the job runs with the first command, as from a host that
 * was disconnected for a moment. */
static void a_host_that_returns_too_soon_waits(void **state)
{
    static held h;
    char        wanted[65], got[65];

    weights_of_one_worker(*state, "--steps 60", wanted);
    start_held(&h, *state, "--steps 60 --checkpoint ck --restart");
    start(&h.j, 2, 1, 2, "--log pipe --steps 60 --checkpoint ck --restart");
    for (double since = seconds_now(); strstr(node_said(&h.j, 0, "err"), "too late") == NULL; nap())
        if (seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(&h.j, "nobody was refused");
    assert_int_equal(kill(h.j.pid[1], SIGKILL), 0);
    wait_all(&h);
    for (uint32_t i = 0; i < 3; i++)
        if (h.j.ended[i].status != (i == 1 ? 128 + SIGKILL : 0))
            fail_msg("node %u: status %d: %s", i, h.j.ended[i].status, h.j.ended[i].err);
    assert_says(h.j.ended[0].err, "; all workers are started again, from ");
    assert_string_equal(h.j.ended[2].err, "");
    read_weights(&h.j.ended[0], got);
    assert_string_equal(got, wanted);
}

static void await_said(held *h, uint32_t i, const char *word)
{
    for (double since = seconds_now(); strstr(node_said(&h->j, i, "err"), word) == NULL; nap())
        if (seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(&h->j, "node %u does not say %s", i, word);
}

/* Waits for a line of node 0 after the run continues.  Reads a line of the log now and then, so
 * that the log neither blocks rank 0 nor lets the run get far ahead. */
static void await_going_on(held *h, const char *word)
{
    for (double since = seconds_now(); strstr(node_said(&h->j, 0, "err"), word) == NULL; nap()) {
        char byte = 0;
        while (byte != '\n' && read(h->log, &byte, 1) == 1)
            continue;
        if (seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(&h->j, "node 0 does not say %s", word);
    }
}

/* Kills the coordinators of a command on each host. */
static void coordinators_may_be_killed(void **state)
{
    static held           h;
    static command_result r;
    char                  wanted[65], got[65], line[200];

    weights_of_one_worker(*state, "--steps 60", wanted);
    start_held(&h, *state, "--steps 60 --on-failure continue");
    for (uint32_t k = 0; k < 4; k++) {
        if (k == 2)
            assert_int_equal(kill(worker(&h, 3), SIGKILL), 0);
        (void)snprintf(line, sizeof line, "c=$(pgrep -P %d -x lockstep-coord) && kill -9 $c && "
                       "while kill -0 $c 2>/dev/null; do :; done", (int)h.j.pid[k % 2]);
        do /* repeats until there is a coordinator */
            (void)run_shell(&r, *state, line);
        while (r.status != 0);
    }
    wait_all(&h);
    for (uint32_t i = 0; i < 2; i++) {
        if (h.j.ended[i].status != 0)
            fail_msg("node %u: status %d: %s", i, h.j.ended[i].status, h.j.ended[i].err);
        assert_says(h.j.ended[i].err, "note: the coordinator of host ");
    }
    assert_says(h.j.ended[0].err, "note: the run has lost 1 rank and went on with 3;");
    read_weights(&h.j.ended[0], got);
    assert_string_equal(got, wanted);
}

/* Kills node 1.  Nodes with a different key or different settings then try to enter, and are
 * refused.  Finally node 1 returns and enters. */
static void a_returning_host_enters(void **state)
{
    static held           h;
    static command_result r;
    char                  wanted[65], got[65], line[900];

    weights_of_one_worker(*state, LONG, wanted);
    start_held(&h, *state, LONG "--on-failure continue");
    assert_int_equal(kill(h.j.pid[1], SIGKILL), 0);
    await_going_on(&h, "took over virtual worker");
    (void)snprintf(line, sizeof line, "cd %s; %s key other >/dev/null; %s " MLP "--rendezvous "
                   "tcp://127.0.0.1:%u --job-key other --nnodes 2 --workers 2 " LONG
                   "--on-failure continue", h.j.folder, LK_TEST_COMMAND, LK_TEST_COMMAND, h.j.port);
    (void)run_shell(&r, *state, line);
    assert_int_equal(r.status, 1);
    assert_says(r.err, "does this node have the same job key?");
    (void)snprintf(line, sizeof line, "cd %s; %s " MLP "--rendezvous tcp://127.0.0.1:%u --job-key "
                   "key --nnodes 2 --workers 2 --steps 301 --on-failure continue", h.j.folder,
                   LK_TEST_COMMAND, h.j.port);
    (void)run_shell(&r, *state, line);
    assert_int_equal(r.status, 1);
    assert_says(r.err, "has other settings than the job: node 0 has '--steps 300'");
    start(&h.j, 2, 1, 2, "--log pipe " LONG "--on-failure continue");
    await_said(&h, 0, "(node 1, ranks 2 to 3) is ready to enter");
    wait_all(&h);
    for (uint32_t i = 0; i < 3; i++)
        if (h.j.ended[i].status != (i == 1 ? 128 + SIGKILL : 0))
            fail_msg("node %u: status %d: %s", i, h.j.ended[i].status, h.j.ended[i].err);
    assert_says(h.j.ended[0].err, "note: the rendezvous has refused 1 connection; the last to go: "
                "127.0.0.1: ended the connection (handshake: ");
    assert_says(h.j.ended[0].err, "ranks 2-3 enter after step ");
    assert_says(h.j.ended[2].err, "this host takes the place of node 1, as ranks 2 to 3");
    read_weights(&h.j.ended[0], got);
    assert_string_equal(got, wanted);
}

/* Starts node 0 alone.  One late node names its number, and another takes a free number.  A third
 * late node is one too many.  They may give --resume or not, since they resume nothing. */
static void late_hosts_join(void **state)
{
    static held h;
    char        wanted[65], got[65];

    weights_of_one_worker(*state, LONG, wanted);
    make_pipe(&h, *state);
    nodes_begin(&h.j, *state);
    start(&h.j, 3, 0, 2, "--log pipe --checkpoint late0 --nnodes 1:3 --join-timeout 0.1 " LONG);
    await_held(&h);
    assert_says(node_said(&h.j, 0, "err"), "the job begins with 1 of 3 hosts; others may join it");
    start(&h.j, 3, 2, 2, "--log pipe --checkpoint late2 --resume=auto --nnodes 1:3 " LONG);
    await_said(&h, 0, "(node 2, ranks 4 to 5) is ready to enter");
    await_going_on(&h, "ranks 4-5 enter after step ");
    (void)node_start(&h.j, "exec $L " MLP "$R --nnodes 1:3 --workers 2 --checkpoint late1 " LONG);
    await_said(&h, 0, "(node 1, ranks 2 to 3) is ready to enter");
    await_going_on(&h, "ranks 2-3 enter after step ");
    (void)node_start(&h.j, "exec $L " MLP "$R --nnodes 1:3 --workers 2 --checkpoint late1 " LONG);
    await_said(&h, 3, "it has lost no host whose place this one could take");
    wait_all(&h);
    for (uint32_t i = 0; i < 4; i++)
        if (h.j.ended[i].status != (i == 3))
            fail_msg("node %u: status %d: %s", i, h.j.ended[i].status, h.j.ended[i].err);
    assert_says(h.j.ended[0].err, "note: 4 ranks joined the run, and it ended with 6;");
    read_weights(&h.j.ended[0], got);
    assert_string_equal(got, wanted);
}

/* Starts a job with too few hosts, and one with too few virtual workers for all hosts that may
 * join.  Expects that node 0 ends with a message that names the numbers. */
static void too_few_hosts_do_not_begin(void **state)
{
    static nodes j;
    nodes_begin(&j, *state);
    start(&j, 3, 0, 1, "--steps 5 --nnodes 2:3 --join-timeout 0.2");
    nodes_end(&j, 1, "2 of 3 nodes have not come within 0.2 s: nodes 1, 2; with 1 there, the job "
              "begins only when there are 2");
    nodes_begin(&j, *state);
    start(&j, 3, 0, 3, "--steps 5 --nnodes 1:3 --join-timeout 0.2");
    nodes_end(&j, 1, "--workers 9 are more than the 6 virtual workers of this run");
}

/* Restarts from node 0's checkpoints.  Node 1 cannot see these checkpoints, and must not report
 * that there are none. */
static void node_0_decides_where_the_run_resumes(void **state)
{
    static held              h;
    static command_result    r;
    static const char *const options[2] = {
        "--steps 60 --checkpoint ck0 --checkpoint-every 1 --restart",
        "--steps 60 --checkpoint ck1 --checkpoint-every 1 --restart",
    };
    start_held_each(&h, *state, options);
    assert_int_equal(kill(worker(&h, 3), SIGKILL), 0);
    wait_all(&h);
    for (uint32_t i = 0; i < 2; i++)
        if (h.j.ended[i].status != 0)
            fail_msg("node %u: status %d: %s", i, h.j.ended[i].status, h.j.ended[i].err);
    (void)run_shell(&r, *state, "grep again err0 err1");
    assert_says(r.out, "; all workers are started again, from the checkpoint of step ");
    assert_says(r.out, "; all workers are started again, from what node 0 has\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_hosts_give_the_bits_of_one_worker),
        cmocka_unit_test(too_many_workers_are_refused_on_all_nodes),
        cmocka_unit_test(an_option_of_one_node_is_named),
        cmocka_unit_test(a_death_is_named_on_every_node),
        cmocka_unit_test(a_signal_on_any_node_saves),
        cmocka_unit_test(a_host_that_returns_too_soon_waits),
        cmocka_unit_test(coordinators_may_be_killed),
        cmocka_unit_test(a_returning_host_enters),
        cmocka_unit_test(late_hosts_join),
        cmocka_unit_test(too_few_hosts_do_not_begin),
        cmocka_unit_test(node_0_decides_where_the_run_resumes),
    };
    return cmocka_run_group_tests_name("hosts.train", tests, make_folder_with_key, remove_folder);
}
