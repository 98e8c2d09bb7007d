/* train/saves/tokenizer.h -- the copy of a run's tokenizer in its checkpoint directory. */
#ifndef LKI_TRAIN_SAVES_TOKENIZER_H
#define LKI_TRAIN_SAVES_TOKENIZER_H

#include <jansson.h>

#include "lockstep/train.h"

/* Copies the tokenizer of a run, if it has one, to DIR/tokenizer.json in its checkpoint directory,
 * where lk_sample() finds it.  A run that continues from a checkpoint must have the same one:
 * LK_EINVAL.  Also copies the configuration and the other small files of a folder that `init`
 * names, which lk_export() needs. */
LK_NODISCARD lk_status lki_tokenizer_keep(const lk_train_config *config);

/* Fails with LK_EINVAL if these files of a new run would replace others: the directory is not that
 * of a run, and has a file with such a name. */
LK_NODISCARD lk_status lki_kept_check(const lk_train_config *config);

/* Compares the tokenizer of a run that continues with that in its checkpoint directory, if both
 * exist.  Returns LK_EINVAL if they differ. */
LK_NODISCARD lk_status lki_tokenizer_check(const lk_train_config *config);

/* Sets *same to false if a run keeps another configuration of its model than a folder has. */
LK_NODISCARD lk_status lki_kept_compare(bool *same, const char *folder, const char *run);

/* Returns true if text becomes tokens of a model by a tokenizer, and not byte by byte.  `config` is
 * the recorded configuration, or NULL. */
bool                   lki_tokenizer_is_used(const lk_model_options *model, const json_t *config);

/* Checks that the tokenizer in a file has no token that the model at `path` lacks, which has
 * `vocabulary` of them.  If it is not used, it may be of a kind that is not supported. */
LK_NODISCARD lk_status lki_tokenizer_fits(const char *tokenizer, const char *path,
                                          uint32_t vocabulary, bool used);

/* Does the same for the tokenizer of a run with a recorded configuration, or NULL.  One by which
 * its text became tokens must have the same number of tokens, and the recorded hash. */
LK_NODISCARD lk_status lki_tokenizer_fits_run(const char *tokenizer, const char *path,
                                              const lk_model_options *model, const json_t *config);

/* Compares the tokenizer `given` with that of a model, `own`, if that file exists.  Returns
 * LK_EINVAL if they differ. */
LK_NODISCARD lk_status lki_tokenizer_match(const char *given, const char *own);

/* The names of the files that are kept of a folder, ending with NULL. */
extern const char *const lki_kept_names[];

#endif
