/* cgroup.c -- the limits of this process's cgroup, as the files under /sys/fs/cgroup have them; see
 * cgroup.h. */
#include "cli/cgroup.h"

#include <stdio.h>
#include <string.h>

bool lki_read_text(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t got = fread(text, 1, bytes - 1, file);
    (void)fclose(file);
    while (got > 0 && text[got - 1] == '\n')
        got--;
    text[got] = '\0';
    return true;
}

/* Returns true if a list such as "cpu,cpuacct" names a controller.  That of cgroup 2 is empty, and
 * its controller is "". */
static bool has(const char *list, const char *controller)
{
    const size_t length = strlen(controller);
    while (strncmp(list, controller, length) != 0 || strchr(",", list[length]) == NULL) {
        list = strchr(list, ',');
        if (list == NULL)
            return false;
        list++;
    }
    return true;
}

/* Reads a file of this process's cgroup under a controller ("" for cgroup 2).  In a container the
 * path may be the host's; then the root directory is the process's group. */
static bool cgroup_read(const char *controller, const char *file, char *text, size_t bytes)
{
    char all[4096], path[1024];

    if (!lki_read_text("/proc/self/cgroup", all, sizeof all))
        return false;
    for (char *line = strtok(all, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char *name = strchr(line, ':');
        char *place = name != NULL ? strchr(name + 1, ':') : NULL;
        if (place == NULL)
            continue;
        *place++ = '\0';
        if (!has(name + 1, controller))
            continue;
        const char *slash = controller[0] != '\0' ? "/" : "";
        (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s%s%.500s/%s", slash, controller, place,
                       file);
        if (lki_read_text(path, text, bytes))
            return true;
        (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s%s/%s", slash, controller, file);
        return lki_read_text(path, text, bytes);
    }
    return false;
}

double lki_cgroup_cores(void)
{
    char   text[64];
    double quota = 0, period = 0;

    if (cgroup_read("", "cpu.max", text, sizeof text))
        return sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
    if (!cgroup_read("cpu", "cpu.cfs_quota_us", text, sizeof text)
        || sscanf(text, "%lf", &quota) != 1 || quota <= 0
        || !cgroup_read("cpu", "cpu.cfs_period_us", text, sizeof text)
        || sscanf(text, "%lf", &period) != 1 || period <= 0)
        return 0;
    return quota / period;
}

uint64_t lki_cgroup_memory(void)
{
    static const char *const places[2][3] = {
        { "", "memory.max", "memory.current" },
        { "memory", "memory.limit_in_bytes", "memory.usage_in_bytes" },
    };
    char               text[64];
    unsigned long long limit, used;

    for (int i = 0; i < 2; i++)
        if (cgroup_read(places[i][0], places[i][1], text, sizeof text)
            && sscanf(text, "%llu", &limit) == 1 && limit < 1ULL << 60
            && cgroup_read(places[i][0], places[i][2], text, sizeof text)
            && sscanf(text, "%llu", &used) == 1)
            return limit > used ? limit - used : 0;
    return UINT64_MAX;
}
