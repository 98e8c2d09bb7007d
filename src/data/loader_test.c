/* loader_test.c -- tests that a loader delivers the samples that direct reads yield, in order,
 * whichever virtual workers it serves.
 *
 * Goal:   the loader's timing, depth and share of virtual workers do not change the batches.
 * Method: rebuild every micro-batch from lk_step_at() and lk_dataset_read(), and compare its bytes
 *         with the loader's.
 */
#include "data/data_testing.h"

#include <time.h>

#include "data/loader.h"

enum { V = 4, M = 2, B = 3, G = V * M * B, T = 8 };

static lk_dataset *open_tokens(void)
{
    lk_dataset *set = NULL;
    LKT_OK(lk_dataset_open(&set, "synthetic:tokens=500,vocab=50",
                           LKT_DATASET(.seed = 3, .context = T)));
    return set; /* 61 windows: two steps of 24 and a short step of 13 */
}

static lk_dataset *open_images(void)
{
    lk_dataset *set = NULL;
    LKT_OK(lk_dataset_open(&set, "synthetic:images=61,h=2,w=2,c=2,classes=3",
                           LKT_DATASET(.seed = 3)));
    return set;
}

static lk_loader_options options_for(uint32_t first, uint32_t count)
{
    return (lk_loader_options){ .struct_size = sizeof(lk_loader_options),
                                .seed = 11, .global_batch = G, .micro_batch = B,
                                .virtual_workers = V, .first = first, .count = count,
                                .end_step = 7 };
}

static void assert_batch(const lk_dataset *set, const lk_batch *got, uint64_t step, uint32_t v,
                         uint32_t m)
{
    const lk_dataset_info *info = lk_dataset_describe(set);
    lk_step_span span = lk_step_at(info->train_count, G, false, step);
    assert_int_equal(got->step, step);
    assert_int_equal(got->epoch, span.epoch);
    assert_int_equal(got->virtual_worker, v);
    assert_int_equal(got->micro_index, m);
    assert_int_equal(got->first_slot, (v * M + m) * B);
    assert_int_equal(got->samples, lk_micro_samples(span.samples, B, M, v, m));
    size_t targets = info->tokens ? T : 1; /* x fits T tokens or an image of 2 x 2 x 2 */
    for (uint32_t i = 0; i < B; i++) {
        uint8_t x[4 * T] = { 0 };
        int32_t y[T]     = { 0 };
        if (i < got->samples)
            LKT_OK(lk_dataset_read(set, false, span.epoch,
                            lk_sample_at(11, span.epoch, info->train_count,
                                         span.first + got->first_slot + i), x, y));
        assert_memory_equal((const uint8_t *)got->x + i * sizeof x, x, sizeof x);
        assert_memory_equal(got->y + i * targets, y, targets * sizeof *y);
    }
}

static void assert_loader(const lk_dataset *set, const lk_loader_options *options)
{
    lk_loader *loader = NULL;
    lk_batch   batch;
    LKT_OK(lk_loader_open(&loader, set, options));
    for (uint64_t step = options->start_step; step < options->end_step; step++)
        for (uint32_t v = options->first; v < options->first + options->count; v++)
            for (uint32_t m = 0; m < M; m++) {
                LKT_OK(lk_loader_next(loader, &batch));
                assert_batch(set, &batch, step, v, m);
            }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(lk_loader_next(loader, &batch), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, "past its last step, "));
        assert_null(batch.x);
    }
    lk_loader_free(loader);
}

static void equals_direct_reads(void **state)
{
    (void)state;
    static const uint32_t depths[] = { 0, 1, 2, 7, 100 };
    lk_dataset *tokens = open_tokens(), *images = open_images();
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        lk_loader_options options = options_for(0, V);
        options.ahead = depths[i];
        assert_loader(tokens, &options);
        assert_loader(images, &options);
    }
    lk_dataset_free(tokens);
    lk_dataset_free(images);
}

/* Opens loaders for several subsets of the virtual workers.  Compares each with direct reads of the
 * samples. */
static void any_share_delivers_its_part(void **state)
{
    (void)state;
    lk_dataset *set = open_tokens();
    for (uint32_t first = 0; first < V; first++)
        for (uint32_t count = 1; count <= V - first; count++) {
            lk_loader_options options = options_for(first, count);
            assert_loader(set, &options);
        }
    lk_dataset_free(set);
}

/* Checks that in lock step micro-batch k of every virtual worker stays borrowed until micro-batch k
 * + 1 is taken. */
static void batches_of_one_lock_step_stay_borrowed(void **state)
{
    static const uint32_t depths[] = { 1, 2, 5, 40 };
    lk_dataset           *set      = open_tokens();
    (void)state;
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
        for (uint32_t count = 1; count <= V; count++) {
            lk_loader_options options = options_for(V - count, count);
            lk_loader        *loader  = NULL;
            lk_batch          batches[V];
            options.lock_step = true;
            options.ahead     = depths[d];
            LKT_OK(lk_loader_open(&loader, set, &options));
            for (uint32_t turn = 0; turn < options.end_step * M; turn++) {
                for (uint32_t c = 0; c < count; c++)
                    LKT_OK(lk_loader_next(loader, &batches[c]));
                for (uint32_t c = 0; c < count; c++)
                    assert_batch(set, &batches[c], turn / M, V - count + c, turn % M);
            }
            lk_loader_free(loader);
        }
    lk_dataset_free(set);
}

/* Checks that as many micro-batches as requested stay borrowed, and that those of a group are
 * contiguous. */
static void several_batches_stay_borrowed(void **state)
{
    static const uint32_t depths[] = { 0, 1, 3, 40 };
    enum { ALL = 7 * V * M, MOST = 8 };
    lk_dataset *set = open_images();
    (void)state;
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
        for (uint32_t borrowed = 1; borrowed <= MOST; borrowed++) {
            lk_loader_options options = options_for(0, V);
            lk_loader        *loader  = NULL;
            lk_batch          last[MOST];
            options.borrowed = borrowed;
            options.ahead    = depths[d];
            LKT_OK(lk_loader_open(&loader, set, &options));
            for (uint32_t i = 0; i < ALL; i++) {
                lk_batch *batch = &last[i % borrowed];
                LKT_OK(lk_loader_next(loader, batch));
                if (i % borrowed > 0)
                    assert_ptr_equal(batch->y, batch[-1].y + B);
                for (uint32_t j = i < borrowed ? 0 : i + 1 - borrowed; j <= i; j++)
                    assert_batch(set, &last[j % borrowed], j / (V * M), j / M % V, j % M);
            }
            lk_loader_free(loader);
        }
    lk_dataset_free(set);
}

static void count_loads(void *context, uint32_t track, const lki_trace_span *spans, size_t count)
{
    uint64_t *loads = context;
    assert_true(track >= 2 && track < 5);
    for (size_t i = 0; i < count; i++)
        *loads += spans[i].kind == LKI_SPAN_LOAD && spans[i].ended >= spans[i].begun;
}

/* Checks that every micro-batch is in the track of the thread that filled it, except batches begun
 * before tracing was requested. */
static void every_thread_is_traced(void **state)
{
    enum { THREADS = 3, STEPS = 50, BATCHES = STEPS * V * M, BEFORE = 4 * THREADS + 1 };
    lk_loader_options options = options_for(0, V);
    lk_dataset       *set     = open_tokens();
    lk_loader        *loader  = NULL;
    lki_trace        *trace   = NULL;
    uint64_t          loads   = 0;
    lk_batch          batch;
    (void)state;
    options.threads  = THREADS;
    options.ahead    = BEFORE - 1;
    options.end_step = STEPS;
    LKT_OK(lki_trace_open(&trace, 2 + THREADS, BATCHES));
    LKT_OK(lk_loader_open(&loader, set, &options));
    lki_loader_trace(loader, trace, 2);
    for (uint32_t i = 0; i < BATCHES; i++)
        LKT_OK(lk_loader_next(loader, &batch));
    lk_loader_free(loader);
    lki_trace_drain(trace, count_loads, &loads);
    assert_in_range(loads, BATCHES - BEFORE, BATCHES);
    lki_trace_free(trace);
    lk_dataset_free(set);
}

static void two_half_loaders_equal_one_whole_loader(void **state)
{
    (void)state;
    lk_dataset *set = open_tokens();
    lk_loader  *whole = NULL, *half[2] = { NULL, NULL };
    lk_loader_options options[3] = { options_for(0, V), options_for(0, V / 2),
                                     options_for(V / 2, V / 2) };
    LKT_OK(lk_loader_open(&whole, set, &options[0]));
    LKT_OK(lk_loader_open(&half[0], set, &options[1]));
    LKT_OK(lk_loader_open(&half[1], set, &options[2]));
    for (uint32_t i = 0; i < 7 * V * M; i++) {
        lk_batch a, b;
        LKT_OK(lk_loader_next(whole, &a));
        LKT_OK(lk_loader_next(half[a.virtual_worker / (V / 2)], &b));
        assert_int_equal(a.step, b.step);
        assert_int_equal(a.virtual_worker, b.virtual_worker);
        assert_int_equal(a.first_slot, b.first_slot);
        assert_int_equal(a.samples, b.samples);
        assert_memory_equal(a.x, b.x, B * T * sizeof(int32_t));
        assert_memory_equal(a.y, b.y, B * T * sizeof(int32_t));
    }
    lk_loader_free(whole);
    lk_loader_free(half[0]);
    lk_loader_free(half[1]);
    lk_dataset_free(set);
}

/* Checks that any number of threads and slots, and any order, give the same batches. */
static void thread_counts_do_not_change_the_batches(void **state)
{
    (void)state;
    lk_dataset *tokens = open_tokens(), *images = open_images();
    for (uint32_t threads = 1; threads <= 5; threads++)
        for (uint32_t ahead = 1; ahead <= 16; ahead *= 4) {
            lk_loader_options options = options_for(1, 3);
            options.threads    = threads;
            options.ahead      = ahead;
            options.start_step = threads % 3;
            assert_loader(tokens, &options);
            assert_loader(images, &options);
        }
    lk_dataset_free(images);
    lk_dataset_free(tokens);
}

static void resumes_at_any_step(void **state)
{
    (void)state;
    lk_dataset *set = open_tokens();
    for (uint64_t start = 0; start <= 7; start++) {
        lk_loader_options options = options_for(1, 2);
        options.start_step = start;
        assert_loader(set, &options);
    }
    lk_dataset_free(set);
}

static void a_borrowed_batch_is_not_overwritten(void **state)
{
    (void)state;
    lk_dataset *set = open_tokens();
    lk_loader_options options = options_for(0, V);
    lk_loader *loader = NULL;
    lk_batch   batch;
    options.ahead = 1;
    LKT_OK(lk_loader_open(&loader, set, &options));
    for (uint32_t i = 0; i < 4; i++)
        LKT_OK(lk_loader_next(loader, &batch));
    (void)nanosleep(&(struct timespec){ .tv_nsec = 3000000 }, NULL); /* the thread runs ahead */
    assert_batch(set, &batch, 0, 1, 1);
    lk_loader_free(loader);
    lk_dataset_free(set);
}

/* Frees a loader at once, after some batches, and with an endless range of steps.  The loader's
 * thread is waiting each time. */
static void free_never_hangs(void **state)
{
    (void)state;
    lk_dataset *set = open_tokens();
    for (uint32_t taken = 0; taken < 20; taken++) {
        lk_loader_options options = options_for(0, V);
        lk_loader *loader = NULL;
        lk_batch   batch;
        options.end_step = UINT64_MAX;
        options.threads  = taken % 4;
        LKT_OK(lk_loader_open(&loader, set, &options));
        for (uint32_t i = 0; i < taken; i++)
            LKT_OK(lk_loader_next(loader, &batch));
        lk_loader_free(loader);
    }
    lk_loader_free(NULL);
    lk_dataset_free(set);
}

static void refuses(const lk_dataset *set, lk_loader_options options, const char *text)
{
    lk_loader *loader = (lk_loader *)(uintptr_t)1;
    assert_int_equal(lk_loader_open(&loader, set, &options), LK_EINVAL);
    assert_null(loader);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("'%s' lacks '%s'", lk_error_last()->message, text);
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    lk_dataset *set = open_tokens();
    lk_loader_options o = options_for(0, V);
    o.global_batch = 0;
    refuses(set, o, "at least 1");
    o = options_for(0, V);
    o.global_batch = G + 1;
    refuses(set, o, "`global_batch` 25 is no multiple");
    o = options_for(0, V);
    o.virtual_workers = o.micro_batch = UINT32_MAX;
    refuses(set, o, "no multiple");
    refuses(set, options_for(0, 0), "virtual workers");
    refuses(set, options_for(V, 1), "virtual workers");
    refuses(set, options_for(1, V), "virtual workers from 1");
    o = options_for(0, V);
    o.start_step = 8;
    refuses(set, o, "after its end 7");
    o = options_for(0, V);
    o.ahead = 5000;
    refuses(set, o, "5000 micro-batches ahead");
    o = options_for(0, V);
    o.borrowed  = 2;
    o.lock_step = true;
    refuses(set, o, "2 micro-batches borrowed at a time; at most 4096, or 1 in lock step");
    o         = options_for(0, V);
    o.threads = 257;
    refuses(set, o, "257 threads; at most 256");
    o = options_for(0, V);
    o.global_batch = 96;
    o.drop_last    = true;
    refuses(set, o, "61 samples do not fill");
    lk_dataset_free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_direct_reads),
        cmocka_unit_test(any_share_delivers_its_part),
        cmocka_unit_test(batches_of_one_lock_step_stay_borrowed),
        cmocka_unit_test(several_batches_stay_borrowed),
        cmocka_unit_test(every_thread_is_traced),
        cmocka_unit_test(two_half_loaders_equal_one_whole_loader),
        cmocka_unit_test(thread_counts_do_not_change_the_batches),
        cmocka_unit_test(resumes_at_any_step),
        cmocka_unit_test(a_borrowed_batch_is_not_overwritten),
        cmocka_unit_test(free_never_hangs),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
