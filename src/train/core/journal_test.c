/* journal_test.c -- a log that is a pipe: in a run that begins again after the loss of a rank, and
 * with a reader that does not read.
 *
 * Method: a journal whose pipe is full asks whether the run is to stop.  The test answers, and
 * reads the pipe then or not, so that the writer and the reader alternate as it wants.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/core/journal.h"

static char folder[40], pipe_path[64], metrics[64], events[64], filling[9000];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lockstep-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    (void)snprintf(metrics, sizeof metrics, "%s/m.prom", folder);
    (void)snprintf(events, sizeof events, "%s/events", folder);
    return mkfifo(pipe_path, 0600);
}

static int remove_folder(void **state)
{
    char line[64];
    (void)state;
    (void)snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line);
}

static void begin_and_write(lki_journal *journal, const lki_log_run *run)
{
    assert_int_equal(lki_journal_open_log(journal, run), LK_OK);
    assert_int_equal(lki_journal_begin(journal, run, 9), LK_OK);
    assert_int_equal(lki_journal_event(journal, json_pack("{s:i}", "step", 0)), LK_OK);
}

/* The reader would see the end of the pipe if the log were closed between the two. */
static void a_journal_that_begins_again_stays_open(void **state)
{
    const lk_train_config config  = { .struct_size = sizeof(lk_train_config),
                                      .log         = pipe_path,
                                      .outputs     = { .tensorboard = events, .metrics = metrics },
                                      .quiet       = true };
    const lki_log_run     run     = { .config = &config, .waits = true };
    lki_journal          *journal = NULL;
    char                  text[512];
    (void)state;
    int reader = open(pipe_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    assert_int_equal(lki_journal_open(&journal, &config), LK_OK);
    for (int i = 0; i < 2; i++) {
        begin_and_write(journal, &run);
        assert_true(read(reader, text, sizeof text) > 0);
        assert_int_equal(read(reader, text, sizeof text), -1);
        assert_int_equal(errno, EAGAIN);
    }
    lki_journal_free(journal);
    assert_int_equal(read(reader, text, sizeof text), 0);
    (void)close(reader);
}

/* Expects that a run which does not wait for a reader goes on without the log. */
static void a_pipe_without_a_reader_may_be_left_out(void **state)
{
    const lk_train_config config  = { .struct_size = sizeof(lk_train_config), .log = pipe_path,
                                      .quiet       = true };
    const lki_log_run     run     = { .config = &config };
    lki_journal          *journal = NULL;
    (void)state;
    assert_int_equal(lki_journal_open(&journal, &config), LK_OK);
    begin_and_write(journal, &run);
    lki_journal_free(journal);
}

/* A reader that does not read unless the writer waits for it. */
typedef struct {
    lk_train_config config;
    lki_journal    *journal;
    int             pipe;
    bool            reads, stops; /* when the writer waits */
    bool            leaves;       /* the writer is asked to leave the run */
    size_t          used;
    char            text[1 << 18];
} slow_reader;

enum { LINES = 600, LONG_LINE = sizeof filling, PIPE_BYTES = 4096 };

static void read_on(slow_reader *r)
{
    ssize_t got;
    while ((got = read(r->pipe, r->text + r->used, sizeof r->text - 1 - r->used)) > 0)
        r->used += (size_t)got;
    r->text[r->used] = '\0';
}

static bool is_asked(void *context)
{
    slow_reader *r = context;
    if (r->reads)
        read_on(r);
    return r->stops;
}

static bool is_to_leave(void *context)
{
    const slow_reader *r = context;
    return r->leaves;
}

static void open_slow(slow_reader *r)
{
    const lki_log_run run = { .config = &r->config };
    (void)alarm(100); /* without the limits the writer would block for ever */
    r->config = (lk_train_config){ .struct_size = sizeof(lk_train_config), .log = pipe_path,
                                   .quiet = true, .elastic.survives = true,
                                   .calls = { .leave = is_to_leave, .leave_context = r,
                                              .stop = is_asked, .stop_context = r } };
    r->used   = 0;
    r->pipe   = open(pipe_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(r->pipe >= 0);
    assert_int_equal(fcntl(r->pipe, F_SETPIPE_SZ, PIPE_BYTES), PIPE_BYTES);
    assert_int_equal(lki_journal_open(&r->journal, &r->config), LK_OK);
    assert_int_equal(lki_journal_open_log(r->journal, &run), LK_OK);
}

/* Returns the number of lines, each of which is whole and has the next number. */
static int close_slow(slow_reader *r)
{
    int lines = 0;
    lki_journal_free(r->journal);
    read_on(r);
    (void)close(r->pipe);
    (void)alarm(0);
    for (char *at = r->text, *end; *at != '\0'; at = end + 1, lines++) {
        end = strchr(at, '\n');
        assert_non_null(end);
        json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(line, "step")), lines);
        json_decref(line);
    }
    return lines;
}

static lk_status write_line(slow_reader *r, int number, int length)
{
    return lki_journal_event(r->journal, json_pack("{s:s%, s:i}", "text", filling, length, "step",
                                                   number));
}

/* Writes lines until a write fails or the test wants no more. */
static lk_status write_lines(slow_reader *r)
{
    lk_status status = LK_OK;
    for (int i = 0; i < LINES && status == LK_OK; i++)
        status = write_line(r, i, i % 100 == 99 && r->reads ? LONG_LINE : i % 300);
    return status;
}

static void a_reader_that_reads_on_misses_nothing(void **state)
{
    static slow_reader r = { .reads = true };
    (void)state;
    open_slow(&r);
    assert_int_equal(write_lines(&r), LK_OK);
    assert_int_equal(close_slow(&r), LINES);
}

static void a_request_to_stop_leaves_out_the_last_lines(void **state)
{
    static slow_reader r = { .stops = true };
    (void)state;
    open_slow(&r);
    assert_int_equal(write_lines(&r), LK_OK);
    assert_in_range(close_slow(&r), 2, LINES / 2);
}

static void a_wait_with_a_limit_fails_and_names_the_pipe(void **state)
{
    static slow_reader r;
    (void)state;
    open_slow(&r);
    lki_journal_limit(r.journal, 0.1, false);
    assert_int_equal(write_lines(&r), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, pipe_path));
    assert_non_null(strstr(lk_error_last()->message, "for its reader"));
    assert_in_range(close_slow(&r), 2, LINES / 2);
}

/* If no other rank can take over the log, a request to leave ends the run. */
static void a_request_to_leave_ends_the_wait_of_a_lone_rank(void **state)
{
    static slow_reader r = { .leaves = true };
    const lki_log_run  run = { .config = &r.config, .waits = true };
    (void)state;
    open_slow(&r);
    lki_journal_limit(r.journal, 0, true);
    assert_int_equal(write_lines(&r), LK_OK);
    assert_in_range(close_slow(&r), 2, LINES / 2);
    assert_int_equal(lki_journal_open(&r.journal, &r.config), LK_OK);
    lki_journal_limit(r.journal, 0, true);
    assert_int_equal(lki_journal_open_log(r.journal, &run), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "before anybody read the log"));
    lki_journal_free(r.journal);
}

/* Others take over the log of a rank that is lost. */
static void a_request_to_leave_does_not_shorten_the_log_of_others(void **state)
{
    static slow_reader r = { .leaves = true };
    (void)state;
    open_slow(&r);
    lki_journal_limit(r.journal, 2.5, false);
    assert_int_equal(write_lines(&r), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "for its reader"));
    assert_in_range(close_slow(&r), 2, LINES / 2);
}

int main(void)
{
    (void)memset(filling, 'x', sizeof filling);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_journal_that_begins_again_stays_open, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_pipe_without_a_reader_may_be_left_out, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_reader_that_reads_on_misses_nothing, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_request_to_stop_leaves_out_the_last_lines, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_wait_with_a_limit_fails_and_names_the_pipe, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_request_to_leave_ends_the_wait_of_a_lone_rank,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_request_to_leave_does_not_shorten_the_log_of_others,
                                        make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
