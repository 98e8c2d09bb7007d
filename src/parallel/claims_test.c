/* claims_test.c -- virtual workers that others make: the same bits, whoever comes first.
 *
 * Goal:   ranks that are held up before a step, in the middle of any turn or at a border of blocks,
 *         whose virtual workers are then made by others, leave the bits of `single`: on one host
 *         and on several, with a ledger and without; each is summed once; what is dropped stays
 *         out.
 * Method: gradients are pure functions of step, virtual worker and element.  Who is held up waits
 *         for what the others do: until so many of its virtual workers are made, or until what it
 *         makes is not wanted any more.  A second crew meets no waits but is driven apart by work
 *         of many sizes.
 * Negative control: two virtual workers that are swapped give other bits.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "base/sanitized.h"
#include "comm/hosted.h"
#include "parallel/claims.h"
#include "parallel/testing.h"

enum { PARAMS = 3, STEPS = 3, STEPS_MAX = 12, LEAVES_MAX = 32 };

static const lk_param model[PARAMS] = {
    { .name = "w", .shape = { 2, { 20, 40 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } } },
    { .name = "v", .shape = { 2, { 10, 30 } }, .init = LK_INIT_NORMAL, .scale = 0.02f },
};
static const lk_parallel_state running[] = { { "mean", 7, 0, 0.1f } };

typedef struct crew crew;

/* What a rank does before step `step`, and before it makes term `term` of a turn of it. */
typedef void (*before_step)(crew *w, lk_parallel *p, uint32_t step);
typedef void (*before_term)(crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                            uint32_t term);

struct crew {
    lk_parallel_options options;
    uint32_t            ranks, steps;
    hosted              hosts; /* none: one host */
    bool                swapped, stubborn; /* stubborn: makes what is dropped to its end */
    before_step         at_step;
    before_term         at_term;
    _Atomic uint32_t    others[STEPS_MAX];     /* turns of others' virtual workers, made */
    _Atomic uint32_t    begun[STEPS_MAX];      /* the same, begun */
    _Atomic uint32_t    held[STEPS_MAX];
    _Atomic uint32_t    dropped;
    uint32_t            duplicated[STEPS_MAX][LKT_RANKS_MAX];
};

typedef struct {
    crew     *crew;
    lk_comm  *comm;
    lk_status status;
    char      hash[65];
} member;

static float noise(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    lki_random r     = lki_philox(77, LKI_RNG_DATA, a, b, c, d);
    float      value = lki_random_unit(r.word[0]) - 0.5f;
    for (uint32_t shift = r.word[1] % 20; shift > 0; shift--)
        value *= 0.5f;
    return value;
}

/* False: the rest was left out. */
static bool make_turn(lk_parallel *p, crew *w, uint32_t step, lk_parallel_turn turn)
{
    uint32_t v = turn.virtual_worker;
    if (w->swapped)
        v = v == 1 ? 2 : v == 2 ? 1 : v;
    for (uint32_t t = 0; t < PARAMS; t++) { /* by default terms go from the last to the first */
        uint32_t     param = PARAMS - 1 - t;
        const float *value = lk_parallel_param(p, param);
        if (w->at_term != NULL)
            w->at_term(w, p, step, turn, t);
        if (!w->stubborn && lk_parallel_dropped(p))
            return false;
        float *grad = lk_parallel_grad(p, t);
        for (size_t i = 0; i < lk_shape_count(model[param].shape); i++)
            grad[i] += noise((uint32_t)i, step * 100 + t, v, turn.micro_index) + 0.01f * value[i];
        lk_parallel_grad_ready(p, t);
        lk_parallel_progress(p);
    }
    for (size_t i = 0; i < running[0].count; i++)
        lk_parallel_state_sum(p, 0)[i] += 3 * noise((uint32_t)i, step, v, 9);
    lk_parallel_report(p, (double)noise(v, step, 9, turn.micro_index), 3, 3, 1);
    return true;
}

static lk_status one_step(lk_parallel *p, crew *w, uint32_t step, lki_sha256 *hash)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    if (w->at_step != NULL)
        w->at_step(w, p, step);
    LK_TRY(lk_parallel_begin(p, step));
    while (lk_parallel_next(p, &turn)) {
        atomic_fetch_add(&w->begun[step], turn.again);
        if (make_turn(p, w, step, turn))
            atomic_fetch_add(&w->others[step], turn.again);
        else
            atomic_fetch_add(&w->dropped, 1);
    }
    LK_TRY(lk_parallel_finish(p, 0.01, &result));
    w->duplicated[step][p->rank] = result.duplicated;
    lki_sha256_add(hash, &result.loss, sizeof result.loss);
    lki_sha256_add(hash, &result.grad_norm, sizeof result.grad_norm);
    lki_sha256_add(hash, &result.count, sizeof result.count);
    return LK_OK;
}

static lk_status hash_values(lk_parallel *p, lki_sha256 *hash)
{
    static _Thread_local float values[20 * 40];
    uint32_t states = lk_optimizer_state_count(&p->optimizer);
    for (uint32_t i = 0; i < PARAMS; i++)
        for (uint32_t which = 0; which <= states; which++) {
            size_t count = lk_shape_count(model[i].shape);
            LK_TRY(lk_parallel_fetch(p, i, which, 0, count, values));
            lki_sha256_add(hash, values, count * sizeof *values);
        }
    lki_sha256_add(hash, lk_parallel_state_data(p, 0), running[0].count * sizeof(float));
    return LK_OK;
}

static lk_status train(member *m, lk_parallel **out)
{
    lki_sha256 hash;
    LK_TRY(lk_parallel_open(out, m->comm, model, PARAMS, &m->crew->options));
    lki_sha256_begin(&hash);
    for (uint32_t step = 0; step < m->crew->steps; step++)
        LK_TRY(one_step(*out, m->crew, step, &hash));
    LK_TRY(hash_values(*out, &hash));
    lki_sha256_end(&hash, m->hash);
    return lk_barrier(m->comm);
}

static void *rank_main(void *argument)
{
    member      *m = argument;
    lk_parallel *p = NULL;
    m->status      = train(m, &p);
    if (m->status != LK_OK) {
        print_message("%s\n", lk_error_last()->message);
        lk_comm_abort(m->comm);
    }
    lk_parallel_free(p);
    return NULL;
}

static bool rank_on_host(lk_comm *comm, void *context)
{
    member *m = (member *)context + lk_comm_rank(comm);
    m->comm   = comm;
    (void)rank_main(m);
    return true;
}

static void run_on_one_host(crew *w, member *members)
{
    lk_comm        *comms[LKT_RANKS_MAX] = { NULL };
    lk_comm_options options              = { .timeout_ms = 20000 };
    assert_int_equal(lk_comm_open_threads(comms, w->ranks, &options), LK_OK);
    for (uint32_t r = 0; r < w->ranks; r++)
        members[r].comm = comms[r];
    lkt_run_ranks(rank_main, members, sizeof *members, w->ranks);
    for (uint32_t r = 0; r < w->ranks; r++)
        lk_comm_free(comms[r]);
}

/* Runs a crew, which must succeed; leaves its hash. */
static void hash_of(crew *w, char hash[65])
{
    static member members[LKT_RANKS_MAX];
    if (w->steps == 0)
        w->steps = STEPS;
    for (uint32_t r = 0; r < w->ranks; r++)
        members[r] = (member){ .crew = w };
    if (w->hosts.hosts == 0)
        run_on_one_host(w, members);
    else
        assert_true(hosted_all(w->hosts, rank_on_host, members));
    for (uint32_t r = 0; r < w->ranks; r++) {
        assert_int_equal(members[r].status, LK_OK);
        assert_string_equal(members[r].hash, members[0].hash);
    }
    for (uint32_t step = 0; step < w->steps; step++)
        for (uint32_t r = 1; r < w->ranks; r++)
            assert_int_equal(w->duplicated[step][r], w->duplicated[step][0]);
    memcpy(hash, members[0].hash, 65);
}

static crew make_crew(const char *strategy, uint32_t leaves, uint32_t ranks)
{
    return (crew){ .ranks   = ranks,
                   .options = { .strategy           = strategy,
                                .virtual_workers    = leaves,
                                .micro_count        = 2,
                                .bucket_bytes       = 2000,
                                .first_bucket_bytes = 1000,
                                .optimizer          = { .kind = LK_ADAMW, .weight_decay = 0.1 },
                                .clip_norm          = 1,
                                .seed               = 5,
                                .duplicate          = ranks > 1,
                                .states             = running,
                                .state_count        = 1 } };
}

static void must_be_single(crew *w)
{
    char want[65], got[65];
    crew single                   = make_crew("single", w->options.virtual_workers, 1);
    single.options.comm_dtype     = w->options.comm_dtype;
    single.options.unused         = w->options.unused;
    single.steps                  = w->steps;
    hash_of(&single, want);
    hash_of(w, got);
    assert_string_equal(got, want);
}

static void until(const _Atomic uint32_t *counter, uint32_t least)
{
    while (atomic_load(counter) < least)
        (void)sched_yield();
}

/* ---- One rank is late -------------------------------------------------------------------- */

/* Before it begins the step: until two of its virtual workers (two turns each) are made. */
static void hold_before_step(crew *w, lk_parallel *p, uint32_t step)
{
    if (step > 0 && p->rank == 1)
        until(&w->others[step], 4);
}

static void what_a_rank_has_not_begun_is_made_by_others(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1" };
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        crew w              = make_crew(strategies[k % 2], 16, 2);
        w.options.rebalance = k >= 2; /* another order of its own */
        w.at_step           = hold_before_step;
        must_be_single(&w);
        for (uint32_t step = 1; step < w.steps; step++)
            assert_true(w.duplicated[step][0] >= 2);
        assert_int_equal(w.duplicated[0][0], 0); /* in the first step nobody does */
    }
}

/* In the middle of its n-th virtual worker, until what it makes is not wanted any more. */
static uint32_t hold_at, hold_term, hold_micro;

static void hold_in_turn(crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                         uint32_t term)
{
    if (step > 0 && p->rank != 1 && !turn.again && term == 0)
        until(&w->held[step], 1); /* who is early takes what rank 1 has yet to begin */
    if (step == 0 || p->rank != 1 || turn.again || p->leaf != hold_at || term != hold_term ||
        turn.micro_index != hold_micro)
        return;
    atomic_fetch_add(&w->held[step], 1);
    while (!lki_claims_lost(p))
        (void)sched_yield();
}

static void what_a_rank_has_begun_is_made_by_another(void **state)
{
    (void)state;
    for (hold_at = 6; hold_at < 8; hold_at++) /* with the rest of its queue: others have room */
        for (hold_term = 0; hold_term < PARAMS; hold_term++)
            for (uint32_t k = 0; k < 2; k++) {
                crew w     = make_crew(k == 0 ? "ddp" : "zero1", 16, 2);
                hold_micro = (hold_term + k) % 2;
                w.at_term  = hold_in_turn;
                w.steps    = 3;
                w.stubborn = k == 1;
                must_be_single(&w);
                assert_true(w.duplicated[1][0] >= 1 && w.duplicated[2][0] >= 1);
                assert_true(w.stubborn || atomic_load(&w.dropped) >= 2);
            }
}

static void and_so_it_is_where_each_has_one(void **state)
{
    (void)state;
    hold_at = hold_micro = 0;
    for (hold_term = 0; hold_term < PARAMS; hold_term++)
        for (uint32_t k = hold_term % 2; k < 4; k += 2 - (LKI_SANITIZED == 0)) {
            crew w               = make_crew(k % 2 == 0 ? "ddp" : "zero1", 2, 2);
            w.at_term            = hold_in_turn;
            w.options.comm_dtype = k < 2 ? LK_F32 : LK_I8;
            must_be_single(&w);
            assert_true(w.duplicated[1][0] >= 1 && atomic_load(&w.dropped) >= STEPS - 1);
        }
}

static void and_with_a_ledger(void **state)
{
    (void)state;
    hold_micro = 1;
    for (hold_term = 0; hold_term < PARAMS; hold_term++)
        for (uint32_t leaves = 2; leaves <= 8; leaves *= 4) {
            crew w             = make_crew("ddp", leaves, 2);
            w.at_term          = hold_in_turn;
            w.options.survives = true;
            w.options.unused   = LK_UNUSED_ZERO;
            hold_at            = leaves / 2 - 1; /* its last: there is room for one */
            must_be_single(&w);
            assert_true(w.duplicated[1][0] >= 1);
        }
}

/* ---- Who helps is late ------------------------------------------------------------------- */

/* Rank 1 begins late, rank 0 takes one of its virtual workers and is held up in it. */
static void begin_late(crew *w, lk_parallel *p, uint32_t step)
{
    if (step > 0 && p->rank == 1)
        until(&w->begun[step], 1);
}

static void hold_who_helps(crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn,
                           uint32_t term)
{
    (void)w;
    if (step == 0 || p->rank != 0 || !turn.again || term != 1)
        return;
    while (!lki_claims_lost(p))
        (void)sched_yield();
}

static void a_rank_takes_back_what_takes_too_long(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        crew w             = make_crew(k % 2 == 0 ? "ddp" : "zero1", 8, 2);
        w.options.survives = k >= 2;
        w.options.unused   = k >= 2 ? LK_UNUSED_ZERO : LK_UNUSED_SKIP;
        w.at_step          = begin_late;
        w.at_term          = hold_who_helps;
        must_be_single(&w);
        assert_true(atomic_load(&w.dropped) >= STEPS - 1);
    }
}

/* ---- All at once ------------------------------------------------------------------------- */

/* Work of very different sizes, by step, rank and term, drives the ranks apart. */
static void dawdle(crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn, uint32_t term)
{
    lki_random lot = lki_philox(9, LKI_RNG_DATA, step, p->rank, turn.virtual_worker, term);
    (void)w;
    if (lot.word[0] % 8 == 0)
        for (uint32_t i = 0; i < lot.word[1] % (LKI_SANITIZED ? 300 : 2000); i++)
            (void)sched_yield();
}

static void ranks_that_are_driven_apart_leave_the_bits_of_single(void **state)
{
    static const uint32_t leaves[] = { 5, 12, 31 };
    (void)state;
    for (size_t i = LKI_SANITIZED; i < sizeof leaves / sizeof leaves[0]; i++)
        for (uint32_t ranks = 2; ranks <= 5; ranks += 1 + LKI_SANITIZED) {
            crew w              = make_crew(ranks % 2 == 0 ? "ddp" : "zero1", leaves[i], ranks);
            w.options.survives  = ranks == 3;
            w.options.unused    = ranks == 3 ? LK_UNUSED_ZERO : LK_UNUSED_SKIP;
            w.options.rebalance = ranks == 4;
            w.options.rebalance_seed = 3;
            w.options.noise_decay = ranks == 5 ? 0.9 : 0;
            w.at_term           = dawdle;
            w.steps             = LKI_SANITIZED ? 6 : STEPS_MAX;
            must_be_single(&w);
        }
}

static void and_on_several_hosts(void **state)
{
    static const hosted shapes[] = {
        { .hosts = 2, .each = 2, .seed = 2 },
        { .hosts = 2, .each = 3, .fewer_first = 2, .seed = 4 },
    };
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++) {
            crew w     = make_crew(k == 0 ? "ddp" : "zero1", 16, hosted_size(shapes[i]));
            w.hosts    = shapes[i];
            w.at_step  = hold_before_step; /* rank 1 is on the first host, as rank 0 is */
            must_be_single(&w);
            assert_true(w.duplicated[1][0] >= 2);
        }
}

static void other_orders_give_other_bits(void **state)
{
    char want[65], got[65];
    crew right = make_crew("ddp", 12, 3), swapped = make_crew("ddp", 12, 3);
    (void)state;
    swapped.swapped = true;
    hash_of(&right, want);
    hash_of(&swapped, got);
    assert_string_not_equal(got, want);
}

/* ---- Where there is none ----------------------------------------------------------------- */

static void says_what_it_is_not_for(void **state)
{
    static const struct { const char *strategy, *what; bool lock_step, audit; } cases[] = {
        { "zero2", "ddp and zero1", false, false },
        { "ddp", "lock step", true, false },
        { "ddp", "audit or duplicate", false, true },
    };
    lk_parallel *p = NULL;
    lk_comm     *comm[1];
    (void)state;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        crew w              = make_crew(cases[k].strategy, 4, 1);
        w.options.duplicate = true;
        w.options.lock_step = cases[k].lock_step;
        w.options.audit     = cases[k].audit ? 0.5 : 0;
        assert_int_equal(lk_parallel_open(&p, comm[0], model, PARAMS, &w.options), LK_EUNSUPPORTED);
        assert_non_null(strstr(lk_error_last()->message, cases[k].what));
    }
    lk_comm_free(comm[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_rank_has_not_begun_is_made_by_others),
        cmocka_unit_test(what_a_rank_has_begun_is_made_by_another),
        cmocka_unit_test(and_so_it_is_where_each_has_one),
        cmocka_unit_test(and_with_a_ledger),
        cmocka_unit_test(a_rank_takes_back_what_takes_too_long),
        cmocka_unit_test(ranks_that_are_driven_apart_leave_the_bits_of_single),
        cmocka_unit_test(and_on_several_hosts),
        cmocka_unit_test(other_orders_give_other_bits),
        cmocka_unit_test(says_what_it_is_not_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
