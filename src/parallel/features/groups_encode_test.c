/* groups_encode_test.c -- the tasks of encoding.
 *
 * Goal:    the ranks of a host encode the parts of one tensor at once, and so do they with several
 *          tensors of a group.
 * Method:  a compressor whose encode() waits for another rank, and counts those that wait in vain.
 * Control: a tensor without parts is encoded by one rank, which waits in vain.
 */
#include <stdatomic.h>
#include <time.h>

#include "base/memory.h"
#include "parallel/crew_testing.h"

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 1, { 17 } }, .init = LK_INIT_ONE },
};

static _Atomic uint32_t inside, together, alone;

static size_t plain_bytes(const lk_compression *options, const lk_compress_key *key,
                          uint32_t round)
{
    (void)options, (void)round;
    return key->cols == 1 ? 0 : key->rows * key->cols * sizeof(float);
}

/* The parts are the left and the right half of a matrix. */
static bool halves(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   uint32_t index, lk_compress_part *out)
{
    (void)options, (void)round;
    *out = (lk_compress_part){ .first  = index * key->cols / 2,
                               .rows   = key->rows,
                               .count  = key->cols / 2,
                               .stride = key->cols };
    return index < 2;
}

/* Waits until two ranks are inside, for a second at most. */
static bool meet(void)
{
    const struct timespec moment = { .tv_nsec = 1000000 };
    const uint32_t        before = atomic_load(&together);
    bool                  met    = atomic_fetch_add(&inside, 1) > 0;
    if (met)
        atomic_fetch_add(&together, 1);
    for (uint32_t tries = 0; !met && tries < 1000; tries++) {
        nanosleep(&moment, NULL);
        met = atomic_load(&together) > before;
    }
    atomic_fetch_sub(&inside, 1);
    return met;
}

static void plain_encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                         const lk_compress_part *part, const void *before, float *values,
                         void *message)
{
    (void)options, (void)key, (void)round, (void)before;
    if (!meet())
        atomic_fetch_add(&alone, 1);
    for (size_t row = 0; row < part->rows; row++) {
        const size_t at = part->first + row * part->stride;
        memcpy((float *)message + at, values + at, part->count * sizeof *values);
        memset(values + at, 0, part->count * sizeof *values);
    }
}

static void plain_decode(const lk_compression *options, const lk_compress_key *key,
                         const void *const *messages, size_t first, size_t count, float *out)
{
    (void)options, (void)key;
    memcpy(out, (const float *)messages[0] + first, count * sizeof *out);
}

static const lk_compressor by = { .name    = "plain",
                                  .combine = LK_COMBINE_GATHER,
                                  .rounds  = 1,
                                  .bytes   = plain_bytes,
                                  .part    = halves,
                                  .encode  = plain_encode,
                                  .decode  = plain_decode };

static void run(const lk_compressor *compressor, char hash[65])
{
    lk_exchange exchange = LK_EXCHANGE_INIT;
    lkt_crew    w        = lkt_make_crew(model, "ddp", 2, 2);
    exchange.groups      = 1;
    exchange.compressor  = compressor;
    w.steps              = 2;
    w.options.unused     = LK_UNUSED_ZERO;
    w.options.exchange   = compressor == NULL ? NULL : &exchange;
    atomic_store(&alone, 0);
    lkt_run_crew(&w, hash);
}

static void ranks_encode_parts_of_a_tensor_at_once(void **state)
{
    char want[65], got[65];
    (void)state;
    run(NULL, want);
    run(&by, got);
    assert_string_equal(got, want);
    assert_int_equal(alone, 0);
}

static void a_tensor_without_parts_is_one_task(void **state)
{
    lk_compressor whole = by;
    char          want[65], got[65];
    (void)state;
    whole.part = NULL;
    run(NULL, want);
    run(&whole, got);
    assert_string_equal(got, want);
    assert_int_equal(alone, 2); /* one matrix in two steps */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_encode_parts_of_a_tensor_at_once),
        cmocka_unit_test(a_tensor_without_parts_is_one_task),
    };
    return cmocka_run_group_tests_name("parallel.features.groups_encode", tests, NULL, NULL);
}
