/* launch/foreign.h -- workers that another launcher has started, by what it has put into their
 * environment: torchrun (or whoever sets the same names), mpirun of Open MPI, mpiexec of MPICH and
 * its kin, srun, and TF_CONFIG.
 */
#ifndef LKI_LAUNCH_FOREIGN_H
#define LKI_LAUNCH_FOREIGN_H

#include "base/status.h"

enum { LKI_RENDEZVOUS_BYTES = 300 };

typedef struct {
    const char *by;              /* the launcher; NULL = nobody, or a job of one process */
    uint32_t    rank, size;      /* in the job */
    uint32_t    local_rank, local_size;
    char        rendezvous[LKI_RENDEZVOUS_BYTES]; /* "tcp://HOST:PORT", rank 0's; "" = none */
    uint64_t    job;             /* tells it from other jobs of this user on this host */
} lki_foreign;

/* LK_EINVAL says which name is missing or what does not fit. */
LK_NODISCARD lk_status lki_foreign_find(lki_foreign *out);

/* Of the value of TF_CONFIG (tf_config.c). */
LK_NODISCARD lk_status lki_tf_config_read(lki_foreign *out, const char *json);

/* How many tasks a node has, of "2(x3),1" and so on; 0 where that does not say. */
uint32_t lki_slurm_tasks(const char *text, uint32_t node);

#endif
