/* arguments_test.c -- invalid arguments and calls at the wrong time are refused with a message.
 *
 * Method: makes each call of lockstep/parallel.h with a missing list, with a number that is too
 *         large and at the wrong time, on one rank.  A refused call that returns a status changes
 *         nothing.  Calls within a step that return none fail the step.
 */
#include "parallel/crew_testing.h"

enum { LEAVES = 2 };

static void add_rows(uint32_t width, double *left, const double *right)
{
    for (uint32_t i = 0; i < width; i++)
        left[i] += right[i];
}

static const lk_param model[LKT_PARAMS] = {
    { .name = "w", .shape = { 2, { 50, 30 } }, .init = LK_INIT_NORMAL, .scale = 0.1f },
    { .name = "s", .shape = { 1, { 300 } }, .init = LK_INIT_ONE },
    { .name = "b", .shape = { 1, { 9 } } },
};

/* Expects that a call was refused, with a message that contains `why`. */
static void refused(lk_status status, const char *why)
{
    if (status != LK_EINVAL || strstr(lk_error_last()->message, why) == NULL)
        fail_msg("%d, no '%s' in: %s", (int)status, why, lk_error_last()->message);
}

/* Opens the crew's object in a group of one rank. */
static lk_parallel *open_alone(lk_comm **comm, const lkt_crew *w)
{
    lk_parallel *p = NULL;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    if (lk_parallel_open(&p, *comm, model, LKT_PARAMS, &w->options) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return p;
}

/* ---- Missing lists ----------------------------------------------------------------------- */

static void not_opened(const lk_param *params, const lk_parallel_options *options, const char *why)
{
    static const uint32_t one = 1;
    lk_parallel_cost      cost;
    lk_parallel          *p = NULL;
    lk_comm              *comm;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    refused(lk_parallel_open(&p, comm, params, LKT_PARAMS, options), why);
    assert_null(p);
    refused(lk_parallel_estimate(&cost, params, LKT_PARAMS, options, &one, 1), why);
    lk_comm_free(comm);
}

static void missing_lists_of_options_are_refused(void **state)
{
    const lkt_crew      w       = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_parallel_options options = w.options;
    lk_parallel_cost    cost;
    (void)state;
    not_opened(NULL, &options, "`params` is NULL");
    options.states      = NULL;
    options.state_count = 1;
    not_opened(model, &options, "`states` is NULL");
    options             = w.options;
    options.group_count = 1;
    not_opened(model, &options, "`groups` is NULL");
    options            = w.options;
    options.term_count = LKT_PARAMS;
    not_opened(model, &options, "`terms` is NULL");
    options            = w.options;
    options.read_count = 1;
    not_opened(model, &options, "`reads` is NULL");
    refused(lk_parallel_estimate(&cost, model, LKT_PARAMS, &w.options, NULL, 1),
            "`host_sizes` is NULL");
}

static void hosts_without_workers_are_refused(void **state)
{
    static const uint32_t sizes[] = { 1, 0 };
    const lkt_crew        w       = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_parallel_cost      cost;
    (void)state;
    refused(lk_parallel_estimate(&cost, model, LKT_PARAMS, &w.options, NULL, 0),
            "there must be a host");
    refused(lk_parallel_estimate(&cost, model, LKT_PARAMS, &w.options, sizes, 2),
            "host 1 has no worker");
}

/* A sum of gradients in fp16 needs a decision, as in lk_train_check(), whose default is a rule. */
static void fp16_needs_a_loss_scale_or_none(void **state)
{
    lkt_crew     w = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_comm     *comm;
    lk_parallel *p;
    (void)state;
    w.options.comm_dtype = LK_F16;
    not_opened(model, &w.options, "`comm_dtype` F16 needs a loss scale");
    for (uint32_t rule = LK_SCALE_NONE; rule <= LK_SCALE_FIXED; rule++) {
        w.options.scaling.rule = (lk_scale_rule)rule;
        p                      = open_alone(&comm, &w);
        lk_parallel_free(p);
        lk_comm_free(comm);
    }
}

static void missing_values_are_refused(void **state)
{
    lkt_crew     w = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_comm     *comm;
    lk_parallel *p = open_alone(&comm, &w);
    double       sums[1];
    const double mine[LEAVES] = { 1, 2 };
    lki_sha256   hash;
    (void)state;
    refused(lk_parallel_load(p, 0, 0, NULL), "`values` is NULL");
    refused(lk_parallel_load_state(p, 0, NULL), "`values` is NULL");
    refused(lk_parallel_fetch(p, 0, 0, 0, 5, NULL), "`out` is NULL");
    refused(lk_parallel_set_rules(p, NULL), "`rules` is NULL");
    refused(lk_parallel_sum(p, NULL, 1, sums), "`mine` is NULL");
    refused(lk_parallel_sum(p, mine, 1, NULL), "`out` is NULL");
    lki_sha256_begin(&hash);
    assert_int_equal(lkt_step(p, &w, 0, &hash), LK_OK);
    lk_parallel_free(p);
    lk_comm_free(comm);
}

/* ---- Calls at the wrong time ------------------------------------------------------------- */

enum { SCENES = 9 };

/* Makes a call that is wrong outside of a turn and, with `far`, also within one. */
static void call(lk_parallel *p, uint32_t number, bool far)
{
    const uint32_t index = far ? LEAVES : 0, term = far ? LKT_PARAMS : 0;
    double         row[1] = { 0 }, total[1];
    bool           empty;
    switch (number) {
    case 0: lk_parallel_grad(p, index, 0)[0] = 1; break;
    case 1: lk_parallel_grad(p, 0, term)[LKT_PARAMS] = 1; break;
    case 2: lk_parallel_grad_new(p, 0, term, &empty)[0] = 1; break;
    case 3: lk_parallel_state_sum(p, 0, far)[6] = 1; break;
    case 4: lk_parallel_grad_ready(p, 0, term); break;
    case 5: lk_parallel_report(p, index, 1, 1, 1, 1); break;
    case 6: lk_parallel_grad_new(p, index, 0, &empty)[0] = 1; break;
    case 7: lk_parallel_merge_rows(p, 1, add_rows, row, total); break;
    default: lk_parallel_load_missed(p, LKT_PARAMS, 1); break;
    }
}

/* Expects that the step fails, or the next one if there is none, and that no later call crashes. */
static void fails(lk_parallel *p, bool under_way, const char *why)
{
    lk_step_result   result;
    lk_parallel_turn turn;
    lk_parallel_progress(p);
    assert_false(lk_parallel_next(p, &turn));
    refused(under_way ? lk_parallel_finish(p, 0.01, &result) : lk_parallel_begin(p, 0), why);
    refused(lk_parallel_begin(p, 1), why);
    refused(lk_parallel_finish(p, 0.01, &result), why);
}

static void calls_outside_of_a_turn_fail_the_step(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3", "single" };
    lk_parallel_turn         turn;
    lk_comm                 *comm;
    (void)state;
    for (uint32_t i = 0; i < 3 * SCENES * 5; i++) {
        const lkt_crew w      = lkt_make_crew(model, strategies[i / 3 / SCENES], LEAVES, 1);
        const uint32_t number = i / 3 % SCENES, moment = i % 3;
        lk_parallel   *p      = open_alone(&comm, &w);
        if (moment > 0)
            assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
        if (moment > 1)
            assert_true(lk_parallel_next(p, &turn));
        call(p, number, moment > 1);
        fails(p, moment > 0, moment > 1 && number == 7     ? "needs options.lock_step"
                             : moment > 1 || number == 8 ? "there is no"
                                                         : "was called outside of a turn");
        lk_parallel_free(p);
        lk_comm_free(comm);
    }
}

static bool reads_no_block(lk_comm *comm, void *context)
{
    const lkt_crew   w = lkt_make_crew(model, "zero3", LEAVES, 2);
    lk_parallel     *p;
    lk_parallel_turn turn;
    lk_step_result   result;
    (void)context;
    CHECK(lk_parallel_open(&p, comm, model, LKT_PARAMS, &w.options) == LK_OK);
    CHECK(lk_parallel_begin(p, 0) == LK_OK && lk_parallel_next(p, &turn));
    CHECK(!lk_parallel_read(p, LKT_PARAMS) && lk_parallel_param(p, 0)[1499] == 0);
    CHECK(lk_parallel_finish(p, 0.01, &result) == LK_EINVAL);
    CHECK(strstr(lk_error_last()->message, "there is no gradient term 3") != NULL);
    lk_parallel_free(p);
    return true;
}

static void blocks_that_do_not_exist_cannot_be_read(void **state)
{
    (void)state;
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 1 }, reads_no_block, NULL));
}

/* ---- Objects that consist of several ----------------------------------------------------- */

enum { KINDS = 5 };

/* Opens replicas with outer steps, with fragments, of a ring, and that begin later; or versions. */
static lk_parallel *open_several(lk_comm **comm, uint32_t kind)
{
    static const lk_async versions = LK_ASYNC_INIT;
    const lk_replicas     replicas = { .struct_size = sizeof replicas,
                                       .count       = 2,
                                       .local_steps = 3,
                                       .fragments   = kind == 1 ? 3 : 0,
                                       .start       = kind == 3 ? 5 : 0,
                                       .topology    = kind == 2 ? LK_TOPOLOGY_RING
                                                                : LK_TOPOLOGY_ALL };
    lkt_crew              w        = lkt_make_crew(model, "ddp", LEAVES, 1);
    w.options.unused               = LK_UNUSED_ZERO;
    w.options.replicas             = kind < 4 ? &replicas : NULL;
    w.options.async                = kind < 4 ? NULL : &versions;
    return open_alone(comm, &w);
}

static void parts_refuse_what_does_not_exist(void **state)
{
    static const float values[LKT_ELEMENTS_MAX];
    static float       before[50 * 30];
    lk_parallel_turn   turn;
    lk_comm           *comm;
    (void)state;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        lk_parallel *p = open_several(&comm, kind);
        assert_null(lk_parallel_param(p, LKT_PARAMS));
        refused(LK_EINVAL, "there is no parameter 3; the model has 3");
        assert_null(lk_parallel_value(p, 1, 9));
        refused(LK_EINVAL, "there is no value 9 of parameter 1");
        refused(lk_parallel_load(p, LKT_PARAMS, 0, values), "there is no value 0 of parameter 3");
        assert_int_equal(lk_parallel_fetch(p, 0, 0, 0, 50 * 30, before), LK_OK);
        assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
        for (int turns = 0; turns < 2; turns++) {
            refused(lk_parallel_load(p, 0, 0, values), "step 0 is under way");
            refused(lk_parallel_load_state(p, 0, values), "step 0 is under way");
            assert_int_equal(lk_parallel_set_rate(p, 0.01), LK_OK);
            assert_true(lk_parallel_next(p, &turn));
        }
        assert_memory_equal(lk_parallel_param(p, 0), before, sizeof before);
        lk_parallel_free(p);
        lk_comm_free(comm);
    }
}

static void wrong_calls_fail_the_step_of_parts(void **state)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    lk_comm         *comm;
    (void)state;
    for (uint32_t i = 0; i < 3 * SCENES * KINDS; i++) {
        const uint32_t number = i / 3 % SCENES, moment = i % 3;
        lk_parallel   *p      = open_several(&comm, i / 3 / SCENES);
        if (moment > 0)
            assert_true(lk_parallel_begin(p, 0) == LK_OK && lk_parallel_set_rate(p, 1) == LK_OK);
        if (moment > 1)
            assert_true(lk_parallel_next(p, &turn));
        call(p, number, moment > 1);
        lk_status status = moment > 0 ? LK_OK : lk_parallel_begin(p, 0);
        if (status == LK_OK && lk_parallel_set_rate(p, 1) == LK_OK)
            status = lk_parallel_finish(p, 1, &result);
        refused(status, moment > 1 && number == 7 ? "needs options.lock_step"
                        : number == 8             ? "there is no parameter 3; the model has 3"
                        : moment > 1              ? "there is no"
                                                  : "was called outside of a turn");
        lk_parallel_free(p);
        lk_comm_free(comm);
    }
}

static void a_loss_scale_outside_of_a_step_fails_the_next(void **state)
{
    lkt_crew     w = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_comm     *comm;
    lk_parallel *p;
    (void)state;
    w.options.scaling.rule = LK_SCALE_PYTORCH;
    p                      = open_alone(&comm, &w);
    assert_true(lk_parallel_loss_scale(p, 8) == 1);
    fails(p, false, "lk_parallel_loss_scale() was called outside of a step");
    lk_parallel_free(p);
    lk_comm_free(comm);
}

static void unknown_values_are_refused(void **state)
{
    lkt_crew     w = lkt_make_crew(model, "ddp", LEAVES, 1);
    lk_comm     *comm;
    lk_parallel *p = open_alone(&comm, &w);
    static float values[LKT_ELEMENTS_MAX];
    char         names[1] = "x";
    lki_sha256   hash;
    (void)state;
    assert_null(lk_parallel_param(p, LKT_PARAMS));
    refused(LK_EINVAL, "there is no parameter 3; the model has 3");
    assert_null(lk_parallel_param_bf16(p, UINT32_MAX));
    assert_null(lk_parallel_value(p, LKT_PARAMS, 0));
    assert_null(lk_parallel_value(p, 0, 3));
    refused(LK_EINVAL, "there is no value 3 of parameter 0");
    assert_null(lk_parallel_state_data(p, 1));
    refused(LK_EINVAL, "there is no running state 1");
    assert_false(lk_parallel_is_used(p, LKT_PARAMS));
    assert_int_equal(lk_parallel_missed(p, LKT_PARAMS), 0);
    lk_parallel_unused_names(p, names, 0);
    assert_int_equal(names[0], 'x');
    refused(lk_parallel_fetch(p, 0, 3, 0, 1, values), "value 3 of parameter 0");
    assert_int_equal(lk_parallel_begin(p, 0), LK_OK);
    refused(lk_parallel_load(p, 0, 0, values), "call lk_parallel_load() before");
    refused(lk_parallel_load_state(p, 0, values), "call lk_parallel_load_state() before");
    assert_false(lk_parallel_dropped(p));
    refused(lk_parallel_begin(p, 1), "step 0 is under way");
    lk_parallel_free(p);
    p = NULL;
    assert_int_equal(lk_parallel_open(&p, comm, model, LKT_PARAMS, &w.options), LK_OK);
    lki_sha256_begin(&hash);
    assert_int_equal(lkt_step(p, &w, 0, &hash), LK_OK);
    lk_parallel_free(p);
    lk_comm_free(comm);
}

/* ---- Calls between steps ----------------------------------------------------------------- */

enum { BETWEEN = 13 };

/* Makes call `number` of those that are for the time between steps. */
static lk_status call_between(lk_parallel *p, uint32_t number)
{
    static const float  values[LKT_ELEMENTS_MAX];
    static const double mine[LEAVES];
    static float        out[LKT_ELEMENTS_MAX];
    double              sums[LEAVES];
    const lk_param_rule rules[LKT_PARAMS] = { { .lr = 1 }, { .lr = 1 }, { .lr = 1 } };
    switch (number) {
    case 0: return lk_parallel_fetch(p, 0, 0, 0, 5, out);
    case 1: return lk_parallel_sum(p, mine, 1, sums);
    case 2: return lk_parallel_load(p, 0, 0, values);
    case 3: return lk_parallel_load_state(p, 0, values);
    case 4: return lk_parallel_set_rules(p, rules);
    case 5: return lk_parallel_average(p);
    case 6: return lk_parallel_resume(p, 1);
    case 7: return lk_parallel_fetch_kept(p, 0, 0, 0, 0, 5, out);
    case 8: return lk_parallel_kept_norms(p, 0, sums);
    case 9: return lk_parallel_load_kept(p, 0, 0, 0, values);
    case 10: return lk_parallel_load_shared(p, 0, values);
    case 11: return lk_parallel_fetch_replica_state(p, 0, 0, out);
    default: return lk_parallel_load_replica_state(p, 0, 0, values);
    }
}

static void refuses_all_between(lk_parallel *p, uint32_t step)
{
    static const char *const names[BETWEEN] = { "fetch", "sum", "load", "load_state", "set_rules",
                                                "average", "resume", "fetch_kept", "kept_norms",
                                                "load_kept", "load_shared",
                                                "fetch_replica_state", "load_replica_state" };
    for (uint32_t i = 0; i < BETWEEN; i++) {
        char why[96];
        (void)snprintf(why, sizeof why, "step %u is under way; call lk_parallel_%s() before", step,
                       names[i]);
        refused(call_between(p, i), why);
    }
}

static void refuses_in_step(lkt_crew *w, lk_parallel *p, uint32_t step)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    assert_int_equal(lk_parallel_begin(p, step), LK_OK);
    assert_int_equal(lk_parallel_set_rate(p, 0.01), LK_OK);
    refuses_all_between(p, step);
    while (lk_parallel_next(p, &turn)) {
        refuses_all_between(p, step);
        (void)lkt_make_turn(w, p, step, turn);
    }
    refuses_all_between(p, step);
    assert_int_equal(lk_parallel_finish(p, 0.01, &result), LK_OK);
}

/* Makes steps, and each of the calls in them: before the turns, in one and after them. */
static void refuses_in_steps(lkt_crew *w)
{
    lk_comm     *comm;
    lk_parallel *p = open_alone(&comm, w);
    for (uint32_t step = 0; step < 4; step++) {
        refuses_in_step(w, p, step);
        assert_int_equal(call_between(p, 0), LK_OK);
        assert_int_equal(call_between(p, 1), LK_OK);
    }
    lk_parallel_free(p);
    lk_comm_free(comm);
}

static void calls_between_steps_are_refused_in_a_step(void **state)
{
    const lk_exchange exchange = { .struct_size = sizeof exchange,
                                   .compressor  = lk_compressors(0) };
    const lk_replicas replicas = { .struct_size = sizeof replicas, .local_steps = 4 },
                      later    = { .struct_size = sizeof later, .local_steps = 1, .start = 1 },
                      sent     = { .struct_size = sizeof sent, .local_steps = 2, .delay = 1 };
    const lk_async async       = { .struct_size = sizeof async };
    const struct {
        const lk_exchange *exchange;
        const lk_replicas *replicas;
        const lk_async    *async;
    } kinds[] = { { .exchange = &exchange }, { .replicas = &replicas }, { .replicas = &later },
                  { .async = &async },       { .replicas = &sent } };
    lkt_crew w = lkt_make_crew(model, "ddp", LEAVES, 1);
    (void)state;
    refuses_in_steps(&w);
    w.options.unused = LK_UNUSED_ZERO;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        w.options.exchange = kinds[i].exchange;
        w.options.replicas = kinds[i].replicas;
        w.options.async    = kinds[i].async;
        if (kinds[i].replicas == &sent)
            w.options.state_count = 0;
        refuses_in_steps(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_lists_of_options_are_refused),
        cmocka_unit_test(hosts_without_workers_are_refused),
        cmocka_unit_test(fp16_needs_a_loss_scale_or_none),
        cmocka_unit_test(missing_values_are_refused),
        cmocka_unit_test(calls_outside_of_a_turn_fail_the_step),
        cmocka_unit_test(blocks_that_do_not_exist_cannot_be_read),
        cmocka_unit_test(parts_refuse_what_does_not_exist),
        cmocka_unit_test(wrong_calls_fail_the_step_of_parts),
        cmocka_unit_test(a_loss_scale_outside_of_a_step_fails_the_next),
        cmocka_unit_test(unknown_values_are_refused),
        cmocka_unit_test(calls_between_steps_are_refused_in_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
