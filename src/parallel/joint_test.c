/* joint_test.c -- turns that compute a subtree of virtual workers at once.
 *
 * Goal:    weights and losses are those of turns of one virtual worker, for any number of ranks,
 *          any limit of a turn, and shares that move.  A strategy that is opened with joint turns
 *          allocates what they need, and what moving shares need, but no more.
 * Method:  the caller sums the gradients and the state sums of a turn by the tree.  They are
 *          functions of step, virtual worker and element, with a wide spread of exponents.
 * Control: sums in ascending order must give other weights.
 */
#include "base/thorough_testing.h"
#include "device/reduce.h"
#include "parallel/crew_testing.h"
#include "parallel/joint.h"
#include "parallel/state.h"

enum { STEPS = 4, COUNT = 4100, PARAMS = 2 };

static const lk_param params[PARAMS] = {
    { .name = "w", .shape = { 2, { 41, 100 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .no_decay = true },
};

enum { STATE = 9 };

static const lk_parallel_state states[1] = {
    { .name = "s", .count = STATE, .initial = 0.5f, .momentum = 0.3f },
};

typedef struct {
    lk_parallel_options options;
    uint32_t            ranks, most; /* most: limit of a turn; 0: not joined */
    bool                in_order;    /* sums in ascending order, the control */
    bool                once;        /* the caller computes one virtual worker at a time */
    lk_comm            *comms[LKT_RANKS_MAX];
    char                hash[65];
    double              loss;
    uint32_t            joined_at; /* with `most` 2: the step from which turns are joined */
    uint32_t            turns; /* number of turns of rank 0 */
    uint32_t            moved; /* number of virtual workers that changed their rank */
} job;

typedef struct {
    job      *j;
    uint32_t  rank;
    lk_status status;
} member;

/* Computes the sum over virtual workers [first, first + count) of a term. */
static void sum(const job *j, uint32_t step, uint32_t first, uint32_t count, uint32_t term,
                size_t n, const float *value, float *out)
{
    float   *right = malloc(n * sizeof *right);
    uint32_t left  = j->in_order ? count - 1 : lki_tree_left(count > 1 ? count : 2);
    if (count == 1) {
        for (size_t i = 0; i < n; i++)
            out[i] = lkt_noise((uint32_t)i, step * 100 + term, first, 0) + 0.01f * value[i];
    } else {
        sum(j, step, first, left, term, n, value, out);
        sum(j, step, first + left, count - left, term, n, value, right);
        lki_merge_f32(LK_F32, n, out, right);
    }
    free(right);
}

static void turn(job *j, lk_parallel *p, uint32_t step, uint32_t first)
{
    uint32_t count = lki_turn_count(p);
    for (uint32_t t = 0; t < PARAMS; t++) {
        uint32_t param = PARAMS - 1 - t;
        bool     empty;
        float   *grad = lk_parallel_grad_new(p, 0, t, &empty);
        sum(j, step, first, count, t, lk_shape_count(params[param].shape),
            lk_parallel_param(p, param), grad);
        lk_parallel_grad_ready(p, 0, t);
    }
    static const float none[STATE];
    sum(j, step, first, count, PARAMS, STATE, none, lk_parallel_state_sum(p, 0, 0));
    for (uint32_t i = 0; i < count; i++)
        lk_parallel_report(p, i, (double)lkt_noise(first + i, step, 9, 0), 3, 3, 1);
}

/* Adds the gradients of one virtual worker to memory that may hold those of its neighbour. */
static void turn_once(job *j, lk_parallel *p, uint32_t step, uint32_t leaf)
{
    static _Thread_local float value[COUNT];
    static const float         none[STATE];
    for (uint32_t t = 0; t < PARAMS; t++) {
        uint32_t param = PARAMS - 1 - t;
        size_t   count = lk_shape_count(params[param].shape);
        bool     empty = false;
        float   *grad  = (leaf + t) % 3 == 0 ? lk_parallel_grad(p, 0, t)
                                             : lk_parallel_grad_new(p, 0, t, &empty);
        sum(j, step, leaf, 1, t, count, lk_parallel_param(p, param), value);
        for (size_t i = 0; i < count; i++)
            grad[i] = empty ? value[i] : grad[i] + value[i];
        lk_parallel_grad_ready(p, 0, t);
    }
    float *states_sum = lk_parallel_state_sum(p, 0, 0);
    sum(j, step, leaf, 1, PARAMS, STATE, none, value);
    for (size_t i = 0; i < STATE; i++)
        states_sum[i] += value[i];
    lk_parallel_report(p, 0, (double)lkt_noise(leaf, step, 9, 0), 3, 3, 1);
}

static lk_status train(member *m, lk_parallel **p)
{
    job                       *j = m->j;
    lk_step_result             result;
    lki_sha256                 hash;
    static _Thread_local float values[COUNT];

    if (j->most > 2)
        LK_TRY(lki_parallel_open_joint(p, j->comms[m->rank], params, PARAMS, &j->options, j->most));
    else
        LK_TRY(lk_parallel_open(p, j->comms[m->rank], params, PARAMS, &j->options));
    lki_sha256_begin(&hash);
    for (uint32_t step = 0; step < STEPS; step++) {
        lk_parallel_turn t;
        if (j->most == 2 && step == j->joined_at)
            assert_true(lki_turns_join(*p, j->most));
        LK_TRY(lk_parallel_begin(*p, step));
        while (lk_parallel_next(*p, &t)) {
            (j->once ? turn_once : turn)(j, *p, step, t.virtual_worker);
            if (m->rank == 0)
                j->turns++;
        }
        LK_TRY(lk_parallel_finish(*p, 0.01, &result));
        if (m->rank == 0)
            j->moved += result.moved;
        lki_sha256_add(&hash, &result.loss, sizeof result.loss);
        lki_sha256_add(&hash, &result.grad_norm, sizeof result.grad_norm);
    }
    for (uint32_t i = 0; i < PARAMS; i++) {
        size_t count = lk_shape_count(params[i].shape);
        LK_TRY(lk_parallel_fetch(*p, i, 0, 0, count, values));
        lki_sha256_add(&hash, values, count * sizeof *values);
    }
    lki_sha256_add(&hash, lk_parallel_state_data(*p, 0), STATE * sizeof(float));
    if (m->rank == 0)
        lki_sha256_end(&hash, j->hash);
    return lk_barrier(j->comms[m->rank]);
}

static void *member_main(void *argument)
{
    member      *m = argument;
    lk_parallel *p = NULL;
    m->status      = train(m, &p);
    if (m->status != LK_OK) {
        print_message("%s\n", lk_error_last()->message);
        lk_comm_abort(m->j->comms[m->rank]);
    }
    lk_parallel_free(p);
    return NULL;
}

static job describe(const char *strategy, uint32_t leaves, uint32_t ranks)
{
    return (job){ .ranks   = ranks,
                  .options = { .struct_size        = sizeof(lk_parallel_options),
                               .strategy           = strategy,
                               .virtual_workers    = leaves,
                               .bucket_bytes       = 4000,
                               .first_bucket_bytes = 1000,
                               .optimizer          = { .kind = LK_ADAMW, .weight_decay = 0.1 },
                               .clip_norm          = 1,
                               .states             = states,
                               .state_count        = 1,
                               .unused             = LK_UNUSED_ZERO,
                               .seed               = 5 } };
}

static void run_job(job *j)
{
    member          members[LKT_RANKS_MAX];
    lk_comm_options patient = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = WORLD_PATIENCE_MS };
    assert_int_equal(lk_comm_open_threads(j->comms, j->ranks, &patient), LK_OK);
    for (uint32_t r = 0; r < j->ranks; r++)
        members[r] = (member){ j, r, LK_OK };
    lkt_run_ranks(member_main, members, sizeof *members, j->ranks);
    for (uint32_t r = 0; r < j->ranks; r++) {
        assert_int_equal(members[r].status, LK_OK);
        lk_comm_free(j->comms[r]);
    }
}

static job run(const char *strategy, uint32_t leaves, uint32_t ranks, uint32_t most, bool moves,
               bool in_order)
{
    job j                    = describe(strategy, leaves, ranks);
    j.most                   = most;
    j.in_order               = in_order;
    j.options.rebalance      = moves;
    j.options.rebalance_seed = moves ? 7 : 0;
    run_job(&j);
    return j;
}

/* Runs a job whose caller adds once.  With `audited` steps, turns are joined after these. */
static job run_once(const char *strategy, uint32_t leaves, uint32_t ranks, uint64_t audited)
{
    job j                 = describe(strategy, leaves, ranks);
    j.once                = true;
    j.options.adds_once   = true;
    j.options.audit       = audited > 0 ? 1 : 0;
    j.options.audit_steps = audited;
    run_job(&j);
    return j;
}

static void joint_turns_change_no_bit(void **state)
{
    static const uint32_t leaves[] = { 1, 2, 6, 8, 13, 16, 24 };
    (void)state;
    for (size_t l = 0; l < sizeof leaves / sizeof leaves[0]; l++) {
        job plain = run("single", leaves[l], 1, 0, false, false);
        for (uint32_t ranks = 1; ranks <= 4 && ranks <= leaves[l]; ranks += lki_brief() ? 2 : 1)
            for (uint32_t most = 2; most <= 64; most *= most) {
                bool odd = (ranks + most / 2) % 2 != 0;
                job  j   = run(odd ? "zero1" : "ddp", leaves[l], ranks, most, false, false);
                assert_string_equal(j.hash, plain.hash);
                j = run(odd ? "ddp" : "zero1", leaves[l], ranks, most, true, false);
                assert_string_equal(j.hash, plain.hash);
            }
    }
}

/* Runs with groups that exchange whole gradients or those of a compressor.  If turns of 2 may not
 * span two groups, lki_turns_join() is refused. */
static job run_groups(const lk_exchange *exchange, uint32_t leaves, uint32_t ranks, uint32_t most,
                      bool once)
{
    job j               = describe(ranks % 2 == 0 ? "zero1" : "ddp", leaves, ranks);
    j.most              = most;
    j.once              = once;
    j.joined_at         = STEPS / 2; /* the sums of groups move then */
    j.options.exchange  = exchange;
    j.options.adds_once = once;
    run_job(&j);
    return j;
}

static void turns_do_not_span_groups(void **state)
{
    (void)state;
    for (uint32_t leaves = 8; leaves <= 12; leaves += lki_brief() ? 8 : 4) {
        job plain = run("single", leaves, 1, 0, false, false);
        for (uint32_t cut = 1; cut <= 4; cut *= 2) {
            lk_exchange exchange = LK_EXCHANGE_INIT;
            exchange.groups      = leaves / cut;
            for (int compresses = 0; compresses < 2; compresses++) {
                exchange.compressor = compresses ? lk_compressors(0) : NULL;
                job want = run_groups(&exchange, leaves, 1, 0, false);
                assert_int_equal(strcmp(want.hash, plain.hash) == 0, !compresses);
                for (uint32_t ranks = 1; ranks <= 3; ranks += lki_brief() ? 2 : 1)
                    for (uint32_t most = cut == 1 ? 4 : 2; most <= 16; most *= most) {
                        job j = run_groups(&exchange, leaves, ranks, most, false);
                        assert_string_equal(j.hash, want.hash);
                        if (ranks == 1 && most > 2)
                            assert_int_equal(j.turns, leaves / cut * STEPS);
                        j = run_groups(&exchange, leaves, ranks, 0, true);
                        assert_string_equal(j.hash, want.hash);
                    }
            }
        }
    }
}

static void neighbours_share_memory(void **state)
{
    static const uint32_t leaves[] = { 1, 2, 3, 8, 13 };
    (void)state;
    for (size_t l = 0; l < sizeof leaves / sizeof leaves[0]; l++) {
        job plain = run("single", leaves[l], 1, 0, false, false);
        for (uint32_t ranks = 1; ranks <= 4 && ranks <= leaves[l]; ranks += lki_brief() ? 2 : 1)
            for (uint64_t audited = 0; audited < STEPS - 1; audited += 2) {
                job j = run_once(ranks % 2 == 0 ? "zero1" : "ddp", leaves[l], ranks, audited);
                assert_string_equal(j.hash, plain.hash);
            }
        assert_string_equal(run_once("zero2", leaves[l], 1, 0).hash, plain.hash);
    }
}

/* Checks that a step has no more micro-batches than the turns of neighbours were opened for. */
static void more_micros_are_refused(void **state)
{
    lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                    .virtual_workers = 2,
                                    .unused          = LK_UNUSED_ZERO,
                                    .adds_once       = true };
    lk_comm            *comm[1];
    lk_parallel        *p;
    (void)state;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    assert_int_equal(lk_parallel_open(&p, comm[0], params, PARAMS, &options), LK_OK);
    assert_int_equal(lk_parallel_begin_micros(p, 0, 2), LK_EINVAL);
    lk_parallel_free(p);
    options.audit = 1; /* turns are not yet joined */
    assert_int_equal(lk_parallel_open(&p, comm[0], params, PARAMS, &options), LK_OK);
    assert_int_equal(lk_parallel_begin_micros(p, 0, 2), LK_EINVAL);
    lk_parallel_free(p);
    lk_comm_free(comm[0]);
}

static void a_turn_covers_as_much_as_it_may(void **state)
{
    (void)state;
    assert_int_equal(run("ddp", 8, 1, 64, false, false).turns, STEPS);
    assert_int_equal(run("ddp", 8, 1, 2, false, false).turns, 4 * STEPS);
    assert_int_equal(run("ddp", 8, 1, 0, false, false).turns, 8 * STEPS);
    assert_int_equal(run("ddp", 13, 1, 8, false, false).turns, 3 * STEPS); /* turns of 8, 4 and 1 */
    assert_int_equal(run("ddp", 8, 2, 64, false, false).turns, STEPS);
}

static void sums_in_another_order_are_seen(void **state)
{
    job plain = run("single", 8, 1, 0, false, false);
    job j     = run("ddp", 8, 1, 8, false, true);
    (void)state;
    assert_string_not_equal(j.hash, plain.hash);
}

static lk_status ignore_bucket(const lk_bucket *bucket, void *context)
{
    (void)context;
    (void)bucket;
    return LK_OK;
}

/* ---- Memory ------------------------------------------------------------------------------ */

static const lk_parallel_options eight = { .struct_size     = sizeof(lk_parallel_options),
                                           .virtual_workers = 8,
                                           .unused          = LK_UNUSED_ZERO };

/* Returns the number of gradient buffers of a host, if there are `hosts` of `ranks` ranks. */
static uint32_t buffers(lk_parallel_options options, uint32_t ranks, uint32_t hosts, uint32_t most)
{
    const uint32_t      sizes[2] = { ranks, ranks }, alone = 1;
    lk_parallel_options single = eight;
    lk_parallel_cost    cost, one;

    single.virtual_workers = 1;
    assert_int_equal(
        lki_parallel_estimate_joint(&cost, params, PARAMS, &options, sizes, hosts, most), LK_OK);
    assert_int_equal(lk_parallel_estimate(&one, params, PARAMS, &single, &alone, 1), LK_OK);
    return (uint32_t)(cost.gradients / one.gradients);
}

static void memory_is_what_joint_turns_need(void **state)
{
    lk_parallel_options moving = eight, once = eight;
    (void)state;
    moving.rebalance = true;
    assert_int_equal(buffers(eight, 1, 1, 1), 4);
    assert_int_equal(buffers(eight, 1, 1, 2), 3);
    assert_int_equal(buffers(eight, 1, 1, 8), 1);
    assert_int_equal(buffers(moving, 1, 1, 8), 1);
    assert_int_equal(buffers(eight, 2, 1, 1), 6);
    assert_int_equal(buffers(eight, 2, 1, 4), 2);
    assert_int_equal(buffers(moving, 2, 1, 1), 6);
    assert_int_equal(buffers(moving, 2, 1, 4), 4);
    once.adds_once = true;
    assert_int_equal(buffers(once, 1, 1, 1), 3);
    assert_int_equal(buffers(once, 4, 1, 1), 4);
    once.audit = 1;
    assert_int_equal(buffers(once, 1, 1, 1), 5);   /* single turns, and a repeated gradient */
    assert_int_equal(buffers(moving, 2, 2, 2), 4); /* those of equal shares: two for each rank */
}

/* Opens a strategy as a replay does, whose last step has single turns, and as a run does. */
static void single_turns_need_their_buffers(void **state)
{
    lk_comm     *comm[1];
    lk_parallel *p;
    size_t       bytes[2];
    (void)state;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            lki_parallel_open_joint(&p, comm[0], params, PARAMS, &eight, i == 0 ? 1 : 8), LK_OK);
        bytes[i] = lk_arena_bytes(p->ledger.arenas[LKI_ARENA_GRADIENTS]);
        assert_true(lki_turns_join(p, 8));
        assert_int_equal(lki_turns_join(p, 1), i == 0);
        assert_int_equal(p->joint, i == 0 ? 1 : 8);
        lk_parallel_free(p);
    }
    assert_int_equal(bytes[0], 4 * bytes[1]);
    lk_comm_free(comm[0]);
}

/* Checks that survivors of a failure, which compute single turns, have buffers for any number of
 * ranks. */
static void survivors_have_the_buffers_of_single_turns(void **state)
{
    lk_parallel_options options = eight;
    lk_comm            *comm[1];
    lk_parallel        *p;
    (void)state;
    options.survives = true;
    for (uint32_t ranks = 1; ranks <= 4; ranks++)
        assert_int_equal(buffers(options, ranks, 1, 8), buffers(options, ranks, 1, 1));
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    assert_int_equal(lki_parallel_open_joint(&p, comm[0], params, PARAMS, &options, 8), LK_OK);
    assert_int_equal(p->joint, 1);
    lk_parallel_free(p);
    lk_comm_free(comm[0]);
}

static void *open_with_own_limit(void *argument)
{
    member      *m = argument;
    lk_parallel *p;
    m->status = lki_parallel_open_joint(&p, m->j->comms[m->rank], params, PARAMS, &m->j->options,
                                        m->rank == 0 ? 4 : 8);
    lk_parallel_free(p);
    return NULL;
}

/* Opens a strategy on ranks that would place their buffers differently, in an arena of one size. */
static void different_limits_are_refused(void **state)
{
    enum { RANKS = 3 };
    job    j = { .options = eight };
    member members[RANKS];
    (void)state;
    j.options.virtual_workers = 16;
    j.options.rebalance       = true;
    assert_int_equal(buffers(j.options, RANKS, 1, 4), buffers(j.options, RANKS, 1, 8));
    assert_int_equal(lk_comm_open_threads(j.comms, RANKS, NULL), LK_OK);
    for (uint32_t r = 0; r < RANKS; r++)
        members[r] = (member){ &j, r, LK_OK };
    lkt_run_ranks(open_with_own_limit, members, sizeof *members, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(members[r].status, LK_EMISMATCH);
        lk_comm_free(j.comms[r]);
    }
}

/* Checks that shares move although joint turns of equal shares need few buffers. */
static void shares_move_with_joint_turns(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 4; ranks++)
        assert_true(run("ddp", 16, ranks, 16, true, false).moved > 0);
}

/* Tries options under which the gradients of single virtual workers are needed. */
static void single_gradients_exclude_joint_turns(void **state)
{
    const lk_parallel_options plain = { .struct_size     = sizeof(lk_parallel_options),
                                        .virtual_workers = 4,
                                        .unused          = LK_UNUSED_ZERO };
    lk_parallel_options       all[8];
    lk_comm                  *comm[1];
    lk_parallel              *p;
    (void)state;
    for (size_t i = 0; i < 8; i++)
        all[i] = plain;
    all[1].strategy    = "zero2";
    all[2].strategy    = "single";
    all[3].hook        = ignore_bucket;
    all[4].noise_decay = 0.9;
    all[5].micro_count = 2;
    all[6].comm_dtype  = LK_BF16;
    all[7].duplicate   = true;
    assert_int_equal(lk_comm_open_threads(comm, 1, NULL), LK_OK);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(lki_parallel_open_joint(&p, comm[0], params, PARAMS, &all[i], 4), LK_OK);
        if (p->joint != (i == 0 ? 4 : 1) || lki_turns_join(p, 4) != (i == 0))
            fail_msg("options %zu", i);
        lk_parallel_free(p);
    }
    lk_comm_free(comm[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joint_turns_change_no_bit),
        cmocka_unit_test(turns_do_not_span_groups),
        cmocka_unit_test(neighbours_share_memory),
        cmocka_unit_test(more_micros_are_refused),
        cmocka_unit_test(a_turn_covers_as_much_as_it_may),
        cmocka_unit_test(sums_in_another_order_are_seen),
        cmocka_unit_test(memory_is_what_joint_turns_need),
        cmocka_unit_test(single_turns_need_their_buffers),
        cmocka_unit_test(survivors_have_the_buffers_of_single_turns),
        cmocka_unit_test(different_limits_are_refused),
        cmocka_unit_test(shares_move_with_joint_turns),
        cmocka_unit_test(single_gradients_exclude_joint_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
