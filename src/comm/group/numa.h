/* comm/group/numa.h -- placement of shared memory on NUMA nodes. */
#ifndef LKI_COMM_GROUP_NUMA_H
#define LKI_COMM_GROUP_NUMA_H

#include "comm/group/group.h"

/* Returns 1 + the number of the NUMA node on which this thread runs.  Returns 0 if there is only
 * one NUMA node, or if the number is unknown. */
uint32_t lki_numa_here(void);

/* Sets the memory policy of this rank's seat to its NUMA node.  The seat must not have been used
 * yet. */
void lki_numa_settle(const lk_comm *comm);

/* Sets the memory policy of an arena before its pages are allocated.  The arena is divided into
 * equal parts, in order of rank, and each part is requested on the NUMA node of its rank.  Does
 * nothing if the NUMA nodes are unknown or all equal. */
void lki_numa_spread(const lk_comm *comm, void *memory, size_t bytes);

#endif
