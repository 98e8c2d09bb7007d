/* keeper_test.c -- kills coordinators, on one host and on two, and expects that the jobs continue.
 *
 * Goal:   a coordinator may die between any two of its system calls.  Workers that die before,
 *         during or after the coordinator's death are detected and named once.  The surviving
 *         workers rebuild one group whose results are exact.  Lost workers are replaced, requests
 *         to stop are obeyed, and output is complete.  The job ends as if no coordinator had died.
 *         No process and no descriptor is left behind.  The job ends if coordinators crash
 *         repeatedly.  The keeper's death ends all processes.  A coordinator that is stopped, or
 *         hangs, is killed before any deadline passes, and the job continues in the same way.
 * Method: the linker replaces functions of the C library by the functions below (keeper_test.wrap).
 *         They count the calls made by all coordinators of a job.  One job is run for each call, in
 *         which the coordinator dies at that call.  Other jobs have a seed that selects the calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "launch/job/rebuild_jobs_testing.h"
#include "launch/job/rebuild_testing.h"
#include "launch/job/side_by_side_testing.h"

/* ---- Death of a coordinator -------------------------------------------------------------- */

/* Memory shared by coordinators and the test; NULL in workers. */
typedef struct {
    _Atomic uint32_t calls, deaths;
    uint32_t         last;   /* number of the call at which a coordinator dies; 0: none */
    uint64_t         seed;   /* if not 0, selects the deaths: on average one in `one_of` calls */
    uint32_t         one_of;
    int              number; /* the signal that ends the coordinator; 0: the coordinator hangs */
    bool             always; /* every coordinator dies at its first call */
} fate;

static fate    *plan;
static uint32_t job_timeout_ms; /* 0: the default of the tests */
static pid_t test;

static bool is_coordinator(void)
{
    char name[16];
    return plan != NULL && getpid() != test && prctl(PR_GET_NAME, name) == 0 &&
           strcmp(name, "lockstep-coord") == 0;
}

static void may_be_the_last(void)
{
    if (!is_coordinator())
        return;
    uint32_t call     = atomic_fetch_add(&plan->calls, 1) + 1;
    uint64_t words[2] = { plan->seed, call };
    bool     chosen   = plan->seed != 0 && lki_xxh3(words, sizeof words) % plan->one_of == 0;
    if (call != plan->last && !chosen && !plan->always)
        return;
    atomic_fetch_add(&plan->deaths, 1);
    while (plan->number == 0)
        (void)pause();
    (void)signal(plan->number, SIG_DFL); /* despite a sanitizer's handler */
    (void)raise(plan->number);
}

/* clang-format off */
#define STANDS_BEFORE(type, name, parameters, arguments)                                         \
    type __real_##name parameters;                                                               \
    type __wrap_##name parameters;                                                               \
    type __wrap_##name parameters                                                                \
    {                                                                                            \
        may_be_the_last();                                                                       \
        return __real_##name arguments;                                                          \
    }

STANDS_BEFORE(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags),
              (fd, message, flags))
STANDS_BEFORE(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
STANDS_BEFORE(ssize_t, recv, (int fd, void *to, size_t bytes, int flags), (fd, to, bytes, flags))
STANDS_BEFORE(int, poll, (struct pollfd *fds, nfds_t count, int timeout_ms),
              (fds, count, timeout_ms))
/* clang-format on */

/* ---- Jobs -------------------------------------------------------------------------------- */

/* Waits until the entering rank has joined.  Ranks of its host see the entrant's state directly.
 * Between hosts the flag that announces the entrant may overtake the last sum. */
static void await_entrant(lk_comm *comm)
{
    float     awaited = 0;
    lk_status st      = LK_OK;

    for (; awaited == 0 && st == LK_OK; sleep_us(200)) {
        awaited = lk_comm_awaited(comm);
        st      = lk_all_reduce(comm, &awaited, &awaited, 1, LK_F32, LK_MAX);
    }
    MUST(st == LK_OK || (lk_comm_hosts(comm) > 1 && st == LK_EPEER));
}

/* Runs three ranks; the second dies and is replaced by another process. */
static int work_replace(void)
{
    lk_comm              *comm    = join(), *next;
    const lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 20000 };

    lk_comm_note(comm, 12, "backward");
    if (!lk_enters()) {
        meet(comm);
        if (lk_comm_rank(comm) == 1)
            (void)raise(SIGKILL);
        MUST(lk_barrier(comm) == LK_EPEER);
        comm = go_on(comm, 20000);
        await_entrant(comm);
        MUST(lk_comm_admit(&next, comm, &options) == LK_OK);
        lk_comm_free(comm);
        comm = next;
    }
    MUST(lk_comm_size(comm) == 3 && lk_comm_entered(comm) == 1);
    for (uint32_t rank = 0; rank < 3; rank++)
        MUST(lki_comm_is_fresh(comm, rank) == (lk_comm_world_rank(comm, rank) == 1));
    check_sum(comm, (float[10]){ 0 }, 10);
    meet(comm);
    lk_comm_free(comm);
    return 0;
}

static int work_lines(void)
{
    lk_comm *comm = join();

    for (int i = 0; i < 2000; i++)
        printf("line %d\n", i);
    (void)fflush(stdout);
    meet(comm);
    lk_comm_free(comm);
    return 0;
}

/* Stops the last rank (SIGSTOP) until another process continues it.  In a job of two ranks the
 * first rank is killed before the last rank stops. */
static int work_alone(void)
{
    lk_comm *comm = join();

    if (lk_comm_size(comm) > 1) {
        meet(comm);
        if (lk_comm_rank(comm) == 0)
            (void)raise(SIGKILL);
        MUST(lk_barrier(comm) == LK_EPEER);
        comm = go_on(comm, 20000);
    }
    (void)raise(SIGSTOP);
    lk_comm_free(comm);
    return 0;
}

static pid_t coordinator_of(pid_t keeper)
{
    char  path[64], name[32] = "";
    pid_t found = 0;
    int   pid;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)keeper, (int)keeper);
    FILE *children = fopen(path, "re");
    while (children != NULL && found == 0 && fscanf(children, "%d", &pid) == 1) {
        (void)snprintf(path, sizeof path, "/proc/%d/comm", pid);
        FILE *comm = fopen(path, "re");
        bool  is   = comm != NULL && fgets(name, sizeof name, comm) != NULL &&
                  strcmp(name, "lockstep-coord\n") == 0;
        if (comm != NULL)
            (void)fclose(comm);
        found = is ? (pid_t)pid : 0;
    }
    if (children != NULL)
        (void)fclose(children);
    return found;
}

/* Rank 1 waits, stops the coordinator, and enters a collective that needs the coordinator.  When
 * the coordinator stops, the other ranks have already used up a part of their timeout. */
static int work_starve(uint32_t timeout_ms)
{
    lk_comm  *comm = join();
    lk_arena *arena;

    meet(comm);
    if (lk_comm_rank(comm) == 1) {
        sleep_us(100L * timeout_ms);
        pid_t coordinator = coordinator_of(getppid());
        MUST(coordinator > 0 && kill(coordinator, SIGSTOP) == 0);
    }
    MUST(lk_comm_arena(&arena, comm, "late", 4096) == LK_OK);
    meet(comm);
    lk_comm_free(comm);
    return 0;
}

static uint32_t times_noted(const char *words)
{
    uint32_t times = 0;
    for (const char *at = notes; (at = strstr(at, words)) != NULL; at++)
        times++;
    return times;
}

/* A job, and the outcome that is expected whichever call the coordinator dies at. */
typedef struct {
    const char *mode, *place;
    uint32_t    number, replacements, hosts;
    int         exit_code;
    const char *once[3]; /* notes that must appear exactly once */
} expected;

static const expected jobs[] = {
    { "die", "collective", 2, 0, 1, 0,
      { "was killed by SIGKILL at step 12 in backward", "the group continues with 2 of 3 ranks" } },
    { "die", "answered", 4, 0, 1, 0,
      { "was killed by SIGKILL at step 12 in backward", "the group continues with 2 of 3 ranks" } },
    { "replace", "", 0, 3, 1, 0,
      { "the group continues with 2 of 3 ranks", "the group continues with 3 of 3 ranks" } },
    { "stop", "", 0, 0, 1, 75, { "rank 1 (pid ", "the group continues with 2 of 3 ranks" } },
    { "end", "", 0, 0, 1, 3, { "the group continues with 2 of 3 ranks" } },
    { "die", "collective", 2, 0, 2, 0, /* rank 0 on host 0, ranks 1 and 2 on host 1 */
      { "was killed by SIGKILL at step 12 in backward", "the group continues with 2 of 3 ranks" } },
    { "die", "answered", 1, 0, 2, 0, /* host 0 has no rank left, and still decides */
      { "was killed by SIGKILL at step 12 in backward", "the group continues with 2 of 3 ranks" } },
    { "replace", "", 0, 3, 2, 0,
      { "the group continues with 2 of 3 ranks", "the group continues with 3 of 3 ranks" } },
    { "stop", "", 0, 0, 2, 75, { "rank 1 (host ", "the group continues with 2 of 3 ranks" } },
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

/* Runs the job once with the death that `what` and `number` describe, and checks the outcome. */
static void run_job(const expected *job, const char *what, uint32_t number)
{
    lk_launch_options options = going_on(3);
    uint32_t          open    = entries_of("/proc/self/fd");

    options.replacements    = job->replacements;
    options.hosts           = job->hosts;
    options.timeout_ms      = job_timeout_ms != 0 ? job_timeout_ms : options.timeout_ms;
    atomic_store(&plan->calls, 0);
    atomic_store(&plan->deaths, 0);
    lk_launch_result result = launch(options, job->mode, job->place, job->number);
    uint32_t         deaths = atomic_load(&plan->deaths);
    plan->last = 0;
    plan->seed = 0;
    if (result.exit_code != job->exit_code)
        fail_msg("%s %s, %s %u: exit code %d: %s\nnotes:\n%s", job->mode, job->place, what, number,
                 result.exit_code, result.cause, notes);
    for (size_t i = 0; i < 3 && job->once[i] != NULL; i++)
        if (times_noted(job->once[i]) != 1)
            fail_msg("%s %s, %s %u: '%s' is noted %u times:\n%s", job->mode, job->place, what,
                     number, job->once[i], times_noted(job->once[i]), notes);
    if (times_noted("the coordinator ") != deaths)
        fail_msg("%s %s, %s %u: %u deaths, and of %u coordinators there are notes:\n%s", job->mode,
                 job->place, what, number, deaths, times_noted("the coordinator "), notes);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(entries_of("/proc/self/fd"), open);
}

/* ---- Tests ------------------------------------------------------------------------------- */

/* Returns the number of calls to skip between two tries. */
static uint32_t skipped(const expected *job)
{
    if (lki_brief())
        return job->hosts > 1 ? 29 : 19;
    if (LKI_SANITIZED || !lki_thorough())
        return job->hosts > 1 ? 14 : 7;
    return job == jobs ? 0 : job->hosts > 1 ? 5 : 1;
}

static void a_coordinator_may_die_at_each_system_call(void **state)
{
    (void)state;
    for (size_t j = 0; j < JOBS; j++) {
        uint32_t died = 1, call = 0;
        while (died != 0) { /* ends when the coordinators make fewer than `last` calls, so none has
                             * died */
            plan->last = ++call;
            run_job(&jobs[j], "call", call);
            died = atomic_load(&plan->deaths);
            call += skipped(&jobs[j]);
        }
        print_message("%s on %u: %u calls\n", jobs[j].mode, jobs[j].hosts, call);
        assert_true(call > 20);
    }
}

static void coordinators_may_die_repeatedly(void **state)
{
    uint32_t deaths = 0;

    (void)state;
    for (uint32_t seed = 1; seed <= (LKI_SANITIZED ? 2 : lki_thorough() ? 6 : 3); seed++)
        for (size_t j = 0; j < JOBS; j++) {
            plan->seed   = seed;
            plan->one_of = 15 + 5 * (uint32_t)seed;
            run_job(&jobs[j], "seed", seed);
            deaths += atomic_load(&plan->deaths);
        }
    print_message("%u coordinators were killed\n", deaths);
    assert_true(deaths > 10);
}

/* Stops or hangs the coordinator once the workers have connected. */
static void check_inactive_coordinator(int number, const char *how)
{
    char words[160];

    job_timeout_ms = LKI_SANITIZED ? 12000 : 8000;
    (void)snprintf(words, sizeof words, ") has %s for %g s, and is killed; another takes over, "
                   "and the workers continue", how, job_timeout_ms / 2e3);
    plan->number = number;
    plan->last   = 40;
    run_job(&jobs[0], "stopped at call", 40);
    assert_noted(words);
}

static void a_stopped_coordinator_is_killed(void **state)
{
    (void)state;
    check_inactive_coordinator(SIGSTOP, "been stopped (by SIGSTOP or a debugger)");
}

static void a_hanging_coordinator_is_killed(void **state)
{
    (void)state;
    check_inactive_coordinator(0, "done nothing");
}

/* Stops the coordinator while ranks wait for it.  Checks that no rank gives up, not even the rank
 * that has waited longest. */
static void ranks_wait_for_a_stopped_coordinator(void **state)
{
    lk_launch_options options = going_on(3);

    (void)state;
    options.timeout_ms = LKI_SANITIZED ? 16000 : 10000;
    assert_good(launch(options, "starve", "", options.timeout_ms), "starve", "", 0);
    assert_noted(LKI_SANITIZED ? "for 8 s, and is killed" : "for 5 s, and is killed");
}

static void repeated_coordinator_crashes_end_the_job(void **state)
{
    lk_launch_options options = going_on(2);
    lk_launch_result  result;
    char              word[] = "worker", mode[] = "endure";
    char             *argv[] = { self, word, mode, NULL };

    (void)state;
    options.argv = argv;
    plan->always = true;
    plan->number = SIGSEGV;
    assert_int_equal(lk_launch(&options, &result), LK_EPEER);
    assert_string_equal(lk_error_last()->message,
                        "the coordinator was killed by SIGSEGV, as the 5 before it did");
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    plan->always = false;
    plan->number = SIGKILL;
}

static void all_processes_end_with_the_keeper(void **state)
{
    char line[8192];

    (void)state;
    (void)snprintf(line, sizeof line, "%s run -n 2 --on-failure continue -- sh -c "
                   "'[ $RANK = 0 ] && kill -9 $PPID; cat <&9' 9<&0 2>&1", LK_TEST_COMMAND);
    assert_int_equal(shell(line), 128 + SIGKILL); /* shell() returns only when no process has the
                                                   * pipe open */
}

/* Checks that the output has a line of each rank, whether a coordinator dies or not. */
static void output_is_complete_despite_a_dead_coordinator(void **state)
{
    static char line[5 * sizeof self];

    (void)state;
    (void)snprintf(line, sizeof line, "%s output %s | cksum; %s output %s kill | cksum", self, self,
                   self, self);
    assert_int_equal(shell(line), 0);
    char *second = strchr(said, '\n') + 1;
    assert_int_equal(second - said, strlen(second));
    assert_memory_equal(said, second, strlen(second));
}

/* Runs as "output PROGRAM [kill]": launches a job whose ranks print lines.  The test checks the
 * output of this process. */
static int print_lines(bool kills)
{
    char              word[] = "worker", mode[] = "lines";
    char             *argv[]  = { self, word, mode, NULL };
    lk_launch_options options = going_on(1);
    lk_launch_result  result;

    options.argv          = argv;
    options.prefix_output = true;
    plan->seed            = kills ? 1 : 0;
    plan->one_of          = 5;
    lk_status st          = lk_launch(&options, &result);
    return st == LK_OK && !result.failed && (atomic_load(&plan->deaths) > 0) == kills ? 0 : 1;
}

/* Continues the stopped worker once a note has reported that the worker is stopped. */
static void take_note_and_wake(void *context, const char *text)
{
    const char *pid = strstr(text, "kill -CONT ");

    take_note(context, text);
    if (pid != NULL)
        (void)kill((pid_t)atoi(pid + strlen("kill -CONT ")), SIGCONT);
}

static void stop_the_last_worker(uint32_t hosts)
{
    lk_launch_options options = going_on(hosts);

    options.hosts      = hosts;
    options.timeout_ms = 6000;
    options.note       = take_note_and_wake;
    assert_good(launch(options, "alone", "", 0), "alone", "", hosts);
    assert_noted(hosts == 1 ? "rank 0 (pid " : "rank 1 (host host1, pid ");
    assert_noted(" has been stopped (by SIGSTOP or a debugger) for 6 s, and nobody else is left to "
                 "continue: kill -CONT ");
    assert_int_equal(times_noted("stopped"), 1);
}

static void a_stopped_only_worker_is_reported(void **state)
{
    (void)state;
    stop_the_last_worker(1);
}

static void a_stopped_last_worker_of_two_hosts_is_reported(void **state)
{
    (void)state;
    stop_the_last_worker(2);
}

/* clang-format off */
#define WAITING(X)                                                                               \
    X(a_stopped_coordinator_is_killed), X(a_hanging_coordinator_is_killed),                      \
    X(ranks_wait_for_a_stopped_coordinator), X(a_stopped_only_worker_is_reported),               \
    X(a_stopped_last_worker_of_two_hosts_is_reported)
#define NAME(test) (char[]){ #test }
/* clang-format on */

static void stopped_processes_are_detected(void **state)
{
    char *const names[] = { WAITING(NAME) };

    (void)state;
    run_side_by_side(self, names, sizeof names / sizeof names[0]);
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "worker") == 0)
        return strcmp(argv[2], "replace") == 0 ? work_replace()
               : strcmp(argv[2], "lines") == 0 ? work_lines()
               : strcmp(argv[2], "alone") == 0 ? work_alone()
               : strcmp(argv[2], "starve") == 0 ? work_starve((uint32_t)atoi(argv[4]))
                                                : work(argc, argv);
    find_self();
    test = getpid();
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan == MAP_FAILED)
        return 1;
    plan->number = SIGKILL;
    if (argc >= 3 && strcmp(argv[1], "output") == 0)
        return print_lines(argc > 3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_coordinator_may_die_at_each_system_call),
        cmocka_unit_test(coordinators_may_die_repeatedly),
        cmocka_unit_test(stopped_processes_are_detected),
        cmocka_unit_test(repeated_coordinator_crashes_end_the_job),
        cmocka_unit_test(all_processes_end_with_the_keeper),
        cmocka_unit_test(output_is_complete_despite_a_dead_coordinator),
    };
    const struct CMUnitTest waiting[] = { WAITING(cmocka_unit_test) };
    if (only_one(argc, argv))
        return cmocka_run_group_tests_name("launch.keeper.keeper", waiting, NULL, NULL);
    return cmocka_run_group_tests_name("launch.keeper.keeper", tests, NULL, NULL);
}
