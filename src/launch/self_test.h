/* launch/self_test.h -- for tests whose program is also the worker that they start. */
#ifndef LKI_LAUNCH_SELF_TEST_H
#define LKI_LAUNCH_SELF_TEST_H

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { SELF_BYTES = 4096 };

/* Puts this program's path into `self`: "SELF worker ..." starts it as one.  Whether it is. */
static inline bool self_is_worker(char self[SELF_BYTES], int argc, char **argv)
{
    ssize_t length = readlink("/proc/self/exe", self, SELF_BYTES - 1);

    self[length > 0 ? length : 0] = '\0';
    return argc >= 2 && strcmp(argv[1], "worker") == 0;
}

#endif
