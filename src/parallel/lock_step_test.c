/* lock_step_test.c -- turns in lock step give equal bits, and merge rows in tree order.
 *
 * Method: synthetic gradients on any number of ranks (threads).  In lock step every strategy must
 *         give the results that `single` gives without lock step.  The operation that merges rows
 *         depends on the order and the tree.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "device/reduce.h"
#include "parallel/state.h"
#include "parallel/parallel_testing.h"

enum { RANKS_MAX = 12, LEAVES_MAX = 12, STEPS = 2, MICRO = 2, WIDTH = 3 };

static const lk_param model[] = {
    { .name = "w", .shape = { 2, { 70, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .no_decay = true },
};
enum { PARAMS = 2, ELEMENTS = 70 * 90 + 33 };

static const lk_parallel_state running[] = { { "mean", 7, 0, 0.1f } };

typedef struct {
    lk_parallel_options options;
    uint32_t            ranks;
    bool                backwards; /* announces the last virtual worker's terms first */
} crew;

typedef struct {
    const crew *crew;
    lk_comm    *comm;
    lk_status   status;
    lk_error    error;
    float       values[ELEMENTS + 7];
} member;

static float noise(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    lki_random r     = lki_philox(79, LKI_RNG_DATA, a, b, c, d);
    float      value = lki_random_unit(r.word[0]) - 0.5f;
    for (uint32_t shift = r.word[1] % 20; shift > 0; shift--)
        value *= 0.5f;
    return value;
}

/* ---- Rows -------------------------------------------------------------------------------- */

/* A merge that is neither commutative nor associative. */
static void mix(uint32_t width, double *left, const double *right)
{
    for (uint32_t i = 0; i < width; i++)
        left[i] = 0.75 * left[i] - 1.25 * right[i] + left[(i + 1) % width];
}

static void row_of(uint32_t v, uint32_t micro, double row[WIDTH])
{
    for (uint32_t i = 0; i < WIDTH; i++)
        row[i] = (double)noise(i, v, micro, 9);
}

static void mix_tree(uint32_t first, uint32_t count, uint32_t micro, double out[WIDTH])
{
    double right[WIDTH];
    if (count == 1) {
        row_of(first, micro, out);
        return;
    }
    uint32_t left = lki_tree_left(count);
    mix_tree(first, left, micro, out);
    mix_tree(first + left, count - left, micro, right);
    mix(WIDTH, out, right);
}

static lk_status check_rows(lk_parallel *p, const lk_parallel_turn *turn)
{
    double   rows[LEAVES_MAX][WIDTH], total[WIDTH], want[WIDTH];
    uint32_t first, count, stride;
    lk_parallel_share(p, &first, &count, &stride);
    for (uint32_t c = 0; c < count; c++)
        row_of(first + c * stride, turn->micro_index, rows[c]);
    lk_parallel_merge_rows(p, WIDTH, mix, rows[0], total);
    mix_tree(0, p->leaves, turn->micro_index, want);
    if (memcmp(total, want, sizeof want) != 0)
        return lk_fail(LK_ECORRUPT, "rows of micro-batch %u: %g, not %g", turn->micro_index,
                       total[0], want[0]);
    return LK_OK;
}

/* ---- Gradients --------------------------------------------------------------------------- */

static void add_term(lk_parallel *p, uint32_t c, uint32_t t, uint32_t v, uint32_t step,
                     uint32_t micro)
{
    uint32_t param = PARAMS - 1 - t; /* terms are in the default order */
    size_t   count = lk_shape_count(model[param].shape);
    float   *grad  = lk_parallel_grad(p, c, t);
    for (size_t i = 0; i < count; i++)
        grad[i] += noise((uint32_t)i, step * 10 + t, v, micro);
}

/* Computes a turn term by term, as an engine does.  In lock step, computes a term for all of the
 * rank's virtual workers before the next term. */
static lk_status run_turn(lk_parallel *p, const crew *w, uint32_t step,
                          const lk_parallel_turn *turn)
{
    uint32_t first, count, stride;
    lk_parallel_share(p, &first, &count, &stride);
    first = turn->virtual_worker;
    count = w->options.lock_step ? count : 1;
    if (w->options.lock_step)
        LK_TRY(check_rows(p, turn));
    for (uint32_t t = 0; t < PARAMS; t++)
        for (uint32_t i = 0; i < count; i++) {
            uint32_t c = w->backwards ? count - 1 - i : i;
            add_term(p, c, t, first + c * stride, step, turn->micro_index);
            lk_parallel_grad_ready(p, c, t);
        }
    for (uint32_t c = 0; c < count; c++) {
        for (size_t i = 0; i < 7; i++)
            lk_parallel_state_sum(p, c, 0)[i] += noise((uint32_t)i, step, first + c * stride, 77);
        lk_parallel_report(p, c, 1, 3, 3, 0);
    }
    return LK_OK;
}

static lk_status run_steps(lk_parallel *p, const crew *w)
{
    lk_parallel_turn turn;
    lk_step_result   result;
    for (uint32_t step = 0; step < STEPS; step++) {
        LK_TRY(lk_parallel_begin(p, step));
        while (lk_parallel_next(p, &turn))
            LK_TRY(run_turn(p, w, step, &turn));
        LK_TRY(lk_parallel_finish(p, 0.05, &result));
    }
    return LK_OK;
}

static void *run_rank(void *argument)
{
    member      *m = argument;
    lk_parallel *p = NULL;
    float       *at = m->values;

    m->status = lk_parallel_open(&p, m->comm, model, PARAMS, &m->crew->options);
    if (m->status == LK_OK)
        m->status = run_steps(p, m->crew);
    m->error = *lk_error_last();
    for (uint32_t i = 0; m->status == LK_OK && i < PARAMS; i++) {
        size_t count = lk_shape_count(model[i].shape);
        memcpy(at, lk_parallel_param(p, i), count * sizeof *at);
        at += count;
    }
    if (m->status == LK_OK)
        memcpy(at, lk_parallel_state_data(p, 0), 7 * sizeof *at);
    if (m->status == LK_OK)
        m->status = lk_barrier(m->comm);
    lk_parallel_free(p);
    return NULL;
}

static void run_crew(const crew *w, member *members)
{
    lk_comm *comms[RANKS_MAX];
    assert_int_equal(lk_comm_open_threads(comms, w->ranks, NULL), LK_OK);
    for (uint32_t r = 0; r < w->ranks; r++)
        members[r] = (member){ .crew = w, .comm = comms[r] };
    lkt_run_ranks(run_rank, members, sizeof *members, w->ranks);
    for (uint32_t r = 0; r < w->ranks; r++)
        lk_comm_free(comms[r]);
}

static crew crew_of(uint32_t leaves, uint32_t ranks, const char *strategy, bool lock_step)
{
    return (crew){ .ranks   = ranks,
                   .options = { .struct_size     = sizeof(lk_parallel_options),
                                .strategy        = strategy,
                                .virtual_workers = leaves,
                                .micro_count     = MICRO,
                                .lock_step       = lock_step,
                                .bucket_bytes    = 4096,
                                .optimizer       = { .kind = LK_SGD, .momentum = 0.9 },
                                .states          = running,
                                .state_count     = 1 } };
}

static void check_crew(const crew *w, const float *want)
{
    static member members[RANKS_MAX];
    run_crew(w, members);
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (members[r].status != LK_OK)
            fail_msg("V %u, N %u, %s: %s", w->options.virtual_workers, w->ranks,
                     w->options.strategy, members[r].error.message);
        assert_memory_equal(members[r].values, want, sizeof members[r].values);
    }
}

static void turns_in_lock_step_give_the_bits_of_single(void **state)
{
    static const uint32_t leaves[] = { 1, 3, 8, 12 }, ranks[] = { 1, 2, 3, 5, 8 };
    static member         single;
    (void)state;
    for (size_t v = 0; v < sizeof leaves / sizeof leaves[0]; v++) {
        crew plain = crew_of(leaves[v], 1, "single", false);
        run_crew(&plain, &single);
        assert_int_equal(single.status, LK_OK);
        crew together = crew_of(leaves[v], 1, "single", true);
        check_crew(&together, single.values);
        for (size_t n = 0; n < sizeof ranks / sizeof ranks[0] && ranks[n] <= leaves[v]; n++) {
            together           = crew_of(leaves[v], ranks[n], n % 2 == 0 ? "ddp" : "zero1", true);
            together.backwards = n % 2 == 0;
            check_crew(&together, single.values);
        }
        together = crew_of(leaves[v], leaves[v], "zero2", true);
        check_crew(&together, single.values);
    }
}

static void rounds_are_refused(void **state)
{
    static member members[3];
    crew          w = crew_of(8, 3, "zero2", true);
    (void)state;
    run_crew(&w, members);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(members[r].status, LK_EINVAL);
        assert_non_null(strstr(members[r].error.message, "use `strategy` zero1"));
    }
}

static void refuses_running_state_that_no_memory_holds(void **state)
{
    static const size_t counts[][2] = { { SIZE_MAX, 1 }, { 1, SIZE_MAX / 4 - 20 },
                                        { (size_t)1 << 59, (size_t)1 << 60 } };
    lk_comm            *comm;
    (void)state;
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const lk_parallel_state states[] = { { "a", counts[i][0], 0, 0.1f },
                                             { "b", counts[i][1], 0, 0.1f } };
        const lk_parallel_options options = { .struct_size     = sizeof(lk_parallel_options),
                                              .virtual_workers = 2,
                                              .micro_count     = 2,
                                              .states          = states,
                                              .state_count     = 2 };
        lk_parallel              *p;
        assert_int_equal(lk_parallel_open(&p, comm, model, PARAMS, &options), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, "more than memory can hold"));
    }
    lk_comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_in_lock_step_give_the_bits_of_single),
        cmocka_unit_test(rounds_are_refused),
        cmocka_unit_test(refuses_running_state_that_no_memory_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
