/* synthetic_test.c -- tests that synthetic data are pure functions of seed and index, can be
 * learnt, and are split by key; and that settings are checked. */
#include "data/data_testing.h"

#include "base/hash.h"

static const lk_dataset_options seed_one = { .struct_size = sizeof(lk_dataset_options), .seed = 1 };

static void values_are_a_function_of_seed_and_index(void **state)
{
    (void)state;
    static const char spec[] = "synthetic:images=50,h=5,w=3,c=2,classes=4";
    lk_dataset *a = lkt_open(spec, &seed_one), *b = lkt_open(spec, &seed_one);
    lk_dataset *c = lkt_open(spec, LKT_DATASET(.seed = 2));
    size_t      different = 0;
    for (uint64_t i = 0; i < 50; i++) {
        float   x[3][30];
        int32_t y[3];
        LKT_OK(lk_dataset_read(a, false, 0, 49 - i, x[0], &y[0]));
        LKT_OK(lk_dataset_read(b, false, 9, 49 - i, x[1], &y[1]));
        LKT_OK(lk_dataset_read(c, false, 0, 49 - i, x[2], &y[2]));
        assert_memory_equal(x[0], x[1], sizeof x[0]);
        assert_int_equal(y[0], y[1]);
        different += memcmp(x[0], x[2], sizeof x[0]) != 0;
        for (size_t e = 0; e < 30; e++)
            assert_true(x[0][e] >= -1.0f && x[0][e] < 1.0f);
        assert_in_range(y[0], 0, 3);
    }
    assert_int_equal(different, 50);
    assert_string_equal(lk_dataset_describe(a)->content_hash, lk_dataset_describe(b)->content_hash);
    assert_string_not_equal(lk_dataset_describe(a)->content_hash,
                            lk_dataset_describe(c)->content_hash);
    lk_dataset_free(a);
    lk_dataset_free(b);
    lk_dataset_free(c);
}

/* Checks that the class with the nearest mean over the training samples is right for most
 * samples. */
static void labels_can_be_learnt(void **state)
{
    (void)state;
    enum { F = 32, K = 4, TRAIN = 600, TEST = 200 };
    lk_dataset *set = lkt_open("synthetic:samples=800,features=32,classes=4", &seed_one);
    float       mean[K][F] = { { 0 } }, count[K] = { 0 }, x[F];
    int32_t     y;
    size_t      right = 0;
    for (uint64_t i = 0; i < TRAIN; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        count[y] += 1;
        for (size_t f = 0; f < F; f++)
            mean[y][f] += x[f];
    }
    for (uint64_t i = TRAIN; i < TRAIN + TEST; i++) {
        float   best = 1e9f;
        int32_t pick = -1;
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        for (int32_t k = 0; k < K; k++) {
            float distance = 0;
            for (size_t f = 0; f < F; f++) {
                float d = x[f] - mean[k][f] / count[k];
                distance += d * d;
            }
            if (distance < best) {
                best = distance;
                pick = k;
            }
        }
        right += pick == y;
    }
    assert_true(right > TEST * 9 / 10);
    lk_dataset_free(set);
}

static void tokens_count_up_in_phrases(void **state)
{
    (void)state;
    lk_dataset *set = lkt_open("synthetic:tokens=1000,vocab=64",
                               LKT_DATASET(.seed = 1, .context = 32));
    assert_int_equal(lk_dataset_describe(set)->classes, 64);
    assert_int_equal(lk_dataset_describe(set)->train_count, 30);
    int32_t x[32], y[32];
    size_t  steps = 0;
    for (uint64_t i = 0; i < 30; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, i, x, y));
        assert_memory_equal(x + 1, y, 31 * sizeof *x);
        for (size_t t = 0; t < 32; t++) {
            assert_in_range(x[t], 0, 63);
            steps += y[t] == (x[t] + 1) % 64;
        }
    }
    assert_in_range(steps, 30 * 28, 30 * 28 + 30); /* 7 of 8, and some by chance */
    lk_dataset_free(set);
}

/* Checks that every sample, identified by its hash, is in exactly one of the two parts. */
static void the_split_is_a_partition(void **state)
{
    (void)state;
    static const char spec[] = "synthetic:samples=101,features=3,classes=2";
    lk_dataset *whole = lkt_open(spec, &seed_one);
    lk_dataset *split = lkt_open(spec, LKT_DATASET(.seed = 1, .validation = 0.29));
    lk_dataset *other = lkt_open(spec, LKT_DATASET(.seed = 1, .validation = 0.29, .split_seed = 1));
    const lk_dataset_info *info = lk_dataset_describe(split);
    assert_int_equal(info->validation_count, 29);
    assert_int_equal(info->train_count, 72);
    size_t common = 0;
    for (uint64_t i = 0; i < 101; i++) {
        float   want[3], x[3];
        int32_t y, found = 0;
        LKT_OK(lk_dataset_read(whole, false, 0, i, want, &y));
        for (uint64_t k = 0; k < 101; k++) {
            LKT_OK(lk_dataset_read(split, k >= 72, 0, k >= 72 ? k - 72 : k, x, &y));
            found += memcmp(x, want, sizeof x) == 0;
        }
        assert_int_equal(found, 1);
    }
    for (uint64_t a = 0; a < 29; a++)
        for (uint64_t b = 0; b < 29; b++) {
            float   x[2][3];
            int32_t y;
            LKT_OK(lk_dataset_read(split, true, 0, a, x[0], &y));
            LKT_OK(lk_dataset_read(other, true, 0, b, x[1], &y));
            common += memcmp(x[0], x[1], sizeof x[0]) == 0;
        }
    assert_true(common < 20); /* another key gives another part */
    lk_dataset_free(whole);
    lk_dataset_free(split);
    lk_dataset_free(other);
}

static void wrong_settings_are_refused(void **state)
{
    (void)state;
    const lk_dataset_options *o = &seed_one;
    lkt_refuses("synthetic:image=10", o, LK_EINVAL, "image=10", "no setting");
    lkt_refuses("synthetic:images", o, LK_EINVAL, "'images'", "no setting");
    lkt_refuses("synthetic:images=10,", o, LK_EINVAL, "''", "no setting");
    lkt_refuses("synthetic:images=10,images=10", o, LK_EINVAL, "images", "twice");
    lkt_refuses("synthetic:images=", o, LK_EINVAL, "whole number", "''");
    lkt_refuses("synthetic:images=0", o, LK_EINVAL, "from 1 to", "'0'");
    lkt_refuses("synthetic:images=-1", o, LK_EINVAL, "whole number", "'-1'");
    lkt_refuses("synthetic:images=1e3", o, LK_EINVAL, "whole number", "'1e3'");
    lkt_refuses("synthetic:images=99999999999999999999999", o, LK_EINVAL, "images", "from 1 to");
    lkt_refuses("synthetic:h=10", o, LK_EINVAL, "h=10", "must be one of");
    lkt_refuses("synthetic:images=10,tokens=10", o, LK_EINVAL, "tokens=10", "must be one of");
    lkt_refuses("synthetic:images=10,vocab=3", o, LK_EINVAL, "vocab=3", "must be one of");
    lkt_refuses("synthetic:images=3", LKT_DATASET(.validation = 0.1), LK_EFORMAT,
                "3 samples", "keeps 0");
    lkt_refuses("synthetic:images=1", LKT_DATASET(.validation = 0.9999999),
                LK_EFORMAT, "1 samples", "leaves 0");
}

/* Checks that the three folds of 29 out of 101 samples are disjoint, and that each fold and the
 * remaining samples form a partition. */
static void calls_without_data_are_refused(void **state)
{
    (void)state;
    float       x[2];
    int32_t     y;
    lk_dataset *dataset = lkt_open("synthetic:samples=100,features=2,classes=2",
                                   LKT_DATASET(.validation = 0.1));
    assert_int_equal(lk_dataset_read(dataset, false, 0, 89, x, &y), LK_OK);
    assert_int_equal(lk_dataset_read(dataset, false, 0, 90, x, &y), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "sample 90 of the training part, which has"));
    assert_int_equal(lk_dataset_read(dataset, true, 0, 9, x, &y), LK_OK);
    assert_int_equal(lk_dataset_read(dataset, true, 0, 10, x, &y), LK_EINVAL);
    lk_dataset_free(dataset);
    assert_int_equal(lk_dataset_open(&dataset, NULL, &seed_one), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "no data source"));
    lk_dataset_free(lkt_open("synthetic:samples=100,features=2,classes=2", NULL));
}

static void folds_share_nothing(void **state)
{
    static const char spec[] = "synthetic:samples=101,features=3,classes=2";
    lk_dataset       *whole  = lkt_open(spec, &seed_one);
    int32_t           held[101] = { 0 };
    (void)state;
    for (uint32_t fold = 1; fold <= 3; fold++) {
        lk_dataset_options options = { .struct_size = sizeof(lk_dataset_options),
                                       .seed = 1, .validation = 0.29, .fold = fold };
        lk_dataset        *split   = lkt_open(spec, &options);
        for (uint64_t i = 0; i < 101; i++) {
            float   want[3], x[3];
            int32_t y, found = 0;
            LKT_OK(lk_dataset_read(whole, false, 0, i, want, &y));
            for (uint64_t k = 0; k < 101; k++) {
                LKT_OK(lk_dataset_read(split, k >= 72, 0, k >= 72 ? k - 72 : k, x, &y));
                bool same = memcmp(x, want, sizeof x) == 0;
                found += same;
                held[i] += same && k >= 72;
            }
            assert_int_equal(found, 1);
            assert_in_range(held[i], 0, 1);
        }
        lk_dataset_free(split);
    }
    lk_dataset_free(whole);
    lk_dataset_options fourth = { .struct_size = sizeof(lk_dataset_options),
                                  .validation = 0.29, .fold = 4 };
    lkt_refuses(spec, &fourth, LK_EINVAL, "there is no `fold` 4",
                "`validation` 0.29 makes 3 of them");
    fourth.validation = 0;
    lkt_refuses(spec, &fourth, LK_EINVAL, spec, "`fold` 4 needs `validation` FRACTION");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_a_function_of_seed_and_index),
        cmocka_unit_test(labels_can_be_learnt),
        cmocka_unit_test(tokens_count_up_in_phrases),
        cmocka_unit_test(the_split_is_a_partition),
        cmocka_unit_test(folds_share_nothing),
        cmocka_unit_test(wrong_settings_are_refused),
        cmocka_unit_test(calls_without_data_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
