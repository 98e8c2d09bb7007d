/* train/saves/types.h -- the types of the weights in a Hugging Face folder.
 *
 * A folder may have tensors of several types, or of another type than its config.json names.  So a
 * run that begins with a folder keeps the type of each tensor, for its export.
 */
#ifndef LKI_TRAIN_SAVES_TYPES_H
#define LKI_TRAIN_SAVES_TYPES_H

#include <jansson.h>

#include "checkpoint/folder.h"

/* Lists the types of all tensors in a folder: an object with "F32", "BF16" and the like, by the
 * names that parameters have here. */
LK_NODISCARD lk_status lki_types_list(json_t **out, const lki_folder *folder);

/* Writes the types of the tensors in the folder `from` to DIR/weight_types.json in `to`, the
 * directory of a run. */
LK_NODISCARD lk_status lki_types_keep(const char *from, const char *to);
/* Reads the types that a run has kept.  *out is NULL if it has none: it began without a folder, or
 * an older version has made it. */
LK_NODISCARD lk_status lki_types_read(json_t **out, const char *run);

/* Sets *dtype to the type of a parameter, and leaves it as it is if `types` is NULL or does not
 * have the parameter.  Fails with LK_EFORMAT unless the type is F32, BF16 or F16.  `path` is named
 * in messages. */
LK_NODISCARD lk_status lki_types_find(lk_dtype *dtype, const json_t *types, const char *param,
                                      const char *path);

#endif
