/* train/saves/groups.h -- what groups keep between steps, in checkpoints.  See groups.c. */
#ifndef LKI_TRAIN_GROUPS_H
#define LKI_TRAIN_GROUPS_H

#include "train/saves/save.h"

/* Returns the file with the values of a list.  Fills in its tensors and their names, for which the
 * caller has memory. */
lk_checkpoint_file lki_group_file(lki_group_list *list, lk_tensor *tensors,
                                  char (*names)[LKI_OPTIMIZER_NAME_MAX]);

/* Loads all values.  `checkpoint` is NULL on ranks other than 0.  Collective. */
LK_NODISCARD lk_status lki_group_load(lki_session *session, const lk_checkpoint *checkpoint);

#endif
