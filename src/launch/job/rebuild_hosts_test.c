/* rebuild_hosts_test.c -- tests a group over several hosts that loses ranks, or a host, and
 * continues.
 *
 * Goal:   as in rebuild_test.c, with ranks on emulated hosts.  One rank of a host dies, or all its
 *         ranks, or its launcher, or several processes at once, also during a rebuild.  The
 *         survivors rebuild one group in their old order, whose collectives give exactly the
 *         expected results.  No process or descriptor is left behind.
 * Method: the workers of rebuild_testing.h.  Each emulated host has its own launcher and workers.
 */
#include "base/thorough_testing.h"
#include "launch/job/rebuild_jobs_testing.h"
#include "launch/job/rebuild_testing.h"
#include "launch/job/side_by_side_testing.h"
#include "launch/job/spawn.h"

static lk_launch_options over(uint32_t hosts, uint32_t workers)
{
    lk_launch_options options = going_on(workers);
    options.hosts             = hosts;
    return options;
}

static void survivors_rebuild_after_deaths_of_ranks_and_hosts(void **state)
{
    /* Host 0 has ranks 0 and 1, host 1 has ranks 2 and 3.  The victims are rank 3, rank 0, host 1,
     * host 0, one rank per host, and all ranks but rank 0. */
    static const uint32_t    victims[] = { 1u << 3, 1u << 0, 12, 3, 6, 14 };
    static const char *const places[]  = { "collective", "asking", "answered", "split", "arena",
                                           "started" };

    (void)state;
    for (size_t i = 0; i < 6; i++)
        for (size_t p = 0; p < 6; p++) {
            char     words[64];
            uint32_t left = 4 - (uint32_t)__builtin_popcount(victims[i]);
            if (p > 2 ? p != 3 + i % 3 : lki_brief() && p != i % 3)
                continue;
            assert_good(launch(over(2, 4), "die", places[p], victims[i]), "die", places[p],
                        victims[i]);
            (void)snprintf(words, sizeof words, "the group continues with %u of 4 ranks\n", left);
            assert_noted(words);
            assert_noted("pid ");
            assert_noted("was killed by SIGKILL at step 12 in backward");
        }
}

static void survivors_rebuild_on_uneven_hosts(void **state)
{
    static const uint32_t victims[] = { 1u << 4, 1u << 1, 2 | 4, 8 | 16 | 32, 1 | 8 | 64 };

    (void)state;
    for (size_t i = 0; i < sizeof victims / sizeof victims[0]; i++)
        assert_good(launch(over(3, 7), "die", "collective", victims[i]), "die", "collective",
                    victims[i]);
}

static void survivors_rebuild_after_deaths_at_any_moment(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < (lki_thorough() ? 6 : lki_brief() ? 1 : 2); seed++) {
        assert_good(launch(over(3, 6), "storm", "", seed), "storm", "", seed);
        assert_noted("the group continues with 1 of 6 ranks");
    }
}

static void rebuilds_leave_no_descriptors_or_maps(void **state)
{
    (void)state;
    uint32_t before = entries_of("/proc/self/fd"), maps = maps_of("/proc/self/maps");
    assert_good(launch(over(2, 4), "many", "", 0), "many", "", 0);
    assert_int_equal(entries_of("/proc/self/fd"), before);
    assert_int_equal(maps_of("/proc/self/maps"), maps);
}

static lk_launch_options hurried(void)
{
    lk_launch_options options = over(3, 3);
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
    assert_good(launch(over(3, 3), "leave", "", 0), "leave", "", 0);
    /* the note may appear twice if the start was slow */
    assert_noted("the group continues with 2 of 3 ranks\n");
    assert_null(strstr(notes, "has not come"));
}

static void survivors_continue_after_a_host_is_lost(void **state)
{
    (void)state;
    assert_good(launch(over(3, 6), "launcher", "", 2), "launcher", "", 2);
    assert_noted("host host1 (node 1, ranks 2 to 3) is lost: its launcher was killed by SIGKILL");
    assert_noted("the group continues with 4 of 6 ranks");

    lk_launch_result result = launch(over(3, 6), "launcher", "", 0);
    assert_true(result.failed);
    assert_non_null(strstr(result.cause, "host host0 (node 0, ranks 0 to 1) is lost"));
}

static void a_stop_request_survives_a_rebuild(void **state)
{
    (void)state;
    lk_launch_result result = launch(over(2, 3), "stop", "", 0);
    assert_false(result.failed);
    assert_int_equal(result.exit_code, 75);
}

/* Kills rank 0, and makes a rank of the new group exit with status 3.  The launcher of that rank
 * may detect its end later than other hosts do.  Expects that the job's result is status 3. */
static void the_result_is_that_of_the_last_group(void **state)
{
    static const char *const how[] = { "at once", "slowly" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        lk_launch_result result = launch(over(2, 4), "end", how[i], 0);
        assert_true(result.failed);
        assert_int_equal(result.rank, 2);
        assert_int_equal(result.exit_code, 3);
        assert_non_null(strstr(result.cause, "exited with status 3 at step 20 in saving"));
    }
}

static void wrong_calls_are_refused_and_old_requests_fail(void **state)
{
    (void)state;
    assert_good(launch(over(2, 2), "misuse", "", 0), "misuse", "", 0);
    assert_good(launch(over(3, 3), "requests", "", 0), "requests", "", 0);
}

/* Runs two commands, as on two hosts.  Expects that their output names the lost host or rank. */
static void commands_name_lost_hosts_and_ranks(void **state)
{
    char folder[] = "/tmp/lk-rebuild-XXXXXX", line[8192];
    int  port     = lki_port_free();

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(line, sizeof line, "cd %s; L=%s; R='--nnodes 2 --rendezvous tcp://127.0.0.1:%d "
                   "--insecure -n 2 --on-failure'; W='%s worker die collective 9'\n"
                   "$L run --node-rank 0 $R continue $W >0 2>&1 & $L run --node-rank 1 $R continue "
                   "$W >1 2>&1; echo $? >>1; wait $!; echo $? >>0; sed 's/^/zero: /' 0; "
                   "sed 's/^/one: /' 1; rm -r %s",
                   folder, LK_TEST_COMMAND, port, self, folder);
    (void)shell(line);
    assert_said("zero: lockstep run: note: rank 0 (host ");
    assert_said("zero: lockstep run: note: the group continues with 2 of 4 ranks\nzero: 0\n");
    assert_said("one: lockstep run: note: rank 3 (host ");
    assert_said("one: lockstep run: note: the group continues with 2 of 4 ranks\none: 0\n");
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "worker") == 0)
        return work(argc, argv);
    find_self();
    const struct CMUnitTest waiting[] = { cmocka_unit_test(a_stopped_rank_is_excluded),
                                          cmocka_unit_test(a_sleeping_rank_is_excluded) };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_rebuild_after_deaths_of_ranks_and_hosts),
        cmocka_unit_test(survivors_rebuild_on_uneven_hosts),
        cmocka_unit_test(survivors_rebuild_after_deaths_at_any_moment),
        cmocka_unit_test(rebuilds_leave_no_descriptors_or_maps),
        cmocka_unit_test(absent_ranks_are_excluded),
        cmocka_unit_test(a_rank_that_has_left_is_not_awaited),
        cmocka_unit_test(survivors_continue_after_a_host_is_lost),
        cmocka_unit_test(a_stop_request_survives_a_rebuild),
        cmocka_unit_test(the_result_is_that_of_the_last_group),
        cmocka_unit_test(wrong_calls_are_refused_and_old_requests_fail),
        cmocka_unit_test(commands_name_lost_hosts_and_ranks),
    };
    if (only_one(argc, argv))
        return cmocka_run_group_tests_name("launch.job.rebuild_hosts", waiting, NULL, NULL);
    return cmocka_run_group_tests_name("launch.job.rebuild_hosts", tests, NULL, NULL);
}
