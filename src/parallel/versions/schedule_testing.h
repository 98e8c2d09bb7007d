/* parallel/versions/schedule_testing.h -- for tests: the file of a recorded schedule.  Each test
 * program has one. */
#ifndef LKI_PARALLEL_VERSIONS_SCHEDULE_TESTING_H
#define LKI_PARALLEL_VERSIONS_SCHEDULE_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "parallel/recorded_schedule.h"

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

/* Returns the part of line `at` that is of a shard. */
static inline char *cell_at(char *lines, uint32_t shards, uint64_t at, uint32_t shard)
{
    return lines + at * lki_recorded_line_bytes(shards) + LKI_CELLS_AT +
           (size_t)shard * LKI_CELL;
}

static inline unsigned long number_at(const char *text)
{
    return strtoul(text, NULL, 10);
}

/* Leaves of a schedule with shards what a run had written when it was killed: `keeps` lines, and
 * the places of the step in progress that the tasks of these lines have read, with as many more in
 * odd shards as may be. */
static inline void interrupt(char *lines, uint32_t shards, uint64_t keeps, uint32_t groups)
{
    const uint64_t step = keeps / groups * groups;
    for (uint32_t k = 0; k < shards; k++) {
        uint64_t end = step;
        for (uint64_t at = 0; at < keeps; at++)
            end = lki_max(end, at - number_at(cell_at(lines, shards, at, k)));
        uint64_t known = step, at = step;
        while (at < keeps) /* the first places that have kept lines */
            if (number_at(cell_at(lines, shards, at, k) + 7) == known - step) {
                known++;
                at = step;
            } else {
                at++;
            }
        end = k % 2 == 1 ? known : end;
        for (at = step; at < keeps; at++)
            if (number_at(cell_at(lines, shards, at, k) + 7) + step >= end)
                memcpy(cell_at(lines, shards, at, k) + 7, "    - ----", 10);
    }
    lines[keeps * lki_recorded_line_bytes(shards) + 5] = '\0';
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
