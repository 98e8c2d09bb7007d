/* cpus.c -- processors sorted by proximity. */
#include "base/cpus.h"

#include <stdio.h>
#include <stdlib.h>

/* Reads a number, or the first number of a list, from the file `name` of processor `cpu` in /sys.
 * Returns 0 if the file does not exist. */
static unsigned read_topology(unsigned cpu, const char *name)
{
    char     path[96];
    unsigned number = 0;

    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/%s", cpu, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%u", &number) != 1)
        number = 0;
    (void)fclose(file);
    return number;
}

/* Returns a sort key.  Processors are sorted by package, then by the first hardware thread of their
 * core, then by number. */
static uint64_t place_of(unsigned cpu)
{
    return (uint64_t)read_topology(cpu, "physical_package_id") << 32 |
           (uint64_t)read_topology(cpu, "thread_siblings_list") << 16 | cpu;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void lki_cpus_sort(lki_cpus *out, const cpu_set_t *set)
{
    uint64_t places[CPU_SETSIZE];

    *out = (lki_cpus){ .count = 0 };
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set))
            places[out->count++] = place_of(cpu);
    qsort(places, out->count, sizeof *places, ascending);
    for (uint32_t i = 0; i < out->count; i++) {
        out->order[i] = (uint16_t)(places[i] & 0xffff);
        out->packages += i == 0 || places[i] >> 32 != places[i - 1] >> 32;
        out->cores += i == 0 || places[i] >> 16 != places[i - 1] >> 16;
    }
}

void lki_cpus_share(cpu_set_t *out, const lki_cpus *cpus, uint32_t index, uint32_t parts)
{
    uint64_t first = (uint64_t)cpus->count * index / parts;
    uint64_t end   = (uint64_t)cpus->count * (index + 1) / parts;

    CPU_ZERO(out);
    for (uint64_t i = first; i < end; i++)
        CPU_SET(cpus->order[i], out);
}
