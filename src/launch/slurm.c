/* slurm.c -- parses Slurm's lists, and derives the rendezvous of a job step. */
#include "launch/slurm.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/roster.h"

/* Parses a number of at most LKI_RANKS_MAX and advances *text past it; returns 0 if *text does not
 * begin with such a number. */
static uint32_t take_number(const char **text)
{
    uint32_t value = 0;

    for (; isdigit((unsigned char)**text); ++*text)
        value = (uint32_t)lki_min(value * 10 + (uint32_t)(**text - '0'), LKI_RANKS_MAX + 1);
    return value <= LKI_RANKS_MAX ? value : 0;
}

/* Parses an entry, "2" or "2(x3)", and the comma after it.  Returns false if there is none. */
static bool take_entry(const char **text, uint32_t *tasks, uint32_t *times)
{
    *tasks = take_number(text);
    *times = 1;
    if (strncmp(*text, "(x", 2) == 0) {
        *text += 2;
        *times = take_number(text);
        *text += **text == ')';
    }
    if (*tasks == 0 || *times == 0 || (**text != ',' && **text != '\0'))
        return false;
    *text += **text == ',';
    return true;
}

uint32_t lki_slurm_tasks(const char *text, uint32_t node)
{
    uint32_t tasks, times;

    for (uint32_t before = 0; take_entry(&text, &tasks, &times); before += times)
        if (node < before + times)
            return tasks;
    return 0;
}

uint32_t lki_slurm_tasks_before(const char *text, uint32_t node)
{
    uint32_t tasks, times, all = 0;

    while (node > 0 && all <= LKI_RANKS_MAX && take_entry(&text, &tasks, &times)) {
        times = (uint32_t)lki_min(times, node);
        node -= times;
        all += tasks * times;
    }
    return all;
}

bool lki_slurm_is_range(const char *ranks, uint32_t first)
{
    while (isdigit((unsigned char)*ranks)) {
        if (take_number(&ranks) != first++)
            return false;
        ranks += *ranks == ',';
    }
    return *ranks == '\0';
}

uint32_t lki_slurm_all_tasks(const char *text)
{
    uint32_t tasks, times, all = 0;

    while (all <= LKI_RANKS_MAX && take_entry(&text, &tasks, &times))
        all += tasks * times;
    return all;
}

bool lki_slurm_first_node(char *out, size_t bytes, const char *list)
{
    size_t used   = 0;
    bool   inside = false, first = true; /* inside brackets; in the first entry of them */

    for (; *list != '\0' && (inside || *list != ','); list++) {
        if (*list == (inside ? ']' : '[')) {
            inside = !inside;
            first  = true;
        } else if (inside && (*list == '-' || *list == ',')) {
            first = false;
        } else if (first || !inside) {
            if (used + 1 >= bytes)
                return false;
            out[used++] = *list;
        }
    }
    out[used] = '\0';
    return used > 0 && !inside;
}

uint32_t lki_slurm_port(const char *job, const char *step)
{
    enum { LOW = 20000, PORTS = 10000, STEPS = 7 };
    unsigned long long number = strtoull(job, NULL, 10) * STEPS + strtoull(step, NULL, 10);

    return LOW + (uint32_t)(number % PORTS);
}
