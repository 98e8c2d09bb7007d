/* affinity.c -- binds a worker's threads to cores that no other worker uses.
 *
 * Bound threads stay close to their caches and memory.  But two workers that may run on the same
 * cores would each bind their first thread to the same core.  So workers exchange their sets of
 * cores.  A worker that shares a core with another worker of its machine does not bind its threads.
 * A machine is identified by its boot id, since several emulated hosts may run on it.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/exec.h"
#include "train/core/session.h"

/* The machine and the cores on which a worker may run. */
typedef struct {
    char      machine[40];
    cpu_set_t cpus;
} whereabouts;

static whereabouts find_mine(void)
{
    whereabouts mine = { .machine = "" };
    FILE       *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file != NULL) {
        (void)!fgets(mine.machine, sizeof mine.machine, file);
        (void)fclose(file);
    }
    if (sched_getaffinity(0, sizeof mine.cpus, &mine.cpus) != 0)
        CPU_ZERO(&mine.cpus);
    return mine;
}

static bool overlap(const whereabouts *a, const whereabouts *b)
{
    cpu_set_t both;
    CPU_AND(&both, &a->cpus, &b->cpus);
    return strcmp(a->machine, b->machine) == 0 && CPU_COUNT(&both) > 0;
}

lk_status lki_set_affinity(lki_session *s)
{
    whereabouts mine = find_mine(), *all = NULL;
    bool        alone = s->config->pin;

    LK_TRY(LKI_NEW(&all, s->ranks, "where workers may run"));
    lk_status status = lk_all_gather(s->comm, &mine, all, sizeof mine);
    for (uint32_t r = 0; status == LK_OK && alone && r < s->ranks; r++)
        alone = r == s->rank || !overlap(&mine, &all[r]);
    lki_free(all);
    return status == LK_OK && alone ? lki_exec_pin(s->exec) : status;
}
