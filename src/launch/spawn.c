/* spawn.c -- starting one worker as a direct child that cannot outlive its launcher.
 *
 * fork() and exec(), not posix_spawn(): a worker asks the kernel for SIGKILL at its launcher's
 * death (PR_SET_PDEATHSIG) and that must be asked by the child.  Between fork and exec only
 * async-signal-safe functions run, because the launcher may have other threads; so everything
 * that needs memory (the environment) is made before.
 *
 * Workers stay in the launcher's process group.  Thus a terminal's job control works on the whole
 * job (Ctrl-Z, fg), rank 0 may read the terminal, and lockstep workers survive Ctrl-C because
 * lk_join() keeps SIGINT from ending them.  A group of their own was rejected: it would be in
 * the terminal's background, where reading stops a process.
 */
#include "launch/spawn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXEC_FAILED = 127 };

/* Everything below runs in the child and never returns. */

static _Noreturn void child_failed(const lki_spawn_plan *plan)
{
    lki_exec_failure failure = {.rank = plan->rank, .error = errno};

    if (plan->report >= 0)
        (void)!write(plan->report, &failure, sizeof failure);
    _exit(EXEC_FAILED);
}

static _Noreturn void child_main(const lki_spawn_plan *plan, pid_t launcher)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        child_failed(plan);
    if (getppid() != launcher) /* it died before the line above could tell the kernel */
        _exit(EXEC_FAILED);
    for (int fd = 0; fd < 3; fd++)
        if (plan->standard[fd] >= 0 && dup2(plan->standard[fd], fd) < 0)
            child_failed(plan);
    for (size_t i = 0; i < sizeof plan->keep / sizeof plan->keep[0]; i++)
        if (plan->keep[i] >= 0 && fcntl(plan->keep[i], F_SETFD, 0) != 0)
            child_failed(plan);
    if (sigprocmask(SIG_SETMASK, &plan->mask, NULL) != 0)
        child_failed(plan);
    if (plan->bound) /* where it is not allowed, the program runs all the same */
        (void)sched_setaffinity(0, sizeof plan->cores, &plan->cores);
    (void)execvpe(plan->argv[0], plan->argv, plan->environment);
    child_failed(plan);
}

/* fork(), for a child of our parent's.  The kernel writes its pid before it runs, also if we are
 * killed just then.  What the C library does at a fork is not wanted: only exec follows. */
static pid_t fork_sibling(pid_t *record)
{
    return (pid_t)syscall(SYS_clone, CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD, NULL, record,
                          NULL, NULL);
}

lk_status lki_spawn(pid_t *out, const lki_spawn_plan *plan)
{
    pid_t launcher = plan->record != NULL ? getppid() : getpid();
    pid_t pid      = plan->record != NULL ? fork_sibling(plan->record) : fork();

    if (pid == 0)
        child_main(plan, launcher);
    if (pid < 0)
        return lk_fail(LK_ENOMEM, "cannot start worker %u: fork: %s; see ulimit -u and the memory "
                                  "that is free", plan->rank, strerror(errno));
    *out = pid;
    return LK_OK;
}

uint16_t lki_port_free(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t          bytes   = sizeof address;
    uint16_t           port    = 29500; /* what the ecosystem's launchers take by default */
    int                fd      = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        return port;
    if (bind(fd, (const struct sockaddr *)&address, bytes) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0)
        port = ntohs(address.sin_port);
    (void)close(fd);
    return port;
}
