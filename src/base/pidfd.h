/* base/pidfd.h -- descriptors of processes, by system call.
 *
 * glibc has functions for these calls since 2.36.  Without those, the library and the command run
 * with glibc 2.34.
 */
#ifndef LKI_PIDFD_H
#define LKI_PIDFD_H

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Opens a descriptor, close-on-exec, of a process.  Returns -1, and sets errno, on failure. */
static inline int lki_pidfd_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* Sends a signal to the process of a descriptor, as kill() does if `info` is NULL. */
static inline int lki_pidfd_send(int pidfd, int number, siginfo_t *info)
{
    return (int)syscall(SYS_pidfd_send_signal, pidfd, number, info, 0);
}

#endif /* LKI_PIDFD_H */
