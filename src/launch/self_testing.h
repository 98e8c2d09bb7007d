/* launch/self_testing.h -- for tests whose program also serves as its worker. */
#ifndef LKI_LAUNCH_SELF_TESTING_H
#define LKI_LAUNCH_SELF_TESTING_H

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { SELF_BYTES = 4096 };

/* Stores this program's path in `self`.  Returns true if it was started as "SELF worker ...". */
static inline bool self_is_worker(char self[SELF_BYTES], int argc, char **argv)
{
    ssize_t length = readlink("/proc/self/exe", self, SELF_BYTES - 1);

    self[length > 0 ? length : 0] = '\0';
    return argc >= 2 && strcmp(argv[1], "worker") == 0;
}

#endif
