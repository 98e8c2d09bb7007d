/* survive_test.c -- `train --on-failure continue`: workers are killed, the other workers finish
 * their work, and the run ends with the weights and the log of the undisturbed run.
 *
 * Goal:   any ranks, including rank 0, are killed, one after the other or several at once, in a
 *         step, between steps, while evaluating or saving.  The weights equal those of the
 *         undisturbed run, every step is in the log once, and one line names the lost rank and the
 *         ranks that took over its work.  A rank that is asked to leave does leave, and no work is
 *         repeated.  Impossible options are refused.  Failures other than a death end the run.  If
 *         all workers die, --restart restarts the run.
 * Method: the command itself, hit at seeded moments. parallel/recover/ledger_test.c covers an
 *         update that is hit in the middle of a slice.
 */
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "faults/survivors.h"

enum { LOGGED = 160 };

static uint32_t rounds(void)
{
    return lki_thorough() ? 5 : LKI_SANITIZED ? 1 : 3;
}

/* Checks the line that names the killed rank and the ranks that took over its work. */
static void assert_told(const job *j, uint32_t rank)
{
    char wanted[128];
    (void)snprintf(wanted, sizeof wanted, "rank %u (pid %d)", rank, (int)j->worker[rank]);
    const char *line = strstr(j->result.err, wanted);
    if (line != NULL)
        line = strstr(line + 1, wanted); /* the first match is rank 0's introduction */
    if (line == NULL)
        fail_msg("not '%s' again: %s", wanted, j->result.err);
    const char *took = strstr(line, " took over virtual worker");
    if (took == NULL || memchr(line, '\n', (size_t)(took - line)) != NULL)
        fail_msg("nobody took over: %s", line);
}

static void any_worker_may_be_killed(void **state)
{
    static const char *const strategies[] = { "ddp", "zero2", "zero1", "zero3" };
    static job               j;
    char                     wanted[65], line[512];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t workers = lki_brief() ? 3 : 2; workers <= 3; workers++)
        for (uint32_t rank = 0; rank < workers; rank++) {
            (void)snprintf(line, sizeof line, MLP GOES_ON "--steps 60 --log pipe --strategy %s",
                           strategies[(workers + rank) % 4]);
            job_begin(&j, *state, workers, line);
            job_hit(&j, j.worker[rank], SIGKILL);
            (void)job_wait(&j);
            assert_undisturbed(&j, wanted);
            assert_told(&j, rank);
            assert_says(j.result.err, "note: the run has lost 1 rank and went on with");
        }
}

/* Kills a worker while clients train. */
static void clients_survive(void **state)
{
#define CLIENTS MLP "--clients 16 --client-fraction 0.25 --client-batch 2 --local-epochs 2 "
    static job j;
    char       wanted[65];
    undisturbed(*state, CLIENTS, STEPS, wanted);
    job_begin(&j, *state, 3, CLIENTS GOES_ON "--steps 60 --log pipe");
    job_hit(&j, j.worker[1], SIGKILL);
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_told(&j, 1);
}

/* Kills two workers at once, and later a third worker, so that one worker is left.  If the third
 * worker died before it could report the loss of the first two, no report is expected. */
static void three_of_four_workers_may_be_killed(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 5;
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t round = 0; round < rounds(); round++) {
        uint32_t first = round % 4, second = (first + 1 + round % 3) % 4;
        uint32_t third = 0;
        while (third == first || third == second)
            third++;
        job_begin(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --rebalance random:3");
        rest(&seed);
        job_hit(&j, j.worker[first], SIGKILL);
        if (round % 2 == 0)
            rest(&seed);
        job_hit(&j, j.worker[second], SIGKILL);
        job_await_step(&j, HIT_AT + 10);
        rest(&seed);
        job_hit(&j, j.worker[third], SIGKILL);
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        assert_says(j.result.err, "note: the run has lost 3 ranks and went on with 1");
        assert_told(&j, third);
        if (strstr(j.result.err, " in continuing") != NULL)
            continue;
        assert_told(&j, first);
        assert_told(&j, second);
    }
}

/* ---- Between steps ------------------------------------------------------------------------ */

/* Kills a rank of a run that is not blocked.  Returns false if the run ended before the rank's work
 * was taken over. */
static bool is_taken_over(job *j, uint32_t rank)
{
    j->hit_at = seconds_now();
    if (kill(j->worker[rank], SIGKILL) != 0)
        return false;
    return await_or_end(j, "took over");
}

static void the_log_and_checkpoints_are_complete(void **state)
{
    static command_result want, got;
    static job            j;
    char                  wanted[65];
    uint64_t              seed = 9;
    run_command(&want, *state, BUSY "--steps 160 --workers 1 --quiet --log log");
    assert_int_equal(want.status, 0);
    read_weights(&want, wanted);
    read_bits(*state, "log", &want);
    for (uint32_t round = 0, tries = 0; round < rounds(); tries++) { /* until every round has hit
                                                                      * its rank */
        assert_true(tries < 20 * rounds());
        (void)run_shell(&got, *state, "rm -rf ck log");
        job_start(&j, *state, 4,
                  BUSY GOES_ON "--steps 160 --log log --checkpoint ck --checkpoint-every 7");
        job_await_word(&j, "step 16/");
        rest(&seed);
        bool taken = is_taken_over(&j, 0);
        if (taken) {
            rest(&seed);
            (void)kill(j.worker[1 + round++ / 2], SIGKILL);
        }
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        if (taken) {
            (void)run_shell(&got, *state, "grep -c '\"membership\": {\"lost\": \\[0\\]' log");
            assert_string_equal(got.out, "1\n");
        }
        read_bits(*state, "log", &got);
        assert_string_equal(got.out, want.out);
        goes_on(*state, BUSY, 2, LOGGED, wanted);
    }
}

/* Kills rank 0 of a resumed run before rank 0 has logged a step.  Expects that the log of the
 * earlier run is kept, and that the new rank 0 labels its lines as invariant, like that run's. */
static void the_log_before_a_resume_is_kept(void **state)
{
    static const char *const wanted = "1 2 3 4 5 6\n";
    static job               j;
    static command_result    steps;
#define WIDE                                                                                       \
    "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 4 "              \
    "--hidden 1000,1000 --global-batch 64 --micro-batch 2 --lr 0.05 --checkpoint ck --log log "
    job_start(&j, *state, 2, WIDE "--steps 3 --grad-comm-dtype int8");
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 0);
    job_start(&j, *state, 2, WIDE GOES_ON "--steps 6 --resume");
    job_await_word(&j, "\nrank 1 (pid ");
    job_hit(&j, j.worker[0], SIGKILL);
    (void)job_wait(&j);
    if (j.result.status != 0)
        fail_msg("status %d: %s", j.result.status, j.result.err);
    (void)run_shell(&steps, *state,
                    "echo $(sed -n 's/^{\"step\": \\([0-9]*\\), \"epoch\".*/\\1/p' log)");
    assert_string_equal(steps.out, wanted);
    (void)run_shell(&steps, *state,
                    "grep '^{.*\"epoch\"' log | grep -vc '\"label\": \"invariant\"}'");
    assert_string_equal(steps.out, "0\n");
}

/* Kills a worker before the first step.  The other workers begin without it, and the loss is
 * reported and counted. */
static void a_worker_lost_before_the_first_step_is_reported(void **state)
{
    static job j;
    char       wanted[65], words[160];
    undisturbed(*state, MLP SLOW, 3, wanted);
    job_start_early(&j, *state, 4, MLP GOES_ON SLOW "--steps 3");
    kill_and_await_told(&j, j.worker[1]);
    (void)kill(j.worker[3], SIGCONT);
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    (void)snprintf(words, sizeof words, "rank 1 (pid %d) was killed by SIGKILL at step 0 in ",
                   (int)j.worker[1]);
    assert_says(j.result.err, words);
    assert_says(j.result.err, "; the run begins with 3 of 4 workers; ");
    (void)snprintf(words, sizeof words, "\nrank 3 (pid %d) runs virtual workers 2-3\n",
                   (int)j.worker[3]);
    assert_says(j.result.err, words);
    assert_says(j.result.err, "note: the run has lost 1 rank and went on with 3;");
}

/* ---- Faults injected by the job ------------------------------------------------------------ */

/* Injects faults until each kind has occurred, while the log's pipe blocks the run. */
static void injected_faults_do_not_change_the_weights(void **state)
{
    static const char *const words[] = { " gets SIGKILL", " is stopped for ",
                                         " is slowed to half for " };
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_start(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --chaos 3,100");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        (void)await_or_end(&j, words[i]);
        assert_says(j.result.err, words[i]);
    }
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_says(j.result.err, "lockstep train: note: chaos: seed 3: ");
}

/* Kills stragglers and other ranks while virtual workers are computed twice (--speculate). */
static void workers_may_be_killed_during_speculation(void **state)
{
    static job j;
    char       wanted[65];
#define BROAD                                                                                      \
    "train mlp --data synthetic:images=256,h=4,w=4,c=1,classes=3 --virtual-workers 8 "             \
    "--hidden 700,700 --global-batch 64 --micro-batch 4 --lr 0.01 "
    undisturbed(*state, BROAD, 30, wanted);
    for (uint32_t seed = 1; seed <= 2; seed++) {
        char line[512];
        (void)snprintf(line, sizeof line, BROAD GOES_ON "--steps 30 --strategy %s --speculate on "
                       "--chaos %u,60", seed == 1 ? "ddp" : "zero1", seed);
        job_start(&j, *state, 4, line);
        j.hit_at = seconds_now();
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
    }
}

/* Starts a job of `lockstep run` whose workers have the options `first`, and new workers in the
 * place of lost ones the options `later`.  Kills a worker. */
static void begin_and_hit(job *j, const char *folder, const char *first, const char *later)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "rm -f began.*; echo '"
                   "if [ -e began.$RANK ]; then O=\"%s\"; else : >began.$RANK; O=\"%s\"; fi; "
                   "exec " LK_TEST_COMMAND " " MLP GOES_ON "--steps %d --log pipe $O' >start.sh",
                   later, first, LONGER);
    (void)run_shell(&r, folder, line);
    assert_int_equal(r.status, 0);
    job_begin(j, folder, 3, "run --workers 3 " GOES_ON "--restart=5 -- sh start.sh");
    job_hit(j, j->worker[2], SIGKILL);
}

/* Starts workers with different numbers of threads, and a new one with another number in place of
 * one that is killed. */
static void workers_may_have_other_threads(void **state)
{
    static const char *const strategies[] = { "ddp", "zero2" };
    static job               j;
    char                     wanted[65], first[64], later[64];
    undisturbed(*state, MLP, LONGER, wanted);
    for (uint32_t i = 0; i < 2; i++) {
        (void)snprintf(first, sizeof first, "--threads $((RANK + 1)) --strategy %s", strategies[i]);
        (void)snprintf(later, sizeof later, "--threads 1 --strategy %s", strategies[i]);
        begin_and_hit(&j, *state, first, later);
        await_word_reading(&j, " enters after step ");
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
    }
}

/* The others continue without a worker whose options would change the result. */
static void a_worker_with_other_options_is_not_let_in(void **state)
{
    static const struct {
        const char *first, *later, *says;
    } cases[] = {
        { "", "--label-smoothing 0.2", "another value of --label-smoothing than the run" },
        { "", "--bucket-mb 0.01", "another value of --bucket-mb than the run" },
        { "--strategy zero1", "--strategy zero2", "another value of --strategy than the run" },
    };
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, LONGER, wanted);
    for (size_t i = 0; i < (lki_brief() ? 1 : sizeof cases / sizeof cases[0]); i++) {
        begin_and_hit(&j, *state, cases[i].first, cases[i].later);
        await_word_reading(&j, cases[i].says);
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        assert_says(j.result.err, ", and is not let in");
    }
}

/* ---- Ends of a run -------------------------------------------------------------------------- */

/* Kills rank 0 while standard output is a full pipe, so that rank 0 cannot print the weights.
 * Stores the contents of the pipe, except the filling, in `said`. */
static void kill_who_speaks(job *j, const char *folder, char said[4096])
{
    char         path[64];
    static char  filling[65536];
    struct pollfd ready = { .events = POLLIN };
    ssize_t       got;
    (void)snprintf(path, sizeof path, "%s/out", folder);
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    ready.fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(ready.fd >= 0);
    while (write(ready.fd, filling, sizeof filling) > 0 || write(ready.fd, filling, 1) > 0)
        continue;
    job_start(j, folder, 3, MLP GOES_ON "--steps 60");
    job_await_word(j, "\nrun ");
    job_hit(j, j->worker[0], SIGKILL);
    await_or_end(j, "took over");
    size_t used = 0;
    while (strchr(said, '\n') == NULL && poll(&ready, 1, LIMIT_SECONDS * 1000) == 1)
        while ((got = read(ready.fd, filling, sizeof filling)) > 0)
            for (ssize_t i = 0; i < got && used < 4095; i++)
                if (filling[i] != '\0')
                    said[used++] = filling[i];
    (void)unlink(path);
    (void)close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    (void)job_wait(j);
    (void)close(ready.fd);
}

static void the_weights_are_printed_without_rank_0(void **state)
{
    static job j;
    char       wanted[65], line[80], said[4096] = "";
    undisturbed(*state, MLP, STEPS, wanted);
    kill_who_speaks(&j, *state, said);
    assert_int_equal(j.result.status, 0);
    (void)snprintf(line, sizeof line, "weights %s\n", wanted);
    assert_string_equal(said, line);
}

/* Stops two ranks.  Expects that both are killed, whichever of the two the other ranks wait for. */
static void all_stopped_workers_are_killed(void **state)
{
    static job j;
    char       wanted[65], words[128];
    undisturbed(*state, MLP, STEPS, wanted);
    job_begin(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --timeout 6");
    for (uint32_t rank = 1; rank <= 2; rank++)
        job_hit(&j, j.worker[rank], SIGSTOP);
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    for (uint32_t rank = 1; rank <= 2; rank++) {
        assert_told(&j, rank);
        (void)snprintf(words, sizeof words, "rank %u (pid %d) was stopped (by SIGSTOP or a "
                       "debugger) at step ", rank, (int)j.worker[rank]);
        assert_says(j.result.err, words);
    }
    assert_says(j.result.err, ", was waited for in vain and killed; rank");
}

/* ---- Leaving -------------------------------------------------------------------------------- */

/* Asks ranks, including rank 0, to leave.  Each leaves between two steps, and no work is
 * repeated. */
static void a_worker_leaves_on_request(void **state)
{
    static const char *const lines[] = {
        MLP GOES_ON "--steps 60 --log pipe --strategy zero2",
        MLP GOES_ON "--steps 60 --log pipe --checkpoint ck --checkpoint-every 3 --checkpoint-async",
    };
    static job j;
    char       wanted[65], says[128];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t rank = 0; rank < 3; rank += 2) {
        job_begin(&j, *state, 3, lines[rank == 0]);
        job_hit(&j, j.worker[rank], SIGTERM);
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        assert_told(&j, rank);
        (void)snprintf(says, sizeof says, "rank %u (pid %d) leaves on request after step ", rank,
                       (int)j.worker[rank]);
        assert_says(j.result.err, says);
        assert_says(j.result.err, "; nothing was redone; ");
        assert_says(j.result.err, "note: 1 rank left on request, and the run went on with 2;");
    }
    goes_on(*state, MLP, 2, STEPS, wanted);
}

/* Asks all ranks to leave, one after the other or at once.  The last rank saves. */
static void the_run_stops_if_all_workers_leave(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_begin(&j, *state, 3, MLP GOES_ON "--steps 60 --log pipe --checkpoint ck");
    for (uint32_t rank = 0; rank < 3; rank++)
        job_hit(&j, j.worker[rank], SIGTERM);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 75);
    assert_says(j.result.err, "stopped on request after step");
    goes_on(*state, MLP, 2, STEPS, wanted);
}

/* ---- Replacements --------------------------------------------------------------------------- */

/* Kills workers, including rank 0 and a replacement.  Expects that each killed worker is
 * replaced. */
static void lost_workers_are_replaced(void **state)
{
    static const char *const lines[] = {
        MLP GOES_ON "--restart --steps 300 --log pipe --checkpoint ck --strategy zero2",
        MLP GOES_ON "--restart --steps 300 --log pipe --checkpoint ck --checkpoint-every 3 "
                    "--checkpoint-async",
    };
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, LONGER, wanted);
    for (uint32_t rank = 0; rank < 3; rank += 2) {
        job_begin(&j, *state, 3, lines[rank == 0]);
        for (uint32_t nth = 1; nth <= 2; nth++) {
            job_hit(&j, j.worker[rank], SIGKILL);
            await_nth(&j, " took over ", nth);
            await_replacement(&j, rank, nth, "");
            await_nth(&j, " enters after step ", nth);
        }
        j.hit_at = seconds_now();
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 3; 2 entered;");
        goes_on(*state, MLP, 2, LONGER, wanted);
        forget(*state);
    }
}

/* Kills workers until fewer than the required number are left.  The run saves and ends, whether one
 * worker is left or several. */
static void too_few_workers_save_and_end(void **state)
{
    static const char *const lines[] = {
        MLP "--workers 2:3 --steps 300 --log pipe --checkpoint ck",
        MLP "--workers 3:4 --steps 300 --log pipe --checkpoint ck",
    };
    static job j;
    char       wanted[65], said[96];
    undisturbed(*state, MLP, LONGER, wanted);
    for (uint32_t more = 0; more < 2; more++) {
        job_begin(&j, *state, 3 + more, lines[more]);
        job_hit(&j, j.worker[0], SIGKILL);
        await_nth(&j, " took over ", 1);
        job_hit(&j, j.worker[1], SIGKILL);
        (void)job_wait(&j);
        assert_int_equal(j.result.status, 1);
        (void)snprintf(said, sizeof said, " in ending the run: %u of at least %u workers are left "
                       "after step ", 1 + more, 2 + more);
        assert_says(j.result.err, said);
        assert_says(j.result.err, "the state is saved; continue by lockstep resume ck\n");
        goes_on(*state, MLP, 2, LONGER, wanted);
        forget(*state);
    }
}

/* ---- Runs that do not continue ------------------------------------------------------------ */

static void unsupported_options_are_refused(void **state)
{
    static const char *const lines[][2] = {
        { "--workers 2 --worker-mode threads", "needs --worker-mode processes" },
        { "--workers 4 --hosts 2 --shard-replicas 2", "--shard-replicas 2 is for --strategy zero1 "
                                                      "to zero3" },
        { "--workers 2 --chaos 1", "must be SEED,RATE with an integer and a number above 0" },
    };
    static command_result r;
    char                  line[512];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)snprintf(line, sizeof line, MLP GOES_ON "--steps 3 %s", lines[i][0]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 2);
        assert_says(r.err, lines[i][1]);
    }
}

/* Checks failures that concern all ranks: a loss that is not finite ends the run, and survivors
 * obey a request to stop. */
static void failures_of_all_ranks_end_the_run(void **state)
{
    static command_result r;
    static job            j;
    char                  wanted[65];
    run_command(&r, *state, MLP GOES_ON "--workers 3 --steps 60 --lr 1e30 --quiet");
    assert_int_equal(r.status, 3);
    undisturbed(*state, MLP, STEPS, wanted);
    job_begin(&j, *state, 3, MLP GOES_ON "--steps 60 --log pipe --checkpoint ck");
    job_hit(&j, j.worker[0], SIGKILL);
    await_word_reading(&j, "took over");
    job_hit(&j, j.pid, SIGTERM);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 75);
    goes_on(*state, MLP, 2, STEPS, wanted);
}

static void a_run_restarts_if_all_workers_die(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t restart = 0; restart < 2; restart++) {
        job_begin(&j, *state, 2,
                  restart ? MLP GOES_ON "--restart --steps 60 --log pipe --checkpoint ck "
                                        "--checkpoint-every 5"
                          : MLP GOES_ON "--steps 60 --log pipe");
        (void)kill(j.pid, SIGSTOP); /* the launcher is stopped, so that it sees both deaths at
                                     * once */
        job_hit(&j, j.worker[0], SIGKILL);
        job_hit(&j, j.worker[1], SIGKILL);
        (void)kill(j.pid, SIGCONT);
        (void)job_wait(&j);
        if (restart) {
            assert_undisturbed(&j, wanted);
            assert_says(j.result.err, "all workers are started again, from the checkpoint of step");
        } else {
            assert_int_equal(j.result.status, 128 + SIGKILL);
            assert_says(j.result.err, "was killed by SIGKILL at step");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(any_worker_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(clients_survive, begin_afresh),
        cmocka_unit_test_setup(three_of_four_workers_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(the_log_and_checkpoints_are_complete, begin_afresh),
        cmocka_unit_test_setup(the_log_before_a_resume_is_kept, begin_afresh),
        cmocka_unit_test_setup(a_worker_lost_before_the_first_step_is_reported, begin_afresh),
        cmocka_unit_test_setup(the_weights_are_printed_without_rank_0, begin_afresh),
        cmocka_unit_test_setup(all_stopped_workers_are_killed, begin_afresh),
        cmocka_unit_test_setup(a_worker_leaves_on_request, begin_afresh),
        cmocka_unit_test_setup(the_run_stops_if_all_workers_leave, begin_afresh),
        cmocka_unit_test_setup(lost_workers_are_replaced, begin_afresh),
        cmocka_unit_test_setup(too_few_workers_save_and_end, begin_afresh),
        cmocka_unit_test_setup(injected_faults_do_not_change_the_weights, begin_afresh),
        cmocka_unit_test_setup(workers_may_have_other_threads, begin_afresh),
        cmocka_unit_test_setup(a_worker_with_other_options_is_not_let_in, begin_afresh),
        cmocka_unit_test_setup(workers_may_be_killed_during_speculation, begin_afresh),
        cmocka_unit_test_setup(unsupported_options_are_refused, begin_afresh),
        cmocka_unit_test_setup(failures_of_all_ranks_end_the_run, begin_afresh),
        cmocka_unit_test_setup(a_run_restarts_if_all_workers_die, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
