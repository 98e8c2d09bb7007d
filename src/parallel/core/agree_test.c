/* agree_test.c -- ranks whose calls of a step differ fail together, with a message that says how.
 *
 * Method: rank 1 makes another call than all other ranks in step 1, with every strategy, on one
 *         host and several.  All ranks must fail in that step.
 */
#include <math.h>

#include "parallel/crew_testing.h"

enum { RANKS = 4, LEAVES = 8, STEPS = 3, ODD_STEP = 1 };

static const lk_param model[LKT_PARAMS] = {
    { .name = "w", .shape = { 2, { 50, 30 } }, .init = LK_INIT_NORMAL, .scale = 0.1f },
    { .name = "s", .shape = { 1, { 300 } }, .init = LK_INIT_ONE },
    { .name = "b", .shape = { 1, { 9 } } },
};

typedef enum { OTHER_RATE, OTHER_STEP, OTHER_RULES, OTHER_SCALE } difference;

typedef struct {
    lkt_crew   crew;
    difference what;
    uint32_t   odd; /* the rank that differs */
} scene;

typedef struct {
    scene    *scene;
    lk_comm  *comm;
    lk_status status;
    lk_error  failure;
    uint32_t  finished; /* number of steps */
} actor;

static lk_status step(scene *s, lk_parallel *p, uint32_t number, bool odd)
{
    const double        lr = odd && s->what == OTHER_RULES ? 0.5 : 1;
    /* a weight decay that the parameter does not use may differ */
    const lk_param_rule rules[LKT_PARAMS] = { { .lr = 1, .weight_decay = odd }, { .lr = lr },
                                              { .lr = 1 } };
    lk_parallel_turn    turn;
    lk_step_result      result;
    LK_TRY(lk_parallel_set_rules(p, rules));
    LK_TRY(lk_parallel_begin(p, number + (odd && s->what == OTHER_STEP)));
    (void)lk_parallel_loss_scale(p, odd && s->what == OTHER_SCALE ? 96 : 48);
    while (lk_parallel_next(p, &turn))
        (void)lkt_make_turn(&s->crew, p, number, turn);
    return lk_parallel_finish(p, odd && s->what == OTHER_RATE ? 0.02 : 0.01, &result);
}

static bool act(lk_comm *comm, void *context)
{
    actor       *a = (actor *)context + lk_comm_rank(comm);
    lk_parallel *p = NULL;
    a->status      = lk_parallel_open(&p, comm, model, LKT_PARAMS, &a->scene->crew.options);
    for (uint32_t i = 0; i < STEPS && a->status == LK_OK; i++) {
        bool odd  = i == ODD_STEP && lk_comm_rank(comm) == a->scene->odd;
        a->status = step(a->scene, p, i, odd);
        a->finished += a->status == LK_OK;
    }
    a->failure = *lk_error_last();
    lk_parallel_free(p);
    return true;
}

static void *act_alone(void *argument)
{
    actor *a = argument;
    (void)act(a->comm, a - lk_comm_rank(a->comm));
    return NULL;
}

static void play(scene *s, actor *actors)
{
    lk_comm        *comms[RANKS];
    lk_comm_options options = LK_COMM_OPTIONS_INIT;
    options.timeout_ms      = WORLD_PATIENCE_MS;
    for (uint32_t r = 0; r < RANKS; r++)
        actors[r] = (actor){ .scene = s };
    if (s->crew.hosts.hosts > 0) {
        assert_true(hosted_all(s->crew.hosts, act, actors));
        return;
    }
    assert_int_equal(lk_comm_open_threads(comms, RANKS, &options), LK_OK);
    for (uint32_t r = 0; r < RANKS; r++)
        actors[r].comm = comms[r];
    lkt_run_ranks(act_alone, actors, sizeof *actors, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        lk_comm_free(comms[r]);
}

static scene scene_of(const char *strategy, uint32_t hosts, difference what)
{
    scene s = { .crew = lkt_make_crew(model, strategy, LEAVES, RANKS), .what = what, .odd = 1 };
    s.crew.options.scaling.rule = LK_SCALE_PYTORCH;
    if (hosts > 0)
        s.crew.hosts = (hosted){ .hosts = hosts, .each = RANKS / hosts, .seed = 3 };
    if (what == OTHER_SCALE || what == OTHER_STEP)
        s.odd = 2;
    return s;
}

static void all_say(const actor *actors, const char *strategy, uint32_t hosts, const char *text)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        if (strstr(actors[r].failure.message, text) == NULL)
            fail_msg("%s, %u hosts: '%s' does not say '%s'", strategy, hosts,
                     actors[r].failure.message, text);
        assert_int_equal(actors[r].status, LK_EMISMATCH);
        assert_int_equal(actors[r].finished, ODD_STEP);
    }
}

static void all_fail_with(const char *strategy, uint32_t hosts, difference what, const char *text)
{
    scene s = scene_of(strategy, hosts, what);
    actor actors[RANKS];
    play(&s, actors);
    all_say(actors, strategy, hosts, text);
}

static void calls_that_differ_are_named(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3", "hybrid" };
    (void)state;
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++)
        for (uint32_t hosts = 0; hosts <= 4; hosts += 2) {
            all_fail_with(strategies[i], hosts, OTHER_RATE,
                          "rank 0 has the learning rate 0.01 and rank 1 0.02");
            all_fail_with(strategies[i], hosts, OTHER_STEP,
                          "rank 0 is in step 2 and rank 2 in step 3");
            all_fail_with(strategies[i], hosts, OTHER_RULES, "ranks 0 and 1 have set different");
            all_fail_with(strategies[i], hosts, OTHER_SCALE,
                          "ranks 0 and 2 have asked for the loss scale of different counts");
        }
}

static void own_optimizers_may_have_any_rate(void **state)
{
    scene s = scene_of("ddp", 0, OTHER_RATE);
    actor actors[RANKS];
    (void)state;
    s.crew.options.optimizer = (lk_optimizer){ .kind = LK_OPTIMIZER_NONE };
    play(&s, actors);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(actors[r].finished, STEPS);
}

/* Each rank has a replica of its own, so the ranks meet only at the end of the step. */
static void replicas_find_other_rates(void **state)
{
    const lk_replicas replicas = { .struct_size = sizeof(lk_replicas), .count = RANKS,
                                     .local_steps = 100 };
    scene             s        = scene_of("ddp", 0, OTHER_RATE);
    actor             actors[RANKS];
    (void)state;
    s.crew.options.scaling.rule = LK_SCALE_AUTO;
    s.crew.options.state_count  = 0;
    s.crew.options.unused       = LK_UNUSED_ZERO;
    s.crew.options.replicas     = &replicas;
    play(&s, actors);
    all_say(actors, "ddp", 0, "rank 0 has the learning rate 0.01 and rank 1 0.02");
}

static void rates_that_are_no_numbers_are_refused(void **state)
{
    static const double rates[] = { (double)NAN, HUGE_VAL, -HUGE_VAL };
    lk_comm            *comm;
    lk_parallel        *p;
    lk_parallel_turn    turn;
    lk_step_result      result;
    float               before;
    lkt_crew            w = lkt_make_crew(model, "ddp", 2, 1);
    (void)state;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, &w.options), LK_OK);
    before = lk_parallel_param(p, 0)[0];
    assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
    while (lk_parallel_next(p, &turn))
        (void)lkt_make_turn(&w, p, 0, turn);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        assert_int_equal(lk_parallel_finish(p, rates[i], &result), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, "learning rate"));
        assert_true(lk_parallel_param(p, 0)[0] == before);
    }
    assert_int_equal(lk_parallel_finish(p, 0.01, &result), LK_OK);
    lk_parallel_free(p);
    lk_comm_free(comm);
}

static void any_count_has_a_loss_scale(void **state)
{
    static const uint64_t counts[] = { 0, 1, 3, UINT64_C(1) << 63, UINT64_MAX };
    static const float    scales[] = { 65536, 65536, 16384, 0x1p-47f, 0x1p-48f };
    lk_comm              *comm;
    lk_parallel          *p;
    lkt_crew              w = lkt_make_crew(model, "ddp", 2, 1);
    (void)state;
    w.options.scaling.rule = LK_SCALE_PYTORCH;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, &w.options), LK_OK);
    assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        assert_true(lk_parallel_loss_scale(p, counts[i]) == scales[i]);
    lk_parallel_free(p);
    lk_comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_differ_are_named),
        cmocka_unit_test(own_optimizers_may_have_any_rate),
        cmocka_unit_test(replicas_find_other_rates),
        cmocka_unit_test(rates_that_are_no_numbers_are_refused),
        cmocka_unit_test(any_count_has_a_loss_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
