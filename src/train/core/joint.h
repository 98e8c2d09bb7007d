/* train/core/joint.h -- joint turns: several virtual workers whose samples are computed at once. */
#ifndef LKI_TRAIN_CORE_JOINT_H
#define LKI_TRAIN_CORE_JOINT_H

#include "lockstep/data.h"
#include "nn/parts.h"

/* The samples of a joint turn, one virtual worker after another. */
struct lki_joint {
    uint32_t       most;  /* maximum number of virtual workers of a turn; 1: no joint turns */
    uint32_t       count; /* number of virtual workers of the current turn */
    size_t         x_bytes, y_count; /* of one sample */
    unsigned char *x;
    int32_t       *y;
    uint32_t      *weights;
    lki_pass_part  parts[LKI_PARTS_MAX];
};

typedef struct lki_joint lki_joint;

/* Allocates room for joint turns of up to `most` micro-batches. */
LK_NODISCARD lk_status lki_joint_init(lki_joint *joint, const lk_dataset_info *data, uint32_t most,
                                      uint32_t micro_batch);
void                   lki_joint_deinit(lki_joint *joint);

/* Begins a turn of `count` virtual workers. */
void lki_joint_begin(lki_joint *joint, uint32_t count);

/* Appends the micro-batch of the next virtual worker of the turn to `all`, the batch of the whole
 * turn. */
void lki_joint_add(lki_joint *joint, const lk_batch *batch, uint32_t index, lk_batch *all);

#endif
