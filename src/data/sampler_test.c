/* sampler_test.c -- tests the orders of an epoch: PyTorch's, the weighted order, and the order of
 * the files.
 *
 * Goal:   each batch slot of each step has the sample that PyTorch's DistributedSampler and
 *         DataLoader assign to its ranks; frequencies match weights; a loader that starts at a
 *         later step delivers the samples that a loader from step 0 delivers there.  Remark 4 of
 *         Goyal et al. (2017): an epoch has one order, divided among all workers.
 * Method: data whose samples contain their own number; comparison with lists printed by PyTorch
 *         2.15; counts of samples.
 */
#include "data/data_testing.h"

#include <math.h>

#include "data/source.h"

/* Writes `n` samples with label 0 and one feature, the sample's number. */
static void write_numbers(uint32_t n)
{
    char           head[128];
    unsigned char *file = calloc(1, 128 + 4 * (size_t)n);
    assert_non_null(file);
    for (int k = 0; k < 2; k++) {
        memset(head, ' ', sizeof head);
        memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
        int length = snprintf(head + 10, sizeof head - 10,
                              "{'descr': '%s', 'fortran_order': False, 'shape': (%u,), }",
                              k == 0 ? "<f4" : "<i4", n);
        head[10 + length] = ' ';
        head[127]         = '\n';
        memcpy(file, head, sizeof head);
        for (uint32_t i = 0; i < n; i++) {
            float   value = (float)i;
            int32_t none  = 0;
            memcpy(file + 128 + 4 * (size_t)i, k == 0 ? (void *)&value : (void *)&none, 4);
        }
        lkt_write(k == 0 ? "x.npy" : "y.npy", file, 128 + 4 * (size_t)n);
    }
    free(file);
}

static lk_dataset *open_numbers(uint32_t n, const char *weights)
{
    write_numbers(n);
    return lkt_open("npy:x.npy,y.npy", LKT_DATASET(.weights = weights));
}

/* Writes the numbers of the samples that a loader delivers to `out`.  Example: "12 20|13 16|" has
 * two micro-batches of two samples. */
static void deliver(char *out, size_t bytes, const lk_dataset *set,
                    const lk_loader_options *options)
{
    lk_loader *loader = NULL;
    lk_batch   batch;
    size_t     used = 0;
    LKT_OK(lk_loader_open(&loader, set, options));
    uint32_t turns = options->count * (options->global_batch / options->virtual_workers /
                                       options->micro_batch);
    for (uint64_t k = options->start_step * turns; k < options->end_step * turns; k++) {
        LKT_OK(lk_loader_next(loader, &batch));
        for (uint32_t i = 0; i < batch.samples; i++)
            used += (size_t)snprintf(out + used, bytes - used, "%s%g", i > 0 ? " " : "",
                                     (double)((const float *)batch.x)[i]);
        used += (size_t)snprintf(out + used, bytes - used, "|");
        assert_true(used < bytes);
    }
    lk_loader_free(loader);
}

typedef struct {
    uint32_t    n, ranks, batch;
    uint64_t    seed, epoch;
    bool        shuffle, drop_last;
    const char *want[5]; /* the expected batches of that epoch, for each rank */
} torch_run;

/* Lists printed by PyTorch 2.15.0: DataLoader(dataset, batch_size=batch, drop_last=drop_last,
 * sampler= DistributedSampler(dataset, num_replicas=ranks, rank=r, shuffle=shuffle, seed=seed,
 * drop_last=drop_last)) after set_epoch(epoch). */
static const torch_run torch_runs[] = {
    { 10, 4, 1, 0, 0, true, false, { "4|3|6|", "1|9|2|", "7|0|4|", "5|8|1|" } },
    { 10, 4, 2, 0, 1, true, false, { "5 0|7|", "6 8|4|", "1 9|5|", "2 3|6|" } },
    { 10, 4, 2, 3, 1, true, true, { "0 7|", "4 3|", "9 2|", "6 8|" } },
    { 3, 5, 1, 1, 0, true, false, { "1|", "2|", "0|", "1|", "2|" } },
    { 23, 3, 2, 7, 2, true, false,
      { "12 20|13 16|2 1|10 18|", "9 11|6 5|4 17|7 22|", "14 19|21 15|8 3|0 12|" } },
    { 23, 3, 2, 7, 2, true, true,
      { "12 20|13 16|2 1|", "9 11|6 5|4 17|", "14 19|21 15|8 3|" } },
    { 10, 4, 3, 0, 0, false, false, { "0 4 8|", "1 5 9|", "2 6 0|", "3 7 1|" } },
    { 2, 5, 1, 0, 0, false, false, { "0|", "1|", "0|", "1|", "0|" } },
    { 5, 2, 4, 4294967301, 0, true, false, { "1 0 2|", "3 4 1|" } },
};

static lk_loader_options as_torch(const torch_run *run)
{
    lk_loader_options options = { .struct_size = sizeof(lk_loader_options),
                                  .seed = run->seed, .global_batch = run->ranks * run->batch,
                                  .micro_batch = run->batch, .virtual_workers = run->ranks,
                                  .drop_last = run->drop_last,
                                  .order = run->shuffle ? LK_ORDER_TORCH_DISTRIBUTED
                                                        : LK_ORDER_TORCH_UNSHUFFLED };
    uint64_t steps = lk_steps_per_epoch(lk_epoch_positions(options.order, run->n, run->ranks,
                                                           run->drop_last),
                                        options.global_batch, run->drop_last);
    options.start_step = run->epoch * steps;
    options.end_step   = options.start_step + steps;
    return options;
}

static void batches_are_those_of_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof torch_runs / sizeof torch_runs[0]; i++) {
        const torch_run  *run     = &torch_runs[i];
        lk_dataset       *set     = open_numbers(run->n, NULL);
        lk_loader_options options = as_torch(run);
        for (uint32_t rank = 0; rank < run->ranks; rank++) {
            char got[256];
            options.first = rank;
            options.count = 1;
            deliver(got, sizeof got, set, &options);
            assert_string_equal(got, run->want[rank]);
        }
        lk_dataset_free(set);
    }
}

/* Checks that two micro-batches together have the samples of the batch, also with loaders that
 * start at a later step or serve every second virtual worker. */
static void micro_batches_and_shares_do_not_matter(void **state)
{
    (void)state;
    lk_dataset       *set     = open_numbers(23, NULL);
    lk_loader_options options = as_torch(&torch_runs[4]);
    char              got[256];
    options.micro_batch = 1;
    options.first       = 1;
    options.count       = 1;
    deliver(got, sizeof got, set, &options);
    assert_string_equal(got, "9|11|6|5|4|17|7|22|");
    options.start_step += 2;
    deliver(got, sizeof got, set, &options);
    assert_string_equal(got, "4|17|7|22|");
    options.first  = 0;
    options.count  = 2;
    options.stride = 2;
    options.end_step--;
    deliver(got, sizeof got, set, &options);
    assert_string_equal(got, "2|1|8|3|");
    lk_dataset_free(set);
}

/* Checks that a loader continues across the end of an epoch. */
static void epochs_follow_each_other(void **state)
{
    (void)state;
    lk_dataset       *set     = open_numbers(10, NULL);
    lk_loader_options options = as_torch(&torch_runs[1]);
    char              got[256], epochs[2][256];
    options.count      = 4;
    options.start_step = 0;
    deliver(got, sizeof got, set, &options);
    options.end_step = 2;
    deliver(epochs[0], sizeof epochs[0], set, &options);
    assert_string_equal(epochs[0], "4 3|1 9|7 0|5 8|6|2|4|1|");
    options.start_step = 2;
    options.end_step   = 4;
    deliver(epochs[1], sizeof epochs[1], set, &options);
    assert_string_equal(epochs[1], "5 0|6 8|1 9|2 3|7|4|5|6|");
    assert_int_equal(strlen(got), strlen(epochs[0]) + strlen(epochs[1]));
    assert_memory_equal(got, epochs[0], strlen(epochs[0]));
    assert_string_equal(got + strlen(epochs[0]), epochs[1]);
    lk_dataset_free(set);
}

static void randperm_is_that_of_pytorch(void **state)
{
    (void)state;
    static const uint32_t begin[8] = { 10690, 49999, 21511, 7616, 20428, 47937, 15028, 31149 };
    static const uint32_t end[3] = { 42481, 47869, 37676 };
    static uint32_t       got[70000];
    lki_torch_randperm(12345, got, 70000);
    assert_memory_equal(got, begin, sizeof begin);
    assert_memory_equal(got + 70000 - 3, end, sizeof end);
    assert_int_equal(got[35000], 38848);
}

static void only_pytorch_orders_round_the_epoch_to_a_multiple(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 40; n++)
        for (uint32_t v = 1; v < 9; v++) {
            uint64_t up = (n + v - 1) / v * v, down = n / v * v;
            assert_int_equal(lk_epoch_positions(LK_ORDER_PERMUTED, n, v, false), n);
            assert_int_equal(lk_epoch_positions(LK_ORDER_WEIGHTED, n, v, true), n);
            assert_int_equal(lk_epoch_positions(LK_ORDER_TORCH_DISTRIBUTED, n, v, false), up);
            assert_int_equal(lk_epoch_positions(LK_ORDER_TORCH_UNSHUFFLED, n, v, true), down);
        }
}

static void the_sequential_order_is_that_of_the_files(void **state)
{
    (void)state;
    lk_dataset       *set     = open_numbers(10, NULL);
    lk_loader_options options = { .struct_size = sizeof(lk_loader_options),
                                  .global_batch = 4, .micro_batch = 2, .virtual_workers = 2,
                                  .count = 2, .end_step = 4, .order = LK_ORDER_SEQUENTIAL };
    char              got[256];
    deliver(got, sizeof got, set, &options);
    assert_string_equal(got, "0 1|2 3|4 5|6 7|8 9||0 1|2 3|");
    lk_dataset_free(set);
}

/* ---- Goyal et al. (2017), remark 4 --------------------------------------------------------- */

enum { REMARK_N = 64, REMARK_V = 4, REMARK_B = 2, REMARK_STEPS = REMARK_N / (REMARK_V * REMARK_B) };

/* The sample in each batch slot of each step, for two epochs. */
typedef struct {
    uint64_t of[2][REMARK_N]; /* [epoch][position] */
} division;

static uint32_t worker_of(uint32_t position)
{
    return position % (REMARK_V * REMARK_B) / REMARK_B;
}

/* Reads the samples of `workers` workers, each with its own loader. */
static void divide(division *out, const lk_dataset *set, uint32_t workers)
{
    lk_loader_options o = { .struct_size = sizeof(lk_loader_options),
                            .seed = 5, .global_batch = REMARK_V * REMARK_B,
                            .micro_batch = REMARK_B, .virtual_workers = REMARK_V,
                            .count = REMARK_V / workers, .end_step = 2 * REMARK_STEPS };
    for (; o.first < REMARK_V; o.first += o.count) {
        lk_loader *loader = NULL;
        LKT_OK(lk_loader_open(&loader, set, &o));
        for (uint32_t k = 0; k < o.count * 2 * REMARK_STEPS; k++) {
            lk_batch batch;
            LKT_OK(lk_loader_next(loader, &batch));
            uint64_t step = batch.step % REMARK_STEPS;
            for (uint32_t i = 0; i < batch.samples; i++)
                out->of[batch.epoch][step * o.global_batch + batch.first_slot + i] =
                    (uint64_t)((const float *)batch.x)[i];
        }
        lk_loader_free(loader);
    }
}

/* Returns true if the workers together see each sample once per epoch. */
static bool has_each_once(const division *d)
{
    for (int epoch = 0; epoch < 2; epoch++) {
        uint64_t seen = 0;
        for (uint32_t p = 0; p < REMARK_N; p++)
            seen |= (uint64_t)1 << d->of[epoch][p];
        if (seen != UINT64_MAX)
            return false;
    }
    return true;
}

/* Returns true if each worker gets different samples in the second epoch than in the first. */
static bool is_shuffled_as_a_whole(const division *d)
{
    uint64_t had[2][REMARK_V] = { { 0 } };
    for (int epoch = 0; epoch < 2; epoch++)
        for (uint32_t p = 0; p < REMARK_N; p++)
            had[epoch][worker_of(p)] |= (uint64_t)1 << d->of[epoch][p];
    for (uint32_t v = 0; v < REMARK_V; v++)
        if (had[0][v] == had[1][v])
            return false;
    return true;
}

static void remark_4_one_order_of_an_epoch_is_divided_amongst_all(void **state)
{
    (void)state;
    lk_dataset *set = open_numbers(REMARK_N, NULL);
    division    one, some;
    divide(&one, set, 1);
    for (int epoch = 0; epoch < 2; epoch++)
        for (uint32_t p = 0; p < REMARK_N; p++)
            assert_int_equal(one.of[epoch][p], lk_sample_at(5, (uint64_t)epoch, REMARK_N, p));
    assert_true(has_each_once(&one) && is_shuffled_as_a_whole(&one));
    for (uint32_t workers = 2; workers <= REMARK_V; workers *= 2) {
        divide(&some, set, workers);
        assert_memory_equal(&some, &one, sizeof one);
    }
    lk_dataset_free(set);
}

/* Negative control for the checks above.  If workers each shuffle all data, or each shuffle only a
 * part of the data, the checks must fail. */
static void remark_4_orders_of_each_worker_differ(void **state)
{
    enum { EACH = REMARK_N / REMARK_V };
    division own, parts;
    (void)state;
    for (uint32_t epoch = 0; epoch < 2; epoch++)
        for (uint32_t p = 0; p < REMARK_N; p++) {
            uint32_t v     = worker_of(p);
            uint32_t place = p / (REMARK_V * REMARK_B) * REMARK_B + p % REMARK_B;
            own.of[epoch][p]   = lk_sample_at(5 + v, epoch, REMARK_N, place);
            parts.of[epoch][p] = v * EACH + lk_sample_at(5 + v, epoch, EACH, place);
        }
    assert_false(has_each_once(&own));
    assert_true(has_each_once(&parts));
    assert_false(is_shuffled_as_a_whole(&parts));
}

/* ---- Weights ------------------------------------------------------------------------------- */

/* Checks that frequencies match weights.  Chi-squared of 7 classes exceeds 32 by chance once in
 * 40,000. */
static void samples_are_drawn_in_proportion_to_their_weights(void **state)
{
    (void)state;
    static const double share[8] = { 0.25, 0, 0.5, 1, 2.25, 0.125, 3.875, 0 };
    lkt_write_text("weights", "0.25 0 0.5\n1\n2.25\t1.25e-1\n3.875 0\n");
    lk_dataset *set = open_numbers(8, "weights");
    uint32_t    seen[8] = { 0 };
    double      chi = 0;
    for (uint64_t p = 0; p < 20000; p++)
        seen[lki_weighted_at(set, 5, p % 3, p)]++;
    for (size_t i = 0; i < 8; i++) {
        double want = share[i] / 8 * 20000;
        if (share[i] > 0)
            chi += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
        else
            assert_int_equal(seen[i], 0);
    }
    assert_true(chi < 32);
    lk_dataset_free(set);
}

static void draws_are_frozen_and_keyed(void **state)
{
    (void)state;
    lkt_write_text("weights", "1 2 3 4 5 6 7 8 9 10");
    lk_dataset *set = open_numbers(10, "weights");
    lk_loader_options options = { .struct_size = sizeof(lk_loader_options),
                                  .seed = 3, .global_batch = 5, .micro_batch = 5,
                                  .virtual_workers = 1, .count = 1, .end_step = 4,
                                  .order = LK_ORDER_WEIGHTED };
    char        got[256];
    size_t      same[3] = { 0 };
    deliver(got, sizeof got, set, &options);
    assert_string_equal(got, "5 7 6 8 8|4 6 3 6 4|5 9 5 8 5|9 7 7 9 7|");
    for (uint64_t p = 0; p < 1000; p++) {
        uint64_t at = lki_weighted_at(set, 3, 0, p);
        same[0] += at == lki_weighted_at(set, 4, 0, p);
        same[1] += at == lki_weighted_at(set, 3, 1, p);
        same[2] += at == lki_weighted_at(set, 3, UINT64_C(1) << 32, p);
    }
    for (size_t i = 0; i < 3; i++) /* 127 by chance */
        assert_in_range(same[i], 60, 200);
    lk_dataset_free(set);
}

/* Checks that samples of the validation part are not drawn, and that each training sample is drawn
 * by its own weight. */
static void weights_follow_the_split(void **state)
{
    (void)state;
    char text[400] = "";
    for (int i = 0; i < 100; i++)
        strcat(text, i % 2 == 0 ? "0\n" : "1\n");
    lkt_write_text("weights", text);
    write_numbers(100);
    lk_dataset *set = lkt_open("npy:x.npy,y.npy",
                               LKT_DATASET(.weights = "weights", .validation = 0.5));
    for (uint64_t p = 0; p < 500; p++) {
        float   x;
        int32_t y;
        LKT_OK(lk_dataset_read(set, false, 0, lki_weighted_at(set, 1, 0, p), &x, &y));
        assert_int_equal((int)x % 2, 1);
    }
    lk_dataset_free(set);
}

static void text_and_npy_are_the_same_weights(void **state)
{
    (void)state;
    lkt_write_text("weights", "0 1 2 3 4 5 6 7 8 9");
    lk_dataset *a = open_numbers(10, "weights"), *b = open_numbers(10, "x.npy");
    lk_dataset *none = open_numbers(10, NULL);
    for (uint64_t p = 0; p < 200; p++)
        assert_int_equal(lki_weighted_at(a, 1, 0, p), lki_weighted_at(b, 1, 0, p));
    assert_string_not_equal(lk_dataset_describe(a)->content_hash,
                            lk_dataset_describe(none)->content_hash);
    lk_loader_options options = { .struct_size = sizeof(lk_loader_options),
                                  .global_batch = 5, .micro_batch = 5, .virtual_workers = 1,
                                  .count = 1, .end_step = 1 };
    lk_loader *loader = NULL;
    assert_int_equal(lk_loader_open(&loader, a, &options), LK_EINVAL);
    options.order = LK_ORDER_WEIGHTED;
    assert_int_equal(lk_loader_open(&loader, none, &options), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "opened with weights"));
    lk_dataset_free(none);
    lk_dataset_free(a);
    lk_dataset_free(b);
}

static void bad_weights_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *first;
    } bad[] = {
        { "1 2", "'weights' has 2 weights, but 'npy:x.npy,y.npy' has 3 samples" },
        { "1 2 3 4", "has 4 weights" },
        { "", "has 0 weights" },
        { "1 two 3", "weight 1 is 'two', which is no number" },
        { "1 2x 3", "weight 1 is '2x'" },
        { "1 -2 3", "weight 1 is -2; weights are finite and at least 0" },
        { "1 2 inf", "weight 2 is inf" },
        { "1 nan 3", "weight 1 is" },
        { "0 0 0", "the weights of the 3 samples to train on come to 0" },
        { "1e308 1e308 1e308", "come to inf" },
    };
    lk_dataset_options options = { .struct_size = sizeof(lk_dataset_options),
                                   .weights     = "weights" };
    write_numbers(3);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lkt_write_text("weights", bad[i].text);
        lkt_refuses("npy:x.npy,y.npy", &options, LK_EFORMAT, bad[i].first, "'weights'");
    }
    (void)unlink("weights");
    lkt_refuses("npy:x.npy,y.npy", &options, LK_EIO, "weights", "");
    lkt_refuses("synthetic:tokens=500,vocab=9", LKT_DATASET(.weights = "x.npy", .context = 4),
                LK_EINVAL, "`weights` are of samples", "tokens=500");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_those_of_pytorch),
        cmocka_unit_test(micro_batches_and_shares_do_not_matter),
        cmocka_unit_test(epochs_follow_each_other),
        cmocka_unit_test(randperm_is_that_of_pytorch),
        cmocka_unit_test(only_pytorch_orders_round_the_epoch_to_a_multiple),
        cmocka_unit_test(the_sequential_order_is_that_of_the_files),
        cmocka_unit_test(remark_4_one_order_of_an_epoch_is_divided_amongst_all),
        cmocka_unit_test(remark_4_orders_of_each_worker_differ),
        cmocka_unit_test(samples_are_drawn_in_proportion_to_their_weights),
        cmocka_unit_test(draws_are_frozen_and_keyed),
        cmocka_unit_test(weights_follow_the_split),
        cmocka_unit_test(text_and_npy_are_the_same_weights),
        cmocka_unit_test(bad_weights_are_refused),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}
