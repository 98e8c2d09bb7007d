/* base/cpus.h -- the processors (as the kernel numbers them) that a thread may run on. */
#ifndef LKI_CPUS_H
#define LKI_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Neighbours side by side, as /sys tells them: threads of one core, cores of one package. */
typedef struct {
    uint32_t count;
    uint16_t order[CPU_SETSIZE];
    uint32_t packages, cores; /* that these are on */
} lki_cpus;

void lki_cpus_sort(lki_cpus *out, const cpu_set_t *set);

/* Part `index` of `parts`: equal, contiguous in their order. */
void lki_cpus_share(cpu_set_t *out, const lki_cpus *cpus, uint32_t index, uint32_t parts);

#endif
