/* nodes_test.c -- tests that the launchers of a job start, end and fail together.
 *
 * Goal:   whatever happens on one node, every node ends with the same status and message.  A node
 *         that is missing or does not belong to the job is named.  Other connections have no
 *         effect.
 * Method: nodes.h; the workers are lines of shell, which do not use Lockstep.
 */
#include <sys/stat.h>

#include "hosts/nodes.h"

#define TELL "sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK " \
             "$MASTER_ADDR'"

static void ranks_are_numbered_across_nodes(void **state)
{
    static nodes j;
    nodes_begin(&j, *state);
    (void)node_start(&j, "exec $L run --nnodes 3 --node-rank 2 $R -n 1 " TELL);
    (void)node_start(&j, "exec $L run --nnodes 3 $R -n 2 " TELL); /* gets the remaining number, 1 */
    (void)node_start(&j, "exec $L run --nnodes 3 --node-rank 0 $R -n 2 " TELL);
    nodes_end(&j, 0, "");
    assert_string_equal(j.ended[0].out, "[4] 4/5 0/1 2 2 127.0.0.1\n");
    assert_says(j.ended[1].out, "[2] 2/5 0/2 1 1 127.0.0.1\n");
    assert_says(j.ended[1].out, "[3] 3/5 1/2 1 1 127.0.0.1\n");
    assert_says(j.ended[2].out, "[0] 0/5 0/2 0 0 127.0.0.1\n");
    assert_says(j.ended[2].out, "[1] 1/5 1/2 0 0 127.0.0.1\n");
}

/* Checks that all workers receive the same port for the programs' own use. */
static void all_nodes_receive_the_same_port(void **state)
{
    static nodes j;
    nodes_begin(&j, *state);
    for (int i = 0; i < 2; i++)
        (void)node_start(&j, i == 0 ? "exec $L run --nnodes 2 --node-rank 0 $R -n 1 --no-prefix "
                                      "sh -c 'echo $MASTER_PORT'"
                                    : "exec $L run --nnodes 2 $R -n 1 --no-prefix "
                                      "sh -c 'echo $MASTER_PORT'");
    nodes_end(&j, 0, "");
    assert_string_equal(j.ended[0].out, j.ended[1].out);
    assert_in_range(atoi(j.ended[0].out), 1, 65535);
}

static void start_pair(nodes *j, const char *folder, const char *zero, const char *one)
{
    char line[512];
    nodes_begin(j, folder);
    (void)snprintf(line, sizeof line, "exec $L run --nnodes 2 --node-rank 0 $R -n 2 %s", zero);
    (void)node_start(j, line);
    (void)snprintf(line, sizeof line, "exec $L run --nnodes 2 --node-rank 1 $R -n 2 %s", one);
    (void)node_start(j, line);
}

/* Waits until all four workers have printed whether they handle signals. */
static void await_ready(nodes *j)
{
    node_await_word(j, 0, "[0] ready");
    node_await_word(j, 0, "[1] ready");
    node_await_word(j, 1, "[2] ready");
    node_await_word(j, 1, "[3] ready");
}

static void a_failure_is_reported_on_every_node(void **state)
{
    static nodes j;
    for (int from = 0; from < 2; from++) {
        static const char fails[] = "sh -c 'test $LOCAL_RANK = 0 || exit 3; sleep 1000'";
        char              words[64];
        start_pair(&j, *state, from == 0 ? fails : "sleep 1000", from == 1 ? fails : "sleep 1000");
        nodes_end(&j, 3, "exited with status 3\n");
        (void)snprintf(words, sizeof words, "lockstep run: rank %d (host ", from == 0 ? 1 : 3);
        assert_says(j.ended[0].err, words);
        assert_string_equal(j.ended[0].err, j.ended[1].err);
    }
    start_pair(&j, *state, "sleep 1000", "sh -c 'test $LOCAL_RANK = 0 || kill -9 $$; sleep 1000'");
    nodes_end(&j, 128 + SIGKILL, "was killed by SIGKILL\n");
    assert_string_equal(j.ended[0].err, j.ended[1].err);
    start_pair(&j, *state, "sleep 1000", "no-such-program");
    nodes_end(&j, 127, "cannot run no-such-program");
    assert_says(j.ended[0].err, "(node 1): cannot run");
}

static void the_last_node_ends_the_job(void **state)
{
    static nodes j;
    start_pair(&j, *state, "true", "sh -c 'sleep 0.5; test $LOCAL_RANK = 0 || exit 5'");
    nodes_end(&j, 5, "rank 3 (host ");
}

/* Checks that a node with output that nobody reads yet has not vanished for the others.  The output
 * is read after the other node has ended. */
static void a_slow_reader_does_not_end_the_job(void **state)
{
    static const char prints[] = "--timeout 3 sh -c 'test $RANK = 2 || exit 0; "
                                 "head -c 200000 /dev/zero' >slow";
    static nodes j;
    char         path[64], text[4096];
    size_t       bytes = 0;
    (void)snprintf(path, sizeof path, "%s/slow", (const char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    assert_true(fd >= 0);
    start_pair(&j, *state, "--timeout 3 true", prints);
    node_ends(&j, 0, 0, "");
    for (double since = seconds_now(); bytes < 200000 && seconds_now() - since < LIMIT_SECONDS;) {
        ssize_t got = read(fd, text, sizeof text);
        bytes += got > 0 ? (size_t)got : 0;
    }
    assert_true(bytes >= 200000);
    node_ends(&j, 1, 0, "");
    (void)close(fd);
    (void)unlink(path);
}

/* Checks that a request to stop limits the wait for a reader, with and without a keeper. */
static void a_stop_request_does_not_await_the_reader(void **state)
{
    static const char *const modes[] = { "", "--on-failure continue" };
    static nodes             j;
    char                     path[64], line[512];
    (void)snprintf(path, sizeof path, "%s/slow", (const char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    for (size_t i = 0; i < 2; i++) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        nodes_begin(&j, *state);
        (void)snprintf(line, sizeof line, "exec $L run -n 1 %s sh -c 'trap \"exit 75\" TERM; "
                       "head -c 150000 /dev/zero; echo ready >&2; while :; do sleep 0.05; done' "
                       ">slow", modes[i]);
        (void)node_start(&j, line);
        for (double since = seconds_now(); strstr(node_said(&j, 0, "err"), "ready") == NULL; nap())
            if (seconds_now() - since > LIMIT_SECONDS)
                nodes_fail(&j, "the worker does not print");
        assert_int_equal(kill(j.pid[0], SIGTERM), 0);
        node_ends(&j, 0, 75, "they are left out, because the job was asked to stop");
        (void)close(fd);
    }
    (void)unlink(path);
}

static void a_stop_request_reaches_every_node(void **state)
{
    static const char polite[] = "sh -c 'trap \"echo asked; exit 75\" TERM INT; echo ready; "
                                 "while :; do sleep 0.05; done'";
    static nodes j;
    for (uint32_t to = 0; to < 2; to++) {
        start_pair(&j, *state, polite, polite);
        await_ready(&j);
        assert_int_equal(kill(j.pid[to], to == 0 ? SIGTERM : SIGINT), 0);
        nodes_end(&j, 75, "");
        for (uint32_t i = 0; i < 2; i++)
            assert_string_equal(j.ended[i].err, "");
        assert_says(j.ended[0].out, "[1] asked\n");
        assert_says(j.ended[1].out, "[2] asked\n");
    }
}

static void a_second_request_ends_all(void **state)
{
    static const char deaf[] = "--grace 0.2 sh -c 'trap \"\" TERM INT; echo ready; sleep 100 & "
                               "wait; wait'";
    static nodes j;
    start_pair(&j, *state, deaf, deaf);
    await_ready(&j);
    assert_int_equal(kill(j.pid[1], SIGTERM), 0);
    node_await_signals_taken(&j, 1);
    pass(0.3); /* an immediate signal would count as the first one */
    assert_int_equal(kill(j.pid[1], SIGTERM), 0);
    nodes_end(&j, 128 + SIGTERM, "a second SIGTERM ended the workers");
}

/* Starts node 0 of three, and two nodes that both claim to be node 2.  Returns the node that
 * connected first, once the other node has been refused. */
static uint32_t start_twice(nodes *j, const char *folder)
{
    nodes_begin(j, folder);
    (void)node_start(j, "exec $L run --nnodes 3 --node-rank 0 $R -n 1 true");
    (void)node_start(j, "exec $L run --nnodes 3 --node-rank 2 $R -n 1 true");
    (void)node_start(j, "exec $L run --nnodes 3 --node-rank 2 $R -n 1 true");
    for (double since = seconds_now(); seconds_now() - since < LIMIT_SECONDS; nap())
        for (uint32_t i = 1; i < 3; i++)
            if (waitpid(j->pid[i], NULL, WNOHANG) == j->pid[i]) {
                j->pid[i] = 0;
                assert_says(node_said(j, i, "err"), "says that it is node 2, but so is host ");
                return 3 - i;
            }
    nodes_fail(j, "nobody is refused");
    return 0;
}

static void a_signal_ends_the_wait_for_nodes(void **state)
{
    static nodes j;
    uint32_t     waits = start_twice(&j, *state);
    assert_int_equal(kill(j.pid[0], SIGINT), 0);
    node_ends(&j, 0, 128 + SIGINT, "SIGINT came while waiting for the other nodes");
    node_ends(&j, waits, 1, "node 0 has given up: SIGINT came");
}

/* ---- Losing a node ----------------------------------------------------------------------- */

/* Kills or stops the launcher of one node.  The other launcher must name the node's host, and
 * end. */
static void lose_one(const char *folder, uint32_t lost, int how, const char *words)
{
    static nodes j;
    start_pair(&j, folder, "--timeout 4 sh -c 'echo ready; exec sleep 1000'",
               "--timeout 4 sh -c 'echo ready; exec sleep 1000'");
    await_ready(&j);
    assert_int_equal(kill(j.pid[lost], how), 0);
    node_ends(&j, 1 - lost, 1, lost == 0 ? " (node 0, ranks 0 to 1) is lost: its launcher "
                                         : " (node 1, ranks 2 to 3) is lost: its launcher ");
    assert_says(j.ended[1 - lost].err, words);
    (void)kill(j.pid[lost], SIGCONT);
    if (how == SIGKILL) {
        node_ends(&j, lost, 128 + SIGKILL, "");
    } else {
        const command_result *r = node_wait(&j, lost); /* the stopped launcher learns of the end
                                                        * when it is continued */
        assert_int_equal(r->status, 1);
        assert_says(r->err, "is lost: its launcher ");
    }
}

static void a_lost_node_is_named(void **state)
{
    for (uint32_t lost = 0; lost < 2; lost++) {
        lose_one(*state, lost, SIGKILL, "broke the connection");
        lose_one(*state, lost, SIGSTOP, "has said nothing for 4");
    }
}

/* ---- Strangers --------------------------------------------------------------------------- */

static void missing_nodes_are_named(void **state)
{
    static nodes j;
    nodes_begin(&j, *state);
    (void)node_start(&j, "exec $L run --nnodes 3 --node-rank 0 $R --join-timeout 0.5 -n 1 true");
    nodes_end(&j, 1, "2 of 3 nodes have not come within 0.5 s: nodes 1, 2");
    nodes_begin(&j, *state);
    (void)node_start(&j, "exec $L run --nnodes 2 --node-rank 1 $R --join-timeout 0.5 -n 1 true");
    nodes_end(&j, 1, "node 0 has not answered at 127.0.0.1 port ");
}

static void nodes_of_other_jobs_are_refused(void **state)
{
    static command_result r;
    static nodes          j;

    (void)run_shell(&r, *state, LK_TEST_COMMAND " key other; cp key wide; chmod 640 wide; "
                                                "head -c 63 key > short; chmod 600 short; "
                                                "mkfifo -m 600 pipe");
    nodes_begin(&j, *state);
    (void)node_start(&j, "exec $L run --nnodes 2 --node-rank 0 $R -n 1 true");
    (void)node_start(&j, "exec $L run --nnodes 2 --node-rank 1 $R --job-key other -n 1 true");
    node_ends(&j, 1, 1, "does this node have the same job key?");
    (void)node_start(&j, "exec $L run --nnodes 3 --node-rank 1 $R -n 1 true");
    node_ends(&j, 2, 1, "says that there are 3 nodes, node 0 says 2");
    (void)node_start(&j, "exec $L run --nnodes 2 --node-rank 1 $R -n 1 true");
    nodes_end(&j, 0, "");

    uint32_t waits = start_twice(&j, *state);
    (void)node_start(&j, "exec $L run --nnodes 3 $R -n 1 true");
    node_ends(&j, 0, 0, "");
    node_ends(&j, 3, 0, "");
    node_ends(&j, waits, 0, "");

    static const char *const refused[][2] = {
        { "--job-key wide", "is open to others than its owner (mode 640): chmod 600 it" },
        { "--job-key short", "holds no job key" },
        { "--job-key pipe", "no job key came from pipe within 10 s" },
        { "--job-key none", "cannot open the job key none" },
        { "--job-key fd:77", "fd:77 is no descriptor that is open" },
        { "--job-key key --insecure", "needs one of --job-key FILE" },
        { "", "needs one of --job-key FILE" },
        { "--job-key key --node-rank 2", "--node-rank 2: of 2 nodes the last is 1" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char line[256];
        (void)snprintf(line, sizeof line, "run --nnodes 2 --rendezvous tcp://127.0.0.1:%u %s "
                       "-n 1 true", j.port, refused[i][0]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 2);
        assert_says(r.err, refused[i][1]);
    }
    run_command(&r, *state, "run --node-rank 1 -n 1 true");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--node-rank needs --nnodes");
    run_command(&r, *state, "key key"); /* an existing file is never overwritten */
    assert_int_equal(r.status, 1);
    assert_says(r.err, "File exists");
}

/* A key that could not be written as a whole, because a limit of file sizes killed the command or a
 * write failed, leaves no file that other nodes could take for one. */
static void a_part_of_a_key_is_no_key(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "(ulimit -f 0; exec " LK_TEST_COMMAND " key part); test ! -e part");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "(trap '' XFSZ; ulimit -f 0; exec " LK_TEST_COMMAND " key part)");
    assert_int_equal(r.status, 1);
    (void)run_shell(&r, *state, LK_TEST_COMMAND " key part && stat -c %a part && wc -c <part");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "600\n65\n");
}

/* A file with the name of the draft is another's: it is named, and neither read nor removed. */
static void the_draft_of_another_is_kept(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    "sh -c 'echo mine >fresh.$$.new; exec " LK_TEST_COMMAND " key fresh'; echo $?; "
                    "test ! -e fresh && cat fresh.*.new");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "1\nmine\n");
    assert_says(r.err, "cannot make fresh: cannot write fresh.");
}

static void a_key_from_a_descriptor_is_not_passed_on(void **state)
{
    static nodes j;
    nodes_begin(&j, *state);
    for (int i = 0; i < 2; i++)
        (void)node_start(&j, i == 0 ? "exec $L run --nnodes 2 --node-rank 0 $R --job-key fd:7 -n 1 "
                                      "--no-prefix sh -c 'env; cat /proc/$PPID/cmdline' 7<key"
                                    : "cat key | $L run --nnodes 2 $R --job-key fd:0 -n 1 "
                                      "--no-prefix sh -c 'env; cat /proc/$PPID/environ'");
    nodes_end(&j, 0, "");
    char key[80];
    read_stream(*state, "key", key, sizeof key);
    key[64] = '\0';
    for (int i = 0; i < 2; i++)
        if (strstr(j.ended[i].out, key) != NULL || strstr(j.ended[i].out, "RANK=") == NULL)
            fail_msg("the key shows: %s", j.ended[i].out);
}

static void a_job_without_a_key_prints_a_warning(void **state)
{
    static nodes j;
    char         line[256];
    nodes_begin(&j, *state);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(line, sizeof line, "exec $L run --nnodes 2 --node-rank %d --insecure "
                       "--rendezvous tcp://127.0.0.1:%u -n 1 true", i, j.port);
        (void)node_start(&j, line);
    }
    nodes_end(&j, 0, "--insecure: anybody on the network can read, change and join this job");
}

static void strangers_do_not_disturb_the_job(void **state)
{
    static nodes       j;
    struct sockaddr_in address = { .sin_family = AF_INET };
    int                fds[100];

    nodes_begin(&j, *state);
    (void)node_start(&j, "exec $L run --nnodes 2 --node-rank 0 $R -n 1 true");
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port        = htons((uint16_t)j.port);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        for (double since = seconds_now();
             connect(fds[i], (const struct sockaddr *)&address, sizeof address) != 0; nap())
            assert_true(seconds_now() - since < LIMIT_SECONDS);
        if (i % 2 == 0)
            (void)!send(fds[i], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
    }
    (void)node_start(&j, "exec $L run --nnodes 2 --node-rank 1 $R -n 1 true");
    nodes_end(&j, 0, "");
    assert_says(j.ended[0].err, "lockstep run: note: the rendezvous has refused ");
    assert_says(j.ended[0].err, "; the last to go: 127.0.0.1:");
    assert_string_equal(j.ended[1].err, "");
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        (void)close(fds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_numbered_across_nodes),
        cmocka_unit_test(all_nodes_receive_the_same_port),
        cmocka_unit_test(a_failure_is_reported_on_every_node),
        cmocka_unit_test(the_last_node_ends_the_job),
        cmocka_unit_test(a_slow_reader_does_not_end_the_job),
        cmocka_unit_test(a_stop_request_does_not_await_the_reader),
        cmocka_unit_test(a_stop_request_reaches_every_node),
        cmocka_unit_test(a_second_request_ends_all),
        cmocka_unit_test(a_signal_ends_the_wait_for_nodes),
        cmocka_unit_test(a_lost_node_is_named),
        cmocka_unit_test(missing_nodes_are_named),
        cmocka_unit_test(nodes_of_other_jobs_are_refused),
        cmocka_unit_test(a_key_from_a_descriptor_is_not_passed_on),
        cmocka_unit_test(a_part_of_a_key_is_no_key),
        cmocka_unit_test(the_draft_of_another_is_kept),
        cmocka_unit_test(a_job_without_a_key_prints_a_warning),
        cmocka_unit_test(strangers_do_not_disturb_the_job),
    };
    return cmocka_run_group_tests_name("hosts.nodes", tests, make_folder_with_key, remove_folder);
}
