/* trace_test.c -- tests rings of trace intervals: their order, wrapping, dropped intervals, and
 * concurrent writing and reading. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/trace.h"

enum { SPANS = 100000 };

typedef struct {
    uint32_t track, next;
    bool     ordered;
} reader;

static void read_spans(void *context, uint32_t track, const lki_trace_span *spans, size_t count)
{
    reader *r = context;
    if (track != r->track)
        return;
    for (size_t i = 0; i < count; i++) {
        r->ordered = r->ordered && spans[i].detail == r->next && spans[i].begun <= spans[i].ended;
        r->next    = spans[i].detail + 1;
    }
}

static void calls_without_a_trace_do_nothing(void **state)
{
    (void)state;
    assert_null(lki_trace_track(NULL, 0));
    assert_int_equal(lki_trace_begin(NULL), 0);
    lki_trace_end(NULL, LKI_SPAN_STEP, 0, 0);
}

static void a_full_ring_drops_and_counts(void **state)
{
    (void)state;
    lki_trace *trace = NULL;
    reader     r     = { .track = 1, .ordered = true };
    assert_int_equal(lki_trace_open(&trace, 2, 100), LK_OK); /* rounded up to 128 */
    lki_track *track = lki_trace_track(trace, 1);
    assert_null(lki_trace_track(trace, 2));
    for (uint32_t i = 0; i < 130; i++) {
        assert_int_equal(lki_trace_presses(trace), i > 64);
        lki_trace_end(track, LKI_SPAN_WORK, i, lki_trace_begin(track));
    }
    assert_int_equal(lki_trace_lost(trace), 2);
    lki_trace_drain(trace, read_spans, &r);
    assert_int_equal(r.next, 128);
    for (uint32_t i = 128; i < 200; i++) /* wraps around */
        lki_trace_end(track, LKI_SPAN_WORK, i, lki_trace_begin(track));
    lki_trace_drain(trace, read_spans, &r);
    assert_int_equal(r.next, 200);
    assert_true(r.ordered);
    lki_trace_free(trace);
}

typedef struct {
    lki_track   *track;
    lki_trace  *trace;
    atomic_bool over;
} writer;

static void *write_spans(void *argument)
{
    writer *w = argument;
    for (uint32_t i = 0; i < SPANS; i++) {
        while (lki_trace_presses(w->trace)) /* so that none is dropped */
            sched_yield();
        lki_trace_end(w->track, LKI_SPAN_LOAD, i, lki_trace_begin(w->track));
    }
    atomic_store(&w->over, true);
    return NULL;
}

static void a_trace_is_drained_while_spans_are_added(void **state)
{
    (void)state;
    lki_trace *trace = NULL;
    reader     r     = { .track = 0, .ordered = true };
    pthread_t  thread;
    assert_int_equal(lki_trace_open(&trace, 1, 256), LK_OK);
    writer w = { .track = lki_trace_track(trace, 0), .trace = trace };
    assert_int_equal(pthread_create(&thread, NULL, write_spans, &w), 0);
    while (!atomic_load(&w.over)) {
        lki_trace_drain(trace, read_spans, &r);
        sched_yield();
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    lki_trace_drain(trace, read_spans, &r);
    assert_int_equal(r.next, SPANS);
    assert_true(r.ordered);
    assert_int_equal(lki_trace_lost(trace), 0);
    lki_trace_free(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_without_a_trace_do_nothing),
        cmocka_unit_test(a_full_ring_drops_and_counts),
        cmocka_unit_test(a_trace_is_drained_while_spans_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
