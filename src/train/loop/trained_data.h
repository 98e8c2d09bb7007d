/* train/loop/trained_data.h -- data for a trained model. */
#ifndef LKI_TRAIN_LOOP_TRAINED_DATA_H
#define LKI_TRAIN_LOOP_TRAINED_DATA_H

#include "lockstep/data.h"
#include "lockstep/train.h"
#include "train/loop/trained.h"

/* Opens the data that the options name.  Context, normalization, ignored label, tokenizer and, for
 * the run's own validation part, the split are those of the run.  The validation part is what to
 * evaluate.  Refuses data that do not fit the model. */
LK_NODISCARD lk_status lki_trained_data_open(lk_dataset **out, const lki_trained *trained,
                                             const lk_evaluate_options *options,
                                             const char *tokenizer);

#endif
