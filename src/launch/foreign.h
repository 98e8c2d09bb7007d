/* launch/foreign.h -- detects workers that another launcher has started, from the environment.
 *
 * Recognises the environment variables that are set by torchrun and similar launchers, mpirun of
 * Open MPI, mpiexec of MPICH and its relatives, srun, and TF_CONFIG.
 */
#ifndef LKI_LAUNCH_FOREIGN_H
#define LKI_LAUNCH_FOREIGN_H

#include <stdbool.h>

#include "base/status.h"

enum { LKI_RENDEZVOUS_BYTES = 300 };

typedef struct {
    const char *by;              /* name of the launcher; NULL = none, or a job of one process */
    uint32_t    rank, size;      /* rank and number of ranks in the job */
    uint32_t    local_rank, local_size;
    char        rendezvous[LKI_RENDEZVOUS_BYTES]; /* rank 0, "tcp://HOST:PORT"; "" = none */
    const char *key_file;        /* file with the job's key; NULL = none */
    bool        insecure;        /* LOCKSTEP_INSECURE=1: no key is needed */
    uint64_t    job;             /* a number that differs between the jobs of this user on this
                                  * host */
} lki_foreign;

/* Finds the job that the environment describes.  Returns LK_EINVAL if the environment describes
 * only a part of a job, or an impossible job.  The message lists the variables with their values
 * and the missing variables, and says what to do. */
LK_NODISCARD lk_status lki_foreign_find(lki_foreign *out);

/* Checks that the hosts of the job can connect.  LK_EINVAL says whether the address or the key is
 * missing. */
LK_NODISCARD lk_status lki_foreign_check_hosts(const lki_foreign *f);

/* Parses the value of TF_CONFIG (tf_config.c). out->by remains NULL if the value describes no
 * job. */
LK_NODISCARD lk_status lki_tf_config_read(lki_foreign *out, const char *json);

/* Returns the number of tasks on node `node`, from a text such as "2(x3),1" (nodes 0 to 2 have 2
 * tasks, node 3 has 1).  Returns 0 if the text has no entry for the node. */
uint32_t lki_slurm_tasks(const char *text, uint32_t node);

#endif
