/* job_key.c -- a file with a job's key: only 64 hexadecimal digits followed by white space are
 * accepted, and give the key that they encode. */
#include "fuzz.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "lockstep/launch.h"

static void check(const unsigned char key[LK_JOB_KEY_BYTES], const uint8_t *data, size_t bytes)
{
    char text[2 * LK_JOB_KEY_BYTES + 1];

    LK_ASSERT(bytes >= sizeof text - 1);
    for (size_t i = 0; i < LK_JOB_KEY_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", key[i]);
    for (size_t i = 0; i < sizeof text - 1; i++)
        LK_ASSERT(text[i] == (data[i] >= 'A' && data[i] <= 'F' ? data[i] + 32 : data[i]));
    for (size_t i = sizeof text - 1; i < bytes; i++)
        LK_ASSERT(strchr("\r\n ", data[i]) != NULL && data[i] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    unsigned char key[LK_JOB_KEY_BYTES];
    char          from[32];
    int           fd = memfd_create("key", 0);

    LK_ASSERT(fd >= 0 && fchmod(fd, 0600) == 0);
    LK_ASSERT(write(fd, data, bytes) == (ssize_t)bytes && lseek(fd, 0, SEEK_SET) == 0);
    (void)snprintf(from, sizeof from, "fd:%d", fd);
    if (lk_job_key_read(key, from) == LK_OK) /* closes it in any case */
        check(key, data, bytes);
    return 0;
}
