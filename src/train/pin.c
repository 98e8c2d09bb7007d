/* pin.c -- binds a worker's threads to its cores, where these are its own.
 *
 * Threads that are bound one by one stay with their caches and their memory.  But of two workers
 * that may run on the same cores each would bind its first thread to the same one, so the workers
 * tell each other where they may run, and who shares a core with another on its machine binds
 * nothing.  A machine is what was booted once: hosts may be emulated on one.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/exec.h"
#include "train/session.h"

/* Where a worker may run. */
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

lk_status lki_pin(lki_session *s)
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
