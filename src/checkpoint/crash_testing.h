/* checkpoint/crash_testing.h -- a crash at the k-th change of names in a directory, for tests.
 *
 * The linker replaces the C library's functions by those below (TEST.wrap lists them).
 */
#ifndef LKI_CHECKPOINT_CRASH_TESTING_H
#define LKI_CHECKPOINT_CRASH_TESTING_H

#include <stdio.h>
#include <unistd.h>

enum { CRASHED = 99 };

static long calls_left; /* number of calls until the crash; 0: none */

static inline void count_call(void)
{
    if (calls_left > 0 && --calls_left == 0)
        _exit(CRASHED);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __real_rmdir(const char *path);
int __wrap_rmdir(const char *path);

int __wrap_rename(const char *from, const char *to)
{
    count_call();
    return __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
    count_call();
    return __real_unlink(path);
}

int __wrap_rmdir(const char *path)
{
    count_call();
    return __real_rmdir(path);
}

#endif
