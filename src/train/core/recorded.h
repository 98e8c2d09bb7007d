/* train/core/recorded.h -- the model of a run, as its checkpoints record it. */
#ifndef LKI_TRAIN_RECORDED_H
#define LKI_TRAIN_RECORDED_H

#include <jansson.h>

#include "lockstep/train.h"

/* Reads the name and the options of the model from the configuration of a checkpoint.  `path` is
 * named in messages.  *name and strings of *options point into `config`.  Returns LK_EFORMAT if the
 * configuration names no model, as that of a program's own model. */
LK_NODISCARD lk_status lki_recorded_model(const json_t *config, const char *path,
                                          const char **name, lk_model_options *options);

#endif
