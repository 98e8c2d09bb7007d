/* door_test.c -- tests that the launcher reports connections from processes that do not belong to
 * the job.
 *
 * The workers are this program, on two emulated hosts.  Rank 0 connects to rank 1's address like a
 * process outside the job, and then continues as a rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "link/address.h"
#include "comm/group/group.h"
#include "launch/self_testing.h"
#include "lockstep/launch.h"

/* Sends bytes that are not a hello, and waits until the connection is closed. */
static bool scan(const char *address)
{
    static const char words[] = "GET / HTTP/1.0\r\n\r\n";
    lki_address       to;
    char              byte;

    if (lki_address_parse(&to, address) != LK_OK)
        return false;
    int fd = socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&to.storage, to.bytes) != 0)
        return false;
    (void)!send(fd, words, sizeof words - 1, MSG_NOSIGNAL);
    while (recv(fd, &byte, 1, 0) > 0)
        continue;
    (void)close(fd);
    return true;
}

static int worker(void)
{
    enum { SCANS = 5 };
    lk_comm *comm;
    bool     good = lk_join(&comm) == LK_OK && lk_barrier(comm) == LK_OK;

    for (int i = 0; i < SCANS && good && lk_comm_rank(comm) == 0; i++)
        good = scan(lki_comm_address(comm, 1));
    good = good && lk_barrier(comm) == LK_OK;
    if (!good)
        fprintf(stderr, "%s\n", lk_error_last()->message);
    lk_comm_free(comm);
    return good ? 0 : 1;
}

/* Appends a note to a file.  The launchers are separate processes, so they collect their notes in
 * one file. */
static void write_down(void *file, const char *text)
{
    dprintf(*(int *)file, "%s\n", text);
}

static char self[SELF_BYTES];

static void strangers_at_a_workers_door_are_noted(void **state)
{
    static char       notes[8192];
    char              word[]  = "worker";
    char             *argv[]  = { self, word, NULL };
    int               file    = memfd_create("notes", MFD_CLOEXEC);
    lk_launch_options options = { .struct_size  = sizeof(lk_launch_options),
                                  .workers      = 2,
                                  .hosts        = 2,
                                  .argv         = argv,
                                  .timeout_ms   = 20000,
                                  .note         = write_down,
                                  .note_context = &file };
    lk_launch_result  result;

    (void)state;
    assert_int_equal(lk_launch(&options, &result), LK_OK);
    if (result.failed || result.exit_code != 0)
        fail_msg("%d: %s", result.exit_code, result.cause);
    ssize_t got = pread(file, notes, sizeof notes - 1, 0);
    notes[got]  = '\0';
    (void)close(file);
    const char *second = strchr(notes, '\n') + 1;
    if (strncmp(notes, "rank 1 (host host1, pid ", 24) != 0
        || strstr(notes, "refused a connection from 127.0.0.1: what it says is no hello") == NULL
        || strncmp(second, "rank 1 (host host1, pid ", 24) != 0
        || strstr(second, "refused 4 connections from 127.0.0.1: ") == NULL
        || strchr(strchr(second, '\n') + 1, '\n') != NULL)
        fail_msg("noted: %s", notes);
}

int main(int argc, char **argv)
{
    if (self_is_worker(self, argc, argv))
        return worker();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_at_a_workers_door_are_noted),
    };
    return cmocka_run_group_tests_name("launch.door", tests, NULL, NULL);
}
