/* silence_test.c -- a host that vanishes without a word.
 *
 * Goal:   connections to it end, with a reason, within the time that the link was given: those
 *         with bytes under way, and those on which nothing happens.
 * Method: a network of its own, whose only interface is taken down, so that nothing arrives any
 *         more and nobody says so.  Skipped where there are no network namespaces.
 */
#include "comm/transport/tcp_testing.h"

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

/* Returns whether the connection's end is found by who writes (or only reads). */
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

static void silence_is_found(void **state)
{
    int status = 0;
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
            _exit(SKIPPED);
        bool good = turn_loopback(true);
        for (int i = 0; good && i < 4; i++)
            good = finds_silence(i / 2 == 1, i % 2 == 1);
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) {
        print_message("skipped: no network namespaces here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { LINK_TEST(silence_is_found) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
