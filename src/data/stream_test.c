/* stream_test.c -- reading a stream ahead.
 *
 * Goal:   the next batch is read from a pipe before it is requested.  The batches, including the
 *         last one, equal those of the stream itself.  A failure is reported when its batch is
 *         taken, and at every later call.  Closing never waits for the pipe.
 * Method: a pipe of this process, opened by its name in /proc.
 */
#include "data/data_testing.h"

#include <sys/ioctl.h>
#include <time.h>

#include "data/stream.h"

enum { BATCH = 4, SIDE = 3, PIXELS = SIDE * SIDE, RECORD = 1 + PIXELS, LIMIT_S = 300 };

typedef struct {
    int         ends[2];
    lk_dataset *set;
    lki_ahead  *ahead;
} feed;

static void write_records(const feed *f, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        uint8_t record[RECORD] = { (uint8_t)(i % 5) };
        for (uint32_t p = 1; p < RECORD; p++)
            record[p] = (uint8_t)(i * 31 + p);
        assert_int_equal(write(f->ends[1], record, RECORD), RECORD);
    }
}

static feed open_feed(uint32_t records)
{
    feed f;
    char spec[128];
    assert_int_equal(pipe(f.ends), 0);
    (void)snprintf(spec, sizeof spec, "stream:/proc/self/fd/%d?h=3&w=3&classes=5", f.ends[0]);
    f.set = lkt_open(spec, LKT_DATASET(.seed = 1));
    write_records(&f, 0, records);
    LKT_OK(lki_ahead_open(&f.ahead, f.set, 0, BATCH));
    return f;
}

static void close_feed(feed *f)
{
    lki_ahead_close(f->ahead);
    lk_dataset_free(f->set);
    (void)close(f->ends[0]);
    if (f->ends[1] >= 0)
        (void)close(f->ends[1]);
}

static void hang_up(feed *f)
{
    (void)close(f->ends[1]);
    f->ends[1] = -1;
}

/* Checks that batch `number` has `count` records. */
static void assert_batch(const feed *f, uint32_t number, uint32_t count, bool is_last)
{
    float    x[BATCH * PIXELS];
    int32_t  y[BATCH];
    uint64_t got  = 0;
    bool     last = false;
    LKT_OK(lki_ahead_take(f->ahead, x, y, &got, &last));
    assert_int_equal(got, count);
    assert_int_equal(last, is_last);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t record = number * BATCH + i;
        assert_int_equal(y[i], record % 5);
        for (uint32_t p = 0; p < PIXELS; p++) {
            float want = ((float)(uint8_t)(record * 31 + p + 1) / 255.0f - 0.5f) / 0.5f;
            assert_memory_equal(&x[i * PIXELS + p], &want, sizeof want);
        }
    }
}

static void batches_come_in_order_to_the_last(void **state)
{
    (void)state;
    feed f = open_feed(3 * BATCH + 2);
    hang_up(&f);
    for (uint32_t i = 0; i < 3; i++)
        assert_batch(&f, i, BATCH, false);
    assert_batch(&f, 3, 2, true);
    close_feed(&f);
}

/* Returns the number of unread bytes in the pipe. */
static int waiting(const feed *f)
{
    int bytes = 0;
    assert_int_equal(ioctl(f->ends[0], FIONREAD, &bytes), 0);
    return bytes;
}

static void the_next_batch_is_read_ahead(void **state)
{
    (void)state;
    feed   f   = open_feed(BATCH + 1);
    time_t end = time(NULL) + LIMIT_S;
    assert_batch(&f, 0, BATCH, false);
    write_records(&f, BATCH + 1, BATCH); /* not requested by anyone */
    while (waiting(&f) > 0 && time(NULL) < end)
        (void)usleep(1000);
    assert_int_equal(waiting(&f), 0);
    assert_batch(&f, 1, BATCH, false);
    close_feed(&f);
}

static void closing_does_not_wait_for_the_pipe(void **state)
{
    (void)state;
    for (uint32_t records = 0; records < 3 * BATCH; records++) {
        feed f = open_feed(records);
        if (records > BATCH)
            assert_batch(&f, 0, BATCH, false);
        close_feed(&f);
    }
}

static void an_error_is_reported_with_its_batch(void **state)
{
    float          x[BATCH * PIXELS];
    int32_t        y[BATCH];
    uint64_t       got;
    bool           last;
    const uint8_t  bad[RECORD] = { 5 };
    (void)state;
    feed f = open_feed(BATCH);
    assert_int_equal(write(f.ends[1], bad, sizeof bad), RECORD);
    hang_up(&f);
    assert_batch(&f, 0, BATCH, false);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(lki_ahead_take(f.ahead, x, y, &got, &last), LK_EFORMAT);
        assert_non_null(strstr(lk_error_last()->message, "record 4 at byte 40 has class 5"));
    }
    close_feed(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_come_in_order_to_the_last),
        cmocka_unit_test(the_next_batch_is_read_ahead),
        cmocka_unit_test(closing_does_not_wait_for_the_pipe),
        cmocka_unit_test(an_error_is_reported_with_its_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
