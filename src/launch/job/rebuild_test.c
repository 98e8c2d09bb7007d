/* rebuild_test.c -- tests a group of real processes that loses ranks and continues.
 *
 * Goal:   ranks die at many places in the code.  The survivors rebuild one group, in their old
 *         order, whose collectives give exactly the expected results.  No process or descriptor is
 *         left behind.  A rank that does not take part is excluded and named.  A job without
 *         continue mode ends.
 * Method: the workers are this program: "worker MODE" runs a function of rebuild_testing.h, which
 *         exits with 0 only if all its checks succeed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thorough_testing.h"
#include "launch/job/rebuild_jobs_testing.h"
#include "launch/job/rebuild_testing.h"
#include "launch/job/side_by_side_testing.h"
#include "launch/job/spawn.h"

/* ---- Tests ------------------------------------------------------------------------------- */

static const char *const places[] = { "collective", "started", "arena", "split", "asking",
                                      "answered" };

static void survivors_rebuild_after_a_death_at_each_place(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
        for (uint32_t victim = p % 2; victim < 4; victim += lki_brief() ? 2 : 1) {
            assert_good(launch(going_on(4), "die", places[p], 1u << victim), "die", places[p],
                        victim);
            char words[32];
            (void)snprintf(words, sizeof words, "rank %u (pid ", victim);
            assert_noted(words);
            assert_noted("was killed by SIGKILL at step 12 in backward");
            assert_noted("the group continues with 3 of 4 ranks");
        }
}

static void survivors_rebuild_after_simultaneous_deaths(void **state)
{
    static const uint32_t victims[] = { 3, 6, 9, 14, 11, 7 };

    (void)state;
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
        for (size_t i = p % 2; i < sizeof victims / sizeof victims[0]; i += 2)
            assert_good(launch(going_on(4), "die", places[p], victims[i]), "die", places[p],
                        victims[i]);
    assert_noted("the group continues with 1 of 4 ranks");
}

static void survivors_rebuild_after_deaths_at_any_moment(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < (lki_thorough() ? 20 : lki_brief() ? 2 : 6); seed++) {
        assert_good(launch(going_on(6), "storm", "", seed), "storm", "", seed);
        assert_noted("the group continues with 1 of 6 ranks");
    }
}

/* Runs a job with faults planned by `seed`; its ranks rebuild groups at once, or "slowly".  `order`
 * becomes the ranks that were killed, in order, such as "2 0 1 ". */
static void killed_by_plan(char order[32], uint64_t seed, const char *speed)
{
    static const char mark[]  = "chaos: rank ";
    lk_launch_options options = going_on(4);

    options.chaos = (lk_chaos){ seed, 500, LK_CHAOS_KILL, take_note, NULL };
    assert_good(launch(options, "endure", speed, 0), "endure", speed, (uint32_t)seed);
    assert_noted("the group continues with 1 of 4 ranks");
    order[0] = '\0';
    for (const char *at = notes; (at = strstr(at, mark)) != NULL; at++)
        (void)snprintf(order + strlen(order), 32 - strlen(order), "%c ", at[strlen(mark)]);
}

/* Checks that a seed repeats its plan at any speed, and that the last rank is spared. */
static void injected_faults_repeat_with_their_seed(void **state)
{
    char once[4][32], again[32];

    (void)state;
    for (uint64_t seed = 1; seed < 4; seed++) {
        killed_by_plan(once[seed], seed, "");
        killed_by_plan(again, seed, "slowly");
        assert_string_equal(once[seed], again);
    }
    assert_noted("chaos: seed 3: 3 killed, 0 stopped, 0 slowed");
    assert_true(strcmp(once[1], once[2]) != 0 || strcmp(once[1], once[3]) != 0);
}

static void rebuilds_leave_no_descriptors_or_maps(void **state)
{
    (void)state;
    uint32_t before = entries_of("/proc/self/fd"), maps = maps_of("/proc/self/maps");
    assert_good(launch(going_on(3), "many", "", 0), "many", "", 0);
    assert_int_equal(entries_of("/proc/self/fd"), before);
    assert_int_equal(maps_of("/proc/self/maps"), maps);
}

static lk_launch_options hurried(void)
{
    lk_launch_options options = going_on(3);
    options.timeout_ms        = 6000;
    return options;
}

static void a_stopped_rank_is_excluded(void **state)
{
    (void)state;
    assert_good(launch(hurried(), "absent", "stopped", 0), "absent", "stopped", 0);
    assert_noted("is stopped (by SIGSTOP or a debugger)");
}

static void a_sleeping_rank_is_excluded(void **state)
{
    (void)state;
    assert_good(launch(hurried(), "absent", "asleep", 0), "absent", "asleep", 0);
    assert_noted("has not come within 6 s to continue with the others, and is killed");
    assert_null(strstr(notes, "SIGKILL"));
}

#define NAME(test) (char[]){ #test }

static void absent_ranks_are_excluded(void **state)
{
    char *const names[] = { NAME(a_stopped_rank_is_excluded), NAME(a_sleeping_rank_is_excluded) };

    (void)state;
    run_side_by_side(self, names, 2);
}

static void a_rank_that_has_left_is_not_awaited(void **state)
{
    (void)state;
    assert_good(launch(going_on(3), "leave", "", 0), "leave", "", 0);
    assert_string_equal(notes, "the group continues with 2 of 3 ranks\n");
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    assert_good(launch(going_on(2), "misuse", "", 0), "misuse", "", 0);
    assert_good(launch(going_on(3), "requests", "", 0), "requests", "", 0);
}

static void a_stop_request_survives_a_rebuild(void **state)
{
    (void)state;
    lk_launch_result result = launch(going_on(3), "stop", "", 0);
    assert_false(result.failed);
    assert_int_equal(result.exit_code, 75);
}

static void the_result_is_that_of_the_last_group(void **state)
{
    (void)state;
    lk_launch_result result = launch(going_on(4), "end", "", 0);
    assert_true(result.failed);
    assert_int_equal(result.rank, 2);
    assert_int_equal(result.exit_code, 3);
    assert_non_null(strstr(result.cause, "exited with status 3 at step 20 in saving"));
    assert_noted("rank 0 (pid ");
}

/* Kills a rank when all ranks are done.  A rank that has finished proves that the other ranks have
 * finished, but only if ranks leave together. */
static void a_death_after_a_joint_end_is_no_failure(void **state)
{
    (void)state;
    for (uint32_t together = 0; together < 2; together++) {
        lk_launch_options options = going_on(3);
        options.leave_together    = together == 1;
        lk_launch_result result   = launch(options, "finish", "", 0);
        assert_int_equal(result.failed, together == 0);
        assert_int_equal(result.exit_code, together == 0 ? 128 + SIGKILL : 0);
    }
}

static void jobs_that_cannot_rebuild_end_at_a_failure(void **state)
{
    lk_launch_options stop = { .struct_size = sizeof(lk_launch_options),
                               .workers = 3, .timeout_ms = 20000, .note = take_note };

    (void)state;
    lk_launch_result result = launch(stop, "refused", "", 0);
    assert_true(result.failed);
    assert_int_equal(result.rank, 1);
    assert_int_equal(result.exit_code, 128 + SIGKILL);
    assert_string_equal(notes, "");

    result = launch(going_on(3), "unjoined", "", 0);
    assert_true(result.failed);
    assert_int_equal(result.exit_code, 5);
}

static void a_rebuild_under_a_foreign_launcher_is_refused(void **state)
{
    char line[8192];

    (void)state;
    (void)snprintf(line, sizeof line, "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_PORT=%d "
                   "MASTER_ADDR=127.0.0.1; W='%s worker foreign'\nRANK=1 LOCAL_RANK=1 $W 2>&1 &\n"
                   "RANK=0 LOCAL_RANK=0 $W 2>&1", lki_port_free(), self);
    assert_int_equal(shell(line), 7);
    assert_said("another launcher (mpirun, srun, torchrun) has started this job, and ends it when");
}

static void the_flight_record_continues_after_a_rebuild(void **state)
{
    char              folder[] = "/tmp/lk-rebuild-XXXXXX", line[8192], path[64];
    lk_launch_options options  = going_on(3);

    (void)state;
    assert_non_null(mkdtemp(folder));
    options.flight = folder;
    assert_good(launch(options, "die", "collective", 2), "die", "collective", 2);
    (void)snprintf(line, sizeof line, "%s inspect --flight %s 2>&1", LK_TEST_COMMAND, folder);
    (void)shell(line);
    assert_said("12  epoch 1, as rank 1 of 2");
    assert_null(strstr(said, "failed"));
    assert_null(strstr(said, "; in "));
    for (uint32_t r = 0; r < 3; r++) {
        (void)snprintf(path, sizeof path, "%s/rank-%u.flight", folder, r);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void the_command_names_the_lost_rank(void **state)
{
    char line[8192];

    (void)state;
    (void)snprintf(line, sizeof line, "%s run -n 4 --on-failure continue %s worker die split 2 "
                   "2>&1", LK_TEST_COMMAND, self);
    assert_int_equal(shell(line), 0);
    assert_said("lockstep run: note: rank 1 (pid ");
    assert_said("lockstep run: note: the group continues with 3 of 4 ranks\n");
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "worker") == 0)
        return work(argc, argv);
    find_self();
    const struct CMUnitTest waiting[] = { cmocka_unit_test(a_stopped_rank_is_excluded),
                                          cmocka_unit_test(a_sleeping_rank_is_excluded) };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_rebuild_after_a_death_at_each_place),
        cmocka_unit_test(survivors_rebuild_after_simultaneous_deaths),
        cmocka_unit_test(survivors_rebuild_after_deaths_at_any_moment),
        cmocka_unit_test(injected_faults_repeat_with_their_seed),
        cmocka_unit_test(rebuilds_leave_no_descriptors_or_maps),
        cmocka_unit_test(absent_ranks_are_excluded),
        cmocka_unit_test(a_rank_that_has_left_is_not_awaited),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(a_stop_request_survives_a_rebuild),
        cmocka_unit_test(the_result_is_that_of_the_last_group),
        cmocka_unit_test(a_death_after_a_joint_end_is_no_failure),
        cmocka_unit_test(jobs_that_cannot_rebuild_end_at_a_failure),
        cmocka_unit_test(a_rebuild_under_a_foreign_launcher_is_refused),
        cmocka_unit_test(the_flight_record_continues_after_a_rebuild),
        cmocka_unit_test(the_command_names_the_lost_rank),
    };
    if (only_one(argc, argv))
        return cmocka_run_group_tests_name("launch.job.rebuild", waiting, NULL, NULL);
    return cmocka_run_group_tests_name("launch.job.rebuild", tests, NULL, NULL);
}
