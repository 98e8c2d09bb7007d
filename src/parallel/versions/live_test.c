/* live_test.c -- live asynchronous training, and replays of its schedule.
 *
 * Goal:    a replay has the bits of the live run for any ranks, also if the live run was
 *          interrupted and has gone on.  Each task is used once.
 * Method:  the crew of other strategies, whose ranks dawdle, and files of its schedules, which are
 *          also cut and edited.
 * Control: two lines that are exchanged have other bits, or are refused.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "parallel/crew_testing.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/schedule_testing.h"

enum { LEAVES = 8, STEPS = 5, BYTES = 8192, LINE = 49 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

static const lk_async schedules[] = {
    { .struct_size = sizeof(lk_async) },
    { .groups = 4, .rate_by_staleness = true },
    { .aggregate = 4 },
    { .aggregate = 2, .bounded = true, .staleness = 1 },
    { .compensation = 0.04 },
    { .groups = 4, .bounded = true, .in_versions = true, .staleness = 3 },
    { .groups = 4, .aggregate = 2, .bounded = true, .in_versions = true, .staleness = 1 },
    { .groups = 4, .aggregate = 2, .bounded = true, .in_versions = true, .drops_late = true },
};

/* Prepares a crew that records a schedule, or replays it. */
static void prepare(lkt_crew *w, lk_async *async, uint32_t ranks, bool replays)
{
    *w                 = lkt_make_crew(model, "ddp", LEAVES, ranks);
    async->struct_size = sizeof *async;
    async->steps       = STEPS;
    async->record      = replays ? NULL : path;
    async->replay      = replays ? path : NULL;
    w->steps           = STEPS;
    w->at_term         = lkt_dawdle;
    w->options.unused  = LK_UNUSED_ZERO;
    w->options.async   = async;
}

static void hash_of(const lk_async *async, uint32_t ranks, bool replays, char hash[65])
{
    lkt_crew w;
    lk_async mine = *async;
    prepare(&w, &mine, ranks, replays);
    lkt_run_crew(&w, hash);
}

/* Runs what must fail.  Returns its message. */
static const char *run_fails(const lk_async *async, bool replays, lk_status status)
{
    static lkt_member member;
    lkt_crew          w;
    lk_async          mine = *async;
    prepare(&w, &mine, 1, replays);
    member = (lkt_member){ .crew = &w };
    lkt_run_on_one_host(&w, &member);
    if (member.status != status)
        fail_msg("%d: %s", member.status, member.failure.message);
    return member.failure.message;
}

static const char *replay_fails(const lk_async *async, lk_status status)
{
    return run_fails(async, true, status);
}

/* ---- Files of schedules -------------------------------------------------------------------- */

/* Expects that the staleness of no gradient exceeds a bound in versions. */
static void check_bound(const char *lines, const lk_async *async)
{
    const uint32_t aggregate = async->aggregate > 0 ? async->aggregate : 1;
    for (uint32_t at = 0; at < STEPS * async->groups; at++)
        assert_true(at / aggregate - strtoul(lines + at * LINE + 12, NULL, 10) <=
                    async->staleness);
}

/* ---- Replays ------------------------------------------------------------------------------- */

static void replays_have_the_same_bits(void **state)
{
    static char text[BYTES];
    char        want[65], got[65];
    (void)state;
    for (uint32_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        (void)unlink(path);
        hash_of(&schedules[i], 2 + i % 3, false, want);
        if (schedules[i].in_versions)
            check_bound(read_schedule(text, sizeof text), &schedules[i]);
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            hash_of(&schedules[i], ranks, true, got);
            assert_string_equal(got, want);
        }
    }
}

/* A live run whose groups wait for all others is ddp, whatever arrives first. */
static void without_staleness_it_is_ddp(void **state)
{
    const lk_async all = { .aggregate = LEAVES, .bounded = true };
    lkt_crew       w   = lkt_make_crew(model, "ddp", LEAVES, 2);
    char           want[65], got[65];
    (void)state;
    w.steps          = STEPS;
    w.options.unused = LK_UNUSED_ZERO;
    lkt_run_crew(&w, want);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        (void)unlink(path);
        hash_of(&all, ranks, false, got);
        assert_string_equal(got, want);
    }
}

/* Removes all lines but some from a schedule, as a run that is killed leaves it, and a part of the
 * next one.  The run that goes on repeats these, uses each task once, and can be replayed. */
static void an_interrupted_run_goes_on(void **state)
{
    static char before[BYTES], after[BYTES];
    char        want[65], got[65];
    (void)state;
    for (int keeps = 0; keeps < 20; keeps += 3) {
        const lk_async *async = &schedules[keeps % 2 == 0 ? 3 : 0];
        (void)unlink(path);
        hash_of(async, 4, false, want);
        char *lines = read_schedule(before, sizeof before);
        lines[keeps * LINE + 5] = '\0';
        write_schedule(before);
        hash_of(async, 3, false, want);
        char *more = read_schedule(after, sizeof after);
        assert_memory_equal(after, before, (size_t)(lines - before) + (size_t)keeps * LINE);
        assert_int_equal(strlen(more), STEPS * LEAVES * LINE);
        unsigned used[STEPS * LEAVES] = { 0 };
        for (int i = 0; i < STEPS * LEAVES; i++) {
            const unsigned long task = strtoul(more + i * LINE, NULL, 10);
            assert_true(task < STEPS * LEAVES);
            used[task]++;
        }
        for (int i = 0; i < STEPS * LEAVES; i++)
            assert_int_equal(used[i], 1);
        hash_of(async, 1, true, got);
        assert_string_equal(got, want);
    }
}

/* Waits until `count` tasks have begun. */
static void await_begun(const lki_versions *v, uint64_t count)
{
    const struct timespec pause = { .tv_nsec = 100000 };
    while (atomic_load(&v->arrivals->begun) < count)
        (void)nanosleep(&pause, NULL);
}

/* Waits until both ranks have a task that reads version 0 or, with the third task, until the rank
 * of the other one has applied both gradients and has begun the fourth.  So all later tasks read
 * both. */
static void begin_together(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                           uint32_t term)
{
    const lki_versions *v = p->versions;
    (void)w;
    (void)turn;
    (void)term;
    if (step == 0)
        await_begun(v, v->task.task == 2 ? 4 : 2);
}

/* Waits until both ranks have one of the last two tasks. */
static void end_together(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                         uint32_t term)
{
    (void)w;
    (void)step;
    (void)turn;
    (void)term;
    if (p->versions->task.task == STEPS * LEAVES - 2)
        await_begun(p->versions, STEPS * LEAVES);
}

static uint64_t discarded; /* by a run */

static void count_discarded(lkt_crew *w, lk_parallel *p, uint32_t step,
                            const lk_step_result *result)
{
    (void)w;
    (void)step;
    (void)result;
    if (p->rank == 0)
        discarded += lk_parallel_async_step(p).dropped;
}

/* Waits until three ranks have tasks that read version 0, of which two gradients make version 1. */
static void begin_three(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                        uint32_t term)
{
    (void)w;
    (void)step;
    (void)turn;
    (void)term;
    if (p->versions->options.record != NULL && p->versions->task.task < 3)
        await_begun(p->versions, 3);
}

/* Runs with one backup worker, or two, and repeats that without the gradients that came late. */
static void late_gradients_are_discarded(void **state)
{
    static char    text[BYTES];
    const lk_async backups = { .groups = 4, .aggregate = 2, .bounded = true, .in_versions = true,
                               .drops_late = true };
    char           want[65], got[65];
    (void)state;
    (void)unlink(path);
    for (uint32_t ranks = 3; ranks > 0; ranks--) {
        lkt_crew w;
        lk_async async = backups;
        prepare(&w, &async, ranks, ranks < 3);
        w.at_term   = begin_three;
        w.at_result = count_discarded;
        discarded   = 0;
        lkt_run_crew(&w, ranks == 3 ? want : got);
        assert_true(discarded > 0);
        if (ranks < 3)
            assert_string_equal(got, want);
    }
    const char *lines = read_schedule(text, sizeof text);
    uint64_t    most  = 0;
    for (int i = 0; i < STEPS * 4; i++)
        most = lki_max(most, strtoul(lines + i * LINE, NULL, 10));
    assert_int_equal(most + 1, STEPS * 4 + discarded); /* those after the last do not count */
}

static void the_last_lines_cannot_be_exchanged(void **state)
{
    static char text[BYTES];
    lk_async    async = schedules[0];
    lkt_crew    w;
    char        want[65];
    (void)state;
    (void)unlink(path);
    prepare(&w, &async, 2, false);
    w.at_term = end_together;
    lkt_run_crew(&w, want);
    char *last = read_schedule(text, sizeof text) + (STEPS * LEAVES - 2) * LINE;
    exchange(last, last + LINE, LINE);
    write_schedule(text);
    assert_non_null(strstr(replay_fails(&schedules[0], LK_EMISMATCH), "the gradient of task "));
}

static void lines_cannot_be_exchanged(void **state)
{
    static char text[BYTES];
    lk_async    async = schedules[0];
    lkt_crew    w;
    char        want[65];
    (void)state;
    (void)unlink(path);
    prepare(&w, &async, 2, false);
    w.at_term = begin_together;
    lkt_run_crew(&w, want);
    char *lines = read_schedule(text, sizeof text);
    exchange(lines, lines + LINE, LINE);
    write_schedule(text);
    assert_non_null(strstr(replay_fails(&schedules[0], LK_EMISMATCH), "the gradient of task "));
    exchange(lines, lines + LINE, LINE);
    int later = 3 + LEAVES;
    while (strtoul(lines + later * LINE + 12, NULL, 10) <= 3)
        later++;
    exchange(lines + 3 * LINE, lines + later * LINE, LINE);
    write_schedule(text);
    assert_non_null(strstr(replay_fails(&schedules[0], LK_EFORMAT), "line 6: the task reads"));
}

/* Replays without a rank's gradient as it was.  Expects its task. */
static void another_gradient_is_named(void **state)
{
    static char text[BYTES];
    char        want[65], name[64];
    (void)state;
    (void)unlink(path);
    hash_of(&schedules[2], 2, false, want);
    char *line = read_schedule(text, sizeof text) + 9 * LINE;
    (void)snprintf(name, sizeof name, "the gradient of task %lu is not the one",
                   strtoul(line, NULL, 10));
    line[LINE - 2] = line[LINE - 2] == '0' ? '1' : '0';
    write_schedule(text);
    const char *message = replay_fails(&schedules[2], LK_EMISMATCH);
    assert_non_null(strstr(message, name));
    assert_non_null(strstr(message, "in line 12: "));
}

/* Lets the rank with gradient 9 wait until another rank has handed over gradient 10, or failed. */
static void let_the_next_go_first(lkt_crew *w, lk_parallel *p, uint32_t step,
                                  lk_parallel_turn turn, uint32_t term)
{
    const struct timespec pause = { .tv_nsec = 100000 };
    const lki_versions   *v     = p->versions;
    (void)w;
    (void)step;
    (void)turn;
    (void)term;
    while (v->at == 9 && !lki_claim_is(v, 10, LKI_CLAIM_DONE) &&
           atomic_load(&v->common->failed) != LKI_FAILURE_KNOWN)
        (void)nanosleep(&pause, NULL);
}

/* Changes the hash of a line, with which the hash of the next one does not fit either.  Expects the
 * first one, though it is compared last. */
static void the_first_line_that_differs_is_named(void **state)
{
    static char        text[BYTES];
    static lkt_member  members[2];
    lk_async           async = schedules[2];
    lkt_crew           w;
    char               hash[65];
    (void)state;
    (void)unlink(path);
    hash_of(&async, 1, false, hash); /* gradients 8 to 11 read the same version */
    char *line     = read_schedule(text, sizeof text) + 9 * LINE;
    line[LINE - 2] = line[LINE - 2] == '0' ? '1' : '0';
    write_schedule(text);
    prepare(&w, &async, 2, true);
    w.at_term = let_the_next_go_first;
    for (int r = 0; r < 2; r++)
        members[r] = (lkt_member){ .crew = &w };
    lkt_run_on_one_host(&w, members);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(members[r].status, LK_EMISMATCH);
        assert_non_null(strstr(members[r].failure.message, "in line 12: "));
    }
}

/* Locks the file, as a run does that writes it.  Expects that no other run does. */
static void two_runs_cannot_write_one_file(void **state)
{
    static lkt_member member;
    lkt_crew          w;
    lk_async          async = schedules[0];
    const int         fd    = open(path, O_RDWR);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    prepare(&w, &async, 1, false);
    member = (lkt_member){ .crew = &w };
    lkt_run_on_one_host(&w, &member);
    assert_int_equal(member.status, LK_EINVAL);
    assert_non_null(strstr(member.failure.message, "another run is writing the schedule "));
    assert_int_equal(close(fd), 0);
}

/* Changes one element after the other, of gradients with few and many pieces. */
static void each_element_changes_the_hash(void **state)
{
    static lki_layout   layout;
    static lk_parallel  one = { .layout = &layout };
    static lki_versions v   = { .model = &one };
    static float        values[70000];
    const lki_gradients sums     = { .gradients = values, .states = values };
    static const size_t counts[] = { 1, 1023, 5000, 70000 };
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        layout.grad_elements = one.width = counts[c];
        const uint64_t hash  = lki_gradient_hash(&v, &sums);
        for (size_t i = 0; i < counts[c]; i += counts[c] > 10000 ? 129 : 1) {
            values[i] = 1;
            assert_true(lki_gradient_hash(&v, &sums) != hash);
            values[i] = 0;
        }
    }
}

/* ---- Files that are refused ---------------------------------------------------------------- */

static void damaged_files_are_refused(void **state)
{
    static const struct {
        const char *line, *text;
    } mistakes[] = {
        { "           0            0     8 0000000000000000\n", "no such group" },
        { "           0            4     0 0000000000000000\n", "a version that is made later" },
        { "           0            0     0 000000000000000x\n", "is not \"TASK READS GROUP" },
        { "         999            0     5 0000000000000000\n", "too many tasks" },
    };
    static char text[BYTES], mine[BYTES];
    char        hash[65];
    (void)state;
    (void)unlink(path);
    hash_of(&schedules[0], 1, false, hash);
    char *lines = read_schedule(text, sizeof text);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        memcpy(mine, text, BYTES);
        memcpy(mine + (lines - text) + 3 * LINE, mistakes[i].line, LINE);
        write_schedule(mine);
        const char *message = replay_fails(&schedules[0], LK_EFORMAT);
        if (strstr(message, mistakes[i].text) == NULL || strstr(message, "line 6: ") == NULL)
            fail_msg("%s", message);
    }
    memcpy(mine, text, BYTES);
    memcpy(mine + (lines - text) + 20 * LINE, lines, 12); /* the task of the first line */
    write_schedule(mine);
    assert_non_null(strstr(replay_fails(&schedules[0], LK_EFORMAT), "line 23: the task has"));
    write_schedule(text);
    assert_non_null(strstr(replay_fails(&schedules[1], LK_EMISMATCH), "not a schedule of"));
    lines[-2]++; /* the name of the last column */
    write_schedule(text);
    assert_non_null(strstr(replay_fails(&schedules[0], LK_EFORMAT), "line 2 is not \"   "));
    lines[-2]--;
    lines[STEPS * LEAVES * LINE - 2 * LINE] = '\0';
    write_schedule(text);
    assert_non_null(strstr(replay_fails(&schedules[0], LK_EINVAL), "the gradients of 4 steps"));
}

/* Ends a file with what is no line.  What a killed run has left of one is left out. */
static void a_last_line_of_something_else_is_refused(void **state)
{
    static const struct {
        const char *tail, *text;
    } tails[] = { { "hello\n", "line 43: it has another length" },
                  { "hello", "line 43: it is not the beginning of a line" },
                  { "          40           39", NULL } };
    static char text[BYTES];
    char        want[65], got[65];
    (void)state;
    (void)unlink(path);
    hash_of(&schedules[0], 2, false, want);
    char *end = read_schedule(text, sizeof text) + STEPS * LEAVES * LINE;
    for (int i = 0; i < 3; i++)
        for (int replays = 0; replays < 2; replays++) {
            (void)snprintf(end, 32, "%s", tails[i].tail);
            write_schedule(text);
            if (tails[i].text == NULL) {
                hash_of(&schedules[0], 1, replays > 0, got);
                assert_string_equal(got, want);
                continue;
            }
            const char *message = run_fails(&schedules[0], replays > 0, LK_EFORMAT);
            if (strstr(message, tails[i].text) == NULL)
                fail_msg("%s", message);
        }
}

/* ---- Times --------------------------------------------------------------------------------- */

static double paces[3][STEPS]; /* by rank and step */

static void keep_pace(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)w;
    (void)result;
    paces[p->rank][step] = lk_parallel_async_step(p).seconds;
}

/* The time of a step does not depend on when a rank finishes it, which may finish several at
 * once. */
static void ranks_agree_on_the_time_of_a_step(void **state)
{
    lkt_crew w;
    lk_async async = schedules[0];
    char     hash[65];
    (void)state;
    (void)unlink(path);
    prepare(&w, &async, 3, false);
    w.at_result = keep_pace;
    lkt_run_crew(&w, hash);
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t r = 0; r < 3; r++) {
            assert_true(step == 0 ? paces[r][step] <= 0 : paces[r][step] > 0);
            assert_memory_equal(&paces[r][step], &paces[0][step], sizeof paces[0][0]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_have_the_same_bits),
        cmocka_unit_test(without_staleness_it_is_ddp),
        cmocka_unit_test(an_interrupted_run_goes_on),
        cmocka_unit_test(lines_cannot_be_exchanged),
        cmocka_unit_test(late_gradients_are_discarded),
        cmocka_unit_test(the_last_lines_cannot_be_exchanged),
        cmocka_unit_test(another_gradient_is_named),
        cmocka_unit_test(the_first_line_that_differs_is_named),
        cmocka_unit_test(two_runs_cannot_write_one_file),
        cmocka_unit_test(each_element_changes_the_hash),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(a_last_line_of_something_else_is_refused),
        cmocka_unit_test(ranks_agree_on_the_time_of_a_step),
    };
    return cmocka_run_group_tests(tests, make_schedule, remove_schedule);
}
