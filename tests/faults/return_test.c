/* return_test.c -- tests hosts that are lost, and return to a run that has continued without them.
 *
 * Goal:   a host enters between two steps, receives the model from the other hosts, and the weights
 *         are those of the undisturbed run.  The other hosts continue, whatever happens to the host
 *         before it enters or to the host that sends the model, and whatever data the entering host
 *         has.
 * Method: the command itself, on emulated hosts that it restarts, hit when certain lines appear, or
 *         at seeded moments.
 */
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "faults/survivors.h"
#include "launch/self_testing.h"
#include "launch/job/side_by_side_testing.h"

static uint32_t rounds(void)
{
    return lki_thorough() ? 2 : 1;
}

#define RETURNS GOES_ON "--restart=20 --steps 300 --log pipe --checkpoint ck "
#define TEXT                                                                                       \
    "train gpt --data text:text --layers 1 --width 16 --context 16 --virtual-workers 4 "           \
    "--global-batch 8 --micro-batch 2 --lr 0.01 "
#define LEFT " took over virtual worker"
#define READY "(node 1, ranks 2 to 3) is ready to enter"
#define ENTERS "ranks 2-3 enter after step "

static void finish(job *j, const char *wanted)
{
    j->hit_at = seconds_now();
    (void)job_wait(j);
    assert_undisturbed(j, wanted);
}

static void a_lost_host_returns(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 1;
    undisturbed(*state, BUSY, LONGER, wanted);
    for (uint32_t round = 0; round < rounds(); round++) {
        job_start(&j, *state, 4, BUSY RETURNS "--hosts 2");
        job_await_step(&j, HIT_AT);
        for (uint32_t nth = 1; nth <= 2; nth++) {
            rest(&seed);
            hit_launcher(&j, 2);
            drip_before_next(&j, LEFT, nth);
            drip_until_nth(&j, READY, nth);
            drip_before_next(&j, ENTERS, nth);
            j.worker[2] = newest_child(newest_child(j.pid));
        }
        finish(&j, wanted);
        assert_says(j.result.err, "note: the job is under way: this host takes the place of node "
                    "1, as ranks 2 to 3, when its workers are ready");
        assert_says(j.result.err, "; nothing was redone; ");
        assert_says(j.result.err, "note: the run has lost 4 ranks and went on with 4; 4 entered;");
        goes_on(*state, BUSY, 2, LONGER, wanted);
        forget(*state);
    }
}

/* Loses a host of a run with adapters.  It returns and receives the frozen parameters. */
static void a_lost_host_returns_to_adapters(void **state)
{
#define ADAPTERS TEXT "--init base --lora-rank 4 --lora-targets all-linear "
    static command_result result;
    static job            j;
    char                  wanted[65];
    (void)run_shell(&result, *state, "seq 3000 >text; " LK_TEST_COMMAND " " TEXT "--steps 1 "
                    "--workers 1 --quiet --checkpoint whole; " LK_TEST_COMMAND
                    " export whole --out base");
    assert_int_equal(result.status, 0);
    undisturbed(*state, ADAPTERS, LONGER, wanted);
    job_start(&j, *state, 4, ADAPTERS RETURNS "--hosts 2");
    job_await_step(&j, HIT_AT);
    hit_launcher(&j, 2);
    drip_before_next(&j, LEFT, 1);
    drip_until_nth(&j, READY, 1);
    drip_before_next(&j, ENTERS, 1);
    finish(&j, wanted);
    assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 4; 2 entered;");
}

/* Loses a host with a part of the model.  The host with the replica of that part sends the part,
 * and may then be lost. */
static void a_lost_host_with_a_shard_returns(void **state)
{
    static const struct {
        const char *bits, *way;
    } cases[] = {
        { "--precision bf16 ", "--strategy zero1 --shard-replicas 2 --hosts 4 " },
        { "", "--strategy zero3 --shard-replicas 2 --hosts 4 " },
        { "", "--strategy zero2 --shard-replicas 2 --hosts 4 " },
        { "", "--strategy hybrid --shard-size 2 --hosts 4 " },
        { "--param-comm-dtype int8 ", "--strategy ddp --hosts 4 " },
    };
    static job  j;
    static char bits[512], line[1024];
    char        wanted[65];
    for (size_t i = 0; i < (LKI_SANITIZED ? 2 : sizeof cases / sizeof cases[0]); i++) {
        (void)snprintf(bits, sizeof bits, BUSY "%s", cases[i].bits);
        undisturbed(*state, bits, LONGER, wanted);
        (void)snprintf(line, sizeof line, BUSY RETURNS "%s%s", cases[i].bits, cases[i].way);
        job_start(&j, *state, 4, line);
        job_await_step(&j, HIT_AT);
        hit_launcher(&j, 3);
        drip_before_next(&j, LEFT, 1);
        drip_until_nth(&j, "(node 3, rank 3) is ready to enter", 1);
        drip_before_next(&j, " enters after step ", 1);
        await_step_of_all(&j);
        hit_launcher(&j, 2);
        finish(&j, wanted);
        forget(*state);
    }
}

/* Kills a host's launcher as soon as the launcher has a seat, or one of its workers when they are
 * ready. */
static void a_returning_host_may_be_killed_while_starting(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, BUSY, LONGER, wanted);
    job_start(&j, *state, 4, BUSY RETURNS "--hosts 2");
    job_await_step(&j, HIT_AT);
    hit_launcher(&j, 2);
    drip_before_next(&j, LEFT, 1);
    drip_until_nth(&j, "note: the job is under way", 1);
    job_hit(&j, newest_child(j.pid), SIGKILL);
    drip_until_nth(&j, "note: the job is under way", 2);
    drip_until_nth(&j, READY, 1);
    job_hit(&j, newest_child(newest_child(j.pid)), SIGKILL);
    finish(&j, wanted);
    assert_says(j.result.err, " ranks and went on with ");
}

/* Kills the entering host, or the host that sends the model, before, while or after it enters. */
static void hosts_may_be_killed_around_a_return(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 7;
    undisturbed(*state, BUSY, LONGER, wanted);
    for (uint32_t round = 0; round < 2 * rounds(); round++) {
        job_start(&j, *state, 4, BUSY RETURNS "--hosts 2");
        job_await_step(&j, HIT_AT);
        hit_launcher(&j, 2);
        drip_before_next(&j, LEFT, 1);
        drip_until_nth(&j, READY, 1);
        (void)read_log(&j, (unsigned long)-1);
        rest(&seed);
        job_hit(&j, round % 2 ? newest_child(j.pid) : j.worker[1], SIGKILL);
        finish(&j, wanted);
        goes_on(*state, BUSY, 2, LONGER, wanted);
        forget(*state);
    }
}

/* Replaces a file, if the file exists, by a file of the same length. */
static void write_text(const char *folder, int byte)
{
    char path[2][128], text[4000];
    (void)snprintf(path[0], sizeof path[0], "%s/text", folder);
    (void)snprintf(path[1], sizeof path[1], "%s/text.new", folder);
    memset(text, byte, sizeof text);
    FILE *file = fopen(path[1], "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, sizeof text, file), sizeof text);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(path[1], path[0]), 0);
}

/* Gives one host different data.  The other hosts detect that before they send it the model, and
 * continue without this host. */
static void a_host_with_other_data_is_refused(void **state)
{
    static job j;
    char       wanted[65];
    write_text(*state, 'a');
    undisturbed(*state, TEXT, LONGER, wanted);
    job_start(&j, *state, 4, TEXT GOES_ON "--restart=1 --steps 300 --log pipe --checkpoint ck "
              "--hosts 2");
    job_await_step(&j, HIT_AT);
    write_text(*state, 'b');
    hit_launcher(&j, 2);
    drip_before_next(&j, "has other data than the run, and is not let in; nothing was redone; ", 1);
    finish(&j, wanted);
    assert_says(j.result.err, "nobody has entered after step ");
    assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 2; that took ");
}

/* Stops a worker or a launcher just when it is to enter.  Expects that the other processes wait no
 * longer than the timeout, and name the stopped process, which may have entered just before.
 * Returns false if the moment was missed. */
static bool one_is_stopped(const char *folder, const char *wanted, bool a_worker, bool a_launcher)
{
    static job j;
    job_start(&j, folder, 4, BUSY RETURNS "--hosts 2 --timeout 10");
    job_await_step(&j, HIT_AT);
    hit_launcher(&j, 2);
    drip_before_next(&j, LEFT, 1);
    drip_until_nth(&j, READY, 1);
    pid_t launcher = newest_child(j.pid), worker = newest_child(launcher);
    if (a_worker)
        job_hit(&j, worker, SIGSTOP);
    if (a_launcher)
        job_hit(&j, launcher, SIGSTOP);
    finish(&j, wanted);
    const char *refused = strstr(j.result.err, "nobody has entered after step ");
    if (refused != NULL)
        assert_says(refused, "host host1");
    else
        assert_says(j.result.err, ENTERS);
    goes_on(folder, BUSY, 2, LONGER, wanted);
    forget(folder);
    return refused != NULL;
}

static void stop_as_it_enters(const char *folder, bool a_worker, bool a_launcher)
{
    char     wanted[65];
    uint32_t tries = 1;
    undisturbed(folder, BUSY, LONGER, wanted);
    while (!one_is_stopped(folder, wanted, a_worker, a_launcher))
        assert_true(tries++ < 50);
}

static void a_worker_may_be_stopped_while_entering(void **state)
{
    stop_as_it_enters(*state, true, false);
}

static void a_launcher_may_be_stopped_while_entering(void **state)
{
    stop_as_it_enters(*state, false, true);
}

static void worker_and_launcher_may_be_stopped_while_entering(void **state)
{
    stop_as_it_enters(*state, true, true);
}

/* Loses one host while a second host is starting. */
static void several_lost_hosts_return(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, LONGER, wanted);
    job_start(&j, *state, 4, MLP RETURNS "--hosts 4");
    job_await_step(&j, HIT_AT);
    hit_launcher(&j, 1);
    drip_before_next(&j, LEFT, 1);
    drip_until_nth(&j, "note: the job is under way", 1);
    hit_launcher(&j, 3);
    hit_launcher(&j, 2);
    finish(&j, wanted);
    assert_says(j.result.err, " ranks and went on with "); /* some hosts may not have entered yet */
}

/* Stops the launcher of one host and kills the other's.  The returning host waits for the stopped
 * launcher and cannot report it.  The command reports the stopped launcher, and all processes start
 * again. */
static void a_stopped_launcher_without_other_hosts_is_killed(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, BUSY, LONGER, wanted);
    job_start(&j, *state, 4, BUSY RETURNS "--hosts 2 --timeout 10");
    job_await_step(&j, HIT_AT);
    job_hit(&j, launcher_of(&j, 0), SIGSTOP);
    hit_launcher(&j, 2);
    finish(&j, wanted);
    assert_says(j.result.err, "no other host is left to miss it, and it is killed");
}

/* clang-format off */
#define WAITING(X)                                                                                 \
    X(a_worker_may_be_stopped_while_entering), X(a_launcher_may_be_stopped_while_entering),        \
    X(worker_and_launcher_may_be_stopped_while_entering),                                          \
    X(a_stopped_launcher_without_other_hosts_is_killed)
#define NAME(test) (char[]){ #test }
/* clang-format on */

static char self[SELF_BYTES];

static void stopped_processes_are_detected_in_time(void **state)
{
    char *const names[] = { WAITING(NAME) };
    (void)state;
    run_side_by_side(self, names, sizeof names / sizeof names[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest waiting[] = { WAITING(cmocka_unit_test) };
    const struct CMUnitTest tests[]   = {
        cmocka_unit_test_setup(a_lost_host_returns, begin_afresh),
        cmocka_unit_test_setup(a_lost_host_returns_to_adapters, begin_afresh),
        cmocka_unit_test_setup(a_lost_host_with_a_shard_returns, begin_afresh),
        cmocka_unit_test_setup(a_returning_host_may_be_killed_while_starting, begin_afresh),
        cmocka_unit_test_setup(hosts_may_be_killed_around_a_return, begin_afresh),
        cmocka_unit_test_setup(a_host_with_other_data_is_refused, begin_afresh),
        cmocka_unit_test_setup(stopped_processes_are_detected_in_time, begin_afresh),
        cmocka_unit_test_setup(several_lost_hosts_return, begin_afresh),
    };
    (void)self_is_worker(self, argc, argv);
    return only_one(argc, argv) ? cmocka_run_group_tests(waiting, make_folder, remove_folder)
                                : cmocka_run_group_tests(tests, make_folder, remove_folder);
}
