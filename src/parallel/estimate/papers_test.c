/* papers_test.c -- the estimate agrees with published formulas.
 *
 * Method: the formulas are written here as in the papers, and first reproduce the papers' own
 *         figures.  With the sizes of our types they must then equal lk_parallel_estimate(), except
 *         for the units that zero3 has in memory.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lockstep/parallel.h"

/* Bytes of a parameter, of its gradient and of its optimizer state. */
typedef struct {
    double parameter, gradient, state;
} type_sizes;

static const type_sizes mixed = { 2, 2, 12 }; /* the sizes in the paper: 16 bits, and Adam */
static const type_sizes ours  = { 4, 4, 8 };  /* FP32, and adamw's two moments */

enum { LAYERS = 16, WIDTH = 512 };

/* Returns the bytes of model states of a worker by Rajbhandari et al. (2020), section 5.  Stage 1
 * shards the state, stage 2 also gradients, stage 3 everything. */
static double zero_bytes(uint32_t stage, double parameters, double workers, type_sizes of)
{
    return parameters *
           (of.parameter / (stage >= 3 ? workers : 1) + of.gradient / (stage >= 2 ? workers : 1) +
            of.state / (stage >= 1 ? workers : 1));
}

static double rounded(double value, double digits)
{
    return round(value * digits) / digits;
}

static void assert_equal(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-9)
        fail_msg("%.12g, not %.12g", got, wanted);
}

/* Compares the formula with table 1 of the paper, in GB.  The paper rounds numbers below 100 to
 * three digits, and truncates the others. */
static void table_1_of_zero(void **state)
{
    static const double sizes[3]       = { 7.5e9, 128e9, 1e12 };
    static const double table[6][3][3] = {
        { { 120, 120, 120 }, { 2048, 2048, 2048 }, { 16000, 16000, 16000 } },
        { { 52.5, 41.3, 30 }, { 896, 704, 512 }, { 7000, 5500, 4000 } },
        { { 35.6, 21.6, 7.5 }, { 608, 368, 128 }, { 4750, 2875, 1000 } },
        { { 31.4, 16.6, 1.88 }, { 536, 284, 32 }, { 4187, 2218, 250 } },
        { { 30.4, 15.4, 0.47 }, { 518, 263, 8 }, { 4046, 2054, 62.5 } },
        { { 30.1, 15.1, 0.12 }, { 513, 257, 2 }, { 4011, 2013, 15.6 } },
    };
    uint32_t workers = 1;
    (void)state;
    for (size_t row = 0; row < 6; row++, workers *= 4)
        for (size_t m = 0; m < 3; m++)
            for (uint32_t stage = 1; stage <= 3; stage++) {
                double gb         = zero_bytes(stage, sizes[m], workers, mixed) / 1e9;
                double unit       = gb >= 100 ? 1 : gb >= 10 ? 0.1 : 0.01;
                double as_printed = gb >= 100 ? floor(gb) : unit * floor(gb / unit + 0.5 + 1e-9);
                if (fabs(as_printed - table[row][m][stage - 1]) > 1e-6)
                    fail_msg("stage %u, %u workers: %g, the paper has %g", stage, workers, gb,
                             table[row][m][stage - 1]);
            }
}

/* Compares the formula with table 2, the largest models on 64 GPUs of 32 GB.  The paper multiplies
 * the rounded values 7.6 and 14.4 by the degree of model parallelism. */
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
            double largest = 32 / zero_bytes(stage, 1, 64, mixed);
            assert_equal(table[row][0] * rounded(largest, 10), table[row][1 + stage]);
        }
}

/* Estimates a model of 16 equal layers on hosts with one virtual worker each.  Each layer is a
 * bucket and a unit, and one unit is in memory. */
static lk_parallel_cost estimate(const char *strategy, uint32_t hosts)
{
    static const uint32_t sizes[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    lk_param              layers[LAYERS];
    lk_parallel_options   options = { .struct_size        = sizeof(lk_parallel_options),
                                      .strategy           = strategy,
                                      .virtual_workers    = hosts,
                                      .optimizer          = { .kind = LK_ADAMW },
                                      .bucket_bytes       = WIDTH * WIDTH * sizeof(float),
                                      .first_bucket_bytes = WIDTH * WIDTH * sizeof(float),
                                      .unit_buffers       = 1 };
    lk_parallel_cost      cost;
    for (size_t i = 0; i < LAYERS; i++)
        layers[i] = (lk_param){ .name = "w", .shape = { 2, { WIDTH, WIDTH } } };
    assert_int_equal(lk_parallel_estimate(&cost, layers, LAYERS, &options, sizes, hosts), LK_OK);
    return cost;
}

/* Checks that a host of one worker has the model states of the paper.  zero2 and zero3 have two
 * more buckets of gradients, and zero3 one more unit of parameters. */
static void hosts_store_the_model_states_of_zero(void **state)
{
    static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3" };
    static const double      layers[]     = { 0, 0, 2, 3 };
    const double             layer = WIDTH * WIDTH, all = LAYERS * layer;
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++)
        for (uint32_t hosts = 2; hosts <= 8; hosts *= 4) {
            lk_parallel_cost cost = estimate(strategies[stage], hosts);
            double           has  = (double)(cost.params + cost.optimizer + cost.gradients);
            assert_equal(has, zero_bytes(stage, all, hosts, ours) + 4 * layers[stage] * layer);
        }
}

/* Checks the bytes that a worker sends per step against Zhao et al. (2023), section 3.2.2: 2M
 * (W-1)/W if the model is replicated, 3M (W-1)/W if it is sharded.  The authors gather every unit
 * twice.  Here the last unit of the forward pass is still in memory when the backward pass
 * begins. */
static void hosts_send_what_fsdp_sends(void **state)
{
    const double layer = 4.0 * WIDTH * WIDTH, m = LAYERS * layer;
    (void)state;
    for (uint32_t w = 2; w <= 8; w *= 2) {
        lk_parallel_cost ddp = estimate("ddp", w), zero3 = estimate("zero3", w);
        double           others = (w - 1.0) / w;
        assert_equal((double)(ddp.sent_gradients + ddp.sent_params), 2 * m * others);
        assert_equal((double)(zero3.sent_gradients + zero3.sent_params), (3 * m - layer) * others);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_1_of_zero),
        cmocka_unit_test(table_2_of_zero),
        cmocka_unit_test(hosts_store_the_model_states_of_zero),
        cmocka_unit_test(hosts_send_what_fsdp_sends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
