/* choice_test.c -- tests of topk, randomk and sign against plain versions. */
#include <math.h>

#include "base/thorough_testing.h"
#include "compress/chosen.h"
#include "compress/scan.h"
#include "compress/values_testing.h"

static const size_t sizes[] = { 1,   2,    3,    15,    16,    17,    31,
                                33,  100,  4095, 4097,  12289, 70001, 300007 };
enum { STEPS = 50 };

/* Returns the number of sizes to try. */
static size_t size_count(void)
{
    return sizeof sizes / sizeof sizes[0] - (lki_brief() ? 2 : 0);
}

/* ---- topk -------------------------------------------------------------------------------- */

typedef struct {
    uint32_t magnitude, index;
} ranked;

static int by_rank(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->magnitude != b->magnitude)
        return a->magnitude < b->magnitude ? 1 : -1;
    return a->index < b->index ? -1 : 1;
}

static int by_index(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    return a->index < b->index ? -1 : 1;
}

static void check_topk(const one *o)
{
    size_t          k       = lki_chosen(&o->options, &o->key);
    ranked         *all     = calloc(o->count, sizeof *all);
    float          *rest    = calloc(o->count, sizeof *rest);
    const uint32_t *indices = o->message;
    const float    *sent    = (const float *)o->message + k;
    assert_int_equal(o->bytes, 8 * k);
    memcpy(rest, o->original, o->count * sizeof *rest);
    for (size_t i = 0; i < o->count; i++)
        all[i] = (ranked){ (uint32_t)lki_magnitude(o->original[i]), (uint32_t)i };
    qsort(all, o->count, sizeof *all, by_rank);
    qsort(all, k, sizeof *all, by_index);
    for (size_t i = 0; i < k; i++) {
        assert_int_equal(indices[i], all[i].index);
        assert_memory_equal(&sent[i], &o->original[indices[i]], sizeof(float));
        rest[indices[i]] = 0;
    }
    assert_memory_equal(rest, o->values, o->count * sizeof *rest);
    free(all);
    free(rest);
}

static void topk_sends_exactly_the_largest_and_of_ties_the_first(void **state)
{
    (void)state;
    const double ratios[] = { 0.0005, 0.01, 0.1, 0.5, 0.7, 1 };
    for (size_t s = 0; s < size_count(); s++)
        for (size_t r = 0; r < sizeof ratios / sizeof ratios[0]; r++)
            for (int k = 0; k < KINDS; k++) {
                one o = one_open("topk", ratios[r], sizes[s]);
                fill(o.original, o.count, (kind)k, s);
                one_encode(&o);
                check_topk(&o);
                one_close(&o);
            }
}

/* The sample's elements are large, or small, and the others are not. */
static void topk_is_exact_where_its_sample_misleads(void **state)
{
    (void)state;
    for (int large = 0; large < 2; large++) {
        one    o      = one_open("topk", 0.01, 300007);
        size_t stride = o.count / (o.count / 64);
        fill(o.original, o.count, NORMAL, 3);
        for (size_t i = 0; i < o.count; i++)
            o.original[i] *= (i % stride == 0) == (large == 1) ? 8 : 0.01f;
        one_encode(&o);
        check_topk(&o);
        one_close(&o);
    }
}

static void the_number_of_elements_is_the_ratio_rounded_up(void **state)
{
    (void)state;
    const struct {
        double ratio;
        size_t count, chosen;
    } cases[] = { { 0.01, 700, 7 },  { 0.01, 701, 8 }, { 0.01, 699, 7 },  { 0.001, 1, 1 },
                  { 1, 12345, 12345 }, { 0.1, 30, 3 },   { 1e-9, 1000, 1 }, { 0.07, 100, 7 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        one o = one_open("topk", cases[i].ratio, cases[i].count);
        assert_int_equal(lki_chosen(&o.options, &o.key), cases[i].chosen);
        one_close(&o);
    }
}

/* ---- sign -------------------------------------------------------------------------------- */

static double plain_tree(const double *sums, size_t count)
{
    size_t left = 1;
    if (count == 1)
        return sums[0];
    while (2 * left < count)
        left *= 2;
    return plain_tree(sums, left) + plain_tree(sums + left, count - left);
}

static double plain_block(const float *values, size_t count)
{
    double lanes[16] = { 0 };
    for (size_t i = 0; i < count; i++)
        lanes[i % 16] += fabs((double)values[i]);
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

static float plain_scale(const float *values, size_t count)
{
    size_t  blocks = (count + 4095) / 4096;
    double *sums   = calloc(blocks, sizeof *sums);
    for (size_t b = 0; b < blocks; b++)
        sums[b] = plain_block(values + b * 4096, b + 1 < blocks ? 4096 : count - b * 4096);
    float scale = (float)(plain_tree(sums, blocks) / (double)count);
    free(sums);
    return scale;
}

static void check_sign(const one *o, float scale)
{
    const uint32_t *bits = (const uint32_t *)o->message + 1;
    assert_int_equal(o->bytes, 4 + (o->count + 31) / 32 * 4);
    assert_memory_equal(o->message, &scale, sizeof scale);
    for (size_t i = 0; i < o->count; i++) {
        bool  negative = o->original[i] < 0;
        float residual = o->original[i] - (negative ? -scale : scale);
        assert_int_equal(bits[i / 32] >> i % 32 & 1, negative);
        assert_memory_equal(&o->values[i], &residual, sizeof residual);
    }
    if (o->count % 32 != 0)
        assert_int_equal(bits[o->count / 32] >> o->count % 32, 0);
}

static void sign_sends_signs_and_the_mean_magnitude(void **state)
{
    (void)state;
    for (size_t s = 0; s < size_count(); s++)
        for (int k = 0; k < ANY_BITS; k++) {
            one o = one_open("sign", 0, sizes[s]);
            fill(o.original, o.count, (kind)k, s + 20);
            one_encode(&o);
            check_sign(&o, plain_scale(o.original, o.count));
            one_close(&o);
        }
}

/* The sum over four blocks lies between two floats: only in the tree do the last two ones count. */
static void signs_scale_is_summed_by_the_tree(void **state)
{
    (void)state;
    one o         = one_open("sign", 0, 4 * 4096);
    o.original[0] = 0x1p53f;
    o.original[1] = 0x1p29f;
    for (size_t b = 1; b < 4; b++)
        o.original[b * 4096] = 1;
    one_encode(&o);
    check_sign(&o, 0x1p39f + 0x1p16f);
    one_close(&o);
}

/* ---- randomk ----------------------------------------------------------------------------- */

/* Returns how many places of two steps agree. */
static size_t common(one *o, uint64_t step, uint32_t tensor, uint64_t seed)
{
    float *was = calloc(o->count, sizeof *was);
    size_t n   = 0;
    one_encode(o);
    one_decode(o, 0, o->count, was);
    one other         = *o;
    other.key.step    = step;
    other.key.tensor  = tensor;
    other.options.seed = seed;
    one_encode(&other);
    for (size_t i = 0; i < o->count; i++)
        n += was[i] != 0 && other.values[i] == 0;
    free(was);
    return n;
}

static void randomk_chooses_distinct_places_by_seed_step_and_tensor(void **state)
{
    (void)state;
    for (size_t s = 0; s < size_count(); s++) {
        one    o = one_open("randomk", 0.1, sizes[s]);
        size_t k = lki_chosen(&o.options, &o.key), sent = 0;
        float *out = calloc(o.count, sizeof *out);
        assert_int_equal(o.bytes, 4 * k);
        for (size_t i = 0; i < o.count; i++)
            o.original[i] = (float)i + 1;
        one_encode(&o);
        one_decode(&o, 0, o.count, out);
        for (size_t i = 0; i < o.count; i++) {
            assert_true(out[i] + o.values[i] == o.original[i]);
            assert_true(out[i] == 0 || o.values[i] == 0);
            sent += out[i] != 0;
        }
        assert_int_equal(sent, k);
        assert_int_equal(common(&o, 7, 3, 5), k);
        if (o.count > 1000) { /* other keys choose other places: a tenth is common by chance */
            assert_in_range(common(&o, 8, 3, 5), 0, k / 5);
            assert_in_range(common(&o, 7 | UINT64_C(1) << 32, 3, 5), 0, k / 5);
            assert_in_range(common(&o, 7, 4, 5), 0, k / 5);
            assert_in_range(common(&o, 7, 3, 6), 0, k / 5);
        }
        free(out);
        one_close(&o);
    }
}

/* Every element must be chosen about as often as any other, in every size of the network. */
static void randomk_chooses_evenly(void **state)
{
    (void)state;
    enum { COUNT = 300, TIMES = 4000 };
    one      o            = one_open("randomk", 0.1, COUNT);
    uint32_t times[COUNT] = { 0 };
    double   chi          = 0;
    for (o.key.step = 0; o.key.step < TIMES; o.key.step++) {
        for (size_t i = 0; i < COUNT; i++)
            o.original[i] = 1;
        one_encode(&o);
        for (size_t i = 0; i < COUNT; i++)
            times[i] += o.values[i] == 0;
    }
    for (size_t i = 0; i < COUNT; i++) {
        double off = (double)times[i] - TIMES * 0.1;
        chi += off * off / (TIMES * 0.1 * 0.9);
    }
    assert_true(chi > COUNT - 5 * sqrt(2.0 * COUNT) && chi < COUNT + 5 * sqrt(2.0 * COUNT));
    one_close(&o);
}

/* ---- All of them ------------------------------------------------------------------------- */

static const char *const names[] = { "topk", "randomk", "sign", "terngrad", "qsgd", "vote" };
enum { NAMES = sizeof names / sizeof names[0], WITH_FEEDBACK = 3 };

static void a_range_is_decoded_like_the_whole(void **state)
{
    (void)state;
    for (size_t n = 0; n < NAMES; n++)
        for (size_t s = 0; s < size_count(); s++) {
            one    o     = one_open(names[n], 0.05, sizes[s]);
            float *whole = calloc(o.count, sizeof(float)), *part = calloc(o.count, sizeof(float));
            fill(o.original, o.count, NORMAL, s);
            one_encode(&o);
            one_decode(&o, 0, o.count, whole);
            for (uint64_t i = 0; i < 40; i++) {
                size_t first = (size_t)(mixed(i) % o.count);
                size_t count = (size_t)(mixed(i + 99) % (o.count - first + 1));
                count        = i % 2 == 0 && count > 20 ? count % 20 : count;
                one_decode(&o, first, count, part);
                assert_memory_equal(part, whole + first, count * sizeof(float));
            }
            free(whole);
            free(part);
            one_close(&o);
        }
}

static void values_that_are_not_finite_are_seen(void **state)
{
    (void)state;
    const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    for (size_t n = 0; n < NAMES; n++)
        for (size_t b = 0; b < 4; b++)
            for (size_t s = 0; s < size_count(); s++) {
                one    o    = one_open(names[n], 0.001, sizes[s]);
                float *out  = calloc(o.count, sizeof(float));
                bool   seen = false;
                fill(o.original, o.count, NORMAL, s);
                o.original[mixed(s + b) % o.count] = bad[b];
                one_encode(&o);
                one_decode(&o, 0, o.count, out);
                for (size_t i = 0; i < o.count; i++)
                    seen = seen || !isfinite(out[i]);
                assert_true(seen);
                free(out);
                one_close(&o);
            }
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    enum { COUNT = 4096 };
    static float    values[COUNT], left[2][COUNT];
    static uint32_t places[2][COUNT], bits[2][COUNT / 32];
    bool            lacks;
    for (size_t t = 0; lki_scan_at(t, &lacks) != NULL; t++) {
        if (lacks)
            continue;
        const lki_scan *tables[2] = { &lki_scan_portable, lki_scan_at(t, &lacks) };
        for (int k = 0; k < KINDS; k++)
            for (size_t count = COUNT - 70; count <= COUNT; count += 7) {
                double sums[2];
                size_t found[2] = { 0, 0 }, end[2], room = count % 2 == 0 ? COUNT : 300;
                fill(values, count, (kind)k, count);
                int32_t bar = lki_magnitude(values[3]) - (int32_t)(count % 3);
                for (int i = 0; i < 2; i++) {
                    end[i]  = tables[i]->above(values, 3, count, bar, places[i], &found[i], room);
                    sums[i] = tables[i]->signs(count, values, bits[i]);
                    memcpy(left[i], values, count * sizeof(float));
                    tables[i]->subtract(count, 0.3f, left[i]);
                }
                assert_int_equal(end[0], end[1]);
                assert_int_equal(found[0], found[1]);
                assert_memory_equal(places[0], places[1], found[0] * sizeof(uint32_t));
                assert_memory_equal(bits[0], bits[1], (count + 31) / 32 * 4);
                double plain = plain_block(values, count);
                for (int i = 0; i < 2 && k != ANY_BITS; i++)
                    assert_memory_equal(&sums[i], &plain, sizeof plain);
                assert_memory_equal(left[0], left[1], count * sizeof(float));
                for (int i = 0; i < 2; i++)
                    tables[i]->spread(bits[0], count % 40, count - 40, 0.3f, left[i]);
                assert_memory_equal(left[0], left[1], (count - 40) * sizeof(float));
            }
    }
}

/* ---- Groups and steps -------------------------------------------------------------------- */

static lkt_compressed groups_of(const char *name, double ratio, size_t count, uint32_t groups)
{
    lkt_compressed c = { .by = find(name), .options = LK_COMPRESSION_INIT, .groups = groups,
                         .samples = 4, .key = { .rows = count, .cols = 1, .tensor = 2 } };
    c.options.ratio  = ratio;
    lkt_compressed_open(&c);
    return c;
}

static void ratio_one_is_the_tree_sum_of_the_groups(void **state)
{
    (void)state;
    for (size_t n = 0; n < 2; n++)
        for (uint32_t groups = 1; groups <= 7; groups++) {
            enum { COUNT = 1001 };
            lkt_compressed c = groups_of(names[n], 1, COUNT, groups);
            static float   values[7][COUNT], out[COUNT], want[COUNT];
            float         *all[7];
            for (int step = 0; step < 3; step++) {
                lki_tree_input inputs[7];
                for (uint32_t g = 0; g < groups; g++) {
                    fill(values[g], COUNT, step == 2 ? MOSTLY_ZERO : NORMAL, g + 8);
                    for (size_t i = 0; i < 20; i++)
                        values[g][i] = -0.0f;
                    all[g]    = values[g];
                    inputs[g] = (lki_tree_input){ g, 1, values[g] };
                }
                lki_tree_sum_f32(LK_F32, groups, inputs, groups, COUNT, want);
                lkt_compressed_step(&c, all, out);
                assert_memory_equal(out, want, sizeof want);
                for (uint32_t g = 0; g < groups; g++)
                    for (size_t i = 0; i < COUNT; i++)
                        assert_true(values[g][i] == 0 && c.errors[g][i] == 0);
            }
            lkt_compressed_close(&c);
        }
}

/* Plays 50 steps.  Returns the largest difference between the sum of what was decoded, plus the
 * last errors, and the sum of the gradients. */
static double telescoped(const char *name, bool feedback, bool shared)
{
    enum { COUNT = 777, GROUPS = 3 };
    lkt_compressed c = groups_of(name, 0.02, COUNT, GROUPS);
    static float   values[GROUPS][COUNT], out[COUNT];
    double         sent[COUNT] = { 0 }, was[COUNT] = { 0 }, worst = 0;
    float         *all[GROUPS] = { values[0], values[1], values[2] };
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint32_t g = 0; g < GROUPS; g++) {
            fill(values[g], COUNT, NORMAL, step * GROUPS + g);
            for (size_t i = 0; i < COUNT; i++)
                was[i] += (double)values[g][i];
            if (!feedback)
                memset(c.errors[g], 0, COUNT * sizeof(float));
        }
        lkt_compressed_step(&c, all, out);
        if (!shared) { /* readers with another seed */
            c.options.seed++;
            lkt_compressed_decode(&c, 0, COUNT, out);
        }
        for (size_t i = 0; i < COUNT; i++)
            sent[i] += (double)out[i];
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (uint32_t g = 0; g < GROUPS; g++)
            sent[i] += (double)c.errors[g][i] * (double)c.samples;
        worst = fmax(worst, fabs(sent[i] - was[i]));
    }
    lkt_compressed_close(&c);
    return worst;
}

static void what_is_sent_and_the_errors_are_all_gradients(void **state)
{
    (void)state;
    for (size_t n = 0; n < WITH_FEEDBACK; n++) {
        assert_true(telescoped(names[n], true, true) < 1e-4);
        assert_true(telescoped(names[n], false, true) > 0.1); /* the test can fail */
    }
    assert_true(telescoped("randomk", true, false) > 0.1);
}

static void randomk_does_not_depend_on_the_group(void **state)
{
    (void)state;
    one o = one_open("randomk", 0.1, 4097), other = one_open("randomk", 0.1, 4097);
    fill(o.original, o.count, NORMAL, 1);
    fill(other.original, o.count, NORMAL, 1);
    other.key.group = 5;
    one_encode(&o);
    one_encode(&other);
    assert_memory_equal(o.message, other.message, o.bytes);
    assert_memory_equal(o.values, other.values, o.count * sizeof(float));
    one_close(&o);
    one_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topk_sends_exactly_the_largest_and_of_ties_the_first),
        cmocka_unit_test(topk_is_exact_where_its_sample_misleads),
        cmocka_unit_test(the_number_of_elements_is_the_ratio_rounded_up),
        cmocka_unit_test(sign_sends_signs_and_the_mean_magnitude),
        cmocka_unit_test(signs_scale_is_summed_by_the_tree),
        cmocka_unit_test(randomk_chooses_distinct_places_by_seed_step_and_tensor),
        cmocka_unit_test(randomk_chooses_evenly),
        cmocka_unit_test(a_range_is_decoded_like_the_whole),
        cmocka_unit_test(values_that_are_not_finite_are_seen),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(ratio_one_is_the_tree_sum_of_the_groups),
        cmocka_unit_test(what_is_sent_and_the_errors_are_all_gradients),
        cmocka_unit_test(randomk_does_not_depend_on_the_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
