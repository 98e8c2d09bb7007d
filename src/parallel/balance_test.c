/* balance_test.c -- shares that move: the same bits, whoever runs what; and when they move.
 *
 * Goal:   a run whose shares are drawn anew after every step leaves the bits of `single`, on one
 *         host and on several, with a ledger and without; every virtual worker is made once a step;
 *         the rule moves shares for what lasts and for enough, and to where they are best.
 * Method: gradients are pure functions of step, virtual worker and element, with a wide spread of
 *         exponents.  The times of ranks are not measured but put into their reports.
 * Negative control: two virtual workers that are swapped give other bits.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "base/sanitized.h"
#include "comm/hosted.h"
#include "parallel/balance.h"
#include "parallel/testing.h"

enum { PARAMS = 3, STEPS = 6, STEPS_MAX = 40, LEAVES_MAX = 64 };

static const lk_param model[PARAMS] = {
    { .name = "w", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } } },
    { .name = "v", .shape = { 2, { 20, 60 } }, .init = LK_INIT_NORMAL, .scale = 0.02f },
};
static const lk_parallel_state running[] = { { "mean", 7, 0, 0.1f } };

/* Seconds of a virtual worker of a rank in a step; NULL: as measured. */
typedef double (*pace_of)(uint32_t rank, uint32_t step);

typedef struct {
    lk_parallel_options options;
    uint32_t            ranks, steps;
    hosted              hosts; /* none: one host */
    bool                swapped;
    pace_of             pace;
} crew;

/* What the last crew has done. */
static struct {
    _Atomic uint32_t made[STEPS_MAX][LEAVES_MAX];
    uint32_t         shares[STEPS_MAX][LKT_RANKS_MAX]; /* after each step */
    _Atomic uint32_t moved;
} done;

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

static void make_turn(lk_parallel *p, crew *w, uint32_t step, lk_parallel_turn turn)
{
    uint32_t v = turn.virtual_worker;
    if (w->swapped)
        v = v == 1 ? 2 : v == 2 ? 1 : v;
    for (uint32_t t = 0; t < PARAMS; t++) { /* by default terms go from the last to the first */
        uint32_t     param = PARAMS - 1 - t;
        const float *value = lk_parallel_param(p, param);
        float       *grad  = lk_parallel_grad(p, t);
        for (size_t i = 0; i < lk_shape_count(model[param].shape); i++)
            grad[i] += noise((uint32_t)i, step * 100 + t, v, turn.micro_index) + 0.01f * value[i];
        lk_parallel_grad_ready(p, t);
        lk_parallel_progress(p);
    }
    for (size_t i = 0; i < running[0].count; i++)
        lk_parallel_state_sum(p, 0)[i] += 3 * noise((uint32_t)i, step, v, 9);
    lk_parallel_report(p, (double)noise(v, step, 9, turn.micro_index), 3, 3, 1);
}

/* In place of what was measured; all of this rank's turns are made. */
static void put_times(lk_parallel *p, const crew *w, uint32_t step)
{
    for (uint32_t i = 0; w->pace != NULL && i < p->share.count; i++)
        lki_report_of(p, p->share.first + i)->seconds = w->pace(p->rank, step);
}

static lk_status one_step(lk_parallel *p, crew *w, uint32_t step, lki_sha256 *hash)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    LK_TRY(lk_parallel_begin(p, step));
    while (lk_parallel_next(p, &turn)) {
        if (!turn.again && turn.micro_index == 0)
            atomic_fetch_add(&done.made[step][turn.virtual_worker], 1);
        make_turn(p, w, step, turn);
    }
    put_times(p, w, step);
    LK_TRY(lk_parallel_finish(p, 0.01, &result));
    done.shares[step][p->rank] = p->share.count;
    if (p->rank == 0)
        atomic_fetch_add(&done.moved, result.moved);
    lki_sha256_add(hash, &result.loss, sizeof result.loss);
    lki_sha256_add(hash, &result.grad_norm, sizeof result.grad_norm);
    return LK_OK;
}

/* All of them are there on every host that has what its ranks update. */
static lk_status hash_values(lk_parallel *p, lki_sha256 *hash)
{
    static _Thread_local float values[50 * 90];
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
    double     sums[2] = { 1, 2 };
    LK_TRY(lk_parallel_open(out, m->comm, model, PARAMS, &m->crew->options));
    lki_sha256_begin(&hash);
    for (uint32_t step = 0; step < m->crew->steps; step++)
        LK_TRY(one_step(*out, m->crew, step, &hash));
    double mine[LEAVES_MAX * 2];
    for (uint32_t i = 0; i < (*out)->share.count; i++)
        for (uint32_t k = 0; k < 2; k++)
            mine[2 * i + k] = (double)noise((*out)->share.first + i, k, 7, 7);
    LK_TRY(lk_parallel_sum(*out, mine, 2, sums));
    lki_sha256_add(&hash, sums, sizeof sums);
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
    memset(&done, 0, sizeof done);
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
        for (uint32_t v = 0; v < w->options.virtual_workers; v++)
            assert_int_equal(atomic_load(&done.made[step][v]), 1);
    memcpy(hash, members[0].hash, 65);
}

static crew make_crew(const char *strategy, uint32_t leaves, uint32_t ranks)
{
    return (crew){ .ranks   = ranks,
                   .options = { .strategy           = strategy,
                                .virtual_workers    = leaves,
                                .micro_count        = 2,
                                .bucket_bytes       = 9000,
                                .first_bucket_bytes = 4000,
                                .optimizer          = { .kind = LK_ADAMW, .weight_decay = 0.1 },
                                .clip_norm          = 1,
                                .seed               = 5,
                                .states             = running,
                                .state_count        = 1 } };
}

static crew make_drawn(const char *strategy, uint32_t leaves, uint32_t ranks, uint64_t seed)
{
    crew w                   = make_crew(strategy, leaves, ranks);
    w.options.rebalance      = true;
    w.options.rebalance_seed = seed;
    return w;
}

/* ---- Bits -------------------------------------------------------------------------------- */

static void shares_that_are_drawn_give_the_bits_of_single(void **state)
{
    static const uint32_t leaves[] = { 5, 12, 16, 31 };
    (void)state;
    for (size_t i = 0; i < sizeof leaves / sizeof leaves[0] - LKI_SANITIZED; i++) {
        char want[65], got[65];
        crew single = make_crew("single", leaves[i], 1);
        hash_of(&single, want);
        for (uint32_t ranks = 1; ranks <= 5; ranks += 1 + 2 * LKI_SANITIZED) {
            crew w             = make_drawn("ddp", leaves[i], ranks, 3 + ranks);
            w.options.survives = ranks % 2 == 0;
            w.options.unused   = ranks % 2 == 0 ? LK_UNUSED_ZERO : LK_UNUSED_SKIP;
            w.options.audit    = ranks % 3 == 0 ? 0.3 : 0;
            hash_of(&w, got);
            assert_string_equal(got, want);
            assert_true(ranks == 1 || leaves[i] == ranks || atomic_load(&done.moved) > 0);
        }
    }
}

static void and_so_they_do_on_several_hosts(void **state)
{
    static const hosted shapes[] = {
        { .hosts = 2, .each = 1, .seed = 1 },
        { .hosts = 2, .each = 2, .seed = 2 },
        { .hosts = 3, .each = 1, .seed = 3 },
        { .hosts = 2, .each = 3, .fewer_first = 2, .seed = 4 },
    };
    char want[65], got[65];
    crew single = make_crew("single", 16, 1);
    (void)state;
    hash_of(&single, want);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] - LKI_SANITIZED; i++)
        for (uint32_t k = 0; k < 2; k++) {
            crew w  = make_drawn(k == 0 ? "ddp" : "zero1", 16, hosted_size(shapes[i]), 11 + i);
            w.hosts = shapes[i];
            hash_of(&w, got);
            assert_string_equal(got, want);
            assert_true(atomic_load(&done.moved) > 0);
        }
}

static void other_orders_give_other_bits(void **state)
{
    char want[65], got[65];
    crew right = make_drawn("ddp", 12, 3, 7), swapped = make_drawn("ddp", 12, 3, 7);
    (void)state;
    swapped.swapped = true;
    hash_of(&right, want);
    hash_of(&swapped, got);
    assert_string_not_equal(got, want);
}

/* ---- When -------------------------------------------------------------------------------- */

static double half_speed(uint32_t rank, uint32_t step)
{
    bool slow = step < 20 ? rank == 1 : rank == 0;
    return slow ? 0.04 : 0.02;
}

/* Now and then a step that takes ten times as long. */
static double hiccups(uint32_t rank, uint32_t step)
{
    return rank == 0 && step % 5 < 2 ? 0.2 : 0.02;
}

static double nearly_equal(uint32_t rank, uint32_t step)
{
    (void)step;
    return rank == 0 ? 0.021 : 0.02;
}

static double no_clock(uint32_t rank, uint32_t step)
{
    (void)rank;
    (void)step;
    return 0;
}

static void shares_follow_speed(void **state)
{
    char hash[65], want[65];
    crew single = make_crew("single", 16, 1), w = make_crew("zero1", 16, 2);
    (void)state;
    w.options.rebalance = true;
    w.pace              = half_speed;
    w.steps = single.steps = STEPS_MAX;
    hash_of(&single, want);
    hash_of(&w, hash);
    assert_string_equal(hash, want);
    assert_int_equal(done.shares[4][0], 8); /* the window has yet to be full */
    assert_int_equal(done.shares[5][0], 11);
    assert_int_equal(done.shares[19][0], 11);
    assert_int_equal(done.shares[STEPS_MAX - 1][0], 5);
    assert_int_equal(done.shares[STEPS_MAX - 1][1], 11);
}

static void shares_stay_for_what_is_little_or_rare(void **state)
{
    static const pace_of paces[] = { hiccups, nearly_equal, no_clock, half_speed };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char hash[65];
        crew w              = make_crew("ddp", i < 3 ? 16 : 4, i < 3 ? 2 : 1); /* one is alone */
        w.options.rebalance = true;
        w.pace              = paces[i];
        w.steps             = STEPS_MAX;
        hash_of(&w, hash);
        assert_int_equal(atomic_load(&done.moved), 0);
    }
}

/* ---- The rule ---------------------------------------------------------------------------- */

/* The least time of the slowest, by trying all. */
static double least_seconds(uint32_t leaves, uint32_t ranks, const double *pace)
{
    double least = HUGE_VAL;
    if (ranks == 1)
        return leaves * pace[0];
    for (uint32_t count = 1; count + ranks - 1 <= leaves; count++) {
        double rest = least_seconds(leaves - count, ranks - 1, pace + 1);
        least       = fmin(least, fmax(count * pace[0], rest));
    }
    return least;
}

static void counts_take_the_least_time(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 200; n++) {
        uint32_t   counts[4], bounds[5] = { 0 };
        double     pace[4];
        lki_random lot = lki_philox(5, LKI_RNG_DATA, n, 0, 0, 0);
        uint32_t   ranks = 1 + lot.word[0] % 4, leaves = ranks + lot.word[1] % 14;
        for (uint32_t r = 0; r < ranks; r++)
            pace[r] = 0.1 + lki_philox(6, LKI_RNG_DATA, n, r, 0, 0).word[0] * 0x1p-32;
        lki_balance_counts(counts, leaves, ranks, pace);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_true(counts[r] > 0);
            bounds[r + 1] = bounds[r] + counts[r];
        }
        assert_int_equal(bounds[ranks], leaves);
        assert_true(lki_balance_seconds(bounds, ranks, pace) == least_seconds(leaves, ranks, pace));
    }
}

static void says_where_shares_cannot_move(void **state)
{
    lk_parallel *p = NULL;
    lk_comm     *comm[1];
    (void)state;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    for (uint32_t k = 0; k < 2; k++) {
        crew w              = make_crew(k == 0 ? "zero2" : "ddp", 4, 1);
        w.options.rebalance = true;
        w.options.lock_step = k == 1;
        assert_int_equal(lk_parallel_open(&p, comm[0], model, PARAMS, &w.options), LK_EUNSUPPORTED);
        assert_non_null(strstr(lk_error_last()->message, k == 0 ? "ddp and zero1" : "lock step"));
    }
    lk_comm_free(comm[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_that_are_drawn_give_the_bits_of_single),
        cmocka_unit_test(and_so_they_do_on_several_hosts),
        cmocka_unit_test(other_orders_give_other_bits),
        cmocka_unit_test(shares_follow_speed),
        cmocka_unit_test(shares_stay_for_what_is_little_or_rare),
        cmocka_unit_test(counts_take_the_least_time),
        cmocka_unit_test(says_where_shares_cannot_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
