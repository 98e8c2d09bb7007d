/* base/cpus.h -- the processors, in the kernel's numbering, on which a thread may run. */
#ifndef LKI_CPUS_H
#define LKI_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Processors sorted by proximity, as /sys reports it: threads of one core, cores of one package. */
typedef struct {
    uint32_t count;
    uint16_t order[CPU_SETSIZE];
    uint32_t packages, cores; /* number of packages and cores that these processors belong to */
} lki_cpus;

/* Sorts the processors of `set`. */
void lki_cpus_sort(lki_cpus *out, const cpu_set_t *set);

/* Divides the sorted processors into `parts` equal, contiguous parts. *out becomes part `index`. */
void lki_cpus_share(cpu_set_t *out, const lki_cpus *cpus, uint32_t index, uint32_t parts);

#endif
