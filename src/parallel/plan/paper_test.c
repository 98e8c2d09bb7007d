/* paper_test.c -- the numbers that others have published come out of their formulas. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lockstep/parallel.h"

#define GIB ((double)(1 << 30))

static double rounded(double value, double digits)
{
    return round(value * digits) / digits;
}

#define EQUAL(a, b)                                                                                \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (fabs(a_ - b_) > 1e-9)                                                                  \
            fail_msg("%s is %.12g, not %.12g", #a, a_, b_);                                        \
    } while (0)

/* The paper multiplies 7.6 and 14.4, rounded, by the degree of model parallelism; the last columns
 * it writes as 0.5T, 1T and 2T. */
static void table_2_of_zero(void **state)
{
    static const double table[][5] = { { 1, 2, 7.6, 14.4, 128 },
                                       { 2, 4, 15.2, 28.8, 256 },
                                       { 4, 8, 30.4, 57.6, 512 },
                                       { 8, 16, 60.8, 115.2, 1024 },
                                       { 16, 32, 121.6, 230.4, 2048 } };
    (void)state;
    for (size_t row = 0; row < sizeof table / sizeof table[0]; row++)
        for (uint32_t stage = 0; stage < 4; stage++) {
            double largest = 32 / lk_zero_paper_bytes(stage, 1, 64, 12);
            EQUAL(table[row][0] * rounded(largest, 10), table[row][1 + stage]);
        }
    EQUAL(rounded(16 * 32 / lk_zero_paper_bytes(1, 1, 64, 12), 100), 122.27);
    EQUAL(rounded(16 * 32 / lk_zero_paper_bytes(2, 1, 64, 12), 100), 230.76);
}

/* The documented rows of t5-3b on one node of 8: GiB, two digits. */
static void rows_of_deepspeed(void **state)
{
    static const struct {
        uint32_t   stage;
        lk_offload offload;
        bool       whole;
        double     cpu, gpu;
    } rows[] = {
        { 3, LK_OFFLOAD_ALL, false, 71.69, 0.12 },
        { 3, LK_OFFLOAD_ALL, true, 127.45, 0.12 },
        { 3, LK_OFFLOAD_OPTIMIZER, false, 63.72, 0.78 },
        { 3, LK_OFFLOAD_OPTIMIZER, true, 127.45, 0.78 },
        { 3, LK_OFFLOAD_NONE, false, 1.43, 6.09 },
        { 3, LK_OFFLOAD_NONE, true, 127.45, 6.09 },
        { 2, LK_OFFLOAD_OPTIMIZER, true, 127.45, 5.31 },
        { 2, LK_OFFLOAD_NONE, true, 127.45, 11.28 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lk_deepspeed_bytes b = lk_deepspeed_estimate(rows[i].stage, rows[i].offload, rows[i].whole,
                                                     2851e6, 32e6, 1, 8);
        EQUAL(rounded(b.cpu / GIB, 100), rows[i].cpu);
        EQUAL(rounded(b.gpu / GIB, 100), rows[i].gpu);
    }
    /* More nodes share what a node keeps; 32 GPUs share the states. */
    lk_deepspeed_bytes b = lk_deepspeed_estimate(3, LK_OFFLOAD_OPTIMIZER, false, 1e9, 0, 4, 8);
    EQUAL(b.cpu, 1e9 * 16 / 4 * 1.5);
    EQUAL(b.gpu, 2e9 / 32);
}

/* 2M (W-1)/W, 3M (W-1)/W, 2M (W-1)/(G W). */
static void traffic_of_fsdp(void **state)
{
    lk_fsdp_traffic t = lk_fsdp_paper_traffic(14e9, 512, 8);
    (void)state;
    EQUAL(t.replicated, 2 * 14e9 * 511 / 512);
    EQUAL(t.sharded, 3 * 14e9 * 511 / 512);
    EQUAL(t.hybrid, 2 * 14e9 * 511 / (8 * 512.));
    EQUAL(lk_fsdp_paper_traffic(1e9, 1, 1).sharded, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_2_of_zero),
        cmocka_unit_test(rows_of_deepspeed),
        cmocka_unit_test(traffic_of_fsdp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
