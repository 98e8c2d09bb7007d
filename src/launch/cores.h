/* launch/cores.h -- which cores each worker of a job runs on. */
#ifndef LKI_LAUNCH_CORES_H
#define LKI_LAUNCH_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* The cores that this process may run on, neighbours (threads of one core, cores of one package)
 * side by side. */
typedef struct {
    uint32_t count; /* 0 = not known */
    uint16_t order[CPU_SETSIZE];
} lki_cores;

void lki_cores_find(lki_cores *cores);

/* Worker `rank` of `workers` gets an equal, contiguous share.  False where there are more workers
 * than cores: then each runs where there is room. */
bool lki_cores_share(cpu_set_t *out, const lki_cores *cores, uint32_t rank, uint32_t workers);

#endif
