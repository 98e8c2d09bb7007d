/* launch/slurm.h -- parses Slurm's lists, and derives the rendezvous of a job step. */
#ifndef LKI_LAUNCH_SLURM_H
#define LKI_LAUNCH_SLURM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the number of tasks on node `node`, from a text such as "2(x3),1" (nodes 0 to 2 have 2
 * tasks, node 3 has 1).  Returns 0 if the text has no entry for the node. */
uint32_t lki_slurm_tasks(const char *text, uint32_t node);

/* Returns the number of tasks on the nodes before `node`. */
uint32_t lki_slurm_tasks_before(const char *text, uint32_t node);

/* Returns true if a list of ranks such as "2,3,4" counts up from `first`, or is empty. */
bool lki_slurm_is_range(const char *ranks, uint32_t first);

/* Returns the number of tasks on all nodes, or a number above LKI_RANKS_MAX if there are more. */
uint32_t lki_slurm_all_tasks(const char *text);

/* Writes the name of the first node of a list such as "n[01-03,7],gpu1" ("n01").  Returns false if
 * the list is malformed, or the name does not fit. */
bool lki_slurm_first_node(char *out, size_t bytes, const char *list);

/* Returns the port of a job step's rendezvous, from 20000 to 29999.  Steps that run at the same
 * time are likely to have different ports. */
uint32_t lki_slurm_port(const char *job, const char *step);

#endif
