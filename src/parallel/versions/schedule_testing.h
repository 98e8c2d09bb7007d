/* parallel/versions/schedule_testing.h -- for tests: the file of a recorded schedule.  Each test
 * program has one. */
#ifndef LKI_PARALLEL_VERSIONS_SCHEDULE_TESTING_H
#define LKI_PARALLEL_VERSIONS_SCHEDULE_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/lockstep-schedule-XXXXXX";

/* Reads the file, which has fewer than `bytes` bytes.  Returns its first line of a gradient. */
static inline char *read_schedule(char *text, size_t bytes)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
    (void)fclose(file);
    return strchr(strchr(text, '\n') + 1, '\n') + 1;
}

static inline void write_schedule(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Exchanges two parts of a schedule. */
static inline void exchange(char *one, char *other, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        const char kept = one[i];
        one[i]          = other[i];
        other[i]        = kept;
    }
}

static inline int make_schedule(void **state)
{
    const int fd = mkstemp(path);
    (void)state;
    return fd < 0 || close(fd) != 0 ? -1 : 0;
}

static inline int remove_schedule(void **state)
{
    (void)state;
    return unlink(path);
}

#endif
