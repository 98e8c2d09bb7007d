/* groups_onebit_test.c -- onebit-adam and onebit-lamb on any ranks: momenta in one bit.
 *
 * Goal:    before the freeze every bit is that of adamw or lamb without groups.  The result depends
 *          on the number of groups, and not on ranks and hosts.  Other ranks can resume a run.
 *          Bytes are as planned.
 * Control: a run that forgets one of the values of a checkpoint has another result.
 */
#include "base/thorough_testing.h"
#include "parallel/features/onebit_testing.h"

static float first_tensor[LKT_ELEMENTS_MAX]; /* after the last step of the last run */

/* Keeps values that do not depend on the number of states of the optimizer. */
static void keep_first(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)result;
    if (p->rank == 0 && step + 1 == w->steps)
        memcpy(first_tensor, lk_parallel_param(p, 0),
               lk_shape_count(w->model[0].shape) * sizeof *first_tensor);
}

static void run(const lk_exchange *x, uint32_t steps, uint32_t ranks, uint32_t hosts, char hash[65])
{
    lkt_crew w = crew_of(x, steps, ranks, hosts);
    if (x == NULL)
        w.options.optimizer = now->plain;
    w.at_result = keep_first;
    lkt_run_crew(&w, hash);
}

static void steps_before_the_freeze_are_plain(void **state)
{
    static float plain[LKT_ELEMENTS_MAX];
    char         hash[65];
    (void)state;
    for (now = methods; now < methods + METHODS; now++) {
        const lk_exchange x = exchange_of(GROUPS);
        run(NULL, now->freeze, 1, 1, hash);
        memcpy(plain, first_tensor, sizeof plain);
        for (uint32_t ranks = 1; ranks <= 5; ranks += lki_brief() ? 4 : 2) {
            run(&x, now->freeze, ranks, 1, hash);
            assert_memory_equal(first_tensor, plain, sizeof plain);
        }
        run(NULL, now->freeze + 1, 1, 1, hash);
        memcpy(plain, first_tensor, sizeof plain);
        run(&x, now->freeze + 1, 1, 1, hash);
        assert_memory_not_equal(first_tensor, plain, sizeof plain);
    }
}

static void check_ranks(const lk_exchange *x, uint32_t ranks, uint32_t hosts, const char *want)
{
    char got[65];
    run(x, STEPS, ranks, hosts, got);
    assert_string_equal(got, want);
}

static void results_depend_on_groups_alone(void **state)
{
    char last[65] = "", want[65];
    (void)state;
    for (now = methods; now < methods + METHODS; now++)
        for (uint32_t groups = 2; groups <= 8; groups *= 2) {
            const lk_exchange x = exchange_of(groups);
            if ((now > methods || lki_brief()) && groups != GROUPS) /* the others are alike */
                continue;
            run(&x, STEPS, 1, 1, want);
            assert_string_not_equal(want, last);
            memcpy(last, want, sizeof last);
            for (uint32_t ranks = now == methods ? 2 : 5; ranks <= 8; ranks += 3)
                check_ranks(&x, ranks, 1, want);
            for (uint32_t hosts = 2; hosts <= (now == methods ? 4 : 2); hosts++)
                check_ranks(&x, hosts, hosts, want);
            check_ranks(&x, 6, 2, want);
        }
}

/* ---- Bytes ------------------------------------------------------------------------------- */

static uint64_t sent_in_step[STEPS + 1];

static void count_bytes(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    if (p->rank == 0)
        sent_in_step[step] = lki_wire_count(p->comm->self->wire).bytes_sent;
}

/* Returns the payload that a host sends by the formula. */
static uint64_t formula(uint32_t host, uint32_t hosts, uint32_t groups)
{
    const uint32_t sizes[] = { 4096, 404, 33, 210 }, params[] = { 0, 0, 1, 2 };
    uint64_t       bytes = 0, served = 0;
    for (uint32_t h = 0; h < hosts; h++) {
        const uint32_t first = 4 * h / hosts, end = 4 * (h + 1) / hosts;
        for (uint32_t s = first; s < end; s++) {
            const uint32_t bits  = (sizes[s] + 31) / 32 * 4;
            const bool     scale = s == first || params[s] != params[s - 1];
            if (h == host)
                served += 4 + bits;
            else
                bytes += bits + (scale ? 4 : 0);
        }
        bytes += h == host ? 0 : 16 * 4; /* running state of a micro-batch, padded */
    }
    return bytes * groups / hosts + (hosts - 1) * served;
}

static uint64_t most_by_formula(uint32_t hosts, uint32_t groups)
{
    uint64_t most = 0;
    for (uint32_t h = 0; h < hosts; h++)
        most = formula(h, hosts, groups) > most ? formula(h, hosts, groups) : most;
    return most;
}

static void bytes_are_as_planned(void **state)
{
    static const uint32_t ones[4] = { 1, 1, 1, 1 };
    (void)state;
    now = methods;
    for (uint32_t hosts = 2; hosts <= 4; hosts += 2) {
        uint64_t planned[2], sent[2];
        for (int i = 0; i < 2; i++) {
            const lk_exchange x = exchange_of(hosts << i);
            lkt_crew          w = crew_of(&x, STEPS, hosts, hosts);
            lk_parallel_cost  cost;
            char              hash[65];
            w.options.strategy = "ddp";
            w.at_step          = count_bytes;
            lkt_run_crew(&w, hash);
            sent[i] = sent_in_step[STEPS - 1] - sent_in_step[STEPS - 2];
            assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &w.options, ones,
                                                  hosts), LK_OK);
            planned[i] = cost.sent_gradients;
            assert_true(cost.sent_before > 8 * cost.sent_gradients);
        }
        assert_int_equal(planned[0], most_by_formula(hosts, hosts));
        assert_int_equal(planned[1], most_by_formula(hosts, 2 * hosts));
        assert_int_equal(sent[1] - sent[0],
                         formula(0, hosts, 2 * hosts) - formula(0, hosts, hosts));
    }
}

/* Groups clip their gradients after the freeze, and the sum of all is clipped before it. */
static void clipping_depends_on_groups_alone(void **state)
{
    (void)state;
    now = methods;
    const lk_exchange x = exchange_of(GROUPS);
    char              want[65], got[65];
    run(&x, STEPS, 1, 1, want);
    lkt_crew w          = crew_of(&x, STEPS, 1, 1);
    w.options.clip_norm = 0.3;
    lkt_run_crew(&w, got);
    assert_string_not_equal(got, want);
    memcpy(want, got, sizeof want);
    for (uint32_t hosts = 1; hosts <= 2; hosts++) {
        w                   = crew_of(&x, STEPS, 4, hosts);
        w.options.clip_norm = 0.3;
        lkt_run_crew(&w, got);
        assert_string_equal(got, want);
    }
}

/* ---- Resuming ---------------------------------------------------------------------------- */

enum { WHOLE_MAX = 16, NOTHING = 4 };

/* Everything that a checkpoint holds.  Rank 0 writes it. */
static struct {
    uint32_t step; /* at which it is written */
    float  whole[WHOLE_MAX];
    float  values[LKT_PARAMS][4][LKT_ELEMENTS_MAX], shared[LKT_PARAMS][LKT_ELEMENTS_MAX];
    float  kept[LKT_PARAMS][2][GROUPS][LKT_ELEMENTS_MAX], running[7];
    double norms[2][GROUPS];
    int    forgotten; /* the vector that is not loaded; 3: what is shared of the whole model */
} saved;

/* Returns true if groups share something of the whole model. */
static bool shares_whole(void)
{
    return now->start == LK_START_AUTO || now->optimizer.kind == LK_ONEBIT_LAMB;
}

static void put(const lk_parallel *p, void *to, const void *from, size_t bytes)
{
    if (p->rank == 0)
        memcpy(to, from, bytes);
}

static void save(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    static _Thread_local float out[LKT_ELEMENTS_MAX];
    double                     norms[GROUPS];
    size_t                     bytes;
    if (step != saved.step)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        const size_t   count  = lk_shape_count(w->model[i].shape);
        const uint32_t states = lk_optimizer_state_count(&now->optimizer);
        for (uint32_t which = 0; which <= states; which++) {
            assert_int_equal(lk_parallel_fetch(p, i, which, 0, count, out), LK_OK);
            put(p, saved.values[i][which], out, count * sizeof *out);
        }
        assert_string_equal(lk_parallel_kept_name(p, i, 0), "error");
        assert_string_equal(lk_parallel_kept_name(p, i, 1), "server_error");
        assert_null(lk_parallel_kept_name(p, i, 2));
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t g = 0; g < lk_parallel_kept_groups(p, which); g++) {
                const size_t half = count / 2;
                assert_int_equal(lk_parallel_fetch_kept(p, i, which, g, 0, half, out), LK_OK);
                assert_int_equal(lk_parallel_fetch_kept(p, i, which, g, half, count - half,
                                                        out + half), LK_OK);
                put(p, saved.kept[i][which][g], out, count * sizeof *out);
            }
        put(p, saved.shared[i], lk_parallel_shared(p, i, &bytes), count * sizeof *out);
    }
    put(p, saved.running, lk_parallel_state_data(p, 0), sizeof saved.running);
    const float *whole = lk_parallel_shared(p, LKT_PARAMS, &bytes);
    assert_true(bytes <= sizeof saved.whole && (bytes > 0) == shares_whole());
    if (whole != NULL)
        put(p, saved.whole, whole, bytes);
    for (uint32_t which = 0; which < 2; which++) {
        assert_int_equal(lk_parallel_kept_norms(p, which, norms), LK_OK);
        put(p, saved.norms[which], norms, lk_parallel_kept_groups(p, which) * sizeof *norms);
    }
}

static void load(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    double norms[GROUPS];
    (void)w;
    if (step != saved.step)
        return;
    for (uint32_t i = 0; i < LKT_PARAMS; i++) {
        const uint32_t states = lk_optimizer_state_count(&now->optimizer);
        for (uint32_t which = 0; which <= states; which++)
            assert_int_equal(lk_parallel_load(p, i, which, saved.values[i][which]), LK_OK);
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t g = 0; g < lk_parallel_kept_groups(p, which); g++)
                if ((int)which != saved.forgotten)
                    assert_int_equal(lk_parallel_load_kept(p, i, which, g,
                                                           saved.kept[i][which][g]), LK_OK);
        if (saved.forgotten != 2)
            assert_int_equal(lk_parallel_load_shared(p, i, saved.shared[i]), LK_OK);
    }
    if (shares_whole() && saved.forgotten != 3)
        assert_int_equal(lk_parallel_load_shared(p, LKT_PARAMS, saved.whole), LK_OK);
    assert_int_equal(lk_parallel_load_state(p, 0, saved.running), LK_OK);
    for (uint32_t which = 0; which < 2 && saved.forgotten == NOTHING; which++) {
        assert_int_equal(lk_parallel_kept_norms(p, which, norms), LK_OK);
        assert_memory_equal(norms, saved.norms[which],
                            lk_parallel_kept_groups(p, which) * sizeof *norms);
    }
}

/* Runs from step `first`, and writes the hash of the values. */
static void run_from(uint32_t first, uint32_t ranks, uint32_t hosts, char hash[65])
{
    const lk_exchange x = exchange_of(GROUPS);
    lkt_crew          w = crew_of(&x, STEPS, ranks, hosts);
    w.first             = first;
    w.values_only       = true;
    w.at_step           = first > 0 ? load : save;
    lkt_run_crew(&w, hash);
}

/* Resumes at a step, and without some of what a checkpoint has. */
static void resume(uint32_t step)
{
    const bool frozen = step > now->freeze;
    char       want[65], got[65];
    saved.step      = step;
    saved.forgotten = NOTHING;
    run_from(0, 3, step % 2 == 0 ? 1 : 3, want);
    run_from(step, 1, 1, got);
    assert_string_equal(got, want);
    run_from(step, 6, 2, got);
    assert_string_equal(got, want);
    for (saved.forgotten = frozen ? 0 : 3; saved.forgotten < NOTHING; saved.forgotten++) {
        if (saved.forgotten == 3 && !shares_whole())
            continue;
        run_from(step, 3, 1, got);
        assert_string_not_equal(got, want);
    }
}

static void any_ranks_and_hosts_resume(void **state)
{
    (void)state;
    for (now = methods; now < methods + METHODS; now++)
        for (uint32_t i = 0; i < (lki_brief() ? 1 : 2) && now->resumed_at[i] > 0; i++)
            resume(now->resumed_at[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_before_the_freeze_are_plain),
        cmocka_unit_test(results_depend_on_groups_alone),
        cmocka_unit_test(clipping_depends_on_groups_alone),
        cmocka_unit_test(any_ranks_and_hosts_resume),
        cmocka_unit_test(bytes_are_as_planned),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_onebit", tests, NULL, NULL);
}
