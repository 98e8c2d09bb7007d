/* launch/job/rebuild_jobs_testing.h -- for tests: runs jobs whose workers are the test program
 * itself, and collects the launchers' notes. */
#ifndef LKI_LAUNCH_JOB_REBUILD_JOBS_TESTING_H
#define LKI_LAUNCH_JOB_REBUILD_JOBS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lockstep/launch.h"

enum { NOTES_BYTES = 16384 };

static char self[4096];

/* The launchers' notes, in shared memory because launchers of emulated hosts are other
 * processes. */
static char             *notes;
static _Atomic uint32_t *notes_used;

static void take_note(void *context, const char *text)
{
    uint32_t bytes = (uint32_t)strlen(text) + 1, at = atomic_fetch_add(notes_used, bytes);

    (void)context;
    if (at + bytes >= NOTES_BYTES)
        return;
    memcpy(notes + at, text, bytes - 1);
    notes[at + bytes - 1] = '\n';
}

static void open_notes(void)
{
    notes = mmap(NULL, NOTES_BYTES + sizeof *notes_used, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (notes == MAP_FAILED)
        abort();
    notes_used = (_Atomic uint32_t *)(void *)(notes + NOTES_BYTES);
}

static inline lk_launch_options going_on(uint32_t workers)
{
    return (lk_launch_options){ .struct_size = sizeof(lk_launch_options),
                                .workers     = workers,
                                .timeout_ms  = 20000,
                                .on_failure  = LK_ON_FAILURE_CONTINUE,
                                .note        = take_note };
}

static inline lk_launch_result launch(lk_launch_options options, const char *mode,
                                      const char *place, uint32_t number)
{
    char  word[] = "worker", copies[3][32];
    char *argv[] = { self, word, copies[0], copies[1], copies[2], NULL };

    (void)snprintf(copies[0], sizeof copies[0], "%s", mode);
    (void)snprintf(copies[1], sizeof copies[1], "%s", place);
    (void)snprintf(copies[2], sizeof copies[2], "%u", number);
    options.argv = argv;
    memset(notes, 0, NOTES_BYTES);
    atomic_store(notes_used, 0);
    lk_launch_result result;
    (void)fflush(NULL);
    if (lk_launch(&options, &result) != LK_OK)
        fail_msg("%s\nnotes:\n%s", lk_error_last()->message, notes);
    return result;
}

static inline void assert_good(lk_launch_result result, const char *what, const char *place,
                               uint32_t n)
{
    if (result.failed || result.exit_code != 0)
        fail_msg("%s %s %u: exit code %d: %s\nnotes:\n%s", what, place, n, result.exit_code,
                 result.cause, notes);
}

static inline void assert_noted(const char *words)
{
    if (strstr(notes, words) == NULL)
        fail_msg("no \"%s\" in the notes:\n%s", words, notes);
}

/* The output of the last command run by shell(), which returns its exit status. */
static char said[16384];

static inline int shell(const char *line)
{
    FILE  *pipe = popen(line, "r");
    size_t got  = fread(said, 1, sizeof said - 1, pipe);
    said[got]   = '\0';
    int status  = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline void assert_said(const char *words)
{
    if (strstr(said, words) == NULL)
        fail_msg("no \"%s\" in:\n%s", words, said);
}

static void find_self(void)
{
    ssize_t length                = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    open_notes();
}

#endif
