/* arguments_test.c -- invalid arguments and calls at the wrong time are refused with a message.
 *
 * Method: makes each call of lockstep/parallel.h with a missing list, on one rank.  No refused call
 *         may change anything: the run continues after it.
 */
#include "parallel/crew_testing.h"

enum { LEAVES = 2 };

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
    assert_int_equal(lk_parallel_open(&p, *comm, model, LKT_PARAMS, &w->options), LK_OK);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_lists_of_options_are_refused),
        cmocka_unit_test(missing_values_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
