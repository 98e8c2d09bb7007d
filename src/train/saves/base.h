/* train/saves/base.h -- the frozen parameters of a model with adapters: the base of the adapters.
 *
 * Checkpoints have the adapters only.  They record the folder or file of the base and the hash of
 * its tensors.
 */
#ifndef LKI_TRAIN_SAVES_BASE_H
#define LKI_TRAIN_SAVES_BASE_H

#include "checkpoint/directory.h"
#include "train/saves/save.h"

/* The origin of the values.  It precedes them in their memory. */
typedef struct {
    char folder[LKI_PATH_BYTES];
    char hash[65];
} lki_base_origin;

struct lki_base {
    const float    **values; /* of each frozen parameter */
    lki_base_origin *origin; /* written by rank 0 */
};

/* Returns the bytes of the values of a model's frozen parameters. */
size_t lki_base_bytes(const lk_model *model);

/* Reads the frozen parameters of `model` from a folder or a file into `memory`, which has
 * lki_base_bytes() bytes and is aligned to 64, and sets the address of each.  `hash` receives that
 * of all tensors in the folder, unless it is NULL. */
LK_NODISCARD lk_status lki_base_read(const char *folder, lk_exec *exec, const lk_model *model,
                                     void *memory, const float **values, char hash[65]);

/* Returns the path of the base that a checkpoint's configuration records; NULL if it has none. */
const char *lki_base_recorded(const json_t *config);

/* Fails with LK_EMISMATCH unless the configuration of a checkpoint has the hash of the base. */
LK_NODISCARD lk_status lki_base_compare(const json_t *config, const char *folder,
                                        const char *hash);

/* Fails with LK_EMISMATCH if a run that continues has another `init` than the recorded path, with
 * other weights. */
LK_NODISCARD lk_status lki_base_check(const lk_train_config *config);

/* Opens the base of the session's model, if that has frozen parameters, in memory that the ranks of
 * a host share.  Rank 0 reads it.  Collective. */
LK_NODISCARD lk_status lki_base_open(lki_session *session);

/* Copies the base to hosts that enter a running communicator.  Collective over `comm`. */
LK_NODISCARD lk_status lki_base_hand_over(const lki_session *session, lk_comm *comm);
/* Opens the base on a rank that has entered, whose host has it by then. */
LK_NODISCARD lk_status lki_base_enter(lki_session *session);
void                   lki_base_close(lki_session *session);

/* Adds the path and the hash of the base to the configuration of a checkpoint. */
void lki_base_write(json_t *config, const lki_session *session);

#endif
