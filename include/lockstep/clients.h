/* lockstep/clients.h -- training samples that belong to clients, as in federated learning.
 *
 * The training part of a data set is divided among M clients.  In each round some of them are
 * chosen, and each trains on its own samples only.  Who has which samples, who is chosen, in which
 * order a client takes its samples and who drops out are pure functions of the seed and of the
 * numbers of client and round, never of the ranks that do the work.
 *
 * Threads: several threads may read an lk_clients at once.
 */
#ifndef LK_CLIENTS_H
#define LK_CLIENTS_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_dataset lk_dataset;
typedef struct lk_clients lk_clients;

/* Ways to divide samples.
 *
 *  iid        a keyed permutation, cut into M parts whose sizes differ by at most 1
 *  shards     the samples, sorted by label, are cut into S M parts; each client gets S of them,
 *             drawn by a keyed permutation (McMahan et al. 2017, with S = 2)
 *  dirichlet  the samples of each class are divided in proportions drawn from a symmetric Dirichlet
 *             distribution with parameter alpha; a client may get none
 *  files      a client for each file of the source, in byte order of their names */
typedef enum {
    LK_SPLIT_IID = 0,
    LK_SPLIT_SHARDS,
    LK_SPLIT_DIRICHLET,
    LK_SPLIT_FILES
} lk_split;

enum { LK_NO_CLIENT = 0x7fffffff };

typedef struct {
    size_t   struct_size; /* LK_CLIENTS_OPTIONS_INIT */
    uint32_t count;       /* M */
    lk_split split;
    double   by;   /* shards: S; dirichlet: alpha; else ignored */
    uint64_t seed;
} lk_clients_options;

#define LK_CLIENTS_OPTIONS_INIT LK_OPTIONS_INIT(lk_clients_options)

/* Divides the training part of a data set, which is borrowed.  shards and dirichlet read the label
 * of every sample, and with it the sample.  LK_EINVAL if the split does not suit the data.  Memory:
 * 8 bytes per sample, and up to 24 while they are divided. */
LK_API LK_NODISCARD lk_status lk_clients_open(lk_clients **out, const lk_dataset *dataset,
                                              const lk_clients_options *options);
LK_API void                   lk_clients_free(lk_clients *clients);

/* Returns the number of samples of a client. */
LK_API uint64_t lk_clients_samples(const lk_clients *clients, uint32_t client);
/* Returns the largest number of samples of a client. */
LK_API uint64_t lk_clients_most(const lk_clients *clients);
/* Returns the smallest number of samples of a client. */
LK_API uint64_t lk_clients_least(const lk_clients *clients);

/* Returns the index in the data set of sample `index` of a client. */
LK_API uint64_t lk_clients_sample(const lk_clients *clients, uint32_t client, uint64_t index);

/* Returns the index in the data set of the sample that a client takes at a position of local epoch
 * `epoch` of a round.  The position is below the client's number of samples. */
LK_API uint64_t lk_clients_sample_at(const lk_clients *clients, uint32_t client, uint64_t round,
                                     uint64_t epoch, uint64_t position);

/* Chooses `count` different clients for a round, in ascending order, all with samples.  If fewer
 * have samples, the rest of `chosen` is LK_NO_CLIENT. */
LK_API void lk_clients_choose(const lk_clients *clients, uint64_t round, uint32_t count,
                              uint32_t *chosen);

/* Returns the number of local steps, of `steps`, after which a client stops in a round: `steps` or,
 * with probability `dropout`, a smaller number that is drawn. */
LK_API uint64_t lk_clients_stop(const lk_clients *clients, uint32_t client, uint64_t round,
                                double dropout, uint64_t steps);

/* Returns the seed of the random numbers that a client uses in a round. */
LK_API uint64_t lk_clients_seed(const lk_clients *clients, uint32_t client, uint64_t round);

#ifdef __cplusplus
}
#endif
#endif /* LK_CLIENTS_H */
