/* survive_test.c -- ranks of asynchronous training are lost at any moment, and no bit changes.
 *
 * Goal:    with a simulated schedule the values and the results of all steps are those of the
 *          undisturbed run.  A live run and a replay of its schedule have the same values, and the
 *          schedule has each task once.
 * Method:  ranks are threads.  The linker replaces functions of the library by those below, which
 *          call them (survive_test.wrap).  Each such call is a moment.  A victim ends at a given
 *          moment, by jumping out of the run.  The survivors go on.
 */
#include <setjmp.h>

#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "comm/worker.h"
#include "parallel/crew_testing.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/schedule_testing.h"

enum { LEAVES = 8, STEPS = 3, RANKS = 3, VICTIMS = 2, NEVER = -1, BYTES = 4096 };

/* Suppresses reports of memory that a victim leaks by jumping out of lk_parallel_go_on(). */
LK_API const char *__lsan_default_suppressions(void); /* visible to the sanitizer */

const char *__lsan_default_suppressions(void)
{
    return "leak:lk_parallel_go_on\n";
}

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

/* ---- Moments ------------------------------------------------------------------------------- */

static _Thread_local struct {
    long         left; /* number of moments until this rank ends, or NEVER */
    lk_parallel *opened; /* the object opened last, perhaps not yet returned to the caller */
    jmp_buf      out;
} fate = { .left = NEVER };

static void moment(void)
{
    if (fate.left > 0 && --fate.left == 0)
        longjmp(fate.out, 1);
}

/* Declares a function that is replaced, and the function that replaces it. */
#define REPLACED(TYPE, NAME, ...)                                                                \
    TYPE __real_##NAME(__VA_ARGS__);                                                             \
    TYPE __wrap_##NAME(__VA_ARGS__);                                                             \
    TYPE __wrap_##NAME(__VA_ARGS__)

/* Calls the function NAME between two moments. */
#define BETWEEN_MOMENTS(TYPE, NAME, ...)                                                         \
    moment();                                                                                    \
    TYPE result = __real_##NAME(__VA_ARGS__);                                                    \
    moment();                                                                                    \
    return result

REPLACED(lk_status, lk_barrier, lk_comm *comm)
{
    BETWEEN_MOMENTS(lk_status, lk_barrier, comm);
}

/* Also leaves half a line, as a write that a signal has ended. */
REPLACED(lk_status, lki_recorded_write, const lki_recorded_schedule *schedule, uint64_t at,
         const lki_recorded_task *task)
{
    moment();
    if (pwrite(schedule->fd, "     ", 5, (off_t)(schedule->header + at * schedule->line)) != 5)
        abort();
    BETWEEN_MOMENTS(lk_status, lki_recorded_write, schedule, at, task);
}

REPLACED(lk_status, lki_recorded_write_line, const lki_recorded_schedule *s, uint64_t at,
         const lki_recorded_task *t, uint32_t groups, const uint64_t *reads, const uint64_t *orders)
{
    BETWEEN_MOMENTS(lk_status, lki_recorded_write_line, s, at, t, groups, reads, orders);
}

REPLACED(lk_status, lki_recorded_write_place, const lki_recorded_schedule *schedule, uint64_t at,
         uint32_t shard, uint32_t place, uint16_t check)
{
    BETWEEN_MOMENTS(lk_status, lki_recorded_write_place, schedule, at, shard, place, check);
}

/* Updates one span after the other, and the running state. */
REPLACED(lk_status, lki_step_update_part, lk_parallel *parallel, const lki_gradients *sums,
         const lk_update *how, const lki_part_of_step *part)
{
    for (size_t i = part->first; i < part->end; i++) {
        const lki_part_of_step span = { i, i + 1, part->running && i + 1 == part->end };
        LK_TRY(__real_lki_step_update_part(parallel, sums, how, &span));
        moment();
    }
    return LK_OK;
}

REPLACED(void, lki_sharded_copy, const lki_versions *v, uint32_t shard, uint32_t from, uint32_t to)
{
    moment();
    __real_lki_sharded_copy(v, shard, from, to);
    moment();
}

REPLACED(void, lki_end_step, const lk_parallel *parallel, uint64_t end, const lki_step_sums *sums)
{
    moment();
    __real_lki_end_step(parallel, end, sums);
    moment();
}

REPLACED(uint32_t, lki_versions_store, lki_versions *versions, const lki_gradients *sums)
{
    BETWEEN_MOMENTS(uint32_t, lki_versions_store, versions, sums);
}

REPLACED(lk_status, lki_step_apply, lk_parallel *parallel, const lki_gradients *sums, double lr,
         lk_step_result *out)
{
    BETWEEN_MOMENTS(lk_status, lki_step_apply, parallel, sums, lr, out);
}

REPLACED(lk_status, lki_arrivals_publish, lk_parallel *parallel, uint64_t end)
{
    BETWEEN_MOMENTS(lk_status, lki_arrivals_publish, parallel, end);
}

REPLACED(void, lki_free_versions, const lk_parallel *parallel, uint64_t end)
{
    moment();
    __real_lki_free_versions(parallel, end);
    moment();
}

/* Called for each version that may be freed. */
REPLACED(bool, lki_late_needs, const lki_versions *versions, uint32_t ranks, uint64_t version)
{
    moment();
    return __real_lki_late_needs(versions, ranks, version);
}

REPLACED(void, lki_task_schedule_advance, lki_task_schedule *schedule, uint64_t applied)
{
    moment();
    __real_lki_task_schedule_advance(schedule, applied);
    moment();
}

REPLACED(void, lki_comm_wake_word, _Atomic uint32_t *word)
{
    moment();
    __real_lki_comm_wake_word(word);
}

REPLACED(void, lki_tree_sum_f32, lk_dtype rounded, uint32_t leaves, const lki_tree_input *inputs,
         uint32_t count, size_t n, float *out)
{
    moment();
    __real_lki_tree_sum_f32(rounded, leaves, inputs, count, n, out);
    moment();
}

REPLACED(lk_status, lki_versions_open_over, lk_parallel *parallel, const lk_param *params,
         uint32_t param_count, const lk_parallel_options *options, uint32_t joint,
         const lki_before *before)
{
    fate.opened = parallel;
    return __real_lki_versions_open_over(parallel, params, param_count, options, joint, before);
}

/* Fails unless a repaired arena has nothing of a rank that was lost. */
static lk_status check_arena(const lk_parallel *parallel)
{
    const lki_versions *v       = parallel->versions;
    const uint64_t      applied = lki_applied(v);
    uint32_t            done = 0, taken = 0, live = 0;
    bool                unpublished = false;
    for (uint64_t at = applied; at < applied + v->window; at++)
        done += lki_claim_is(v, at, LKI_CLAIM_DONE);
    for (uint32_t i = 0; i < v->message_count; i++)
        taken += atomic_load(&v->taken[i]);
    for (uint32_t i = 0; i < v->live_count; i++) {
        live += atomic_load(&v->live[i].tag) > 0;
        unpublished |= atomic_load(&v->live[i].tag) > applied / v->options.aggregate + 1;
    }
    for (uint32_t g = 0; v->sharded.count > 0 && g < v->options.groups; g++) {
        uint32_t placed = 0; /* shards that have applied the gradient of the group */
        for (uint32_t k = 0; k < v->sharded.count; k++)
            placed += v->sharded.placed[g * v->sharded.count + k] == v->doing[g].line + 1;
        if (v->doing[g].state == LKI_GROUP_WAITS && v->doing[g].placed != placed)
            return lk_fail(LK_EMISMATCH, "group %u is not in %u shards", g, v->doing[g].placed);
    }
    return taken != done  ? lk_fail(LK_EMISMATCH, "%u gradients have %u messages", done, taken)
           : unpublished  ? lk_fail(LK_EMISMATCH, "a version that is not published was kept")
           : live > v->options.groups + 1
               ? lk_fail(LK_EMISMATCH, "%u versions were kept", live)
               : LK_OK;
}

/* Called between barriers, so that no rank changes anything during the check. */
REPLACED(lk_status, lki_versions_repair, lk_parallel *parallel)
{
    LK_TRY(__real_lki_versions_repair(parallel));
    LK_TRY(check_arena(parallel));
    return __real_lk_barrier(parallel->comm);
}

/* ---- A run --------------------------------------------------------------------------------- */

typedef struct {
    lkt_crew  crew; /* first, so that hooks find the plot */
    lk_async  async;
    struct {
        uint32_t rank;
        long     at; /* the moment at which the rank ends; NEVER: it does not */
    } victims[VICTIMS];
    pthread_barrier_t opened; /* no rank is lost before all have opened */
    _Atomic uint32_t  losses;
    bool              awaits; /* ranks wait for the loss in their first tasks */
    _Atomic uint32_t  known;  /* number of steps that ranks had finished when they noticed it */
} plot;

/* The objects of one rank, which are freed wherever the rank ends. */
typedef struct {
    plot        *p;
    lk_comm     *given, *failed, *comm; /* failed: that before `comm`, unless it is `given` */
    lk_parallel *parallel;
    bool         lost;
    uint32_t     known; /* number of steps of `results` */
    lk_step_result results[STEPS];
    lk_async_step  versions[STEPS];
    char         hash[65];
    lk_error     why;
} member;

/* Drives the ranks apart, by less than lkt_dawdle(). */
static void at_term(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn, uint32_t t)
{
    const lki_random lot = lki_philox(9, LKI_RNG_DATA, step, p->rank, turn.virtual_worker, t);
    const struct timespec pause = { .tv_nsec = lot.word[1] % 300000 };
    while (((plot *)w)->awaits && p->ranks == RANKS && !lki_comm_has_failed(p->comm))
        (void)nanosleep(&pause, NULL);
    if (lot.word[0] % 4 == 0)
        (void)nanosleep(&pause, NULL);
    moment();
}

static lk_status run_steps(member *m, uint64_t first)
{
    plot            *p = m->p;
    lk_parallel_turn turn;
    lk_step_result   result;
    for (uint64_t step = first; step < STEPS; step++) {
        moment();
        LK_TRY(lk_parallel_begin(m->parallel, step));
        LK_TRY(lk_parallel_set_rate(m->parallel, 0.01));
        while (lk_parallel_next(m->parallel, &turn))
            (void)lkt_make_turn(&p->crew, m->parallel, (uint32_t)turn.step, turn);
        LK_TRY(lk_parallel_finish(m->parallel, 0.01, &result));
        if (step < m->known && result.loss != m->results[step].loss)
            return lk_fail(LK_EMISMATCH, "step %llu is finished again with another loss",
                           (unsigned long long)step);
        m->results[step]         = result;
        m->versions[step]        = lk_parallel_async_step(m->parallel);
        m->versions[step].waited = m->versions[step].seconds = 0;
        m->known         = (uint32_t)lki_max(m->known, step + 1);
    }
    return __real_lk_barrier(m->comm); /* no rank is lost after this barrier */
}

static lk_status find_group(member *m, lk_parallel_standing *standing)
{
    lk_parallel *next = NULL;
    lk_status    status;
    (void)atomic_fetch_add(&m->p->known, m->known);
    do {
        lk_comm *group;
        LK_TRY(lk_comm_rebuild(&group, m->comm, NULL));
        if (m->failed != NULL)
            lk_comm_free(m->failed);
        m->failed = m->comm == m->given ? NULL : m->comm;
        m->comm   = group;
        LK_TRY(lk_comm_take_arenas(group, m->failed != NULL ? m->failed : m->given));
        status = lk_parallel_go_on(&next, m->parallel, group, model, LKT_PARAMS,
                                   &m->p->crew.options, standing);
        fate.opened = status == LK_OK ? next : m->parallel;
    } while (status != LK_OK && lk_comm_has_lost(m->comm));
    LK_TRY(status);
    lk_parallel_free(m->parallel);
    m->parallel = next;
    return LK_OK;
}

static lk_status run(member *m)
{
    lk_parallel_standing standing = { .steps = 0 };
    lki_sha256           hash;
    lk_status            status = run_steps(m, 0);
    while (status != LK_OK && lk_comm_has_lost(m->comm)) {
        LK_TRY(find_group(m, &standing));
        if (standing.steps > m->known)
            return lk_fail(LK_EMISMATCH, "this rank has not finished step %llu",
                           (unsigned long long)standing.steps);
        status = run_steps(m, standing.steps);
    }
    LK_TRY(status);
    lki_sha256_begin(&hash);
    for (uint32_t i = 0; i < STEPS; i++) {
        lki_sha256_add(&hash, &m->results[i].loss, sizeof m->results[i].loss);
        lki_sha256_add(&hash, &m->results[i].grad_norm, sizeof m->results[i].grad_norm);
        lki_sha256_add(&hash, &m->results[i].count, sizeof m->results[i].count);
        lki_sha256_add(&hash, &m->versions[i], sizeof m->versions[i]);
    }
    LK_TRY(lkt_hash_values(m->parallel, &m->p->crew, &hash));
    lki_sha256_end(&hash, m->hash);
    return __real_lk_barrier(m->comm);
}

static long end_of(const plot *p, uint32_t rank)
{
    for (int i = 0; i < VICTIMS; i++)
        if (p->victims[i].at > 0 && p->victims[i].rank == rank)
            return p->victims[i].at;
    return NEVER;
}

/* Tells the others that this rank is lost, and wakes them, so that the test is short. */
static void be_lost(member *m)
{
    const lki_versions *v    = m->parallel->versions;
    const uint32_t      rank = lk_comm_world_rank(m->comm, lk_comm_rank(m->comm));
    fate.left                = NEVER;
    m->lost                  = true;
    (void)atomic_fetch_add(&m->p->losses, 1);
    (void)(lki_fail_group(m->comm, rank, LK_EPEER, "a rank is lost") == LK_OK);
    __real_lki_comm_wake_word(&v->common->changes);
    if (v->arrivals != NULL)
        __real_lki_comm_wake_word(&v->arrivals->releases);
}

/* Runs a rank.  The caller owns `member`, so longjmp() does not invalidate it. */
static void *live(void *argument)
{
    member *m = argument;
    plot   *p = m->p;
    m->comm   = m->given;
    if (lk_parallel_open(&m->parallel, m->comm, model, LKT_PARAMS, &p->crew.options) != LK_OK)
        abort();
    (void)pthread_barrier_wait(&p->opened);
    fate.opened = m->parallel;
    fate.left   = end_of(p, lk_comm_rank(m->comm));
    if (setjmp(fate.out) == 0) {
        if (run(m) != LK_OK)
            m->why = *lk_error_last();
    } else {
        be_lost(m);
    }
    fate.left = NEVER;
    if (fate.opened != m->parallel) /* a rank is lost only after it has freed its groups */
        lk_parallel_free(fate.opened);
    lk_parallel_free(m->parallel);
    if (m->comm != m->given)
        lk_comm_free(m->comm);
    lk_comm_free(m->failed);
    lk_comm_free(m->given);
    return NULL;
}

/* Runs the plot, in which the ranks that are left must end with equal hashes. */
static void play(plot *p, char hash[65])
{
    member    members[LKT_RANKS_MAX];
    lk_comm  *comms[LKT_RANKS_MAX];
    pthread_t threads[LKT_RANKS_MAX];
    const uint32_t        ranks   = p->crew.ranks;
    const lk_comm_options options = { .struct_size = sizeof options,
                                      .timeout_ms  = WORLD_PATIENCE_MS };
    p->losses = 0;
    hash[0]   = '\0';
    assert_int_equal(pthread_barrier_init(&p->opened, NULL, ranks), 0);
    assert_int_equal(lk_comm_open_threads(comms, ranks, &options), LK_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        members[r] = (member){ .p = p, .given = comms[r] };
        assert_int_equal(pthread_create(&threads[r], NULL, live, &members[r]), 0);
    }
    for (uint32_t r = 0; r < ranks; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    (void)pthread_barrier_destroy(&p->opened);
    for (uint32_t r = 0; r < ranks; r++) {
        if (members[r].lost)
            continue;
        if (members[r].why.status != LK_OK)
            fail_msg("rank %u lost at %ld: rank %u: %s", p->victims[0].rank, p->victims[0].at, r,
                     members[r].why.message);
        if (hash[0] == '\0')
            memcpy(hash, members[r].hash, 65);
        assert_string_equal(members[r].hash, hash);
    }
}

/* Prepares a run.  `file`: 'r' records the schedule, 'p' replays it, else it is simulated. */
static void prepare(plot *p, const lk_async *async, uint32_t ranks, char file, bool duplicate)
{
    *p                        = (plot){ .crew = lkt_make_crew(model, "ddp", LEAVES, ranks) };
    p->async                  = *async;
    p->async.struct_size      = sizeof p->async;
    p->async.steps            = STEPS;
    p->async.record           = file == 'r' ? path : NULL;
    p->async.replay           = file == 'p' ? path : NULL;
    p->crew.at_term           = at_term;
    p->crew.options.unused    = LK_UNUSED_ZERO;
    p->crew.options.async     = &p->async;
    p->crew.options.survives  = true;
    p->crew.options.duplicate = duplicate;
    for (int i = 0; i < VICTIMS; i++)
        p->victims[i].at = NEVER;
}

/* Returns the distance between the moments at which a loss is tried, 1 to try all of them.  Runs
 * with shards have more to repair. */
static long stride(const lk_async *async)
{
    return lki_thorough() ? 1
                          : (lki_brief() || LKI_SANITIZED ? 61 : 37) / (async->shards > 0 ? 2 : 1);
}

/* ---- Simulated schedules ------------------------------------------------------------------- */

static const lk_async simulated[] = {
    { .delays = LK_DELAYS_EXPONENTIAL, .compensation = 0.04 },
    { .delays = LK_DELAYS_LOGNORMAL, .spread = 1, .aggregate = 4 },
    { .delays = LK_DELAYS_EXPONENTIAL, .groups = 4, .aggregate = 2, .bounded = true,
      .staleness = 1, .rate_by_staleness = true },
};

static void a_rank_may_be_lost_at_any_moment(void **state)
{
    plot p;
    char want[65], got[65];
    long begin = 0;
    (void)state;
    for (uint32_t i = 0; i < sizeof simulated / sizeof simulated[0]; i++)
        for (uint32_t rank = 0; rank < RANKS; rank += 2) {
            const bool duplicate = i < 2;
            const long apart     = stride(&simulated[i]);
            prepare(&p, &simulated[i], 1, 's', duplicate);
            play(&p, want);
            prepare(&p, &simulated[i], RANKS, 's', duplicate);
            p.victims[0].rank = rank;
            for (long at = 1 + begin++ % apart, first = at; at == first || p.losses > 0;
                 at += apart) {
                p.victims[0].at = at;
                play(&p, got);
                if (strcmp(got, want) != 0)
                    fail_msg("schedule %u: rank %u lost at moment %ld", i, rank, at);
            }
        }
}

/* ---- Live runs ----------------------------------------------------------------------------- */

static const lk_async recorded[] = {
    { .groups = 4 },
    { .aggregate = 4 },
    { .groups = 4, .aggregate = 2, .bounded = true, .in_versions = true, .staleness = 1 },
    { .groups = 4, .consistency = LK_CONSISTENCY_SHARD, .shards = 2, .compensation = 0.04 },
    { .groups = 4, .consistency = LK_CONSISTENCY_SHARD, .shards = 3, .rate_by_staleness = true },
};

enum { KINDS = sizeof recorded / sizeof recorded[0] };

/* Expects that the recorded schedule has each task of the run once. */
static void check_tasks(const lk_async *async)
{
    static char    text[BYTES];
    const uint32_t count = STEPS * (async->groups > 0 ? async->groups : LEAVES);
    const size_t   line  = lki_recorded_line_bytes(async->shards);
    const char    *lines = read_schedule(text, sizeof text);
    uint8_t        seen[STEPS * LEAVES] = { 0 };
    assert_int_equal(strlen(lines), count * line);
    for (uint32_t i = 0; i < count; i++) {
        const unsigned long task = strtoul(lines + i * line, NULL, 10);
        assert_true(task < count && seen[task] == 0);
        seen[task] = 1;
    }
}

static void check_replays(const lk_async *async, const char *want, uint32_t most, long at)
{
    plot p;
    char got[65];
    check_tasks(async);
    for (uint32_t ranks = 1; ranks <= most; ranks++) {
        prepare(&p, async, ranks, 'p', false);
        play(&p, got);
        if (strcmp(got, want) != 0)
            fail_msg("moment %ld: a replay with %u ranks differs", at, ranks);
    }
}

static void a_live_run_may_lose_a_rank(void **state)
{
    plot p;
    char want[65];
    long begin = 0;
    (void)state;
    for (uint32_t i = 0; i < KINDS; i++)
        for (uint32_t rank = 0; rank < RANKS; rank += 2) {
            const long apart = stride(&recorded[i]);
            prepare(&p, &recorded[i], RANKS, 'r', false);
            p.victims[0].rank = rank;
            for (long at = 1 + begin++ % apart, first = at; at == first || p.losses > 0;
                 at += apart) {
                p.victims[0].at = at;
                (void)unlink(path);
                play(&p, want);
                check_replays(&recorded[i], want, at % 3 == 0 ? 3 : 1, at);
            }
        }
}

/* Loses two ranks.  The second one may be lost while it repairs what the first one has left. */
static void two_ranks_may_be_lost(void **state)
{
    plot     p;
    uint64_t seed = 3;
    char     want[65], got[65];
    (void)state;
    prepare(&p, &simulated[1], 1, 's', false);
    play(&p, want);
    for (int i = 0; i < (lki_brief() ? 4 : lki_thorough() ? 200 : 12); i++) {
        const bool      lives = i % 2 > 0;
        const lk_async *async = lives ? &recorded[i / 2 % KINDS] : &simulated[1];
        prepare(&p, async, RANKS, lives ? 'r' : 's', false);
        seed              = lki_xxh3(&seed, sizeof seed);
        p.victims[0].rank = (uint32_t)(seed % RANKS);
        p.victims[1].rank = (uint32_t)((seed + 1 + seed / 4 % 2) % RANKS);
        p.victims[0].at   = 1 + (long)(seed >> 16 & 0xffff) % 80;
        p.victims[1].at   = p.victims[0].at + (long)(seed >> 32 & 0xffff) % 40;
        (void)unlink(path);
        play(&p, got);
        if (lives)
            check_replays(async, got, 1, p.victims[0].at);
        else if (strcmp(got, want) != 0)
            fail_msg("%d: ranks %u and %u lost at %ld and %ld", i, p.victims[0].rank,
                     p.victims[1].rank, p.victims[0].at, p.victims[1].at);
    }
}

/* A replay may lose a rank, too. */
static void a_replay_may_lose_a_rank(void **state)
{
    plot p;
    char want[65], got[65];
    (void)state;
    for (uint32_t i = 0; i < KINDS; i += KINDS - 2) {
        (void)unlink(path);
        prepare(&p, &recorded[i], RANKS, 'r', false);
        play(&p, want);
        prepare(&p, &recorded[i], RANKS, 'p', false);
        p.victims[0].rank = 1;
        for (long at = 2; at == 2 || p.losses > 0; at += stride(&recorded[i])) {
            p.victims[0].at = at;
            play(&p, got);
            assert_string_equal(got, want);
        }
    }
}

/* Loses a rank without a task, so that the others can always find some. */
static void a_busy_rank_notices_the_loss(void **state)
{
    const lk_async all = { .groups = LEAVES };
    plot           p;
    char           hash[65];
    (void)state;
    prepare(&p, &all, RANKS, 's', false);
    p.awaits     = true;
    p.victims[0].rank = 2;
    p.victims[0].at   = 1;
    play(&p, hash);
    assert_int_equal(p.losses, 1);
    assert_int_equal(p.known, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_may_be_lost_at_any_moment),
        cmocka_unit_test(a_live_run_may_lose_a_rank),
        cmocka_unit_test(two_ranks_may_be_lost),
        cmocka_unit_test(a_replay_may_lose_a_rank),
        cmocka_unit_test(a_busy_rank_notices_the_loss),
    };
    return cmocka_run_group_tests_name("parallel.versions.survive", tests, make_schedule,
                                       remove_schedule);
}
