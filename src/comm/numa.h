/* comm/numa.h -- on which memory the pages of shared memory lie. */
#ifndef LKI_COMM_NUMA_H
#define LKI_COMM_NUMA_H

#include "comm/group.h"

/* 1 + the NUMA node on which this thread runs; 0 where there is one, or it is not known. */
uint32_t lki_numa_here(void);

/* Prefers this rank's node for its seat, which nobody has used yet. */
void lki_numa_settle(const lk_comm *comm);

/* Before the pages of an arena are there: equal parts of it, in order of rank, shall lie on the
 * nodes of the ranks.  Where these are not known, or all the same, the kernel decides. */
void lki_numa_spread(const lk_comm *comm, void *memory, size_t bytes);

#endif
