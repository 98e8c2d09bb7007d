/* output_test.c -- tests that the output lines do not depend on how the bytes arrive. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/job/output.h"

/* Sends `text` through a stream in pieces of `piece` bytes into `sink`. */
static void pass(lki_sink *sink, const char *text, size_t bytes, size_t piece)
{
    lki_stream stream;
    int        ends[2];

    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(lki_sink_init(sink, STDOUT_FILENO), LK_OK);
    assert_int_equal(lki_stream_init(&stream, ends[0], "[12] "), LK_OK);
    for (size_t done = 0; done < bytes; done += piece) {
        size_t part = bytes - done < piece ? bytes - done : piece;
        assert_int_equal(write(ends[1], text + done, part), part);
        while (lki_stream_read(&stream, sink))
            assert_true(lki_sink_has_room(sink));
    }
    (void)close(ends[1]);
    assert_false(lki_stream_read(&stream, sink));
    assert_int_equal(stream.from, -1);
    lki_stream_deinit(&stream);
}

static void assert_passes(const char *text, const char *lines)
{
    for (size_t piece = 1; piece <= 8; piece++) {
        lki_sink sink;
        pass(&sink, text, strlen(text), piece);
        assert_int_equal(sink.used, strlen(lines));
        assert_memory_equal(sink.text, lines, sink.used);
        lki_sink_deinit(&sink);
    }
}

static void lines_do_not_depend_on_read_sizes(void **state)
{
    (void)state;
    assert_passes("", "");
    assert_passes("a", "[12] a\n");
    assert_passes("a\n", "[12] a\n");
    assert_passes("\n\n", "[12] \n[12] \n");
    assert_passes("one\ntwo\n\nthree", "[12] one\n[12] two\n[12] \n[12] three\n");
}

/* Sends line ends only, the worst case for lki_sink_has_room().  Expects that every read fits. */
static void a_read_always_fits_the_buffer(void **state)
{
    (void)state;
    static char text[LKI_READ_BYTES];
    lki_sink    sink;

    memset(text, '\n', sizeof text);
    pass(&sink, text, sizeof text, sizeof text);
    assert_int_equal(sink.used, sizeof text * strlen("[12] \n"));
    lki_sink_deinit(&sink);
}

static void long_lines_are_cut(void **state)
{
    (void)state;
    static char text[LKI_LINE_BYTES + 2];
    lki_sink    sink;

    memset(text, 'x', sizeof text);
    for (size_t bytes = LKI_LINE_BYTES - 1; bytes <= LKI_LINE_BYTES + 1; bytes++) {
        size_t lines = bytes > LKI_LINE_BYTES ? 2 : 1;
        text[bytes]  = '\n';
        pass(&sink, text, bytes + 1, 1000);
        text[bytes] = 'x';
        assert_int_equal(sink.used, bytes + lines * strlen("[12] \n"));
        lki_sink_deinit(&sink);
    }
}

/* Runs in a child that has blocked SIGPIPE, like lk_launch(). */
static void a_reader_that_goes_away_closes_the_sink(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        lki_sink sink;
        int      ends[2];
        (void)signal(SIGPIPE, SIG_IGN);
        if (pipe(ends) != 0 || lki_sink_init(&sink, ends[1]) != LK_OK)
            _exit(1);
        (void)close(ends[0]);
        sink.used = 10;
        lki_sink_write(&sink);
        _exit(sink.to == -1 && sink.used == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Checks that a failed write is an error, and that the sink takes nothing more. */
static void output_that_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    lki_sink sinks[2];
    int      full = open("/dev/full", O_WRONLY | O_CLOEXEC);

    assert_true(full >= 0);
    for (int s = 0; s < 2; s++)
        assert_int_equal(lki_sink_init(&sinks[s], full), LK_OK);
    assert_int_equal(lki_sinks_check(sinks), LK_OK);
    sinks[1].used = 10;
    lki_sink_write(&sinks[1]);
    assert_int_equal(sinks[1].to, -1);
    assert_int_equal(lki_sinks_check(sinks), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "standard error"));
    assert_non_null(strstr(lk_error_last()->message, "No space left on device"));
    for (int s = 0; s < 2; s++)
        lki_sink_deinit(&sinks[s]);
    (void)close(full);
}

/* Fills a pipe, and opens a sink for it with pending output. */
static void open_full(lki_sink *sink, int ends[2])
{
    static const char text[4096];

    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    while (write(ends[1], text, sizeof text) > 0)
        continue;
    assert_int_equal(lki_sink_init(sink, ends[1]), LK_OK);
    sink->used = 10;
}

static int nobody, notes;

/* Empties the pipe `context` when the note about its reader comes. */
static void read_all(void *context, const char *note)
{
    char text[4096];

    assert_non_null(strstr(note, "nobody reads 10 bytes"));
    while (context != &nobody && read(*(int *)context, text, sizeof text) > 0)
        continue;
    notes++;
}

static void drain(lki_sink *sink, bool asked, int *reader)
{
    lk_launch_options options = {.note = read_all, .note_context = reader};
    lki_rest          rest    = {.asked = asked, .options = &options};
    int               signals[2];

    assert_int_equal(pipe2(signals, O_CLOEXEC), 0);
    rest.signals = signals[0];
    notes        = 0;
    lki_sink_drain(sink, true, &rest);
    (void)close(signals[0]);
    (void)close(signals[1]);
}

static void a_slow_reader_is_awaited_with_a_note(void **state)
{
    (void)state;
    lki_sink sink;
    int      ends[2];

    open_full(&sink, ends);
    drain(&sink, false, &ends[0]);
    assert_int_equal(notes, 1);
    assert_int_equal(sink.used, 0);
    assert_int_equal(sink.to, ends[1]);
    lki_sink_deinit(&sink);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void a_request_to_stop_does_not_await_the_reader(void **state)
{
    (void)state;
    lki_sink sink;
    int      ends[2];

    open_full(&sink, ends);
    drain(&sink, true, &nobody);
    assert_int_equal(notes, 2);
    assert_int_equal(sink.to, -1);
    lki_sink_deinit(&sink);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_do_not_depend_on_read_sizes),
        cmocka_unit_test(a_read_always_fits_the_buffer),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(a_reader_that_goes_away_closes_the_sink),
        cmocka_unit_test(output_that_cannot_be_written_is_an_error),
        cmocka_unit_test(a_slow_reader_is_awaited_with_a_note),
        cmocka_unit_test(a_request_to_stop_does_not_await_the_reader),
    };
    return cmocka_run_group_tests_name("launch.job.output", tests, NULL, NULL);
}
