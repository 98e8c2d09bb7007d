/* launch/foreign.h -- detects workers that another launcher has started, from the environment.
 *
 * launchers.def is the table of the launchers and their variables.
 */
#ifndef LKI_LAUNCH_FOREIGN_H
#define LKI_LAUNCH_FOREIGN_H

#include <stdbool.h>

#include "base/status.h"

enum { LKI_RENDEZVOUS_BYTES = 300 };

typedef struct {
    const char *by;              /* name of the launcher; NULL = none, or a job of one process */
    bool        by_mpi;          /* the launcher starts MPI programs */
    uint32_t    rank, size;      /* rank and number of ranks in the job */
    uint32_t    local_rank, local_size;
    const char *scattered;       /* not NULL: the ranks of this host are not consecutive, and this
                                  * option of the launcher would make them so */
    char        rendezvous[LKI_RENDEZVOUS_BYTES]; /* rank 0, "tcp://HOST:PORT"; "" = none */
    const char *store;           /* not NULL: the launcher's key-value store listens at
                                  * `rendezvous` (shared_port.h).  The text identifies the run */
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

/* Returns the MPI whose launcher has set variables of this process, as in the name of its module
 * (modules.c): "openmpi" or "mpich".  NULL = none. */
const char *lki_foreign_mpi(void);

/* Writes the variables of the launcher `by` and their values: "RANK=0 and WORLD_SIZE=4". */
void lki_foreign_variables(char *out, size_t bytes, const char *by);

/* Parses the value of TF_CONFIG (tf_config.c). out->by remains NULL if the value describes no
 * job. */
LK_NODISCARD lk_status lki_tf_config_read(lki_foreign *out, const char *json);

#endif
