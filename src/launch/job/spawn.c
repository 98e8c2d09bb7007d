/* spawn.c -- starts one worker as a child that cannot outlive its launcher.
 *
 * Uses fork() and exec() instead of posix_spawn(), because the child itself must ask the kernel to
 * kill it at its launcher's death (PR_SET_PDEATHSIG).  The launcher may have other threads, so only
 * async-signal-safe functions run between fork and exec.  The environment, which needs memory, is
 * prepared before the fork.
 *
 * Workers stay in the launcher's process group.  So a terminal's job control works on the whole job
 * (Ctrl-Z, fg), and rank 0 may read the terminal.  Lockstep workers survive Ctrl-C because
 * lk_join() ignores SIGINT.  A separate group was rejected, because a group in the terminal's
 * background is stopped when it reads.
 */
#include "launch/job/spawn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXEC_FAILED = 127 };

/* The functions below run in the child and never return. */

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
    if (getppid() != launcher) /* the launcher died before prctl() took effect */
        _exit(EXEC_FAILED);
    for (int fd = 0; fd < 3; fd++)
        if (plan->standard[fd] >= 0 && dup2(plan->standard[fd], fd) < 0)
            child_failed(plan);
    for (size_t i = 0; i < sizeof plan->keep / sizeof plan->keep[0]; i++)
        if (plan->keep[i] >= 0 && fcntl(plan->keep[i], F_SETFD, 0) != 0)
            child_failed(plan);
    if (sigprocmask(SIG_SETMASK, &plan->mask, NULL) != 0)
        child_failed(plan);
    if (plan->bound) /* binding is not essential, so errors are ignored */
        (void)sched_setaffinity(0, sizeof plan->cores, &plan->cores);
    (void)execvpe(plan->argv[0], plan->argv, plan->environment);
    child_failed(plan);
}

/* Forks a child of our parent.  The kernel stores the child's pid before the child runs, even if
 * this process is killed at that moment.  The C library's fork handlers are not needed, because
 * only exec follows. */
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
    uint16_t           port    = 29500; /* the default of other launchers */
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
