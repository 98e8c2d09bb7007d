/* journal_test.c -- a log that is a pipe, in a run that begins again after the loss of a rank. */
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

static char folder[40], pipe_path[64], metrics[64], events[64];

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_journal_that_begins_again_stays_open, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_pipe_without_a_reader_may_be_left_out, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
