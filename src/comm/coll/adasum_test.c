/* adasum_test.c -- adaptive summation, compared with a plain implementation of its formula.
 *
 * Goal:   for every type, size, number of ranks and hosts, in place or not, every rank has the bits
 *         of the plain implementation.  Parallel vectors are averaged, and orthogonal vectors are
 *         added.  Zeros add nothing, and non-finite values are not hidden.
 * Method: groups of threads, of processes, and of several hosts.  The reference implementation adds
 *         the vectors on one rank.  Two references that are wrong on purpose must give other bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/thorough_testing.h"
#include "comm/hosted_testing.h"
#include "device/half.h"
#include "device/reduce.h"

enum { COUNT_MAX = 40000, BLOCK = 4096 };

/* ---- The plain version ------------------------------------------------------------------- */

typedef struct {
    lk_dtype dtype;
    uint32_t block; /* block size: 4096; a wrong reference uses another size */
    bool     chain; /* a wrong reference adds the vectors in a chain instead of a tree */
} rules;

static double to_double(lk_dtype dtype, const void *data, size_t i)
{
    switch ((int)dtype) {
    case LK_F32: return (double)((const float *)data)[i];
    case LK_F64: return ((const double *)data)[i];
    case LK_F16: return (double)lki_f16_widen(((const uint16_t *)data)[i]);
    default: return (double)lki_bf16_widen(((const uint16_t *)data)[i]);
    }
}

static void from_double(lk_dtype dtype, void *data, size_t i, double x)
{
    switch ((int)dtype) {
    case LK_F32: ((float *)data)[i] = isnan(x) ? lki_f32_from_bits(0x7fc00000) : (float)x; break;
    case LK_F64: ((double *)data)[i] = isnan(x) ? (double)NAN : x; break;
    case LK_F16: ((uint16_t *)data)[i] = lki_f16_narrow((float)x); break;
    default: ((uint16_t *)data)[i] = lki_bf16_narrow((float)x); break;
    }
}

static double dot_block(const double *a, const double *b, size_t n)
{
    double lanes[16] = { 0 };
    for (size_t i = 0; i < n; i++)
        lanes[i % 16] += a[i] * b[i];
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

static double dot(const double *a, const double *b, size_t first, size_t blocks, size_t n,
                  size_t block)
{
    if (blocks == 0)
        return 0;
    if (blocks == 1)
        return dot_block(a + first * block, b + first * block,
                         n - first * block < block ? n - first * block : block);
    size_t half = lki_tree_left((uint32_t)blocks);
    return dot(a, b, first, half, n, block) + dot(a, b, first + half, blocks - half, n, block);
}

/* Computes the tree node of ranks [first, first + count) in `out`. */
static void node(rules how, double *const *vectors, uint32_t first, uint32_t count, size_t n,
                 double *out)
{
    if (count == 1) {
        memcpy(out, vectors[first], n * sizeof *out);
        return;
    }
    uint32_t half  = how.chain ? count - 1 : lki_tree_left(count);
    double  *right = malloc((n + 1) * sizeof *right);
    assert_non_null(right);
    node(how, vectors, first, half, n, out);
    node(how, vectors, first + half, count - half, n, right);
    size_t blocks = (n + how.block - 1) / how.block;
    double ab = dot(out, right, 0, blocks, n, how.block);
    double aa = dot(out, out, 0, blocks, n, how.block);
    double bb = dot(right, right, 0, blocks, n, how.block);
    double fa = aa > 0 ? 1 - 0.5 * (ab / aa) : 1, fb = bb > 0 ? 1 - 0.5 * (ab / bb) : 1;
    if (!isfinite(ab) || !isfinite(aa) || !isfinite(bb))
        fa = fb = (double)NAN;
    for (size_t i = 0; i < n; i++) {
        double x = fa * out[i] + fb * right[i];
        out[i]   = how.dtype == LK_F64 ? x : (double)(float)x;
    }
    free(right);
}

/* Returns elements of similar vectors with different lengths, so that the factors are far from
 * 1. */
static double value(uint32_t rank, size_t i, uint32_t call)
{
    double scale = rank % 3 == 1 ? 7 : 1;
    return scale * (0.3 * (double)world_value(rank, i, call) + (double)world_value(99, i, call));
}

/* Computes the result for vectors of value(), rounded to the type. */
static void plain(rules how, uint32_t size, size_t n, uint32_t call, void *out)
{
    double  *vectors[WORLD_MAX], *root = malloc((n + 1) * sizeof *root);
    uint64_t element = 0;
    assert_non_null(root);
    for (uint32_t rank = 0; rank < size; rank++) {
        vectors[rank] = malloc((n + 1) * sizeof **vectors);
        assert_non_null(vectors[rank]);
        for (size_t i = 0; i < n; i++) {
            from_double(how.dtype, &element, 0, value(rank, i, call));
            vectors[rank][i] = to_double(how.dtype, &element, 0);
        }
    }
    node(how, vectors, 0, size, n, root);
    for (size_t i = 0; i < n; i++)
        from_double(how.dtype, out, i, root[i]);
    for (uint32_t rank = 0; rank < size; rank++)
        free(vectors[rank]);
    free(root);
}

/* ---- Any number of ranks and hosts ------------------------------------------------------- */

static const lk_dtype types[] = { LK_F32, LK_F64, LK_F16, LK_BF16 };
static const size_t   counts[] = { 0, 1, 15, 16, 100, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3,
                                   COUNT_MAX };

typedef struct {
    unsigned char *wanted[4][10];
} answers;

/* Computes the expected results before the ranks start, so that processes inherit them. */
static answers *make_answers(uint32_t size)
{
    answers *all = calloc(1, sizeof *all);
    assert_non_null(all);
    for (size_t t = 0; t < 4; t++)
        for (size_t c = 0; c < 10; c++) {
            all->wanted[t][c] = calloc(counts[c] + 1, 8);
            assert_non_null(all->wanted[t][c]);
            plain((rules){ types[t], BLOCK, false }, size, counts[c], (uint32_t)c,
                  all->wanted[t][c]);
        }
    return all;
}

static void free_answers(answers *all)
{
    for (size_t t = 0; t < 4; t++)
        for (size_t c = 0; c < 10; c++)
            free(all->wanted[t][c]);
    free(all);
}

static void fill(lk_dtype dtype, void *data, size_t n, uint32_t rank, uint32_t call)
{
    for (size_t i = 0; i < n; i++)
        from_double(dtype, data, i, value(rank, i, call));
}

static bool one_case(lk_comm *comm, const answers *all, size_t t, size_t c, unsigned char *send,
                     unsigned char *recv)
{
    lk_dtype dtype = types[t];
    size_t   n = counts[c], bytes = n * lk_dtype_bytes(dtype);
    uint32_t me = lk_comm_rank(comm), root = lk_comm_size(comm) - 1;

    fill(dtype, send, n, me, (uint32_t)c);
    CHECK(lk_all_reduce(comm, send, recv, n, dtype, LK_ADASUM) == LK_OK);
    CHECK(memcmp(recv, all->wanted[t][c], bytes) == 0);
    memset(recv, 0x55, bytes);
    CHECK(lk_reduce(comm, send, recv, n, dtype, LK_ADASUM, root) == LK_OK);
    CHECK(me != root || memcmp(recv, all->wanted[t][c], bytes) == 0);
    CHECK(me == root || bytes == 0 || recv[bytes - 1] == 0x55);
    CHECK(lk_all_reduce(comm, send, send, n, dtype, LK_ADASUM) == LK_OK);
    CHECK(memcmp(send, all->wanted[t][c], bytes) == 0);
    return true;
}

static bool all_cases(lk_comm *comm, void *context)
{
    unsigned char *send = malloc(COUNT_MAX * 8), *recv = malloc(COUNT_MAX * 8);
    CHECK(send != NULL && recv != NULL);
    for (size_t t = 0; t < 4; t++)
        for (size_t c = 0; c < 10; c++)
            CHECK(one_case(comm, context, t, c, send, recv));
    free(send);
    free(recv);
    return true;
}

static void has_the_bits_of_the_formula(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 6; size += lki_brief() ? 2 : 1) {
        answers *all = make_answers(size);
        assert_true(world_all(size, true, all_cases, all));
        if (size == 3)
            assert_true(world_all(size, false, all_cases, all));
        free_answers(all);
    }
}

static void has_the_same_bits_over_hosts(void **state)
{
    static const hosted shapes[] = { { .hosts = 2, .each = 1 },
                                     { .hosts = 2, .each = 2, .fewer = 1 },
                                     { .hosts = 3, .each = 2 } };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        uint32_t size = hosted_size(shapes[i]);
        answers *all  = make_answers(size);
        assert_int_equal(hosted_run(shapes[i], all_cases, all), size);
        free_answers(all);
    }
}

/* Compares with the two wrong references, and expects other bits.  Types are wide, because rounding
 * to FP32 would hide the last bits of dot products. */
static void another_order_has_other_bits(void **state)
{
    static double right[COUNT_MAX], wrong[COUNT_MAX];
    (void)state;
    plain((rules){ LK_F64, BLOCK, false }, 5, COUNT_MAX, 9, right);
    plain((rules){ LK_F64, BLOCK / 2, false }, 5, COUNT_MAX, 9, wrong);
    assert_memory_not_equal(right, wrong, sizeof right);
    plain((rules){ LK_F64, BLOCK, true }, 5, COUNT_MAX, 9, wrong);
    assert_memory_not_equal(right, wrong, sizeof right);
}

/* ---- Properties -------------------------------------------------------------------------- */

static bool adds_what_is_orthogonal(lk_comm *comm, void *context)
{
    enum { EACH = 9000, RANKS = 4 };
    static const size_t n = (size_t)EACH * RANKS;
    float   *x  = calloc(n, sizeof *x);
    uint32_t me = lk_comm_rank(comm);
    (void)context;
    CHECK(x != NULL);
    for (size_t i = 0; i < EACH; i++) /* elements of one rank are zero on all other ranks */
        x[i * RANKS + me] = world_value(me, i, 0);
    CHECK(lk_all_reduce(comm, x, x, n, LK_F32, LK_ADASUM) == LK_OK);
    for (size_t i = 0; i < n; i++)
        CHECK(x[i] == world_value((uint32_t)(i % RANKS), i / RANKS, 0));
    free(x);
    return true;
}

static bool averages_what_is_parallel(lk_comm *comm, void *context)
{
    enum { N = 20000 };
    double *x = malloc(N * sizeof *x);
    double  k = (double)(UINT32_C(1) << lk_comm_rank(comm)); /* 1, 2, 4, 8: on average 3.75 */
    (void)context;
    CHECK(x != NULL);
    for (size_t i = 0; i < N; i++)
        x[i] = k * (double)world_value(3, i, 0);
    CHECK(lk_all_reduce(comm, x, x, N, LK_F64, LK_ADASUM) == LK_OK);
    for (size_t i = 0; i < N; i++) {
        double wanted = 3.75 * (double)world_value(3, i, 0);
        CHECK(fabs(x[i] - wanted) <= 1e-12 * fabs(wanted));
    }
    for (size_t i = 0; i < N; i++)
        x[i] = (double)world_value(3, i, 0);
    CHECK(lk_all_reduce(comm, x, x, N, LK_F64, LK_ADASUM) == LK_OK);
    for (size_t i = 0; i < N; i++) /* all ranks have the same vector */
        CHECK(x[i] == (double)world_value(3, i, 0));
    free(x);
    return true;
}

static bool leaves_zeros_out(lk_comm *comm, void *context)
{
    enum { N = 5000 };
    float   *x  = calloc(N, sizeof *x);
    uint32_t me = lk_comm_rank(comm);
    (void)context;
    CHECK(x != NULL);
    for (size_t i = 0; i < N && me == 2; i++)
        x[i] = world_value(2, i, 0);
    CHECK(lk_all_reduce(comm, x, x, N, LK_F32, LK_ADASUM) == LK_OK);
    for (size_t i = 0; i < N; i++)
        CHECK(x[i] == world_value(2, i, 0));
    memset(x, 0, N * sizeof *x);
    CHECK(lk_all_reduce(comm, x, x, N, LK_F32, LK_ADASUM) == LK_OK);
    for (size_t i = 0; i < N; i++)
        CHECK(x[i] == 0);
    free(x);
    return true;
}

/* Sums vectors, one of which has a non-finite element.  Expects that no rank receives a finite
 * result. */
static bool hides_nothing(lk_comm *comm, void *context)
{
    enum { N = 100000 };
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    float             *x     = malloc(N * sizeof *x);
    (void)context;
    CHECK(x != NULL);
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < N; i++)
            x[i] = world_value(lk_comm_rank(comm), i, 0);
        if (lk_comm_rank(comm) == 1)
            x[N - 7] = bad[k];
        CHECK(lk_all_reduce(comm, x, x, N, LK_F32, LK_ADASUM) == LK_OK);
        for (size_t i = 0; i < N; i++)
            CHECK(lki_f32_bits(x[i]) == 0x7fc00000);
    }
    free(x);
    return true;
}

/* Reduces several tensors with one call.  Expects the results of separate calls, although small
 * tensors may be sent together. */
static bool parts_are_tensors(lk_comm *comm, void *context)
{
    float          a[300], b[7], c[300], d[7];
    lk_reduce_part parts[2] = { { a, a, 300, LK_F32 }, { b, b, 7, LK_F32 } };
    uint32_t       me       = lk_comm_rank(comm);
    (void)context;
    for (size_t i = 0; i < 300; i++)
        a[i] = c[i] = world_value(me, i, 1);
    for (size_t i = 0; i < 7; i++)
        b[i] = d[i] = world_value(me, i, 2);
    CHECK(lk_all_reduce_many(comm, parts, 2, LK_ADASUM) == LK_OK);
    CHECK(lk_all_reduce(comm, c, c, 300, LK_F32, LK_ADASUM) == LK_OK);
    CHECK(lk_all_reduce(comm, d, d, 7, LK_F32, LK_ADASUM) == LK_OK);
    CHECK(memcmp(a, c, sizeof a) == 0 && memcmp(b, d, sizeof b) == 0);
    return true;
}

static bool says_what_it_cannot(lk_comm *comm, void *context)
{
    lk_request *request;
    int32_t     whole[8] = { 0 };
    float       x[8]     = { 0 }, y[8];
    uint32_t    me       = lk_comm_rank(comm);
    (void)context;
    CHECK(lk_all_reduce(comm, whole, whole, 8, LK_I32, LK_ADASUM) == LK_EINVAL);
    CHECK(lk_all_reduce_start(&request, comm, x, x, 8, LK_F32, LK_ADASUM) == LK_EUNSUPPORTED);
    CHECK(lk_reduce_start(&request, comm, x, x, 8, LK_F32, LK_ADASUM, 0) == LK_EUNSUPPORTED);
    CHECK(lk_reduce_scatter(comm, x, y, 2, LK_F32, LK_ADASUM) == LK_EUNSUPPORTED);
    CHECK(lk_barrier(comm) == LK_OK); /* the refused calls have changed nothing */
    CHECK(lk_all_reduce(comm, x, x, me == 1 ? 8 : 7, LK_F32, LK_ADASUM) == LK_EMISMATCH);
    CHECK(strstr(lk_error_last()->message, "adasum #1 (F32, 8 elements)") != NULL);
    return true;
}

static void adasum_adds_orthogonal_and_averages_parallel_vectors(void **state)
{
    (void)state;
    assert_true(world_all(4, true, adds_what_is_orthogonal, NULL));
    assert_true(world_all(4, true, averages_what_is_parallel, NULL));
    assert_true(world_all(4, true, leaves_zeros_out, NULL));
    assert_true(world_all(3, true, hides_nothing, NULL));
    assert_true(world_all(3, true, parts_are_tensors, NULL));
    assert_true(world_all(4, true, says_what_it_cannot, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_bits_of_the_formula),
        cmocka_unit_test(has_the_same_bits_over_hosts),
        cmocka_unit_test(another_order_has_other_bits),
        cmocka_unit_test(adasum_adds_orthogonal_and_averages_parallel_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
