/* allowance.c -- the share of the machine that this process may use; see lockstep/base.h.
 *
 * The limits of a cgroup (a container) and of every group above hold.  So all of them are read, and
 * the smallest counts.  A limit that cannot be read is none.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "lockstep/base.h"

enum { TEXT_BYTES = 4096, PATH_BYTES = 1024 };

/* Reads the beginning of a small file.  Returns false if it cannot be read. */
static bool read_text(const char *folder, const char *name, char text[TEXT_BYTES])
{
    char path[PATH_BYTES + 64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    text[fread(text, 1, TEXT_BYTES - 1, file)] = '\0';
    (void)fclose(file);
    return true;
}

/* Reads the number after `key`, or that at the beginning of the file if `key` is "".  Returns false
 * if there is no number, such as for "max". */
static bool read_number(const char *folder, const char *name, const char *key, double *out)
{
    char        text[TEXT_BYTES];
    const char *from = read_text(folder, name, text) ? strstr(text, key) : NULL;
    return from != NULL && sscanf(from + strlen(key), "%lf", out) == 1;
}

/* ---- The limits of one group --------------------------------------------------------------- */

static void limit_cores(lk_allowance *a, double quota, double period)
{
    const double cores = period > 0 ? quota / period : 0; /* without a limit the quota is -1 */
    if (cores > 0 && (a->granted_cores == 0 || cores < a->granted_cores))
        a->granted_cores = cores;
}

/* The kernel counts page cache as used, but can reclaim it. */
static void limit_bytes(lk_allowance *a, double limit, double used, double cache)
{
    const double most = (double)(1ULL << 60); /* without a limit cgroup 1 has a larger number */
    const double rest = limit - (used > cache ? used - cache : 0);
    if (limit < most && rest < (double)a->granted_bytes)
        a->granted_bytes = rest > 0 ? (uint64_t)rest : 0;
}

static void limit_by_cgroup_2(lk_allowance *a, const char *folder)
{
    char   text[TEXT_BYTES];
    double quota, period, limit, used, cold, warm;
    if (read_text(folder, "cpu.max", text) && sscanf(text, "%lf %lf", &quota, &period) == 2)
        limit_cores(a, quota, period);
    if (read_number(folder, "memory.max", "", &limit) &&
        read_number(folder, "memory.current", "", &used) &&
        read_number(folder, "memory.stat", "\ninactive_file ", &cold) &&
        read_number(folder, "memory.stat", "\nactive_file ", &warm))
        limit_bytes(a, limit, used, cold + warm);
}

static void limit_by_cpu(lk_allowance *a, const char *folder)
{
    double quota, period;
    if (read_number(folder, "cpu.cfs_quota_us", "", &quota) &&
        read_number(folder, "cpu.cfs_period_us", "", &period))
        limit_cores(a, quota, period);
}

static void limit_by_memory(lk_allowance *a, const char *folder)
{
    double limit, used, cold, warm;
    if (read_number(folder, "memory.limit_in_bytes", "", &limit) &&
        read_number(folder, "memory.usage_in_bytes", "", &used) &&
        read_number(folder, "memory.stat", "\ntotal_inactive_file ", &cold) &&
        read_number(folder, "memory.stat", "\ntotal_active_file ", &warm))
        limit_bytes(a, limit, used, cold + warm);
}

/* ---- The groups of this process ------------------------------------------------------------ */

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

/* Returns the path of this process's group under a controller, such as "/a/b", as a part of `text`;
 * NULL if there is none. */
static const char *find_group(const char *controller, char text[TEXT_BYTES])
{
    if (!read_text("/proc/self", "cgroup", text))
        return NULL;
    char *rest = text;
    for (char *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        char *list  = strchr(line, ':');
        char *group = list != NULL ? strchr(list + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        if (has(list + 1, controller))
            return group;
    }
    return NULL;
}

/* Applies the limits of this process's group under a controller, and of those above it.  In a
 * container the path may be the host's, of which only the root exists here. */
static void limit_by(const char *controller, lk_allowance *a,
                     void (*limit)(lk_allowance *a, const char *folder))
{
    char        text[TEXT_BYTES], folder[PATH_BYTES];
    const char *group = find_group(controller, text);
    if (group == NULL)
        return;
    const char *slash = controller[0] != '\0' ? "/" : "";
    const int   root  = snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", slash, controller);
    (void)snprintf(folder + root, sizeof folder - (size_t)root, "%s", group);
    for (char *end = folder + strlen(folder); end != NULL && end >= folder + root;
         end       = strrchr(folder, '/')) {
        *end = '\0';
        limit(a, folder);
    }
}

lk_allowance lk_allowance_read(void)
{
    lk_allowance a = { .bound_cores = 1, .granted_bytes = UINT64_MAX };
    cpu_set_t    cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        a.bound_cores = (uint32_t)CPU_COUNT(&cpus);
    limit_by("", &a, limit_by_cgroup_2);
    limit_by("cpu", &a, limit_by_cpu);
    limit_by("memory", &a, limit_by_memory);
    a.cores = a.bound_cores;
    if (a.granted_cores > 0 && a.granted_cores < a.bound_cores) {
        a.cores = (uint32_t)a.granted_cores;
        if (a.cores < a.granted_cores)
            a.cores++;
    }
    return a;
}
