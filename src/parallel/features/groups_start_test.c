/* groups_start_test.c -- compression that begins at a later step (lk_exchange.start), and the
 * warm-up of ratios.
 *
 * Goal:    the steps before are those of a run without groups, for any number of ranks and hosts,
 *          and leave what groups keep at zero.  The later steps depend on the number of the step
 *          and not on ranks.  Bytes are sent as planned, before and after.  Each ratio of a warm-up
 *          has its steps.
 * Control: if compression begins one step earlier, or a stage ends one step earlier, the values
 *          differ.
 */
#include <math.h>

#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

enum { START = 3 };

static lk_exchange exchange_of(const char *name, lk_feedback feedback, uint64_t start)
{
    lk_exchange x         = LK_EXCHANGE_INIT;
    x.groups              = 4;
    x.compression.ratio   = 0.1;
    x.feedback            = feedback;
    x.start               = start;
    assert_int_equal(lk_compressor_find(&x.compressor, name), LK_OK);
    return x;
}

static lkt_crew crew_of(const lk_exchange *x, uint32_t steps, uint32_t ranks, uint32_t hosts)
{
    lkt_crew w         = lkt_make_crew(model, ranks % 2 == 0 ? "zero1" : "ddp", 8, ranks);
    w.steps            = steps;
    w.options.unused   = LK_UNUSED_ZERO;
    w.options.exchange = x;
    if (hosts > 1)
        w.hosts = (hosted){ .hosts = hosts, .each = ranks / hosts };
    return w;
}

static void run(const lk_exchange *x, uint32_t steps, uint32_t ranks, uint32_t hosts, char hash[65])
{
    lkt_crew w = crew_of(x, steps, ranks, hosts);
    lkt_run_crew(&w, hash);
}

/* The rules and compressors of all kinds: summed and gathered messages, with and without shared
 * values, estimates, and two vectors. */
static const struct {
    const char *name;
    lk_feedback feedback;
} methods[] = { { "powersgd", LK_FEEDBACK_EF14 }, { "topk", LK_FEEDBACK_DGC },
                { "randomk", LK_FEEDBACK_EF14 },  { "sign", LK_FEEDBACK_EF21 },
                { "vote", LK_FEEDBACK_SIGNUM },   { "qsgd", LK_FEEDBACK_OFF } };
enum { METHODS = sizeof methods / sizeof methods[0] };

static void earlier_steps_are_those_without_groups(void **state)
{
    char want[65], got[65];
    (void)state;
    run(NULL, START - 1, 1, 1, want);
    for (size_t m = 0; m < METHODS; m++) {
        const lk_exchange x = exchange_of(methods[m].name, methods[m].feedback, START);
        for (uint32_t ranks = 1; ranks <= 5; ranks += lki_brief() ? 4 : 2) {
            run(&x, START - 1, ranks, 1, got);
            assert_string_equal(got, want);
        }
        run(&x, START - 1, 4, 2, got);
        assert_string_equal(got, want);
        run(&x, START - 1, 3, 3, got);
        assert_string_equal(got, want);
        const lk_exchange early = exchange_of(methods[m].name, methods[m].feedback, START - 1);
        run(&early, START - 1, 3, 1, got);
        assert_string_not_equal(got, want);
    }
}

static void later_steps_depend_on_groups_alone(void **state)
{
    char want[65], got[65], now[65];
    (void)state;
    for (size_t m = 0; m < METHODS; m += lki_brief() ? 2 : 1) {
        const lk_exchange x = exchange_of(methods[m].name, methods[m].feedback, START);
        const lk_exchange first = exchange_of(methods[m].name, methods[m].feedback, 0);
        run(&x, START + 2, 1, 1, want);
        run(&first, START + 2, 1, 1, now);
        assert_string_not_equal(now, want);
        for (uint32_t ranks = 2; ranks <= 8; ranks += 3) {
            run(&x, START + 2, ranks, 1, got);
            assert_string_equal(got, want);
        }
        for (uint32_t hosts = 2; hosts <= 3; hosts++) {
            run(&x, START + 2, 6, hosts, got);
            assert_string_equal(got, want);
        }
    }
}

/* Checks what groups keep, at the beginning of a step. */
static void look(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    double norms[8];
    (void)w;
    for (uint32_t which = 0; lk_parallel_kept_name(p, 0, which) != NULL; which++) {
        assert_int_equal(lk_parallel_kept_norms(p, which, norms), LK_OK);
        for (uint32_t g = 0; g < lk_parallel_groups(p); g++)
            assert_int_equal(norms[g] == 0, step < START);
    }
    assert_int_equal(lk_parallel_exchange_size(p).start, START);
}

static void groups_keep_nothing_before(void **state)
{
    char got[65];
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        const lk_exchange x = exchange_of(methods[m].name, methods[m].feedback, START);
        lkt_crew          w = crew_of(&x, START + 1, 3, 1);
        w.at_step           = look;
        lkt_run_crew(&w, got);
    }
}

/* ---- Bytes ------------------------------------------------------------------------------- */

static uint64_t sent_in_step[8];

static void count_bytes(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    (void)w;
    if (p->rank == 0)
        sent_in_step[step] = lki_wire_count(p->comm->self->wire).bytes_sent;
}

/* Runs with one rank on each of `hosts` hosts.  Writes the bytes of steps 2 and START + 1. */
static void bytes_of(const lk_exchange *x, uint32_t hosts, uint64_t out[2], lk_parallel_cost *cost)
{
    static const uint32_t ones[4] = { 1, 1, 1, 1 };
    char                  hash[65];
    lkt_crew              w = lkt_make_crew(model, "ddp", 8, hosts);
    w.steps                 = START + 2;
    w.options.unused        = LK_UNUSED_ZERO;
    w.options.exchange      = x;
    w.at_step               = count_bytes;
    w.hosts                 = (hosted){ .hosts = hosts, .each = 1 };
    lkt_run_crew(&w, hash);
    assert_int_equal(lk_parallel_estimate(cost, model, LKT_PARAMS, &w.options, ones, hosts), LK_OK);
    out[0] = sent_in_step[2] - sent_in_step[1];
    out[1] = sent_in_step[START + 1] - sent_in_step[START];
}

static void bytes_are_planned_before_and_after(void **state)
{
    (void)state;
    for (uint32_t hosts = 2; hosts <= 4; hosts += 2) {
        const lk_exchange later = exchange_of("topk", LK_FEEDBACK_EF14, START);
        const lk_exchange first = exchange_of("topk", LK_FEEDBACK_EF14, 0);
        uint64_t          of[3][2];
        lk_parallel_cost  cost[3];
        bytes_of(&later, hosts, of[0], &cost[0]);
        bytes_of(NULL, hosts, of[1], &cost[1]);
        bytes_of(&first, hosts, of[2], &cost[2]);
        assert_int_equal(of[0][0], of[1][0]); /* as without groups */
        assert_int_equal(of[0][1], of[2][1]); /* as from the first step on */
        assert_int_equal(cost[0].sent_before, cost[1].sent_gradients);
        assert_int_equal(cost[0].sent_gradients, cost[2].sent_gradients);
        assert_int_equal(cost[1].sent_before, 0);
        assert_int_equal(cost[2].sent_before, 0);
        assert_true(cost[0].sent_gradients < cost[0].sent_before);
    }
}

/* ---- The warm-up of ratios --------------------------------------------------------------- */

static lk_exchange warming(const char *name, lk_feedback feedback, uint64_t start, uint64_t span)
{
    lk_exchange x  = exchange_of(name, feedback, start);
    x.warmup_count = 2;
    x.warmup[0]    = 1;
    x.warmup[1]    = 0.4;
    x.warmup_span  = span;
    return x;
}

/* The ratio 1 sends whole gradients. */
static void a_stage_has_its_steps(void **state)
{
    static const char *const names[] = { "topk", "randomk" };
    char                     want[65], got[65];
    (void)state;
    run(NULL, 3, 1, 1, want);
    for (size_t n = 0; n < 2; n++)
        for (uint64_t start = 1; start <= 2; start++) {
            const lk_exchange x = warming(names[n], LK_FEEDBACK_EF14, start, 4 - start);
            run(&x, 3, 3, 1, got);
            assert_string_equal(got, want);
            const lk_exchange early = warming(names[n], LK_FEEDBACK_EF14, start, 3 - start);
            run(&early, 3, 3, 1, got);
            assert_string_not_equal(got, want);
        }
}

static void stages_depend_on_the_step_alone(void **state)
{
    static const struct {
        const char *name;
        lk_feedback feedback;
    } of[] = { { "topk", LK_FEEDBACK_DGC }, { "randomk", LK_FEEDBACK_EF14 },
               { "topk", LK_FEEDBACK_EF21 } };
    char want[65], got[65];
    (void)state;
    for (size_t m = 0; m < 3; m += lki_brief() ? 2 : 1) {
        const lk_exchange x = warming(of[m].name, of[m].feedback, 2, 2);
        run(&x, 7, 1, 1, want);
        for (uint32_t ranks = 2; ranks <= 8; ranks += 3) {
            run(&x, 7, ranks, 1, got);
            assert_string_equal(got, want);
        }
        run(&x, 7, 6, 3, got);
        assert_string_equal(got, want);
    }
}

static size_t sizes[8]; /* of messages in each step */

static void note_size(lkt_crew *w, lk_parallel *p, uint32_t step, const lk_step_result *result)
{
    (void)w;
    (void)result;
    if (p->rank == 0)
        sizes[step] = lk_parallel_exchange_size(p).sent_bytes;
}

static void messages_have_the_size_of_their_stage(void **state)
{
    static const double ratios[] = { 1, 1, 0.4, 0.4, 0.1, 0.1 };
    const lk_exchange   x        = warming("randomk", LK_FEEDBACK_EF14, 1, 2);
    lkt_crew            w        = crew_of(&x, 6, 3, 1);
    char                got[65];
    (void)state;
    w.at_result = note_size;
    lkt_run_crew(&w, got);
    for (int step = 0; step < 6; step++) {
        const double of[] = { 50 * 90, 33, 6 * 5 * 7 };
        size_t       all  = 2 * 16; /* running state */
        for (int p = 0; p < 3; p++)
            all += (size_t)ceil(ratios[step] * of[p]);
        assert_int_equal(sizes[step], all * sizeof(float));
    }
}

static void invalid_warmups_are_refused(void **state)
{
    lk_exchange         all[5];
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = 8,
                                    .unused          = LK_UNUSED_ZERO };
    lk_parallel_cost    cost;
    const uint32_t      alone = 1;
    (void)state;
    for (size_t i = 0; i < 5; i++)
        all[i] = warming(i == 3 ? "sign" : "topk", LK_FEEDBACK_EF14, 1, i == 0 ? 0 : 2);
    all[1].warmup_count = LK_WARMUP_RATIOS_MAX + 1;
    all[2].warmup[1]    = 1.5;
    for (size_t i = 0; i < 5; i++) {
        options.exchange = &all[i];
        assert_int_equal(lk_parallel_estimate(&cost, model, LKT_PARAMS, &options, &alone, 1),
                         i == 4 ? LK_OK : LK_EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(earlier_steps_are_those_without_groups),
        cmocka_unit_test(later_steps_depend_on_groups_alone),
        cmocka_unit_test(groups_keep_nothing_before),
        cmocka_unit_test(bytes_are_planned_before_and_after),
        cmocka_unit_test(a_stage_has_its_steps),
        cmocka_unit_test(stages_depend_on_the_step_alone),
        cmocka_unit_test(messages_have_the_size_of_their_stage),
        cmocka_unit_test(invalid_warmups_are_refused),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_start", tests, NULL, NULL);
}
