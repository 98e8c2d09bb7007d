/* clients_test.c -- tests how samples are divided among clients, and who takes part in a round.
 *
 * Goal:   each sample belongs to one client, in parts that the split promises; rounds, orders and
 *         ends of clients depend on the seed and their numbers alone, on every machine.
 * Method: count samples and classes; compare with values stored in this file.
 */
#include "data/data_testing.h"

#define IMAGES "synthetic:images=600,h=2,w=2,c=1,classes=10"
enum { SAMPLES = 600, CLASSES = 10, CLIENTS = 30 };

static lk_clients *divide(const lk_dataset *data, uint32_t count, lk_split split, double by)
{
    const lk_clients_options options = { .struct_size = sizeof options, .count = count,
                                         .split = split, .by = by, .seed = 7 };
    lk_clients              *clients = NULL;
    LKT_OK(lk_clients_open(&clients, data, &options));
    return clients;
}

static int32_t label_of(const lk_dataset *data, uint64_t sample)
{
    float   x[4];
    int32_t label;
    LKT_OK(lk_dataset_read(data, false, 0, sample, x, &label));
    return label;
}

/* Returns the number of classes of a client; *most becomes the samples of the largest of them. */
static uint32_t count_classes(const lk_dataset *data, const lk_clients *clients, uint32_t client,
                              uint32_t *most)
{
    uint32_t counts[CLASSES] = { 0 }, classes = 0;
    *most = 0;
    for (uint64_t i = 0; i < lk_clients_samples(clients, client); i++) {
        uint32_t *of = &counts[label_of(data, lk_clients_sample(clients, client, i))];
        classes += (*of)++ == 0;
        *most = *of > *most ? *of : *most;
    }
    return classes;
}

static const struct {
    lk_split split;
    double   by;
    uint32_t first[6]; /* samples of the first clients */
} splits[] = { { LK_SPLIT_IID, 0, { 20, 20, 20, 20, 20, 20 } },
               { LK_SPLIT_SHARDS, 2, { 20, 20, 20, 20, 20, 20 } },
               { LK_SPLIT_SHARDS, 3, { 21, 21, 21, 21, 20, 20 } },
               { LK_SPLIT_DIRICHLET, 1000, { 15, 20, 21, 18, 20, 20 } },
               { LK_SPLIT_DIRICHLET, 0.5, { 23, 18, 29, 6, 23, 40 } },
               { LK_SPLIT_DIRICHLET, 0.01, { 73, 122, 51, 0, 0, 8 } } };

static void each_sample_has_one_client(void **state)
{
    lk_dataset *data = lkt_open(IMAGES, LKT_DATASET(.validation = 0));
    (void)state;
    for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
        lk_clients *clients       = divide(data, CLIENTS, splits[s].split, splits[s].by);
        uint8_t     seen[SAMPLES] = { 0 };
        for (uint32_t k = 0; k < CLIENTS; k++)
            for (uint64_t i = 0; i < lk_clients_samples(clients, k); i++)
                assert_int_equal(seen[lk_clients_sample(clients, k, i)]++, 0);
        for (uint32_t i = 0; i < SAMPLES; i++)
            assert_int_equal(seen[i], 1);
        for (uint32_t k = 0; k < 6; k++)
            if (lk_clients_samples(clients, k) != splits[s].first[k])
                fail_msg("split %zu, client %u: %u samples", s, k,
                         (unsigned)lk_clients_samples(clients, k));
        lk_clients_free(clients);
    }
    lk_dataset_free(data);
}

/* A shard of 10 samples has one or two classes of about 60. */
static void splits_by_label_are_unequal(void **state)
{
    lk_dataset *data = lkt_open(IMAGES, LKT_DATASET(.validation = 0));
    lk_clients *iid  = divide(data, CLIENTS, LK_SPLIT_IID, 0);
    lk_clients *two  = divide(data, CLIENTS, LK_SPLIT_SHARDS, 2);
    lk_clients *even = divide(data, CLIENTS, LK_SPLIT_DIRICHLET, 1000);
    lk_clients *few  = divide(data, CLIENTS, LK_SPLIT_DIRICHLET, 0.01);
    uint32_t    classes[4] = { 0 }, most;
    (void)state;
    for (uint32_t k = 0; k < CLIENTS; k++) {
        assert_true(count_classes(data, two, k, &most) <= 4);
        classes[0] += count_classes(data, iid, k, &most);
        classes[1] += count_classes(data, two, k, &most);
        classes[2] += count_classes(data, even, k, &most);
        classes[3] += count_classes(data, few, k, &most);
    }
    assert_true(classes[0] > 8 * CLIENTS && classes[1] < 3 * CLIENTS);
    assert_true(classes[2] > 8 * CLIENTS && classes[3] < 2 * CLIENTS);
    assert_true(lk_clients_most(few) > 60 && lk_clients_least(few) == 0);
    assert_true(lk_clients_most(even) < 30 && lk_clients_least(even) > 10);
    lk_clients_free(iid);
    lk_clients_free(two);
    lk_clients_free(even);
    lk_clients_free(few);
    lk_dataset_free(data);
}

/* The sum of the squares of a class's shares has the mean (alpha + 1) / (alpha M + 1). */
static void shares_have_the_moments_of_dirichlet(void **state)
{
    static const double alphas[] = { 0.05, 0.5, 2, 50 };
    lk_dataset *data = lkt_open("synthetic:samples=60000,features=4,classes=10",
                                LKT_DATASET(.validation = 0));
    (void)state;
    for (size_t a = 0; a < sizeof alphas / sizeof alphas[0]; a++) {
        lk_clients *clients = divide(data, CLIENTS, LK_SPLIT_DIRICHLET, alphas[a]);
        uint32_t    counts[CLIENTS][CLASSES] = { 0 }, of[CLASSES] = { 0 };
        double      sum = 0;
        for (uint32_t k = 0; k < CLIENTS; k++)
            for (uint64_t i = 0; i < lk_clients_samples(clients, k); i++)
                counts[k][label_of(data, lk_clients_sample(clients, k, i))]++;
        for (uint32_t c = 0; c < CLASSES; c++)
            for (uint32_t k = 0; k < CLIENTS; k++)
                of[c] += counts[k][c];
        for (uint32_t c = 0; c < CLASSES; c++)
            for (uint32_t k = 0; k < CLIENTS; k++)
                sum += (double)counts[k][c] * counts[k][c] / of[c] / of[c] / CLASSES;
        const double expected = (alphas[a] + 1) / (alphas[a] * CLIENTS + 1);
        if (sum < 0.75 * expected || sum > 1.25 * expected)
            fail_msg("alpha %g: %g, expected %g", alphas[a], sum, expected);
        lk_clients_free(clients);
    }
    lk_dataset_free(data);
}

static void a_file_is_a_client(void **state)
{
    (void)state;
    assert_int_equal(mkdir("folder", 0700), 0);
    lkt_write_text("folder/a.txt", "one\ntwo\nthree\n");
    lkt_write_text("folder/b.txt", "four\n");
    lkt_write_text("folder/c.txt", "five\nsix\n");
    lk_dataset *data    = lkt_open("docs:folder", LKT_DATASET(.context = 8));
    lk_clients *clients = divide(data, 3, LK_SPLIT_FILES, 0);
    assert_int_equal(lk_clients_samples(clients, 0), 3);
    assert_int_equal(lk_clients_samples(clients, 1), 1);
    assert_int_equal(lk_clients_samples(clients, 2), 2);
    int32_t x[8], y[8];
    LKT_OK(lk_dataset_read(data, false, 0, lk_clients_sample(clients, 1, 0), x, y));
    assert_int_equal(y[0], 'f');
    assert_int_equal(y[1], 'o');
    lk_clients_free(clients);
    lk_dataset_free(data);
}

static void rounds_choose_different_clients(void **state)
{
    lk_dataset *data    = lkt_open(IMAGES, LKT_DATASET(.validation = 0));
    lk_clients *clients = divide(data, CLIENTS, LK_SPLIT_DIRICHLET, 0.1);
    uint32_t    times[CLIENTS] = { 0 }, chosen[CLIENTS], with = 0;
    (void)state;
    for (uint32_t k = 0; k < CLIENTS; k++)
        with += lk_clients_samples(clients, k) > 0;
    assert_true(with > 10 && with < CLIENTS);
    for (uint64_t round = 0; round < 3000; round++) {
        lk_clients_choose(clients, round, 5, chosen);
        for (uint32_t i = 0; i < 5; i++) {
            assert_true(chosen[i] < CLIENTS && (i == 0 || chosen[i] > chosen[i - 1]));
            times[chosen[i]]++;
        }
    }
    for (uint32_t k = 0; k < CLIENTS; k++) {
        const uint32_t mean = lk_clients_samples(clients, k) > 0 ? 15000 / with : 0;
        assert_in_range(times[k], mean * 8 / 10, mean * 12 / 10);
    }
    lk_clients_choose(clients, 0, CLIENTS, chosen);
    assert_true(chosen[with - 1] < CLIENTS);
    assert_int_equal(chosen[with], LK_NO_CLIENT);
    lk_clients_free(clients);
    lk_dataset_free(data);
}

static void local_epochs_have_orders_of_their_own(void **state)
{
    lk_dataset    *data    = lkt_open(IMAGES, LKT_DATASET(.validation = 0));
    lk_clients    *clients = divide(data, CLIENTS, LK_SPLIT_IID, 0);
    const uint64_t n       = lk_clients_samples(clients, 4);
    uint32_t       same[3] = { 0 };
    (void)state;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        uint8_t seen[SAMPLES] = { 0 };
        for (uint64_t p = 0; p < n; p++) {
            const uint64_t at = lk_clients_sample_at(clients, 4, 9, epoch, p);
            assert_int_equal(seen[at]++, 0);
            same[0] += at == lk_clients_sample_at(clients, 4, 9, epoch + 1, p);
            same[1] += at == lk_clients_sample_at(clients, 4, 10, epoch, p);
            same[2] += at == lk_clients_sample(clients, 4, p);
        }
        for (uint64_t i = 0; i < n; i++)
            assert_int_equal(seen[lk_clients_sample(clients, 4, i)], 1);
    }
    for (int i = 0; i < 3; i++)
        assert_true(same[i] < n); /* of 3 n */
    assert_true(lk_clients_seed(clients, 4, 9) != lk_clients_seed(clients, 5, 9));
    lk_clients_free(clients);
    lk_dataset_free(data);
}

static void some_clients_stop_early(void **state)
{
    lk_dataset *data    = lkt_open(IMAGES, LKT_DATASET(.validation = 0));
    lk_clients *clients = divide(data, CLIENTS, LK_SPLIT_IID, 0);
    uint64_t    stopped = 0, did = 0;
    (void)state;
    for (uint64_t round = 0; round < 4000; round++) {
        assert_int_equal(lk_clients_stop(clients, 3, round, 0, 10), 10);
        const uint64_t steps = lk_clients_stop(clients, 3, round, 0.3, 10);
        stopped += steps < 10;
        did += steps < 10 ? steps : 0;
    }
    assert_in_range(stopped, 1080, 1320);
    assert_in_range(did, stopped * 4, stopped * 5);
    lk_clients_free(clients);
    lk_dataset_free(data);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        uint32_t    count;
        lk_split    split;
        double      by;
        const char *text;
    } bad[] = { { 0, LK_SPLIT_IID, 0, "0 clients cannot share 600 samples" },
                { 601, LK_SPLIT_IID, 0, "601 clients cannot share 600 samples" },
                { 30, LK_SPLIT_SHARDS, 0, "`split` shards:0" },
                { 30, LK_SPLIT_SHARDS, 1.5, "`split` shards:1.5" },
                { 30, LK_SPLIT_SHARDS, 21, "need a sample for each shard" },
                { 30, LK_SPLIT_DIRICHLET, 0, "`split` dirichlet:0" },
                { 30, LK_SPLIT_FILES, 0, "'synthetic' data do not tell which file" } };
    lk_dataset *data = lkt_open(IMAGES, LKT_DATASET(.validation = 0));
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const lk_clients_options options = { .struct_size = sizeof options, .count = bad[i].count,
                                             .split = bad[i].split, .by = bad[i].by };
        lk_clients              *clients = NULL;
        assert_int_equal(lk_clients_open(&clients, data, &options), LK_EINVAL);
        assert_null(clients);
        assert_non_null(strstr(lk_error_last()->message, bad[i].text));
    }
    lk_dataset_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sample_has_one_client),
        cmocka_unit_test(splits_by_label_are_unequal),
        cmocka_unit_test(shares_have_the_moments_of_dirichlet),
        cmocka_unit_test(a_file_is_a_client),
        cmocka_unit_test(rounds_choose_different_clients),
        cmocka_unit_test(local_epochs_have_orders_of_their_own),
        cmocka_unit_test(some_clients_stop_early),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}
