/* sharded_test.c -- live asynchronous training whose shards have orders of their own.
 *
 * Goal:    a replay has the bits of the live run for any ranks, also if the run was interrupted.
 *          In a schedule with any orders and any reads, each shard has the values that the model
 *          has in a schedule with the order and the reads of this shard alone.
 * Method:  a crew whose ranks dawdle, its schedules, and schedules that a simulation has drawn.
 *          The hashes of the latter are 0, because the functions for them are replaced.
 * Control: lines that are exchanged, and places that are, are named.
 */
#include <unistd.h>

#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/schedule_testing.h"

enum { LEAVES = 8, STEPS = 4, LINES = STEPS * LEAVES, SHARDS_MOST = 4, BYTES = 16384 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

static const lk_async kinds[] = {
    { .consistency = LK_CONSISTENCY_SHARD, .shards = 3, .compensation = 0.04 },
    { .consistency = LK_CONSISTENCY_SPAN, .groups = 4, .rate_by_staleness = true },
    { .consistency = LK_CONSISTENCY_SHARD, .shards = 2, .bounded = true, .staleness = 1 },
    { .consistency = LK_CONSISTENCY_SHARD, .shards = 1 },
};

/* ---- Hashes that are replaced -------------------------------------------------------------- */

static bool without_hashes;

uint64_t __real_lki_recorded_hash(uint64_t before, uint64_t task, uint64_t reads, uint32_t group,
                                  uint64_t gradient);
uint64_t __real_lki_recorded_line_hash(uint64_t before, const lki_recorded_task *task,
                                       uint32_t shards, const uint64_t *reads, uint64_t gradient);
uint64_t __real_lki_recorded_order_hash(uint64_t before, uint64_t line, uint64_t place);
uint64_t __wrap_lki_recorded_hash(uint64_t before, uint64_t task, uint64_t reads, uint32_t group,
                                  uint64_t gradient);
uint64_t __wrap_lki_recorded_line_hash(uint64_t before, const lki_recorded_task *task,
                                       uint32_t shards, const uint64_t *reads, uint64_t gradient);
uint64_t __wrap_lki_recorded_order_hash(uint64_t before, uint64_t line, uint64_t place);

uint64_t __wrap_lki_recorded_hash(uint64_t before, uint64_t task, uint64_t reads, uint32_t group,
                                  uint64_t gradient)
{
    return without_hashes ? 0 : __real_lki_recorded_hash(before, task, reads, group, gradient);
}

uint64_t __wrap_lki_recorded_line_hash(uint64_t before, const lki_recorded_task *task,
                                       uint32_t shards, const uint64_t *reads, uint64_t gradient)
{
    return without_hashes ? 0
                          : __real_lki_recorded_line_hash(before, task, shards, reads, gradient);
}

uint64_t __wrap_lki_recorded_order_hash(uint64_t before, uint64_t line, uint64_t place)
{
    return without_hashes ? 0 : __real_lki_recorded_order_hash(before, line, place);
}

/* ---- Runs ---------------------------------------------------------------------------------- */

/* The values of a run of one rank. */
static float kept[LKT_PARAMS][LKT_ELEMENTS_MAX], kept_state[7];

static void keep_values(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)result;
    if (step + 1 < STEPS || p->ranks > 1)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++)
        assert_int_equal(
            lk_parallel_fetch(p, i, 0, 0, lk_shape_count(w->model[i].shape), kept[i]), LK_OK);
    memcpy(kept_state, lk_parallel_state_data(p, 0), sizeof kept_state);
}

static void prepare(lkt_crew *w, lk_async *async, uint32_t ranks, bool replays)
{
    *w                 = lkt_make_crew(model, "ddp", LEAVES, ranks);
    async->struct_size = sizeof *async;
    async->steps       = STEPS;
    async->record      = replays ? NULL : path;
    async->replay      = replays ? path : NULL;
    w->steps           = STEPS;
    w->at_term         = lkt_dawdle;
    w->at_result       = keep_values;
    w->options.unused  = LK_UNUSED_ZERO;
    w->options.async   = async;
    if (without_hashes) { /* it makes gradients depend on all shards */
        w->options.clip_norm = 0;
        w->at_term           = NULL;
    }
}

static void hash_of(const lk_async *async, uint32_t ranks, bool replays, char hash[65])
{
    lkt_crew w;
    lk_async mine = *async;
    prepare(&w, &mine, ranks, replays);
    lkt_run_crew(&w, hash);
}

/* Replays a schedule on two hosts, of one rank and two. */
static void hash_on_hosts(const lk_async *async, char hash[65])
{
    lkt_crew w;
    lk_async mine = *async;
    prepare(&w, &mine, 3, true);
    w.hosts = (hosted){ .hosts = 2, .each = 2, .fewer_first = 1, .seed = 4 };
    lkt_run_crew(&w, hash);
}

/* Runs a replay that must fail, with `status` if it is not LK_OK.  Returns its message. */
static const char *replay_fails(const lk_async *async, uint32_t ranks, lk_status status)
{
    static lkt_member members[LKT_RANKS_MAX];
    lkt_crew          w;
    lk_async          mine = *async;
    prepare(&w, &mine, ranks, true);
    for (uint32_t r = 0; r < ranks; r++)
        members[r] = (lkt_member){ .crew = &w };
    lkt_run_on_one_host(&w, members);
    if (members[0].status == LK_OK || (status != LK_OK && members[0].status != status))
        fail_msg("%d: %s", members[0].status, members[0].failure.message);
    return members[0].failure.message;
}

/* ---- Replays ------------------------------------------------------------------------------- */

static void replays_have_the_same_bits(void **state)
{
    char want[65], got[65];
    (void)state;
    for (uint32_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        (void)unlink(path);
        hash_of(&kinds[i], 2 + i % 3, false, want);
        for (uint32_t ranks = 1; ranks <= 3; ranks += lki_brief() ? 2 : 1) {
            hash_of(&kinds[i], ranks, true, got);
            assert_string_equal(got, want);
        }
    }
}

/* A single rank has no staleness, so it makes no difference what versions are of. */
static void one_rank_is_as_with_versions_of_the_model(void **state)
{
    const lk_async whole = { .struct_size = sizeof whole };
    char           want[65], got[65];
    (void)state;
    (void)unlink(path);
    hash_of(&whole, 1, false, want);
    for (uint32_t i = 0; i < sizeof kinds / sizeof kinds[0]; i += 3) {
        (void)unlink(path);
        hash_of(&kinds[i], 1, false, got);
        assert_string_equal(got, want);
    }
}

/* ---- Schedules that are drawn -------------------------------------------------------------- */

/* A schedule in which everything happens at random, as far as it may. */
typedef struct {
    uint32_t shards;
    uint32_t group[LINES];
    uint64_t reads[LINES][SHARDS_MOST], places[LINES][SHARDS_MOST];
    uint64_t task[LINES];
} drawn;

/* A group while a schedule is drawn. */
typedef struct {
    enum { IDLE, READS, COMPUTES, PUSHES } state;
    uint64_t task, line, reads[SHARDS_MOST];
    uint32_t done; /* number of shards that it has read, or that have applied its gradient */
    bool     placed[SHARDS_MOST];
} drawn_group;

static uint32_t draw(uint32_t *seed, uint32_t below)
{
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 16) % below;
}

static void draw_place(drawn *d, drawn_group *group, uint64_t *applied, uint64_t step, uint32_t k)
{
    if (group->placed[k] || group->line / LEAVES != step || applied[k] / LEAVES != step)
        return;
    d->places[group->line][k] = applied[k]++;
    group->placed[k]          = true;
    if (++group->done == d->shards)
        group->state = IDLE;
}

static void draw_schedule(drawn *d, uint32_t shards, uint32_t seed)
{
    drawn_group groups[LEAVES]       = { { 0 } };
    uint64_t    applied[SHARDS_MOST] = { 0 }, tasks = 0, lines = 0, step = 0;
    d->shards                        = shards;
    while (step < STEPS) {
        const uint32_t g     = draw(&seed, LEAVES);
        drawn_group   *group = &groups[g];
        if (group->state == IDLE && tasks < LINES) {
            *group = (drawn_group){ .state = READS, .task = tasks++ };
        } else if (group->state == READS) {
            group->reads[group->done] = applied[group->done];
            if (++group->done == shards)
                group->state = COMPUTES;
        } else if (group->state == COMPUTES && draw(&seed, 3) == 0) {
            d->group[lines] = g;
            d->task[lines]  = group->task;
            memcpy(d->reads[lines], group->reads, sizeof group->reads);
            group->line  = lines++;
            group->done  = 0;
            group->state = PUSHES;
        } else if (group->state == PUSHES) {
            draw_place(d, group, applied, step, draw(&seed, shards));
        }
        bool ends = true;
        for (uint32_t k = 0; k < shards; k++)
            ends = ends && applied[k] == (step + 1) * LEAVES;
        step += ends;
    }
}

static void write_drawn(const drawn *d)
{
    static char text[BYTES];
    int         used = snprintf(text, sizeof text,
                                "lockstep schedule 1: groups %d, shards %u, virtual workers %d, "
                                "seed 5\n"
                                "%12s %5s %16s, for each shard: age, place, check\n",
                                LEAVES, d->shards, LEAVES, "task", "group", "hash");
    for (uint64_t at = 0; at < LINES; at++) {
        used += snprintf(text + used, sizeof text - (size_t)used, "%12u %5u %016x",
                         (unsigned)d->task[at], d->group[at], 0);
        for (uint32_t k = 0; k < d->shards; k++)
            used += snprintf(text + used, sizeof text - (size_t)used, " %6u %4u %04x",
                             (unsigned)(at - d->reads[at][k]),
                             (unsigned)(d->places[at][k] % LEAVES), 0);
        used += snprintf(text + used, sizeof text - (size_t)used, "\n");
    }
    write_schedule(text);
}

/* Writes the schedule that the model has if all of it is as in shard `k`. */
static void write_as_in_shard(const drawn *d, uint32_t k)
{
    static char text[BYTES];
    int         used = snprintf(text, sizeof text,
                                "lockstep schedule 1: groups %d, aggregate 1, virtual workers %d, "
                                "seed 5\n%12s %12s %5s %16s\n", LEAVES, LEAVES, "task", "reads",
                                "group", "hash");
    for (uint64_t place = 0; place < LINES; place++) {
        uint64_t at = 0;
        while (d->places[at][k] != place)
            at++;
        used += snprintf(text + used, sizeof text - (size_t)used, "%12u %12u %5u %016x\n",
                         (unsigned)d->task[at], (unsigned)d->reads[at][k], d->group[at], 0);
    }
    write_schedule(text);
}

/* Compares the spans of a shard with the values of a run of the model. */
static void compare_shard(uint32_t shards, uint32_t shard, float got[][LKT_ELEMENTS_MAX])
{
    enum { SPANS = 4 }; /* of 4096, 404, 33 and 210 elements */
    static const uint32_t param[SPANS] = { 0, 0, 1, 2 };
    static const size_t   first[SPANS] = { 0, 4096, 0, 0 }, count[SPANS] = { 4096, 404, 33, 210 };
    for (uint32_t i = SPANS * shard / shards; i < SPANS * (shard + 1) / shards; i++)
        assert_memory_equal(got[param[i]] + first[i], kept[param[i]] + first[i],
                            count[i] * sizeof(float));
}

static void each_shard_follows_its_own_order(void **state)
{
    static float  got[LKT_PARAMS][LKT_ELEMENTS_MAX];
    static drawn  d;
    float         got_state[7];
    char          hash[65], want[65];
    (void)state;
    without_hashes = true;
    for (uint32_t i = 0; i < 6; i++) {
        lk_async async  = { .consistency = LK_CONSISTENCY_SHARD, .shards = 1 + i % SHARDS_MOST,
                            .rate_by_staleness = i % 2 == 1, .compensation = i > 1 ? 0.04 : 0 };
        lk_async whole  = { .rate_by_staleness = async.rate_by_staleness,
                            .compensation      = async.compensation };
        draw_schedule(&d, async.shards, i);
        write_drawn(&d);
        hash_of(&async, 3, true, want);
        hash_on_hosts(&async, hash);
        assert_string_equal(hash, want);
        hash_of(&async, 1, true, hash);
        assert_string_equal(hash, want);
        memcpy(got, kept, sizeof got);
        memcpy(got_state, kept_state, sizeof got_state);
        for (uint32_t k = 0; k < async.shards; k++) {
            write_as_in_shard(&d, k);
            hash_of(&whole, 1, true, hash);
            compare_shard(async.shards, k, got);
            if (k == 0)
                assert_memory_equal(got_state, kept_state, sizeof got_state);
        }
    }
    without_hashes = false;
}

/* ---- Interrupted runs ---------------------------------------------------------------------- */

static void an_interrupted_run_goes_on(void **state)
{
    static char before[BYTES], after[BYTES];
    char        want[65], got[65];
    (void)state;
    for (uint64_t keeps = 0; keeps < LINES; keeps += lki_brief() ? 15 : 5) {
        const lk_async *async  = &kinds[keeps % 2 == 0 ? 0 : 2];
        const uint32_t  shards = async->shards;
        const size_t    line   = lki_recorded_line_bytes(shards);
        (void)unlink(path);
        hash_of(async, 4, false, want);
        char *lines = read_schedule(before, sizeof before);
        interrupt(lines, shards, keeps, LEAVES);
        write_schedule(before);
        hash_of(async, 3, false, want);
        char    *more              = read_schedule(after, sizeof after);
        unsigned used[LINES] = { 0 };
        for (uint64_t at = 0; at < LINES; at++) {
            if (at < keeps)
                assert_memory_equal(more + at * line, lines + at * line, LKI_CELLS_AT);
            assert_in_range(number_at(more + at * line), 0, LINES - 1);
            used[number_at(more + at * line)]++;
        }
        for (int i = 0; i < LINES; i++)
            assert_int_equal(used[i], 1);
        hash_of(async, 1, true, got);
        assert_string_equal(got, want);
    }
}

/* ---- Files that were edited ---------------------------------------------------------------- */

static atomic_int met;

/* Lets both ranks have one of the last two tasks before either is pushed, so that neither reads
 * what the other one changes. */
static void end_together(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                         uint32_t term)
{
    const struct timespec pause = { .tv_nsec = 100000 };
    (void)w;
    (void)step;
    if (p->versions->task.task < LINES - 2 || turn.micro_index > 0 || term > 0)
        return;
    atomic_fetch_add(&met, 1);
    while (atomic_load(&met) < 2)
        (void)nanosleep(&pause, NULL);
}

/* Exchanges two lines, or two places in a shard, or changes a hash.  Expects that a replay names
 * the task or, if the line is impossible where it is now, the line. */
static void exchanges_are_named(void **state)
{
    static char    text[BYTES], mine[BYTES];
    const lk_async two  = { .consistency = LK_CONSISTENCY_SHARD, .shards = 2 };
    const size_t   line = lki_recorded_line_bytes(2);
    lk_async       live = two;
    lkt_crew       w;
    char           hash[65];
    (void)state;
    (void)unlink(path);
    atomic_store(&met, 0);
    prepare(&w, &live, 2, false);
    w.at_term = end_together;
    lkt_run_crew(&w, hash);
    const char *lines = read_schedule(text, sizeof text);
    char       *last  = mine + (lines - text) + (LINES - 2) * line;
    memcpy(mine, text, BYTES);
    exchange(last, last + line, line);
    write_schedule(mine);
    const char *message = replay_fails(&two, 1, LK_OK);
    if (strstr(message, "line 33:") == NULL && strstr(message, "line 34: the task reads") == NULL)
        fail_msg("%s", message);
    memcpy(mine, text, BYTES);
    exchange(last + LKI_CELLS_AT + LKI_CELL + 7, last + line + LKI_CELLS_AT + LKI_CELL + 7, 10);
    write_schedule(mine);
    message = replay_fails(&two, 2, LK_EMISMATCH);
    if (strstr(message, "order of shard 1 than in the live run") == NULL)
        fail_msg("%s", message);
    memcpy(mine, text, BYTES);
    char *digit = mine + (lines - text) + 9 * line + 20; /* of a hash */
    *digit      = *digit == '0' ? '1' : '0';
    write_schedule(mine);
    message = replay_fails(&two, 1, LK_EMISMATCH);
    assert_non_null(strstr(message, "in line 12:"));
}

/* Lets the rank with the last line but one wait until another rank has handed over the last
 * gradient, or failed. */
static void let_the_last_go_first(lkt_crew *w, lk_parallel *p, uint32_t step,
                                  lk_parallel_turn turn, uint32_t term)
{
    const struct timespec pause = { .tv_nsec = 100000 };
    const lki_versions   *v     = p->versions;
    const uint32_t        last  = v->recorded.tasks[LINES - 1].group;
    (void)w;
    (void)step;
    (void)turn;
    (void)term;
    while (v->at == LINES - 2 && atomic_load(&v->common->failed) != LKI_FAILURE_KNOWN &&
           (atomic_load(&v->doing[last].line) != LINES - 1 ||
            v->doing[last].state == LKI_GROUP_COMPUTES))
        (void)nanosleep(&pause, NULL);
}

/* Changes the hash of a line, with which the hash of the next one does not fit either.  Expects the
 * first one, though it is there last. */
static void the_first_line_that_differs_is_named(void **state)
{
    static char       text[BYTES];
    static lkt_member members[2];
    const size_t      line  = lki_recorded_line_bytes(2);
    lk_async          async = { .consistency = LK_CONSISTENCY_SHARD, .shards = 2 };
    lkt_crew          w;
    char              hash[65];
    (void)state;
    (void)unlink(path);
    atomic_store(&met, 0);
    prepare(&w, &async, 2, false);
    w.at_term = end_together;
    lkt_run_crew(&w, hash);
    char *digit = read_schedule(text, sizeof text) + (LINES - 2) * line + 20; /* of a hash */
    *digit      = *digit == '0' ? '1' : '0';
    write_schedule(text);
    prepare(&w, &async, 2, true);
    w.at_term = let_the_last_go_first;
    for (int r = 0; r < 2; r++)
        members[r] = (lkt_member){ .crew = &w };
    lkt_run_on_one_host(&w, members);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(members[r].status, LK_EMISMATCH);
        assert_non_null(strstr(members[r].failure.message, "in line 33:"));
    }
}

static void damaged_files_are_refused(void **state)
{
    static const struct {
        int         at, shard; /* -1: the line */
        int         offset;
        const char *with, *text;
    } mistakes[] = {
        { 9, -1, 13, "   99", "line 12: there is no such group" },
        { 9, 1, 1, "     x", "line 12: it is not \"TASK GROUP HASH\"" },
        { 9, 1, 1, "    99", "line 12: the task reads a version before the first one" },
        { 9, 0, 1, "     9", "line 12: the task reads a version that is older" },
        { 9, 1, 8, "   9", "line 11: in the step that begins here" },
        { 9, 1, 8, "   -", "line 11: in the step that begins here" },
        { 9, -1, 0, "         999", "line 12: too many tasks" },
    };
    static char    text[BYTES], mine[BYTES];
    const lk_async two = kinds[2], other = kinds[0];
    char           hash[65];
    (void)state;
    (void)unlink(path);
    hash_of(&two, 1, false, hash);
    const char *lines = read_schedule(text, sizeof text);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        memcpy(mine, text, BYTES);
        char *begin = mine + (lines - text);
        const uint64_t at    = (uint64_t)mistakes[i].at;
        char          *place = mistakes[i].shard < 0
                                   ? begin + at * lki_recorded_line_bytes(2)
                                   : cell_at(begin, 2, at, (uint32_t)mistakes[i].shard);
        memcpy(place + mistakes[i].offset, mistakes[i].with, strlen(mistakes[i].with));
        write_schedule(mine);
        const char *message = replay_fails(&two, 1, LK_EFORMAT);
        if (strstr(message, mistakes[i].text) == NULL)
            fail_msg("%s: %s", mistakes[i].text, message);
    }
    write_schedule(text);
    assert_non_null(strstr(replay_fails(&other, 1, LK_EMISMATCH), "not a schedule of this run"));
}

static void what_it_cannot_do_is_refused(void **state)
{
    static const struct {
        lk_async    async;
        const char *text;
    } mistakes[] = {
        { { .consistency = LK_CONSISTENCY_SPAN, .aggregate = 2 }, "leave out `async.aggregate`" },
        { { .consistency = LK_CONSISTENCY_SHARD, .bounded = true, .in_versions = true,
            .staleness = 9 }, "leave out `async.in_versions`" },
        { { .shards = 2 }, "`async.shards` needs `async.consistency`" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        lkt_crew w;
        lk_async mine = mistakes[i].async;
        prepare(&w, &mine, 1, false);
        lkt_refuse(model, &w.options, mistakes[i].text);
    }
    lk_async live = kinds[0];
    lkt_crew w;
    prepare(&w, &live, 1, false);
    live.record = NULL;
    lkt_refuse(model, &w.options, "is of live runs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_have_the_same_bits),
        cmocka_unit_test(one_rank_is_as_with_versions_of_the_model),
        cmocka_unit_test(each_shard_follows_its_own_order),
        cmocka_unit_test(an_interrupted_run_goes_on),
        cmocka_unit_test(exchanges_are_named),
        cmocka_unit_test(the_first_line_that_differs_is_named),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(what_it_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, make_schedule, remove_schedule);
}
