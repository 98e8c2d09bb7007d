/* rebuild_test.c -- rebuilds among ranks that are threads, on one host and on several simulated
 * ones.
 *
 * Goal:   if ranks leave, or do not ask for a rebuild, the other ranks form one group in their old
 *         order.  The collectives of this group have the right bits.  If a group fails while it is
 *         being formed, another group follows.  No resource leaks.
 * Method: ranks are threads, some of which stop at a given point.  Simulated hosts get a new
 *         simulation in every epoch.  Processes and TCP are tested in launch/job/rebuild_test.c and
 *         launch/job/rebuild_hosts_test.c.
 */
#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/group/thread_rebuild.h"
#include "comm/hosted_testing.h"

enum { COUNT = 3000, EPOCHS_MAX = 64 };

/* ---- Simulations ------------------------------------------------------------------------- */

typedef struct {
    pthread_mutex_t lock;
    uint32_t        ranks;
    lki_sim        *sims[EPOCHS_MAX]; /* [epoch]: the simulation of epoch 1 or a later epoch */
} stages;

static lki_link *link_of(void *context, uint32_t rank, uint64_t epoch)
{
    stages         *s       = context;
    lki_sim_options options = { .mode = LKI_SIM_FREE, .ranks = s->ranks, .streams = 2,
                                .seed = epoch };

    (void)pthread_mutex_lock(&s->lock);
    if (epoch >= EPOCHS_MAX
        || (s->sims[epoch] == NULL && lki_sim_new(&s->sims[epoch], &options) != LK_OK))
        abort();
    (void)pthread_mutex_unlock(&s->lock);
    return lki_sim_link(s->sims[epoch], rank);
}

/* ---- The new group works ------------------------------------------------------------------ */

static bool sums_are_right(lk_comm *comm)
{
    float    data[COUNT];
    uint32_t me = lk_comm_world_rank(comm, lk_comm_rank(comm));

    for (size_t i = 0; i < COUNT; i++)
        data[i] = world_value(me, i, 7);
    CHECK(lk_all_reduce(comm, data, data, COUNT, LK_F32, LK_SUM) == LK_OK);
    for (size_t i = 0; i < COUNT; i++) {
        float want = world_tree(comm, 0, lk_comm_size(comm), i, 7);
        CHECK(memcmp(&data[i], &want, sizeof want) == 0);
    }
    return true;
}

static bool group_is_good(lk_comm *comm, uint32_t members)
{
    lk_comm *part;
    uint32_t n = 0;

    CHECK(lk_comm_size(comm) == (uint32_t)__builtin_popcount(members));
    for (uint32_t r = 0; r < 32; r++)
        if ((members >> r & 1) != 0)
            CHECK(lk_comm_world_rank(comm, n++) == r);
    CHECK(sums_are_right(comm));
    CHECK(lk_comm_split(&part, comm, lk_comm_rank(comm) % 2, 0) == LK_OK);
    CHECK(sums_are_right(part));
    lk_comm_free(part);
    (void)!lk_barrier(comm); /* may fail: another rank may complete the barrier and give up before
                              * this rank has completed it */
    return true;
}

/* ---- The ranks ---------------------------------------------------------------------------- */

typedef enum { LEAVES, GIVES_UP, LEAVES_THE_NEXT, STAYS_AWAY } end;

typedef struct {
    uint32_t        victims; /* one bit per rank */
    end             how;
    uint32_t        rounds;  /* number of rebuilds */
    _Atomic uint32_t failed;  /* number of survivors that have received the failure */
    _Atomic uint32_t gone_on; /* number of survivors that have continued */
} story;

/* Performs the victim's last action in its group.  The caller frees the group afterwards. */
static bool end_it(story *s, lk_comm *comm)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = WORLD_PATIENCE_MS };
    uint32_t        left = lk_comm_size(comm) - (uint32_t)__builtin_popcount(s->victims);
    lk_comm        *next;

    if (s->how == LEAVES)
        return true;
    lk_comm_abort(comm);
    if (s->how == STAYS_AWAY) {
        while (atomic_load(&s->gone_on) < left)
            (void)usleep(1000);
        CHECK(lk_comm_rebuild(&next, comm, NULL) == LK_EINVAL);
    }
    if (s->how != LEAVES_THE_NEXT || lk_comm_rebuild(&next, comm, &options) != LK_OK)
        return true;
    lk_comm_abort(next); /* other ranks may still be joining the group */
    lk_comm_free(next);
    return true;
}

static bool goes_on(lk_comm *comm, story *s, lk_comm **out)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = s->how == STAYS_AWAY ? 5000 : WORLD_PATIENCE_MS };
    uint32_t        all     = (uint32_t)(UINT64_C(1) << lk_comm_size(comm)) - 1;
    uint32_t        left    = lk_comm_size(comm) - (uint32_t)__builtin_popcount(s->victims);
    lk_status       st;

    *out = NULL;
    lk_comm_note(comm, 12, "backward");
    while ((st = lk_barrier(comm)) == LK_OK)
        continue;
    CHECK(st == LK_EPEER);
    (void)atomic_fetch_add(&s->failed, 1);
    while (s->how == STAYS_AWAY && atomic_load(&s->failed) < left) /* waits until all survivors have
                                                                    * failed, so that only the
                                                                    * victims are late */
        (void)usleep(1000);
    CHECK(lk_comm_rebuild(out, comm, &options) == LK_OK);
    (void)atomic_fetch_add(&s->gone_on, 1);
    lk_comm *next = *out;
    while (next != NULL && lk_barrier(next) != LK_OK) { /* for LEAVES_THE_NEXT: until all ranks have
                                                         * joined */
        lk_comm *after;
        CHECK(lk_comm_rebuild(&after, next, &options) == LK_OK);
        lk_comm_free(next);
        *out = next = after;
    }
    comm = next;
    CHECK(comm->me->noted && atomic_load(&comm->me->step) == 12);
    return group_is_good(comm, all & ~s->victims);
}

static bool end_or_rebuild(lk_comm *comm, void *context)
{
    story   *s  = context;
    uint32_t me = lk_comm_rank(comm);
    lk_comm *next;

    (void)!lk_barrier(comm);
    if ((s->victims >> me & 1) != 0)
        return end_it(s, comm);
    bool good = goes_on(comm, s, &next);
    lk_comm_free(next);
    return good;
}

static bool rebuild_repeatedly(lk_comm *comm, void *context)
{
    const story    *s       = context;
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = WORLD_PATIENCE_MS };
    uint32_t        all     = (uint32_t)(UINT64_C(1) << lk_comm_size(comm)) - 1;
    lk_comm        *mine    = comm;
    bool            good    = true;

    (void)!lk_barrier(comm); /* when it returns, all ranks have opened the group */
    for (uint32_t i = 0; i < s->rounds && good; i++) {
        lk_comm *next;
        lk_comm_abort(mine);
        good = lk_comm_rebuild(&next, mine, &options) == LK_OK;
        if (mine != comm)
            lk_comm_free(mine);
        mine = next;
        good = good && group_is_good(mine, all);
    }
    CHECK(good && mine->board->job.epoch == s->rounds);
    if (mine != comm)
        lk_comm_free(mine);
    return true;
}

/* ---- Runs --------------------------------------------------------------------------------- */

/* Runs on `hosts` hosts of `each` ranks.  The last host has `fewer` ranks less than the others. */
static bool run_hosts(uint32_t hosts, uint32_t each, uint32_t fewer, world_main main, story *s)
{
    stages plays = { .lock = PTHREAD_MUTEX_INITIALIZER };
    hosted h     = { .hosts = hosts, .each = each, .fewer = fewer, .seed = 5, .quarrels = true };
    lki_thread_rebuild *rebuild;

    plays.ranks = hosted_size(h);
    if (lki_thread_rebuild_new(&rebuild, plays.ranks, link_of, &plays) != LK_OK)
        abort();
    h.rebuild = rebuild;
    bool good = hosted_all(h, main, s);
    lki_thread_rebuild_free(rebuild);
    for (uint32_t epoch = 0; epoch < EPOCHS_MAX; epoch++)
        lki_sim_free(plays.sims[epoch]);
    return good;
}

/* ---- Tests ------------------------------------------------------------------------------- */

static const end all_ends[] = { LEAVES, GIVES_UP, LEAVES_THE_NEXT, STAYS_AWAY };

static void surviving_threads_rebuild_one_group(void **state)
{
    static const uint32_t victims[] = { 1, 2, 8, 6, 7, 13 };

    (void)state;
    for (size_t e = 0; e < 4; e++)
        for (size_t v = 0; v < 6; v++) {
            story s = { .victims = victims[v], .how = all_ends[e] };
            if (s.how == STAYS_AWAY && v > 0) /* these cases are slow */
                continue;
            if (!world_all(4, true, end_or_rebuild, &s))
                fail_msg("victims %x, end %zu", victims[v], e);
        }
}

static void surviving_ranks_of_several_hosts_rebuild_one_group(void **state)
{
    /* Bit sets of victims among ranks 0 1 2 | 3 4 5, or 0 1 | 2 3 | 4. */
    static const uint32_t victims[2][5] = { { 1, 16, 7, 56, 9 }, { 1, 16, 3, 12, 19 } };

    (void)state;
    for (uint32_t shape = 0; shape < 2; shape++)
        for (size_t e = 0; e < 4; e++)
            for (size_t v = 0; v < 5; v++) {
                story s = { .victims = victims[shape][v], .how = all_ends[e] };
                if (s.how == STAYS_AWAY && v > 0) /* these cases are slow */
                    continue;
                if (!run_hosts(2 + shape, 3 - shape, shape, end_or_rebuild, &s))
                    fail_msg("shape %u, victims %x, end %zu", shape, victims[shape][v], e);
            }
}

static uint32_t entries_of(const char *path)
{
    uint32_t count  = 0;
    DIR     *folder = opendir(path);

    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    return count;
}

static void repeated_rebuilds_leak_nothing(void **state)
{
    uint32_t descriptors = 0, threads = 0;
    size_t   bytes = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        story s = { .rounds = i == 0 ? 2 : 50 };
        assert_true(world_all(3, true, rebuild_repeatedly, &s));
        assert_true(run_hosts(2, 2, 0, rebuild_repeatedly, &s));
        if (i == 1) {
            descriptors = entries_of("/proc/self/fd");
            threads     = entries_of("/proc/self/task");
            bytes       = mallinfo2().uordblks;
        }
    }
    assert_int_equal(entries_of("/proc/self/fd"), descriptors);
    assert_int_equal(entries_of("/proc/self/task"), threads);
    assert_in_range(mallinfo2().uordblks, 0, bytes + 4096);
}

static void an_excluded_rank_cannot_rebuild(void **state)
{
    lk_comm *comms[2], *next;

    (void)state;
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 50 };
    assert_int_equal(lk_comm_open_threads(comms, 2, &options), LK_OK);
    assert_int_equal(lk_comm_rebuild(&next, comms[0], NULL), LK_EINVAL);
    lk_comm_abort(comms[1]);
    assert_int_equal(lk_comm_rebuild(&next, comms[0], NULL), LK_OK);
    assert_int_equal(lk_comm_size(next), 1);
    lk_comm *none;
    assert_int_equal(lk_comm_rebuild(&none, comms[1], NULL), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "which is over: it is in epoch 1, without"));
    lk_comm_free(comms[1]);
    assert_int_equal(lk_barrier(next), LK_OK);
    lk_comm_free(comms[0]);
    lk_comm_free(next);
}

/* ---- Arenas ------------------------------------------------------------------------------ */

/* Computes the sum of all values in the arena by a tree_reduce that reads the parts of other ranks
 * in place. */
static bool arena_is_shared(lk_comm *comm, const lk_arena *arena)
{
    float       *all  = lk_arena_data(arena), sums[COUNT];
    uint32_t     me   = lk_comm_rank(comm), ranks = lk_comm_size(comm);
    float       *mine = all + (size_t)lk_comm_world_rank(comm, me) * COUNT;
    lk_tree_node node = { me, 1, mine };
    lk_slice     all_of_it = { 0, COUNT, 0, 0 };
    lk_tree_op   op   = { .leaves = ranks, .elements = COUNT, .nodes = &node, .node_count = 1,
                          .slices = &all_of_it, .slice_count = 1, .out = sums };

    CHECK(lk_tree_reduce(comm, &op) == LK_OK);
    for (size_t i = 0; i < COUNT && me == 0; i++) {
        float want = world_tree(comm, 0, ranks, i, 7);
        CHECK(memcmp(&sums[i], &want, sizeof want) == 0);
    }
    return true;
}

static bool takes_arenas(lk_comm *comm, void *context)
{
    uint32_t  me = lk_comm_rank(comm);
    lk_arena *arena, *more;
    lk_comm  *next;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "kept", 3 * COUNT * sizeof(float)) == LK_OK);
    for (size_t i = 0; i < COUNT; i++)
        ((float *)lk_arena_data(arena))[me * COUNT + i] = world_value(me, i, 7);
    CHECK(lk_barrier(comm) == LK_OK);
    if (me == 1)
        return true;
    while (lk_barrier(comm) == LK_OK)
        continue;
    CHECK(lk_comm_has_lost(comm));
    CHECK(lk_comm_rebuild(&next, comm, NULL) == LK_OK && lk_comm_take_arenas(next, comm) == LK_OK);
    CHECK(comm->arenas == NULL && lki_place_of(next, lk_arena_data(arena), 8).arena == 1);
    CHECK(arena_is_shared(next, arena));
    CHECK(lk_comm_arena(&more, next, "new", 64) == LK_OK);
    CHECK(lk_comm_take_arenas(next, comm) == LK_EINVAL); /* `next` has arenas already */
    (void)!lk_barrier(next);
    lk_comm_free(next);
    return true;
}

static void arenas_move_to_the_new_group(void **state)
{
    (void)state;
    assert_true(world_all(3, true, takes_arenas, NULL));
}

/* Lets a rank report an error of its own.  Expects that lk_comm_has_lost() returns false. */
static void a_rank_that_aborts_is_not_lost(void **state)
{
    lk_comm *comms[2];
    (void)state;
    assert_int_equal(lk_comm_open_threads(comms, 2, NULL), LK_OK);
    assert_false(lk_comm_has_lost(comms[0]));
    (void)!lk_fail(LK_EIO, "the disk is full");
    lk_comm_abort(comms[1]);
    assert_int_equal(lk_barrier(comms[0]), LK_EPEER);
    assert_false(lk_comm_has_lost(comms[0]));
    lk_comm_free(comms[0]);
    lk_comm_free(comms[1]);
}

/* ---- Entering ---------------------------------------------------------------------------- */

/* Calls that are refused leave the group as it is.  Without waiting processes the ranks stay. */
static void admitting_is_refused_before_the_group_ends(void **state)
{
    static const lk_comm_options strange = { .struct_size = 3 };
    lk_comm                     *comm, *part, *next;

    (void)state;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_comm_split(&part, comm, 0, 0), LK_OK);
    assert_int_equal(lk_comm_admit(&next, part, NULL), LK_EINVAL);
    assert_int_equal(lk_comm_admit(&next, comm, &strange), LK_EINVAL);
    assert_int_equal(lk_comm_take_arenas(comm, NULL), LK_EINVAL); /* this rank has not entered */
    assert_int_equal(lk_barrier(part), LK_OK);
    assert_int_equal(lk_barrier(comm), LK_OK);
    lk_comm_free(part);
    assert_false(lk_comm_awaited(comm));
    assert_int_equal(lk_comm_admit(&next, comm, NULL), LK_OK);
    assert_int_equal(lk_comm_size(next), 1);
    assert_int_equal(lk_comm_entered(next), 0);
    assert_int_equal(lk_barrier(comm), LK_EPEER);
    lk_comm_free(comm);
    assert_int_equal(lk_barrier(next), LK_OK);
    lk_comm_free(next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(surviving_threads_rebuild_one_group),
        cmocka_unit_test(surviving_ranks_of_several_hosts_rebuild_one_group),
        cmocka_unit_test(repeated_rebuilds_leak_nothing),
        cmocka_unit_test(an_excluded_rank_cannot_rebuild),
        cmocka_unit_test(arenas_move_to_the_new_group),
        cmocka_unit_test(a_rank_that_aborts_is_not_lost),
        cmocka_unit_test(admitting_is_refused_before_the_group_ends),
    };
    /* Threads that meet in malloc() make it add areas, whose headers count as memory in use. */
    (void)mallopt(M_ARENA_MAX, 1);
    return cmocka_run_group_tests_name("comm.join.rebuild", tests, NULL, NULL);
}
