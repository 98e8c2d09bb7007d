/* launch/job/rebuild_holdings_testing.h -- for tests: counts descriptors, maps and threads of a
 * worker and its launcher. */
#ifndef LKI_LAUNCH_JOB_REBUILD_HOLDINGS_TESTING_H
#define LKI_LAUNCH_JOB_REBUILD_HOLDINGS_TESTING_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint32_t entries_of(const char *path)
{
    uint32_t count  = 0;
    DIR     *folder = opendir(path);

    if (folder == NULL)
        abort();
    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    return count;
}

static uint32_t maps_of(const char *path)
{
    char     line[512];
    uint32_t count = 0;
    FILE    *file  = fopen(path, "re");

    if (file == NULL)
        abort();
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, "lockstep") != NULL;
    (void)fclose(file);
    return count;
}

typedef struct {
    uint32_t mine, maps, threads, launchers, launcher_maps;
} holdings;

static holdings count_holdings(void)
{
    char fds[64], maps[64];

    (void)snprintf(fds, sizeof fds, "/proc/%d/fd", (int)getppid());
    (void)snprintf(maps, sizeof maps, "/proc/%d/maps", (int)getppid());
    return (holdings){ entries_of("/proc/self/fd"), maps_of("/proc/self/maps"),
                       entries_of("/proc/self/task"), entries_of(fds), maps_of(maps) };
}

static bool as_few(holdings now, holdings before)
{
    return now.mine <= before.mine && now.maps <= before.maps && now.threads <= before.threads
           && now.launchers <= before.launchers && now.launcher_maps <= before.launcher_maps;
}

/* Counts repeatedly until the counts are at most those in `before`, up to a time limit.  Repeats,
 * because the launcher takes a moment to close the descriptors that it sent to the last rank. */
static holdings settle(holdings before)
{
    holdings now = count_holdings();
    for (int left = 20000; left > 0 && !as_few(now, before); left--) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        now = count_holdings();
    }
    return now;
}

#endif
