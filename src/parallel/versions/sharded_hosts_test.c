/* sharded_hosts_test.c -- live asynchronous training with shards over several hosts.
 *
 * Goal:    a live run over hosts has the bits of its replays on one host and on others, also if it
 *          was interrupted on other hosts, or goes on from a checkpoint.
 * Method:  a crew on simulated hosts, whose ranks dawdle, and the files of its schedules.
 * Control: a line that was changed is named.
 */
#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/schedule_testing.h"

enum { LEAVES = 8, STEPS = 4, LINES = STEPS * LEAVES, BYTES = 16384 };

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
    { .consistency = LK_CONSISTENCY_SHARD, .shards = 3 },
    { .consistency = LK_CONSISTENCY_SPAN, .groups = 4, .rate_by_staleness = true },
    { .consistency = LK_CONSISTENCY_SHARD, .shards = 2, .bounded = true, .staleness = 1 },
};

enum { SHAPES = sizeof shapes / sizeof shapes[0], KINDS = sizeof kinds / sizeof kinds[0] };

/* Prepares a crew on hosts or, without any, of `ranks` ranks on one.  An update changes the
 * gradients, which host 0 still sends then. */
static lkt_crew crew_of(lk_async *async, bool replays, hosted hosts, uint32_t ranks)
{
    lkt_crew w           = lkt_make_crew(model, "ddp", LEAVES,
                                         hosts.hosts > 0 ? hosted_size(hosts) : ranks);
    async->struct_size   = sizeof *async;
    async->steps         = STEPS;
    async->record        = replays ? NULL : path;
    async->replay        = replays ? path : NULL;
    w.steps              = STEPS;
    w.hosts              = hosts;
    w.at_term            = lkt_dawdle;
    w.options.clip_norm  = 0;
    w.options.clip_value = 0.01;
    w.options.unused     = LK_UNUSED_ZERO;
    w.options.async      = async;
    return w;
}

static void hash_of(const lk_async *async, bool replays, hosted hosts, uint32_t ranks,
                    char hash[65])
{
    lk_async mine = *async;
    lkt_crew w    = crew_of(&mine, replays, hosts, ranks);
    lkt_run_crew(&w, hash);
}

static void replays_have_the_bits_of_live_runs(void **state)
{
    char want[65], got[65];
    (void)state;
    for (uint32_t i = 0; i < KINDS; i += lki_brief() ? 2 : 1) {
        (void)unlink(path);
        hash_of(&kinds[i], false, shapes[i], 0, want);
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            hash_of(&kinds[i], true, alone, ranks, got);
            assert_string_equal(got, want);
        }
        hash_of(&kinds[i], true, shapes[(i + 1) % SHAPES], 0, got);
        assert_string_equal(got, want);
    }
}

/* Leaves what a run on one host, or on hosts, had written when it was killed.  Each task is used
 * once by the run that goes on, which takes the lines as they are. */
static void an_interrupted_run_goes_on(void **state)
{
    static const struct {
        uint64_t keeps;
        uint32_t from, to; /* numbers of shapes; SHAPES: one host */
    } cases[] = { { 13, SHAPES, 1 }, { 19, 2, SHAPES }, { 21, SHAPES, 0 }, { 9, 0, 2 } };
    static char before[BYTES], after[BYTES];
    char        want[65], got[65];
    (void)state;
    for (size_t i = 0; i < (lki_brief() ? 2 : 4); i++) {
        const lk_async *async = &kinds[i % 2 * 2];
        const size_t    line  = lki_recorded_line_bytes(async->shards);
        (void)unlink(path);
        hash_of(async, false, cases[i].from < SHAPES ? shapes[cases[i].from] : alone, 4, want);
        char *lines = read_schedule(before, sizeof before);
        interrupt(lines, async->shards, cases[i].keeps, LEAVES);
        write_schedule(before);
        hash_of(async, false, cases[i].to < SHAPES ? shapes[cases[i].to] : alone, 3, want);
        char    *more        = read_schedule(after, sizeof after);
        unsigned used[LINES] = { 0 };
        assert_int_equal(strlen(more), LINES * line);
        for (uint64_t at = 0; at < LINES; at++) {
            if (at < cases[i].keeps)
                assert_memory_equal(more + at * line, lines + at * line, LKI_CELLS_AT);
            assert_in_range(number_at(more + at * line), 0, LINES - 1);
            used[number_at(more + at * line)]++;
        }
        for (int j = 0; j < LINES; j++)
            assert_int_equal(used[j], 1);
        hash_of(async, true, alone, 2, got);
        assert_string_equal(got, want);
    }
}

/* ---- A checkpoint -------------------------------------------------------------------------- */

enum { SAVED = 2, VALUES = 3 /* of a parameter with adamw */ };

static float saved[LKT_PARAMS][VALUES][LKT_ELEMENTS_MAX], saved_state[7];
static float saved_reads[LKT_PARAMS][LEAVES][LKT_ELEMENTS_MAX];

/* Keeps what a checkpoint after step SAVED has. */
static void save(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    static _Thread_local float piece[LKT_ELEMENTS_MAX];
    if (step != SAVED)
        return;
    assert_int_equal(lk_barrier(p->comm), LK_OK); /* as ranks meet before a checkpoint */
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        const size_t count = lk_shape_count(w->model[i].shape);
        for (uint32_t which = 0; which < VALUES; which++) {
            assert_int_equal(lk_parallel_fetch(p, i, which, 0, count, piece), LK_OK);
            if (p->rank == 0)
                memcpy(saved[i][which], piece, count * sizeof *piece);
        }
        for (uint32_t g = 0; g < LEAVES; g++) {
            assert_int_equal(lk_parallel_fetch_kept(p, i, 0, g, 0, count, piece), LK_OK);
            if (p->rank == 0)
                memcpy(saved_reads[i][g], piece, count * sizeof *piece);
        }
    }
    if (p->rank == 0)
        memcpy(saved_state, lk_parallel_state_data(p, 0), sizeof saved_state);
    assert_int_equal(lk_barrier(p->comm), LK_OK);
}

static void load(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    if (step != SAVED)
        return;
    assert_int_equal(lk_parallel_resume(p, SAVED), LK_OK);
    for (uint32_t i = 0; i < LKT_PARAMS; i++)
        for (uint32_t which = 0; which < VALUES; which++)
            assert_int_equal(lk_parallel_load(p, i, which, saved[i][which]), LK_OK);
    for (uint32_t i = 0; i < LKT_PARAMS; i++)
        for (uint32_t g = 0; g < LEAVES; g++)
            assert_int_equal(lk_parallel_load_kept(p, i, 0, g, saved_reads[i][g]), LK_OK);
    assert_int_equal(lk_parallel_load_state(p, 0, saved_state), LK_OK);
}

/* A run on other hosts, or a replay, goes on from a checkpoint with the tasks in flight. */
static void runs_go_on_from_a_checkpoint(void **state)
{
    lk_async async = kinds[0];
    char     want[65], got[65];
    (void)state;
    (void)unlink(path);
    lkt_crew w    = crew_of(&async, false, shapes[1], 0);
    w.at_step     = save;
    w.values_only = true;
    lkt_run_crew(&w, want);
    for (uint32_t i = 0; i < 3; i++) {
        w = crew_of(&async, i > 0, i < 2 ? shapes[2 * i] : alone, 2);
        w.at_step     = load;
        w.first       = SAVED;
        w.values_only = true;
        lkt_run_crew(&w, got);
        assert_string_equal(got, want);
    }
}

/* ---- Files that were edited ---------------------------------------------------------------- */

/* Changes the hash of a line, with which the hash of the next one does not fit either.  Expects
 * that some host names the first one, and none the other. */
static void a_changed_line_is_named(void **state)
{
    static lkt_member members[LKT_RANKS_MAX];
    static char       text[BYTES];
    lk_async          async = kinds[0];
    char              hash[65];
    uint32_t          named = 0;
    (void)state;
    (void)unlink(path);
    hash_of(&async, false, shapes[0], 0, hash);
    char *digit = read_schedule(text, sizeof text) + 9 * lki_recorded_line_bytes(3) + 20;
    *digit      = *digit == '0' ? '1' : '0';
    write_schedule(text);
    lkt_crew w = crew_of(&async, true, shapes[1], 0);
    for (uint32_t r = 0; r < w.ranks; r++)
        members[r] = (lkt_member){ .crew = &w };
    assert_true(hosted_all(w.hosts, lkt_member_on_host, members));
    for (uint32_t r = 0; r < w.ranks; r++) {
        assert_int_not_equal(members[r].status, LK_OK);
        if (members[r].status != LK_EMISMATCH)
            continue; /* has learned that the group has failed */
        named++;
        if (strstr(members[r].failure.message, "in line 12:") == NULL)
            fail_msg("%s", members[r].failure.message);
    }
    assert_true(named > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_have_the_bits_of_live_runs),
        cmocka_unit_test(an_interrupted_run_goes_on),
        cmocka_unit_test(runs_go_on_from_a_checkpoint),
        cmocka_unit_test(a_changed_line_is_named),
    };
    return cmocka_run_group_tests(tests, make_schedule, remove_schedule);
}
