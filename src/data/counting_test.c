/* counting_test.c -- tests ignored labels, and the weights of samples in the loss.
 *
 * Goal:   an ignored label is neither a target nor a class, in every kind of data; each loss weight
 *         is delivered with its sample; errors name the mistake.
 */
#include "data/tar_testing.h"

#include "data/stream.h"

enum { IGNORED = 200, SAMPLES = 6 };

static const uint8_t labels[SAMPLES] = { 0, 2, IGNORED, 1, IGNORED, 0 };

static void write_idx(void)
{
    uint8_t images[16 + SAMPLES] = { 0, 0, 8, 3, 0, 0, 0, SAMPLES, 0, 0, 0, 1, 0, 0, 0, 1 };
    uint8_t classes[8 + SAMPLES] = { 0, 0, 8, 1, 0, 0, 0, SAMPLES };
    memcpy(classes + 8, labels, SAMPLES);
    lkt_write("images", images, sizeof images);
    lkt_write("labels", classes, sizeof classes);
}

/* Writes arrays in which the ignored label is -56, the byte 200. */
static void write_npy(void)
{
    for (int k = 0; k < 2; k++) {
        char file[128 + SAMPLES];
        memset(file, ' ', sizeof file);
        memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
        int length = snprintf(file + 10, 100,
                              "{'descr': '|%s', 'fortran_order': False, 'shape': (%d,), }",
                              k == 0 ? "u1" : "i1", SAMPLES);
        file[10 + length] = ' ';
        file[127]         = '\n';
        memcpy(file + 128, labels, SAMPLES);
        lkt_write(k == 0 ? "x.npy" : "y.npy", file, sizeof file);
    }
}

static void write_cifar10(void)
{
    static uint8_t records[SAMPLES * 3073];
    for (size_t i = 0; i < SAMPLES; i++)
        records[i * 3073] = labels[i];
    (void)mkdir("cifar", 0755);
    lkt_write("cifar/data_batch_1.bin", records, sizeof records);
}

static void write_tar(void)
{
    static lkt_file archive;
    char            key[8];
    for (uint32_t i = 0; i < SAMPLES; i++) {
        (void)snprintf(key, sizeof key, "%u", i);
        lkt_tar_sample(&archive, key, 4, i, labels[i]);
    }
    lkt_tar_end(&archive);
    lkt_write("a.tar", archive.bytes, archive.count);
}

static int32_t target_of(size_t i)
{
    return labels[i] == IGNORED ? -1 : labels[i];
}

static void assert_labels(const char *spec, int64_t ignored, uint32_t classes)
{
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.ignores = true, .ignored = ignored));
    float       x[3072];
    int32_t     y;
    assert_int_equal(lk_dataset_describe(set)->classes, classes);
    for (size_t i = 0; i < SAMPLES; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        assert_int_equal(y, target_of(i));
    }
    lk_dataset_free(set);
}

static void assert_stream(const char *spec)
{
    static float x[SAMPLES * 3072];
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.ignores = true, .ignored = IGNORED));
    lki_stream *stream = NULL;
    int32_t     y[SAMPLES];
    uint64_t    got;
    bool        last;
    LKT_OK(lki_stream_open(&stream, set, 0, SAMPLES));
    LKT_OK(lki_stream_take(stream, -1, SAMPLES, x, y, &got, &last));
    assert_int_equal(got, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++)
        assert_int_equal(y[i], target_of(i));
    lki_stream_close(stream);
    lk_dataset_free(set);
}

static void an_ignored_label_is_no_target(void **state)
{
    const lk_dataset_options all = { .struct_size = sizeof(lk_dataset_options), .seed = 1 };
    (void)state;
    write_idx();
    write_npy();
    write_cifar10();
    write_tar();
    assert_labels("idx:images,labels", IGNORED, 3);
    assert_labels("npy:x.npy,y.npy", IGNORED - 256, 3);
    assert_labels("cifar10:cifar", IGNORED, 10);
    assert_labels("tar:a.tar?h=4&w=4", IGNORED, 3);
    assert_stream("stream:cifar/data_batch_1.bin?h=32&w=32&c=3&classes=3");
    assert_stream("stream:a.tar?tar=1&h=4&w=4&classes=3");
    lkt_refuses("npy:x.npy,y.npy", &all, LK_EFORMAT, "label 2 is -56", "y.npy");
    lkt_refuses("cifar10:cifar", &all, LK_EFORMAT, "record 2 has label 200", "data_batch_1");
}

/* Checks that an ignored token is removed from the targets, but not from the inputs. */
static void an_ignored_token_is_no_target(void **state)
{
    lk_dataset_options options = { .struct_size = sizeof(lk_dataset_options),
                                   .context = 4, .ignores = true, .ignored = 'b' };
    int32_t            x[4], y[4];
    (void)state;
    lkt_write_text("text", "abababababab");
    lkt_write_text("lines", "ab\n");
    lk_dataset *text = lkt_open("text:text", &options), *docs = lkt_open("docs:lines", &options);
    LKT_OK(lk_dataset_read(text, false, 0, 0, x, y));
    for (int i = 0; i < 4; i++)
        assert_int_equal(y[i], x[i] == 'b' ? 'a' : -1);
    LKT_OK(lk_dataset_read(docs, false, 0, 0, x, y));
    assert_int_equal(y[0], 'a');
    assert_int_equal(y[1], -1);
    assert_int_equal(y[2], 0);
    lk_dataset_free(text);
    lk_dataset_free(docs);
}

/* Sets the weight of each sample to a quarter of its label, and reserves half of the samples for
 * validation.  Expects that each training sample is delivered with its own weight. */
static void weights_in_the_loss_go_with_their_samples(void **state)
{
    lk_dataset_options options = { .struct_size = sizeof(lk_dataset_options),
                                   .loss_weights = "weights", .validation = 0.5 };
    lk_loader_options  way     = { .struct_size = sizeof(lk_loader_options),
                                   .global_batch = 2, .micro_batch = 2, .virtual_workers = 1,
                                   .count = 1, .end_step = 4, .threads = 2 };
    lk_loader         *loader  = NULL;
    lk_batch           batch;
    uint32_t           seen = 0;
    (void)state;
    write_npy(); /* the file x contains the same numbers, and all are valid weights */
    lkt_write_text("weights", "0 0.5 50 0.25 50 0");
    lk_dataset *set = lkt_open("npy:x.npy,x.npy", &options);
    LKT_OK(lk_loader_open(&loader, set, &way));
    for (uint64_t step = 0; step < way.end_step; step++) {
        LKT_OK(lk_loader_next(loader, &batch));
        for (uint32_t i = 0; i < batch.samples; i++, seen++)
            assert_int_equal(batch.weights[i], batch.y[i] * LK_WEIGHT_ONE / 4);
    }
    assert_int_equal(seen, 6); /* two epochs of 3 samples, in steps of 2 and 1 */
    lk_loader_free(loader);
    lk_dataset_free(set);
    set = lkt_open("npy:x.npy,x.npy", LKT_DATASET(.seed = 1));
    LKT_OK(lk_loader_open(&loader, set, &way));
    LKT_OK(lk_loader_next(loader, &batch));
    assert_null(batch.weights);
    lk_loader_free(loader);
    lk_dataset_free(set);
}

static void bad_weights_in_the_loss_are_refused(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "1 1 1 1 1", "has 5 weights, but 'npy:x.npy,x.npy' has 6 samples" },
        { "1 1 256.5 1 1 1", "weight 2 is 256.5; in the loss they are at most 256" },
        { "0 0 0 0 0 1e-6", "no sample to train on has a weight of 1/131072 or more" },
        { "1 1 -1 1 1 1", "weight 2 is -1; weights are finite and at least 0" },
        { "1 1 x 1 1 1", "weight 2 is 'x', which is no number" },
    };
    lk_dataset_options options = { .struct_size  = sizeof(lk_dataset_options),
                                   .loss_weights = "weights" };
    (void)state;
    write_npy();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lkt_write_text("weights", bad[i].text);
        lkt_refuses("npy:x.npy,x.npy", &options, LK_EFORMAT, bad[i].why, "'weights'");
    }
    lkt_write_text("text", "abababababab");
    options.context = 4;
    lkt_refuses("text:text", &options, LK_EINVAL, "`loss_weights` are of samples with labels", "");
    lkt_refuses("stream:text", &options, LK_EINVAL, "`loss_weights`", "stream:text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_ignored_label_is_no_target),
        cmocka_unit_test(an_ignored_token_is_no_target),
        cmocka_unit_test(weights_in_the_loss_go_with_their_samples),
        cmocka_unit_test(bad_weights_in_the_loss_are_refused),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}
