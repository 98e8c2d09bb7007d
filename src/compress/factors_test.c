/* factors_test.c -- the loops of powersgd and of error feedback.
 *
 * Goal:    every instruction set gives the bits of plain loops, whatever the shape, the rank and
 *          the range.
 * Method:  plain loops with the order of sums that factors.inc promises; noise with zeros of both
 *          signs and subnormal numbers.
 */
#include "compress/compress_testing.h"

#include "base/rng.h"
#include "compress/scan.h"

enum { COUNT = 5 * 1024, FACTOR = 9 * 512, LANES = 16 };

static const size_t shapes[][2] = { { 1, 1 },   { 2, 15 },  { 3, 16 },   { 5, 17 },  { 7, 64 },
                                    { 8, 33 },  { 9, 31 },  { 16, 128 }, { 17, 48 }, { 33, 70 },
                                    { 41, 23 }, { 64, 65 }, { 2, 511 },  { 511, 3 } };

typedef struct {
    float m[COUNT], p[FACTOR], q[FACTOR], out[COUNT];
} matrices;

static void fill(float *x, size_t count, uint32_t which)
{
    for (size_t i = 0; i < count; i++) {
        lki_random lot = lki_philox(3, LKI_RNG_DATA, (uint32_t)i, which, 0, 0);
        x[i]           = 2 * lki_random_unit(lot.word[0]) - 1;
        if (lot.word[1] % 8 == 0)
            x[i] *= lot.word[1] % 16 == 0 ? 0.0f : 0x1p-130f;
    }
}

static float plain_dot(size_t count, const float *x, const float *y)
{
    float lanes[LANES] = { 0 };
    for (size_t i = 0; i < count; i++)
        lanes[i % LANES] += x[i] * y[i];
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

static float plain_turned(const matrices *x, size_t rows, size_t cols, uint32_t a, size_t j)
{
    float sum = 0;
    for (size_t i = 0; i < rows; i++)
        sum += x->p[a * rows + i] * x->m[i * cols + j];
    return sum;
}

static float plain_product(const matrices *x, size_t rows, size_t cols, uint32_t rank, size_t at)
{
    float sum = 0;
    for (uint32_t a = 0; a < rank; a++)
        sum += x->p[a * rows + at / cols] * x->q[a * cols + at % cols];
    return sum;
}

/* Compares bits, which == does not for zeros. */
static void assert_same(float got, float want)
{
    assert_memory_equal(&got, &want, sizeof got);
}

static void check_products(const lki_scan *by, matrices *x, size_t rows, size_t cols,
                           uint32_t rank)
{
    static float out[FACTOR];
    fill(x->m, rows * cols, 0);
    fill(x->p, rank * rows, 1);
    fill(x->q, rank * cols, 2);
    for (size_t i = 0; i < rows; i += 5) /* some rows at a time */
        by->multiply(rows, cols, rank, i, rows - i < 5 ? rows - i : 5, x->m, x->q, out);
    for (size_t k = 0; k < rank * rows; k++)
        assert_same(out[k], plain_dot(cols, x->m + k % rows * cols, x->q + k / rows * cols));
    by->multiply_turned(rows, cols, rank, x->m, x->p, out);
    for (size_t k = 0; k < rank * cols; k++)
        assert_same(out[k], plain_turned(x, rows, cols, (uint32_t)(k / cols), k % cols));
    memcpy(x->out, x->m, rows * cols * sizeof(float));
    by->subtract_product(rows, cols, rank, x->p, x->q, x->out);
    for (size_t k = 0; k < rows * cols; k++)
        assert_same(x->out[k], x->m[k] - plain_product(x, rows, cols, rank, k));
}

static void check_ranges(const lki_scan *by, matrices *x, size_t rows, size_t cols, uint32_t rank)
{
    const size_t all = rows * cols;
    for (size_t first = 0; first < all; first += 1 + all / 5)
        for (size_t count = 0; first + count < all; count = 3 * count + 1) {
            x->out[count] = 77;
            by->expand(rows, cols, rank, x->p, x->q, first, count, x->out);
            for (size_t k = 0; k < count; k++)
                assert_same(x->out[k], plain_product(x, rows, cols, rank, first + k));
            assert_same(x->out[count], 77);
        }
}

static void check_errors(const lki_scan *by, matrices *x, size_t count)
{
    fill(x->m, count, 3);
    fill(x->p, count, 4);
    if (count > 0) {
        x->m[count - 1] = -0.0f;
        x->p[count - 1] = 0;
    }
    memcpy(x->out, x->m, count * sizeof(float));
    by->add_error(count, x->p, 3, x->out);
    for (size_t k = 0; k < count; k++)
        assert_same(x->out[k], 3 * x->p[k] == 0 ? x->m[k] : x->m[k] + 3 * x->p[k]);
    by->divide(count, x->m, 3, x->out);
    for (size_t k = 0; k < count; k++)
        assert_same(x->out[k], x->m[k] / 3);
}

static void every_instruction_set_gives_the_bits_of_plain_loops(void **state)
{
    static matrices x;
    bool            lacks;
    (void)state;
    for (size_t t = 0; lki_scan_at(t, &lacks) != NULL; t++) {
        const lki_scan *by = lki_scan_at(t, &lacks);
        if (lacks)
            continue;
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (uint32_t rank = 1; rank <= 9; rank++) {
                check_products(by, &x, shapes[s][0], shapes[s][1], rank);
                check_ranges(by, &x, shapes[s][0], shapes[s][1], rank);
            }
        for (size_t count = 0; count < 70; count++)
            check_errors(by, &x, count);
        check_errors(by, &x, 4001);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_bits_of_plain_loops),
    };
    return cmocka_run_group_tests_name("compress.factors", tests, NULL, NULL);
}
