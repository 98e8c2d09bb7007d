/* survive_hosts_test.c -- `train --on-failure continue` over several hosts: workers and whole hosts
 * are killed, and the run ends with the weights and the log of the undisturbed run.
 *
 * Goal:   the survivors end with the undisturbed run's weights, and every step is in the log once.
 *         This holds after the loss of one worker of a host, of all its workers, of its launcher,
 *         of rank 0's host (and thus of the log and the lock of the checkpoints), and of a stopped
 *         host.  Node 0's launcher decides, so its loss ends the run.
 * Method: the command itself, on emulated hosts, hit at seeded moments.
 *         parallel/recover/ledger_test.c covers a host that is ahead of another.
 */
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "faults/survivors.h"

enum { LOGGED = 160 };

static uint32_t rounds(void)
{
    return lki_thorough() ? 4 : LKI_SANITIZED ? 1 : 2;
}

static void any_worker_may_be_killed(void **state)
{
    static job j;
    char       wanted[65], who[64], line[512];
    uint64_t   seed = 1;
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3" };
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t rank = 0; rank < 4; rank += lki_brief() ? 3 : 1) {
        (void)snprintf(line, sizeof line, MLP GOES_ON "--steps 60 --log pipe --hosts 2 "
                       "--strategy %s", strategies[(rank + 1) % 4]);
        job_begin(&j, *state, 4, line);
        rest(&seed);
        job_hit(&j, j.worker[rank], SIGKILL);
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        (void)snprintf(who, sizeof who, "rank %u (host host%u, pid %d) was killed by SIGKILL at "
                       "step ", rank, rank / 2, (int)j.worker[rank]);
        assert_says(j.result.err, who);
        const char *place = strstr(j.result.err, who) + strlen(who);
        assert_int_equal(strncmp(place + strspn(place, "0123456789"), " in ", 4), 0);
        assert_says(j.result.err, " took over virtual worker");
        assert_says(j.result.err, "note: the run has lost 1 rank and went on with 3;");
    }
}

static void a_host_may_be_killed(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 2;
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t round = 0; round < rounds(); round++) {
        job_begin(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --hosts 2");
        rest(&seed);
        hit_launcher(&j, 2);
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        assert_says(j.result.err, "host host1 (node 1, ranks 2 to 3) is lost: ");
        assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 2;");
    }
}

/* Kills one host after the other, until one worker is left. */
static void hosts_may_be_killed_until_one_worker_is_left(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 3;
    undisturbed(*state, MLP, STEPS, wanted);
    job_begin(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --hosts 3 --rebalance random:2");
    rest(&seed);
    job_hit(&j, j.worker[0], SIGKILL); /* the only worker of its host: rank 0 moves to another
                                        * host */
    job_await_step(&j, HIT_AT + 10);
    rest(&seed);
    hit_launcher(&j, 1);
    rest(&seed);
    job_hit(&j, j.worker[2], SIGKILL);
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_says(j.result.err, "ranks and went on with 1;");
}

/* Kills workers, including rank 0 and replacements.  Their hosts' launchers replace each of
 * them. */
static void lost_workers_are_replaced(void **state)
{
    static const char *const lines[] = {
        MLP GOES_ON "--restart --steps 300 --log pipe --hosts 2 --checkpoint ck",
        MLP GOES_ON "--restart --steps 300 --log pipe --hosts 2 --checkpoint ck --strategy zero3",
        MLP GOES_ON "--restart --steps 300 --log pipe --hosts 2 --checkpoint ck --strategy zero1",
        MLP GOES_ON "--restart --steps 300 --log pipe --hosts 2 --checkpoint ck --checkpoint-every "
                    "3 --checkpoint-async",
    };
    static job j;
    char       wanted[65], host[32];
    undisturbed(*state, MLP, LONGER, wanted);
    for (uint32_t rank = 0; rank < 4; rank += lki_brief() ? 3 : 1) {
        (void)snprintf(host, sizeof host, "host host%u, ", rank / 2);
        job_begin(&j, *state, 4, lines[rank]);
        for (uint32_t nth = 1; nth <= 2; nth++) {
            job_hit(&j, j.worker[rank], SIGKILL);
            await_nth(&j, " took over ", nth);
            await_replacement(&j, rank, nth, host);
            await_nth(&j, " enters after step ", nth);
        }
        j.hit_at = seconds_now();
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 4; 2 entered;");
        const char *killed = strstr(j.result.err, " was killed by SIGKILL ");
        assert_non_null(killed);
        assert_says(killed + 1, " was killed by SIGKILL ");
        goes_on(*state, MLP, 2, LONGER, wanted);
        forget(*state);
    }
}

/* Kills a worker on each host.  Until a replacement enters, the other worker of the host owns the
 * slices of the killed worker.  The replacement was not in the group when the run began. */
static void lost_workers_of_each_host_are_replaced(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, LONGER, wanted);
    job_begin(&j, *state, 4, MLP GOES_ON "--restart --steps 300 --log pipe --hosts 2 --strategy "
              "zero1 --checkpoint ck");
    job_hit(&j, j.worker[1], SIGKILL);
    job_hit(&j, j.worker[3], SIGKILL);
    await_nth(&j, " took over ", 1);
    await_replacement(&j, 1, 1, "host host0, ");
    await_replacement(&j, 3, 1, "host host1, ");
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 4; 2 entered;");
}

/* Kills one worker of a host, and the other worker after a replacement has entered.  In the group
 * the replacement comes after all other ranks of its host, whatever its number.  Survivors must
 * find the replacement at that position, with its host's part of the model. */
static void a_replacement_continues_for_its_host(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, LONGER, wanted);
    job_begin(&j, *state, 4, MLP GOES_ON "--restart --steps 300 --log pipe --hosts 2 --strategy "
              "zero1 --checkpoint ck");
    for (uint32_t rank = 0; rank < 2; rank++) {
        job_hit(&j, j.worker[rank], SIGKILL);
        await_nth(&j, " took over ", 1 + rank);
        await_replacement(&j, rank, 1, "host host0, ");
        await_nth(&j, " enters after step ", 1 + rank);
        job_await_step(&j, HIT_AT + 5 * (1 + rank)); /* by this step the replacement has the
                                                      * model */
    }
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 4; 2 entered;");
}

/* Asks the launcher of a host to leave, and thus its workers.  No work is repeated, and the
 * launcher does not wait for the end of the run.  Node 0's launcher cannot leave: if it is asked,
 * all ranks save and stop. */
static void a_host_leaves_on_request(void **state)
{
    static job j;
    char       wanted[65];
    uint64_t   seed = 5;
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t node = 0; node < 3; node += lki_brief() ? 2 : 1) {
        job_begin(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --hosts 3 --checkpoint ck");
        rest(&seed);
        pid_t launcher = launcher_of(&j, node);
        job_hit(&j, launcher, SIGTERM);
        if (node > 0) {
            await_word(&j, ") is asked to leave when the step is over\n");
            await_nth(&j, " on request after step ", 1);
            await_gone(&j, launcher); /* the run is blocked by its log */
        } else {
            await_heard(&j, launcher);
        }
        (void)job_wait(&j);
        if (node == 0) {
            assert_int_equal(j.result.status, 75);
            assert_says(j.result.err, "stopped on request after step");
            goes_on(*state, MLP, 2, STEPS, wanted);
        } else {
            assert_undisturbed(&j, wanted);
            assert_says(j.result.err, node == 1 ? "note: host host1 (node 1) is asked to leave"
                                                : "note: host host2 (node 2) is asked to leave");
            assert_says(j.result.err, "nothing was redone");
            assert_says(j.result.err, " left on request, and the run went on with ");
            assert_says_not(j.result.err, "is lost");
        }
        forget(*state);
    }
}

/* Asks a host to leave that has the only copy of a part of zero1's state.  Expects that all hosts
 * save and stop. */
static void a_host_with_the_only_copy_does_not_leave_alone(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    job_begin(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --hosts 2 --strategy zero1 "
              "--checkpoint ck");
    job_hit(&j, launcher_of(&j, 2), SIGTERM);
    await_word(&j, ") is asked to leave when the step is over\n");
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 75);
    assert_says(j.result.err, "note: host host1 (node 1) is asked to leave when the step is "
                "over\n");
    assert_says(j.result.err, "stopped on request after step");
    goes_on(*state, MLP, 2, STEPS, wanted);
}

/* ---- Rank 0's log and lock ----------------------------------------------------------------- */

static void the_log_and_the_lock_move_to_another_host(void **state)
{
    static command_result want, got;
    static job            j;
    char                  wanted[65];
    uint64_t              seed = 4;
    run_command(&want, *state, BUSY "--steps 160 --workers 1 --quiet --log log");
    assert_int_equal(want.status, 0);
    read_weights(&want, wanted);
    read_bits(*state, "log", &want);
    for (uint32_t moved = 0, tries = 0; moved < rounds(); tries++) { /* a run may end too early */
        assert_true(tries < 20 * rounds());
        (void)run_shell(&got, *state, "rm -rf ck log");
        job_start(&j, *state, 3, BUSY GOES_ON "--steps 160 --log log --hosts 2 --checkpoint ck "
                  "--checkpoint-every 7");
        job_await_word(&j, "step 16/");
        rest(&seed);
        j.hit_at = seconds_now();
        (void)kill(j.worker[0], SIGKILL); /* rank 0 is the only worker of host 0 */
        moved += await_or_end(&j, "rank 1 took over");
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        read_bits(*state, "log", &got);
        assert_string_equal(got.out, want.out);
        goes_on(*state, BUSY, 2, LOGGED, wanted);
    }
}

/* ---- Before the first step ------------------------------------------------------------------ */

static void a_worker_lost_before_the_first_step_is_reported(void **state)
{
    static job j;
    char       wanted[65], words[160];
    undisturbed(*state, MLP SLOW, 3, wanted);
    job_start_early(&j, *state, 4, MLP GOES_ON SLOW "--steps 3 --hosts 2");
    kill_and_await_told(&j, j.worker[1]);
    (void)kill(j.worker[3], SIGCONT);
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    (void)snprintf(words, sizeof words, "rank 1 (host host0, pid %d) was killed by SIGKILL ",
                   (int)j.worker[1]);
    assert_says(j.result.err, words);
    assert_says(j.result.err, "; the run begins with 3 of 4 workers; ");
    assert_says(j.result.err, "note: the run has lost 1 rank and went on with 3;");
}

/* Loses a host that the options need, before the run begins.  The run ends, or restarts
 * (--restart). */
static void lose_a_host_that_is_needed(const char *folder, const char *rules, const char *strategy)
{
    static job            j;
    static command_result want;
    char                  options[600], wanted[65];
    (void)snprintf(options, sizeof options, MLP SLOW "%s --steps 3 --workers 1 --quiet", rules);
    run_command(&want, folder, options);
    assert_int_equal(want.status, 0);
    read_weights(&want, wanted);
    for (uint32_t again = 0; again < 2; again++) {
        (void)snprintf(options, sizeof options, MLP GOES_ON SLOW "%s --steps 3 --hosts 2 %s "
                       "--checkpoint ck %s", rules, strategy, again ? "--restart" : "");
        job_start_early(&j, folder, 4, options);
        hit_launcher(&j, 3);
        (void)job_wait(&j);
        assert_says(j.result.err, "host host1 (node 1, ranks 2 to 3) is lost: ");
        assert_says(j.result.err, "; the run begins with 2 of 4 workers; ");
        assert_says(j.result.err, "2 of 4 workers are left, on 1 of 2 hosts, with which this run "
                    "cannot begin: ");
        if (again)
            assert_undisturbed(&j, wanted);
        else
            assert_int_equal(j.result.status, 1);
        forget(folder);
    }
}

static void a_run_that_needs_a_lost_host_is_restarted(void **state)
{
    lose_a_host_that_is_needed(*state, "", "--strategy hybrid --shard-size 2");
    lose_a_host_that_is_needed(*state, "--compress topk", "");
}

/* ---- Other ends ---------------------------------------------------------------------------- */

static void a_stopped_worker_of_another_host_is_killed(void **state)
{
    static job j;
    char       wanted[65], words[128];
    undisturbed(*state, MLP, STEPS, wanted);
    job_begin(&j, *state, 3, MLP GOES_ON "--steps 60 --log pipe --hosts 2 --timeout 6");
    job_hit(&j, j.worker[2], SIGSTOP);
    (void)job_wait(&j);
    assert_undisturbed(&j, wanted);
    (void)snprintf(words, sizeof words, "rank 2 (host host1, pid %d) was stopped (by SIGSTOP or a "
                   "debugger) at step ", (int)j.worker[2]);
    assert_says(j.result.err, words);
    assert_says(j.result.err, ", was waited for in vain and killed; rank");
}

/* Loses a host that has the only copy of a part of the model (zero1).  The run ends and names the
 * checkpoint to resume from, or restarts by itself. */
static void the_only_copy_of_a_shard_is_lost_with_its_host(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t again = 0; again < 2; again++) {
        forget(*state);
        job_begin(&j, *state, 4, again ? MLP GOES_ON "--steps 60 --log pipe --hosts 2 --strategy "
                                         "zero1 --checkpoint ck --checkpoint-every 5 --restart"
                                       : MLP GOES_ON "--steps 60 --log pipe --hosts 2 --strategy "
                                         "zero1 --checkpoint ck --checkpoint-every 5");
        hit_launcher(&j, 2);
        (void)job_wait(&j);
        assert_says(j.result.err, "1 of 2 hosts are left, and none of them has a part of the "
                    "model that zero1 keeps on one alone: start again from the checkpoint of "
                    "step ");
        if (again)
            assert_undisturbed(&j, wanted);
        else
            assert_int_equal(j.result.status, 1);
        goes_on(*state, MLP, 2, STEPS, wanted);
    }
}

/* Loses hosts that have buddies: one host, or two of four that are not a pair.  The run
 * continues. */
static void a_buddy_replaces_a_lost_host(void **state)
{
    static const char *const strategies[] = { "zero1", "zero2", "zero3" };
    static job j;
    char       wanted[65], line[512];
    uint64_t   seed = 5;
    undisturbed(*state, MLP, STEPS, wanted);
    for (uint32_t round = 0; round < 3; round++) {
        (void)snprintf(line, sizeof line, MLP GOES_ON "--steps 60 --log pipe --hosts 2 "
                                                      "--shard-replicas 2 --strategy "
                                                      "%s", strategies[round]);
        job_begin(&j, *state, 4, line);
        rest(&seed);
        hit_launcher(&j, 2);
        (void)job_wait(&j);
        assert_undisturbed(&j, wanted);
        assert_says(j.result.err, "host host1 (node 1, ranks 2 to 3) is lost: ");
        assert_says(j.result.err, "note: the run has lost 2 ranks and went on with 2;");
    }
    for (uint32_t pair = 0; pair < 2; pair++) {
        job_begin(&j, *state, 4, MLP GOES_ON "--steps 60 --log pipe --hosts 4 --shard-replicas 2 "
                                             "--strategy zero1");
        job_hit(&j, j.worker[3], SIGKILL);
        rest(&seed);
        hit_launcher(&j, pair ? 2 : 1);
        (void)job_wait(&j);
        if (pair == 0) {
            assert_undisturbed(&j, wanted);
            continue;
        }
        assert_int_equal(j.result.status, 1);
        assert_says(j.result.err, "none of them has a part of the model that zero1 keeps on two: "
                    "there is no checkpoint to start again from");
    }
}

static void the_loss_of_node_0_ends_the_run(void **state)
{
    static job j;
    job_begin(&j, *state, 2, MLP GOES_ON "--steps 60 --log pipe --hosts 2");
    hit_launcher(&j, 0);
    (void)job_wait(&j);
    assert_int_not_equal(j.result.status, 0);
    assert_says(j.result.err, "host host0 (node 0, rank 0) is lost");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(any_worker_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(a_host_may_be_killed, begin_afresh),
        cmocka_unit_test_setup(hosts_may_be_killed_until_one_worker_is_left, begin_afresh),
        cmocka_unit_test_setup(lost_workers_are_replaced, begin_afresh),
        cmocka_unit_test_setup(lost_workers_of_each_host_are_replaced, begin_afresh),
        cmocka_unit_test_setup(a_replacement_continues_for_its_host, begin_afresh),
        cmocka_unit_test_setup(a_host_leaves_on_request, begin_afresh),
        cmocka_unit_test_setup(a_host_with_the_only_copy_does_not_leave_alone, begin_afresh),
        cmocka_unit_test_setup(the_log_and_the_lock_move_to_another_host, begin_afresh),
        cmocka_unit_test_setup(a_worker_lost_before_the_first_step_is_reported, begin_afresh),
        cmocka_unit_test_setup(a_run_that_needs_a_lost_host_is_restarted, begin_afresh),
        cmocka_unit_test_setup(a_stopped_worker_of_another_host_is_killed, begin_afresh),
        cmocka_unit_test_setup(the_only_copy_of_a_shard_is_lost_with_its_host, begin_afresh),
        cmocka_unit_test_setup(a_buddy_replaces_a_lost_host, begin_afresh),
        cmocka_unit_test_setup(the_loss_of_node_0_ends_the_run, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
