/* groups_finite_test.c -- a gradient that is not finite is that of a group.
 *
 * Goal:    if one virtual worker's gradient has a NaN and its loss has none, the step fails on all
 *          ranks with a message that names the tensor, the group and its virtual workers: with any
 *          compressor, without one, and with momenta, on any ranks and hosts.
 * Control: before groups exchange anything, the message has no group.
 */
#include <math.h>

#include "base/thorough_testing.h"
#include "parallel/crew_testing.h"

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

enum { LEAVES = 8, GROUPS = 4, BAD_STEP = 2, BAD_LEAF = 5 };

static struct {
    uint32_t param;
    bool     two; /* a later group is not finite either */
} bad;

/* The last error of each rank. */
static char errors[LKT_RANKS_MAX][LKI_MESSAGE_BYTES];

static void make_bad(lkt_crew *w, lk_parallel *p, uint32_t step, lk_parallel_turn turn)
{
    const uint32_t term = LKT_PARAMS - 1 - bad.param, v = turn.virtual_worker;
    if (step == BAD_STEP && (v == BAD_LEAF || (bad.two && v == LEAVES - 1)))
        lk_parallel_grad(p, 0, term)[7] = NAN;
    lkt_crew plain = *w;
    plain.make     = NULL;
    (void)lkt_make_turn(&plain, p, step, turn);
}

static void train(lkt_member *m)
{
    lk_parallel *p = NULL;
    m->status      = lkt_train(m, &p);
    (void)snprintf(errors[lk_comm_rank(m->comm)], LKI_MESSAGE_BYTES, "%s",
                   lk_error_last()->message);
    lk_parallel_free(p);
}

static void *train_in_thread(void *member)
{
    train(member);
    return NULL;
}

static bool train_on_host(lk_comm *comm, void *members)
{
    lkt_member *m = (lkt_member *)members + lk_comm_rank(comm);
    m->comm       = comm;
    train(m);
    return true;
}

/* Runs a crew that fails, and compares the messages of its ranks with a text. */
static void fail_with(const lk_exchange *x, lk_optimizer_kind kind, uint32_t ranks, uint32_t hosts,
                      const char *text)
{
    lkt_crew        w = lkt_make_crew(model, ranks % 2 == 0 ? "zero1" : "ddp", LEAVES, ranks);
    lkt_member      members[LKT_RANKS_MAX];
    lk_comm        *comms[LKT_RANKS_MAX] = { NULL };
    lk_comm_options options              = { .struct_size = sizeof options,
                                             .timeout_ms  = WORLD_PATIENCE_MS };
    w.steps             = BAD_STEP + 1;
    w.make              = make_bad;
    w.options.unused    = LK_UNUSED_ZERO;
    w.options.exchange  = x;
    w.options.optimizer = (lk_optimizer){ .kind = kind };
    w.options.clip_norm = 0;
    for (uint32_t r = 0; r < ranks; r++)
        members[r] = (lkt_member){ .crew = &w };
    if (hosts == 1)
        assert_int_equal(lk_comm_open_threads(comms, ranks, &options), LK_OK);
    for (uint32_t r = 0; r < ranks; r++)
        members[r].comm = comms[r];
    if (hosts == 1)
        lkt_run_ranks(train_in_thread, members, sizeof *members, ranks);
    else
        assert_true(hosted_all((hosted){ .hosts = hosts, .each = ranks / hosts }, train_on_host,
                               members));
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(members[r].status, LK_ENONFINITE);
        assert_non_null(strstr(errors[r], text));
        lk_comm_free(comms[r]);
    }
}

static lk_exchange exchange_of(const lk_compressor *by, uint64_t start)
{
    lk_exchange x = LK_EXCHANGE_INIT;
    x.groups      = GROUPS;
    x.compressor  = by;
    x.start       = start;
    return x;
}

static void the_group_is_named(void **state)
{
    static const char *const text = "step 3: the gradient of 'a' is not finite in group 2, which "
                                    "has virtual workers 4 to 5; lower";
    (void)state;
    bad.two = false;
    for (uint32_t c = 0, last = 0; !last; c += lki_brief() ? 3 : 1) {
        const lk_exchange x = exchange_of(lk_compressors(c), 0);
        last = lk_compressors(c) == NULL; /* whole gradients */
        fail_with(&x, LK_SGD, c % 2 == 0 ? 3 : 1, 1, text);
        fail_with(&x, LK_SGD, 4, 2, text);
    }
    const lk_exchange x = exchange_of(NULL, BAD_STEP + 1);
    fail_with(&x, LK_ONEBIT_ADAM, 3, 1, text);
    fail_with(&x, LK_ONEBIT_LAMB, 4, 2, text);
}

static void the_first_of_several_is_named(void **state)
{
    const lk_compressor *sign;
    (void)state;
    assert_int_equal(lk_compressor_find(&sign, "sign"), LK_OK);
    const lk_exchange x = exchange_of(sign, 0);
    bad.two             = true;
    bad.param           = 2;
    fail_with(&x, LK_SGD, 4, 2, "the gradient of 'c' is not finite in group 2, which has virtual "
                                "workers 4 to 5, and that of another group;");
    bad.two   = false;
    bad.param = 0;
}

static void plain_steps_have_no_group(void **state)
{
    const lk_compressor *sign;
    (void)state;
    assert_int_equal(lk_compressor_find(&sign, "sign"), LK_OK);
    const lk_exchange x = exchange_of(sign, BAD_STEP + 2);
    fail_with(&x, LK_SGD, 2, 1, "the gradient of 'a' is not finite; lower");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_group_is_named),
        cmocka_unit_test(the_first_of_several_is_named),
        cmocka_unit_test(plain_steps_have_no_group),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_finite", tests, NULL, NULL);
}
