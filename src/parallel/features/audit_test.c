/* audit_test.c -- audits of processors and memory that compute wrong results.
 *
 * Goal:   gradients that one rank computes differently are detected by audits on all ranks, before
 *         anything is updated.  The rank is named if a third rank can decide.  An audit that finds
 *         nothing changes no bit, and a rank that skips turns is not blamed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "comm/hosted_testing.h"
#include "parallel/state.h"

enum { LEAVES = 7, STEPS = 4, MICROS = 2, TERMS = 4, RANKS_MAX = 7, ELEMENTS = 700, PARAMS = 3 };

static const lk_param model[PARAMS] = {
    { .name = "tied", .shape = { 2, { 50, 100 } }, .uses = 2, .init = LK_INIT_UNIFORM, .scale = 1 },
    { .name = "w", .shape = { 1, { ELEMENTS } }, .init = LK_INIT_UNIFORM, .scale = 1 },
    { .name = "b", .shape = { 1, { 33 } } },
};
/* the default order: from the last parameter to the first, and from the last use to the first */
static const size_t            count_of[TERMS] = { 33, ELEMENTS, 5000, 5000 };
static const lk_parallel_state running[]       = { { "mean", 3, 0, 0.1f } };

typedef enum { NOTHING, A_GRADIENT, A_LOSS, ONE_BIT, EVERY_TIME } fault;

typedef struct {
    hosted      hosts; /* .hosts 0: one host with `ranks` threads */
    uint32_t    ranks;
    const char *strategy;
    double      rate;
    uint64_t    audited_steps; /* audit_steps of the options */
    fault       fault;
    /* the rank with wrong results, from the second step on; with ONE_BIT only once, in any turn of
     * the third step */
    uint32_t culprit;
    /* early: announces terms as they are computed; lazy: skips turns */
    bool early, lazy;
    bool later; /* the wrong bit is in a recomputed gradient */
} job;

typedef struct {
    job              job;
    lk_status        statuses[RANKS_MAX];
    lk_error         errors[RANKS_MAX];
    uint64_t         audited[RANKS_MAX];
    bool             found[RANKS_MAX];
    lk_audit_finding findings[RANKS_MAX];
    float            values[ELEMENTS]; /* final values of w on rank 0 */
    atomic_uint      made;             /* number of recomputed turns */
} outcome;

static float gradient(uint64_t step, const lk_parallel_turn *turn, uint32_t term, uint32_t i)
{
    lki_random r = lki_philox(4, LKI_RNG_DATA, i, (uint32_t)step,
                              turn->virtual_worker * MICROS + turn->micro_index, term);
    return lki_random_unit(r.word[0]) - 0.5f;
}

static void flip(float *x)
{
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    bits ^= 1;
    memcpy(x, &bits, sizeof bits);
}

static bool strikes(const outcome *o, uint32_t rank, uint64_t step, fault what)
{
    return o->job.fault == what && o->job.culprit == rank && step > 0;
}

/* Returns true in the turn of the rank's last own virtual worker, or of the first one that it
 * recomputes. */
static bool flips(const outcome *o, const lk_parallel *p, const lk_parallel_turn *turn)
{
    return strikes(o, p->rank, p->step, ONE_BIT) && p->step == 2 && turn->micro_index == 1 &&
           turn->again == o->job.later && (turn->again || p->turn.leaf + 1 == p->share.count);
}

static void run_turn(outcome *o, lk_parallel *p, uint64_t step, const lk_parallel_turn *turn)
{
    bool wrong = strikes(o, p->rank, step, A_GRADIENT) ||
                 (o->job.fault == EVERY_TIME && step > 0 && (turn->again || p->rank > 0));
    for (uint32_t t = 0; t < TERMS; t++) {
        float *grad = lk_parallel_grad(p, 0, t);
        for (uint32_t i = 0; i < count_of[t]; i++)
            grad[i] += gradient(step, turn, t, i);
        if (t == 1 && wrong)
            grad[300 + p->rank] += 1;
        if (t == 2 && (strikes(o, p->rank, step, A_GRADIENT) || flips(o, p, turn)))
            flip(&grad[4999]);
        if (o->job.early)
            lk_parallel_grad_ready(p, 0, t);
    }
    lk_parallel_state_sum(p, 0, 0)[1] += 1.0f / 3;
    lk_parallel_report(p, 0, strikes(o, p->rank, step, A_LOSS) ? 1.5 : 1, 1, 1, 0);
    o->made += turn->again;
}

static lk_status run_step(outcome *o, lk_parallel *p, uint64_t step)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    LK_TRY(lk_parallel_begin(p, step));
    while (lk_parallel_next(p, &turn)) {
        if (o->job.lazy && (turn.virtual_worker + turn.micro_index) % 2 == step % 2)
            break;
        run_turn(o, p, step, &turn);
    }
    LK_TRY(lk_parallel_finish(p, 0.01, &result));
    o->audited[p->rank] += result.audited;
    return LK_OK;
}

static lk_status run_steps(outcome *o, lk_parallel *p)
{
    for (uint64_t step = 0; step < STEPS; step++)
        LK_TRY(run_step(o, p, step));
    static _Thread_local float values[ELEMENTS];
    LK_TRY(lk_parallel_fetch(p, 1, 0, 0, ELEMENTS, values));
    if (p->rank == 0)
        memcpy(o->values, values, sizeof values);
    return LK_OK;
}

static bool run_rank(lk_comm *comm, void *context)
{
    outcome            *o       = context;
    uint32_t            rank    = lk_comm_rank(comm);
    lk_parallel        *p       = NULL;
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .strategy        = o->job.strategy,
                                    .virtual_workers = LEAVES,
                                    .micro_count     = MICROS,
                                    .bucket_bytes    = 9000,
                                    .optimizer       = { .kind = LK_ADAMW },
                                    .states          = running,
                                    .state_count     = 1,
                                    .seed            = 3,
                                    .audit           = o->job.rate,
                                    .audit_steps     = o->job.audited_steps };
    lk_status           status  = lk_parallel_open(&p, comm, model, PARAMS, &options);
    if (status == LK_OK)
        status = run_steps(o, p);
    o->errors[rank]   = *lk_error_last();
    o->statuses[rank] = status;
    if (p != NULL)
        o->found[rank] = lk_parallel_finding(p, &o->findings[rank]);
    lk_parallel_free(p);
    return true;
}

static uint32_t run(outcome *o, const job *j)
{
    memset(o, 0, sizeof *o);
    o->job = *j;
    assert_true(j->hosts.hosts > 0 ? hosted_all(j->hosts, run_rank, o)
                                   : world_all(j->ranks, true, run_rank, o));
    return j->hosts.hosts > 0 ? hosted_size(j->hosts) : j->ranks;
}

static const job crews[] = {
    { .ranks = 1, .strategy = "single" },
    { .ranks = 1, .strategy = "ddp", .early = true },
    { .ranks = 2, .strategy = "zero1" },
    { .ranks = 3, .strategy = "ddp", .early = true },
    { .ranks = 4, .strategy = "zero2", .early = true },
    { .ranks = 5, .strategy = "zero3" },
    { .hosts = { .hosts = 2, .each = 2 }, .strategy = "ddp" },
    { .hosts = { .hosts = 3, .each = 1 }, .strategy = "zero1", .early = true },
    { .hosts = { .hosts = 2, .each = 2 }, .strategy = "zero2", .early = true },
};
enum { CREWS = sizeof crews / sizeof crews[0] };

/* The rate is a fraction of the virtual workers, which are drawn in the same way for any number of
 * ranks. */
static void audits_change_no_bit(void **state)
{
    static outcome plain, o;
    uint64_t       half = 0;
    (void)state;
    run(&plain, &crews[0]);
    for (size_t c = 0; c < 2 * CREWS; c++) {
        job j          = crews[c / 2];
        j.rate         = c % 2 == 0 ? 1 : 0.5;
        uint32_t ranks = run(&o, &j);
        for (uint32_t r = 0; r < ranks; r++) {
            if (o.statuses[r] != LK_OK)
                fail_msg("%s: %s", j.strategy, o.errors[r].message);
            assert_int_equal(o.audited[r], o.audited[0]);
            assert_false(o.found[r]);
        }
        half = c == 1 ? o.audited[0] : half;
        assert_int_equal(o.audited[0], c % 2 == 0 ? LEAVES * STEPS : half);
        assert_int_equal(o.made, o.audited[0] * MICROS);
        assert_memory_equal(o.values, plain.values, sizeof plain.values);
    }
    assert_in_range(half, LEAVES * STEPS / 4, LEAVES * STEPS * 3 / 4);
}

/* A rank whose results are wrong from the second step on is not noticed if only the first step is
 * audited, and is noticed if two steps are. */
static void audits_end_after_the_steps_asked_for(void **state)
{
    static outcome o;
    (void)state;
    for (size_t c = 1; c < CREWS; c++) {
        job j           = crews[c];
        j.rate          = 1;
        j.audited_steps = 1;
        j.culprit       = 1;
        j.fault         = c == 1 ? NOTHING : A_GRADIENT;
        run(&o, &j);
        assert_int_equal(o.statuses[0], LK_OK);
        assert_int_equal(o.audited[0], LEAVES);
        j.audited_steps = 2;
        run(&o, &j);
        assert_int_equal(o.statuses[0], c == 1 ? LK_OK : LK_ECORRUPT);
    }
}

static void check_verdict(const outcome *o, uint32_t ranks, const char *what)
{
    char odd[64], step[32];
    bool once = o->job.fault == ONE_BIT;
    (void)snprintf(odd, sizeof odd, "rank %u has made other results", o->job.culprit);
    (void)snprintf(step, sizeof step, "step %d: ", once ? 3 : 2);
    for (uint32_t r = 0; r < ranks; r++) {
        const char             *message = o->errors[r].message;
        const lk_audit_finding *f       = &o->findings[r];
        assert_int_equal(o->statuses[r], LK_ECORRUPT);
        assert_string_equal(message, o->errors[0].message);
        assert_non_null(strstr(message, what));
        assert_non_null(strstr(message, ranks > 2 ? odd : "ranks "));
        assert_non_null(strstr(message, step));
        assert_true(o->found[r]);
        assert_int_equal(f->step, once ? 3 : 2);
        assert_string_equal(f->what, what);
        assert_int_equal(f->count, ranks > 2 ? 3 : ranks);
        assert_true(ranks > 2 ? f->ranks[f->odd] == o->job.culprit : f->odd == UINT32_MAX);
    }
}

/* Tests every rank, as the first or the second rank that computes a virtual worker.  A single wrong
 * bit must be detected. */
static void a_rank_with_wrong_gradients_is_named(void **state)
{
    static outcome     o;
    static const fault faults[] = { A_GRADIENT, A_LOSS, ONE_BIT, ONE_BIT };
    static const char *whats[] = { "gradient of 'w'", "loss or running state", "gradient of 'tied'",
                                   "gradient of 'tied'" };
    (void)state;
    for (size_t c = 2; c < CREWS; c++)
        for (uint32_t k = c % 2; k < 4; k += 2) {
            job      j     = crews[c];
            uint32_t size  = j.hosts.hosts > 0 ? hosted_size(j.hosts) : j.ranks;
            j.rate         = 1;
            j.culprit      = (uint32_t)(c + k / 2) % size;
            j.fault        = faults[k];
            j.later        = k == 3;
            uint32_t ranks = run(&o, &j);
            check_verdict(&o, ranks, whats[k]);
        }
}

static void no_rank_is_named_without_a_majority(void **state)
{
    static outcome o;
    (void)state;
    run(&o, &(job){ .ranks = 3, .strategy = "ddp", .rate = 1, .fault = EVERY_TIME });
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(o.statuses[r], LK_ECORRUPT);
        assert_non_null(strstr(o.errors[r].message, "no two of ranks "));
    }
    run(&o, &(job){ .ranks = 1, .strategy = "ddp", .rate = 1, .fault = EVERY_TIME });
    assert_int_equal(o.statuses[0], LK_ECORRUPT);
    assert_non_null(strstr(o.errors[0].message, "rank 0 has made virtual worker"));
}

static void skipped_turns_are_not_blamed(void **state)
{
    static outcome o;
    (void)state;
    for (size_t c = 0; c < CREWS; c++) {
        job j          = crews[c];
        j.rate         = 1;
        j.lazy         = true;
        uint32_t ranks = run(&o, &j);
        for (uint32_t r = 0; r < ranks; r++)
            /* LK_EINVAL: no rank computed anything */
            if (o.statuses[r] != LK_OK && o.statuses[r] != LK_EINVAL)
                fail_msg("%s: %s", j.strategy, o.errors[r].message);
    }
}

static bool refuses(lk_comm *comm, void *context)
{
    lk_parallel_options options = { .struct_size = sizeof(lk_parallel_options),
                                    .virtual_workers = 2, .lock_step = true, .audit = 0.1 };
    lk_parallel        *p;
    (void)context;
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_error_last()->message, "in lock step") != NULL);
    options = (lk_parallel_options){ .struct_size = sizeof(lk_parallel_options),
                                     .virtual_workers = 2, .strategy = "zero3", .audit = 0.1 };
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_error_last()->message, "or take zero2") != NULL);
    options = (lk_parallel_options){ .struct_size = sizeof(lk_parallel_options),
                                     .virtual_workers = 2, .strategy = "ddp", .audit = 2 };
    CHECK(lk_parallel_open(&p, comm, model, PARAMS, &options) == LK_EINVAL);
    return true;
}

static void options_that_cannot_be_audited_are_refused(void **state)
{
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 1 }, refuses, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(audits_change_no_bit),
        cmocka_unit_test(audits_end_after_the_steps_asked_for),
        cmocka_unit_test(a_rank_with_wrong_gradients_is_named),
        cmocka_unit_test(no_rank_is_named_without_a_majority),
        cmocka_unit_test(skipped_turns_are_not_blamed),
        cmocka_unit_test(options_that_cannot_be_audited_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
