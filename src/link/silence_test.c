/* silence_test.c -- a host that disappears without closing its connections.
 *
 * Goal:   a connection to the host ends within the link's time limit, with an error that gives the
 *         reason.  This holds for connections with bytes in flight and for idle connections.
 * Method: a network namespace whose only interface is taken down, so that no more packets and no
 *         errors arrive.  Skipped if network namespaces are not available.
 */
#include "link/tcp_testing.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

enum { SILENCE_MS = 1500, SKIPPED = 77 };

static bool turn_loopback(bool on)
{
    struct ifreq request = { .ifr_name = "lo" };
    int          fd      = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool         good    = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    int          flags   = on ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP;
    request.ifr_flags    = (short)flags;
    good                 = good && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    close(fd);
    return good;
}

/* Returns true if a rank detects that its connection has ended.  With `writing` the rank writes;
 * otherwise it only reads. */
static bool finds_silence(bool secure, bool writing)
{
    world     w      = { .ranks = 2 };
    size_t    moved  = 0;
    char      byte   = 'x';
    lk_status status = LK_OK;
    uint32_t  me     = writing ? 0 : 1;

    for (uint32_t rank = 0; rank < 2; rank++) {
        lki_tcp_options options = world_options(&w, secure, rank);
        options.silence_ms      = SILENCE_MS;
        world_add(&w, &options);
    }
    exchange(&w, 0, 1, 0, "hello");
    if (!turn_loopback(false))
        return false;
    int64_t until = patience(&w);
    while (status == LK_OK && patience(&w) - PATIENCE_MS < until) {
        status = writing ? put(&w, 0, 1, 0, &byte, 1, &moved) : get(&w, 1, 0, 0, &byte, 1, &moved);
        if (status == LK_OK)
            (void)wait_once(&w, me, 1 - me, 0, 100);
    }
    if (status == LK_EPEER)
        print_message("%s\n", lk_error_last()->message);
    bool good = status == LK_EPEER && turn_loopback(true);
    world_close(&w);
    return good;
}

/* Starts a process that runs one case in its own network namespace.  The cases run in parallel. */
static pid_t begin(bool secure, bool writing)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        _exit(SKIPPED);
    _exit(turn_loopback(true) && finds_silence(secure, writing) ? 0 : 1);
}

static void a_vanished_host_is_detected(void **state)
{
    pid_t pids[4];
    int   statuses[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        pids[i] = begin(i / 2 == 1, i % 2 == 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(waitpid(pids[i], &statuses[i], 0), pids[i]);
        assert_true(WIFEXITED(statuses[i]));
    }
    if (WEXITSTATUS(statuses[0]) == SKIPPED) {
        print_message("skipped: no network namespaces here\n");
        skip();
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(WEXITSTATUS(statuses[i]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { LINK_TEST(a_vanished_host_is_detected) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
