/* delays_test.c -- times of tasks from a file, and by tokens.
 *
 * Goal:   a group uses its own times in order, or those of all groups in turn.  The tokens of a
 *         task are those that a loader delivers.  A file that has changed is refused.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/core/delays.h"

enum { GROUPS = 4, CONTEXT = 24, STEPS = 300 };

static void write_file(char path[32], const char *text)
{
    (void)snprintf(path, 32, "/tmp/lockstep-delays-XXXXXX");
    const int    fd     = mkstemp(path);
    const size_t length = strlen(text);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, length), (ssize_t)length);
    assert_int_equal(close(fd), 0);
}

static lk_train_config config_of(const char *trace)
{
    return (lk_train_config){ .struct_size     = sizeof(lk_train_config),
                              .seed            = 5,
                              .global_batch    = 16,
                              .micro_batch     = 1,
                              .virtual_workers = 8,
                              .context         = CONTEXT,
                              .exchange        = { .groups = GROUPS,
                                                   .async  = { .mode   = LK_ASYNC_VIRTUAL,
                                                               .delays = LK_DELAYS_GIVEN,
                                                               .trace  = trace } } };
}

/* Group 1 has two times of its own.  The three of all groups are dealt to the others by their place
 * among all tasks, as if group 1 used them, too.  The mean of all five is 4. */
static void a_file_gives_times_in_order(void **state)
{
    static const double all[] = { 2, 4, 6 }, own[] = { 3, 5 };
    char                path[32];
    lki_delays         *delays = NULL;
    (void)state;
    write_file(path, "# ms\n2\n3 1\n 4 # all\r\n\n6\n5\t1");
    lk_train_config c = config_of(path);
    assert_int_equal(lki_trace_check(&c), LK_OK);
    assert_int_equal(strlen(c.exchange.async.trace_hash), 16);
    assert_int_equal(lki_delays_open(&delays, &c, NULL), LK_OK);
    for (uint64_t clock = 0; clock < 9; clock++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            const double want = g == 1 ? own[clock % 2] : all[(clock * GROUPS + g) % 3];
            assert_true(lki_delays_time(delays, g, clock, 77) == want / 4);
        }
    lki_delays_close(delays);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    assert_true(fputs("\n1\n", file) >= 0 && fclose(file) == 0);
    assert_int_equal(lki_delays_open(&delays, &c, NULL), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "has changed since the run began"));
    (void)unlink(path);
}

/* Returns the tokens that a loader delivers for the virtual workers of a task. */
static double count_loaded(const lk_dataset *dataset, const lk_train_config *c, uint64_t task)
{
    const uint32_t          width   = c->virtual_workers / GROUPS;
    const lk_loader_options options = { .struct_size     = sizeof options,
                                        .seed            = c->seed,
                                        .global_batch    = c->global_batch,
                                        .micro_batch     = c->micro_batch,
                                        .virtual_workers = c->virtual_workers,
                                        .first           = (uint32_t)(task % GROUPS) * width,
                                        .count           = width,
                                        .start_step      = task / GROUPS,
                                        .end_step        = task / GROUPS + 1 };
    lk_loader *loader = NULL;
    lk_batch   batch;
    double     sum = 0;
    assert_int_equal(lk_loader_open(&loader, dataset, &options), LK_OK);
    for (uint32_t i = 0; i < c->global_batch / GROUPS; i++) {
        assert_int_equal(lk_loader_next(loader, &batch), LK_OK);
        for (uint32_t k = 0; k < batch.samples * batch.length; k++)
            sum += batch.y[k] >= 0;
    }
    lk_loader_free(loader);
    return sum;
}

/* The data have a short last batch of 38 - 32 documents. */
static void tokens_are_those_of_the_batches(void **state)
{
    char               path[32], spec[48], text[2048] = "";
    lki_delays        *delays  = NULL;
    lk_dataset        *dataset = NULL;
    lk_train_config    c       = config_of(NULL);
    lk_dataset_options options = { .struct_size = sizeof options, .context = CONTEXT };
    size_t             used    = 0;
    (void)state;
    for (int i = 1; i <= 38; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%0*d\n", 2 + i * 11 % 19, i);
    write_file(path, text);
    (void)snprintf(spec, sizeof spec, "docs:%s", path);
    assert_int_equal(lk_dataset_open(&dataset, spec, &options), LK_OK);
    assert_int_equal(lki_delays_open(&delays, &c, dataset), LK_OK);
    for (uint64_t i = 0; i < STEPS; i++) { /* with an early one again, as two schedules ask */
        const uint64_t task = (i % 5 == 4 ? i / 2 : i) * GROUPS + i % GROUPS;
        const double   want = count_loaded(dataset, &c, task) / (4 * CONTEXT);
        assert_true(lki_delays_time(delays, 0, 0, task) == want);
    }
    lki_delays_close(delays);
    lk_dataset_free(dataset);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_times_in_order),
        cmocka_unit_test(tokens_are_those_of_the_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
