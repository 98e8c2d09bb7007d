/* hosts_test.c -- asynchronous training over several hosts.
 *
 * Goal:    a simulated schedule has the same bits on any hosts.  A live run over hosts has the bits
 *          of its replay on one host and on others, also if it was interrupted.
 * Method:  the crew of other strategies on simulated hosts, whose ranks dawdle.
 * Control: two lines that are exchanged have other bits.
 */
#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/schedule_testing.h"

enum { LEAVES = 8, STEPS = 4, LINES = STEPS * LEAVES, LINE = 49, BYTES = 8192 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

static const hosted alone = { .hosts = 0 };

static const hosted shapes[] = {
    { .hosts = 2, .each = 1, .seed = 1 },
    { .hosts = 2, .each = 2, .fewer_first = 1, .seed = 2 },
    { .hosts = 3, .each = 2, .fewer = 1, .fewer_first = 1, .seed = 3 },
};

static const lk_async kinds[] = {
    { .compensation = 0.04 },
    { .aggregate = 4 },
    { .groups = 4, .rate_by_staleness = true, .bounded = true, .staleness = 1 },
    { .groups = 8, .aggregate = 2, .bounded = true, .in_versions = true, .staleness = 4 },
};

enum { SHAPES = sizeof shapes / sizeof shapes[0], KINDS = sizeof kinds / sizeof kinds[0] };

typedef enum { VIRTUAL, LIVE, REPLAY } how;

/* Prepares a crew on hosts or, without any, of `ranks` ranks on one. */
static lkt_crew crew_of(lk_async *async, how kind, hosted hosts, uint32_t ranks)
{
    lkt_crew w         = lkt_make_crew(model, "ddp", LEAVES,
                                       hosts.hosts > 0 ? hosted_size(hosts) : ranks);
    async->struct_size = sizeof *async;
    async->steps       = STEPS;
    async->record      = kind == LIVE ? path : NULL;
    async->replay      = kind == REPLAY ? path : NULL;
    w.steps            = STEPS;
    w.hosts            = hosts;
    w.at_term          = lkt_dawdle;
    w.options.unused   = LK_UNUSED_ZERO;
    w.options.async    = async;
    return w;
}

static void hash_of(const lk_async *async, how kind, hosted hosts, uint32_t ranks, char hash[65])
{
    lk_async mine = *async;
    lkt_crew w    = crew_of(&mine, kind, hosts, ranks);
    lkt_run_crew(&w, hash);
}

static void simulated_schedules_have_the_same_bits(void **state)
{
    char want[65], got[65];
    (void)state;
    for (uint32_t i = 0; i < KINDS; i++) {
        lk_async drawn = kinds[i];
        drawn.delays   = LK_DELAYS_EXPONENTIAL;
        hash_of(&drawn, VIRTUAL, alone, 1, want);
        hash_of(&drawn, VIRTUAL, shapes[i % SHAPES], 0, got);
        assert_string_equal(got, want);
    }
}

static void replays_have_the_bits_of_live_runs(void **state)
{
    char want[65], got[65];
    (void)state;
    for (uint32_t i = 0; i < KINDS; i += lki_brief() ? 3 : 1) {
        (void)unlink(path);
        hash_of(&kinds[i], LIVE, shapes[i % SHAPES], 0, want);
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            hash_of(&kinds[i], REPLAY, alone, ranks, got);
            assert_string_equal(got, want);
        }
        hash_of(&kinds[i], REPLAY, shapes[(i + 1) % SHAPES], 0, got);
        assert_string_equal(got, want);
    }
}

/* Without staleness a live run is ddp, whatever arrives first. */
static void without_staleness_it_is_ddp(void **state)
{
    const lk_async all = { .aggregate = LEAVES, .bounded = true };
    lkt_crew       w   = lkt_make_crew(model, "ddp", LEAVES, 2);
    char           want[65], got[65];
    (void)state;
    (void)unlink(path);
    w.steps          = STEPS;
    w.options.unused = LK_UNUSED_ZERO;
    lkt_run_crew(&w, want);
    hash_of(&all, LIVE, shapes[1], 0, got);
    assert_string_equal(got, want);
}

/* Removes all lines but some from a schedule, as a run that is killed leaves it.  The run that goes
 * on uses each task once, on the same hosts or on others. */
static void an_interrupted_run_goes_on(void **state)
{
    static char text[BYTES];
    char        want[65], got[65];
    (void)state;
    for (int keeps = 5; keeps < 20; keeps += 5) {
        const lk_async *async = &kinds[keeps / 5 % 2];
        (void)unlink(path);
        hash_of(async, LIVE, keeps == 10 ? alone : shapes[2], 3, want);
        char *lines = read_schedule(text, sizeof text);
        lines[keeps * LINE] = '\0';
        write_schedule(text);
        hash_of(async, LIVE, shapes[keeps / 5 - 1], 0, want);
        lines = read_schedule(text, sizeof text);
        assert_int_equal(strlen(lines), LINES * LINE);
        unsigned used[LINES] = { 0 };
        for (int i = 0; i < LINES; i++) {
            const unsigned long task = strtoul(lines + i * LINE, NULL, 10);
            assert_true(task < LINES);
            used[task]++;
        }
        for (int i = 0; i < LINES; i++)
            assert_int_equal(used[i], 1);
        hash_of(async, REPLAY, alone, 2, got);
        assert_string_equal(got, want);
    }
}

/* Exchanges the last two lines of a schedule.  Expects that a host names the gradient. */
static void lines_cannot_be_exchanged(void **state)
{
    static lkt_member members[LKT_RANKS_MAX];
    static char       text[BYTES];
    lk_async          async = kinds[0];
    char              hash[65];
    (void)state;
    (void)unlink(path);
    hash_of(&async, LIVE, shapes[0], 0, hash);
    char *last = read_schedule(text, sizeof text) + (LINES - 2) * LINE;
    exchange(last, last + LINE, LINE);
    write_schedule(text);
    lkt_crew w = crew_of(&async, REPLAY, shapes[1], 0);
    for (uint32_t r = 0; r < w.ranks; r++)
        members[r] = (lkt_member){ .crew = &w };
    assert_true(hosted_all(w.hosts, lkt_member_on_host, members));
    uint32_t named = 0; /* others learn that the group has failed */
    for (uint32_t r = 0; r < w.ranks; r++) {
        assert_int_not_equal(members[r].status, LK_OK);
        named += members[r].status == LK_EMISMATCH &&
                 strstr(members[r].failure.message, "the gradient of task ") != NULL;
    }
    assert_true(named > 0);
}

static void what_it_cannot_do_is_refused(void **state)
{
    static const struct {
        lk_async    async;
        bool        duplicate, survives;
        const char *text;
    } mistakes[] = {
        { { .groups = 4 }, true, false, "over several hosts computes no task twice" },
        { { .groups = 4 }, false, true, "over several hosts cannot go on after a loss" },
        { { .consistency = LK_CONSISTENCY_SPAN, .compensation = 0.04 }, false, false,
          "leave out `async.compensation`" },
    };
    static lkt_member members[LKT_RANKS_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        lk_async mine = mistakes[i].async;
        lkt_crew w    = crew_of(&mine, mistakes[i].duplicate ? VIRTUAL : LIVE, shapes[0], 0);
        w.options.duplicate = mistakes[i].duplicate;
        w.options.survives  = mistakes[i].survives;
        for (uint32_t r = 0; r < w.ranks; r++)
            members[r] = (lkt_member){ .crew = &w };
        assert_true(hosted_all(w.hosts, lkt_member_on_host, members));
        assert_int_equal(members[0].status, LK_EUNSUPPORTED);
        assert_non_null(strstr(members[0].failure.message, mistakes[i].text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulated_schedules_have_the_same_bits),
        cmocka_unit_test(replays_have_the_bits_of_live_runs),
        cmocka_unit_test(without_staleness_it_is_ddp),
        cmocka_unit_test(an_interrupted_run_goes_on),
        cmocka_unit_test(lines_cannot_be_exchanged),
        cmocka_unit_test(what_it_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, make_schedule, remove_schedule);
}
