/* pushes_test.c -- pushes and pulls of ranks at the same time.
 *
 * Goal:    no push is lost, and no pull sees a span in the middle of a push.
 * Method:  many ranks add ones to the same span of 4096 elements, which takes long enough that they
 *          meet.  All its elements that a pull copies must be equal.
 * Control: the test fails if a pull does not compare versions, or if a push ignores the holder.
 */
#include "parallel/crew_testing.h"
#include "parallel/shared/internal.h"

enum { ADDS = 6000, BIG = 4096, WIDE = 3000, RANKS = 4 };

/* The memory of a rank that adds ones. */
typedef struct {
    lk_comm  *comm;
    lk_status status;
    uint32_t  torn;  /* number of pulls that have seen different values in a span */
    uint32_t  wrong; /* number of wrong elements at the end */
    float     ones[WIDE + 2], seen[WIDE];
    uint32_t  indices[WIDE / 2];
} adder;

static bool all_equal(const float *values, size_t count)
{
    bool equal = true;
    for (size_t i = 1; i < count; i++)
        equal &= values[i] == values[0];
    return equal;
}

/* Adds 1 to elements BIG + 1 and following, and 0.5 to these and to two more. */
static lk_status add_ones(adder *a, lk_shared_vector *v)
{
    uint64_t task;
    bool     more;
    LK_TRY(lk_shared_vector_begin(v, ADDS));
    for (;;) {
        LK_TRY(lk_shared_vector_next(v, &more, &task));
        if (!more)
            return lk_shared_vector_finish(v);
        LK_TRY(lk_shared_vector_pull(v, BIG + 1, WIDE, a->seen));
        a->torn += !all_equal(a->seen, WIDE);
        LK_TRY(lk_shared_vector_pull_at(v, a->indices, WIDE / 2, a->seen));
        a->torn += !all_equal(a->seen, WIDE / 2);
        LK_TRY(lk_shared_vector_push(v, BIG + 1, WIDE, a->ones, 1));
        LK_TRY(lk_shared_vector_push(v, BIG - 1, WIDE + 2, a->ones, 0.5f));
    }
}

static void *be_adder(void *argument)
{
    const lk_shared_vector_options options = { .struct_size = sizeof options, .span = BIG };
    adder                         *a       = argument;
    lk_shared_vector              *v       = NULL;
    for (uint32_t i = 0; i < WIDE + 2; i++)
        a->ones[i] = 1;
    for (uint32_t i = 0; i < WIDE / 2; i++)
        a->indices[i] = BIG + 1 + 2 * i;
    a->status = lk_shared_vector_open(&v, a->comm, 3 * BIG, &options);
    if (a->status == LK_OK)
        a->status = add_ones(a, v);
    for (size_t i = 0; a->status == LK_OK && i < 3 * BIG; i++) {
        const float half = i + 1 >= BIG && i < BIG + WIDE + 1 ? 0.5f : 0;
        const float one  = i > BIG && i < BIG + 1 + WIDE ? 1 : 0;
        a->wrong += lk_shared_vector_data(v)[i] != (half + one) * ADDS;
    }
    if (a->status == LK_OK)
        a->status = lk_barrier(a->comm);
    lk_shared_vector_free(v);
    return NULL;
}

static void no_push_is_lost_and_no_pull_is_torn(void **state)
{
    lk_comm *comms[RANKS] = { NULL };
    adder   *adders;
    (void)state;
    assert_int_equal(LKI_NEW(&adders, RANKS, "ranks"), LK_OK);
    assert_int_equal(lk_comm_open_threads(comms, RANKS, NULL), LK_OK);
    for (uint32_t i = 0; i < RANKS; i++)
        adders[i].comm = comms[i];
    lkt_run_ranks(be_adder, adders, sizeof *adders, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        lk_comm_free(comms[i]);
        assert_int_equal(adders[i].status, LK_OK);
        assert_int_equal(adders[i].torn, 0);
        assert_int_equal(adders[i].wrong, 0);
    }
    lki_free(adders);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_push_is_lost_and_no_pull_is_torn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
