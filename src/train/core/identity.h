/* train/core/identity.h -- defines the identity of a run: its options, exactness id and hashes. */
#ifndef LKI_TRAIN_IDENTITY_H
#define LKI_TRAIN_IDENTITY_H

#include "train/core/session.h"

/* Returns the label that an exactness id ends in.  "(not exact)", the only label of earlier
 * versions, promises nothing, because their configuration does not tell what came before. */
lk_label lki_id_label(const char *exactness_id);

/* Returns what a loss needs as targets. */
lk_targets lki_targets_of(lk_loss loss);

/* Returns true if an evaluation measures the errors of numbers, and not the share of hits. */
static inline bool lki_measures_errors(lk_loss loss, bool numbers)
{
    return numbers && loss != LK_LOSS_BCE;
}

/* Returns true if two exactness ids differ by more than their labels. */
bool lki_ids_differ(const char *one, const char *other);

/* Returns the label of the run: the weaker one of its configuration's and of the checkpoint's that
 * it continues from. */
lk_label lki_run_label(const lki_session *session);

/* Takes the label of the checkpoint that the run continues from.  If it is weaker than the run's,
 * exactness id and log have it, too. */
void lki_inherit_label(lki_session *session, lk_label label);

/* The hash of the tokenizer by which text became tokens, in a configuration. */
#define LKI_TOKENIZER_KEY "tokenizer_hash"

/* Returns all options that define the result, by key.  New reference; NULL if out of memory. */
json_t *lki_config_json(const lk_train_config *config, const lk_dataset_info *data);

/* An option that differs, by its name in messages, and its two values. */
typedef struct {
    const char *name;
    char        text[64], mine[256], stored[256];
} lki_config_odd;

typedef enum {
    LKI_COMPARE_RESUMED, /* options may differ that a run which continues may change */
    LKI_COMPARE_ROUNDED, /* so, too; the stored numbers are those of a log, with fewer digits */
    LKI_COMPARE_EXACT    /* not even those may differ, if they change the bits */
} lki_comparison;

/* Finds the first option of `mine` that has another value in `stored`, and may not.  Returns false
 * if there is none. */
bool lki_config_difference(const json_t *stored, const json_t *mine, lki_comparison how,
                           lki_config_odd *out);

/* The advice at the end of errors of lki_config_compare() and lki_data_compare(). */
#define LKI_ADVICE_OPTION                                                                          \
    "; resume with the same value, or start a new run in another directory"
#define LKI_ADVICE_DATA "; resume with the same data, or say `changed_data`"

/* Fails with LK_EINVAL if the options `mine` differ from the options `stored` in the checkpoint.
 * The message names the first differing option. */
LK_NODISCARD lk_status lki_config_compare(const json_t *stored, const json_t *mine,
                                          lki_comparison how);

/* Adds the hash and the number of samples of the data, except for a stream, whose content is not
 * known. `unweighted` is the hash without the weights of samples. */
#define LKI_DATA_KEY "data"
void lki_data_write(json_t *object, const lk_train_config *config, const lk_dataset_info *data,
                    const char *unweighted);

/* Fails with LK_EINVAL if a checkpoint's configuration has the hash of other data, unless the run
 * has `checkpoint.changed_data`.  Earlier versions recorded no hash. */
LK_NODISCARD lk_status lki_data_compare(const json_t *stored, const lk_train_config *config,
                                        const lk_dataset_info *data);

/* Fails with LK_EINVAL if the data `source`, opened without the weights of samples, are not those
 * with which the checkpoint at `path` was made, as far as its configuration has their hash. */
LK_NODISCARD lk_status lki_data_compare_own(const json_t *stored, const char *source,
                                            const lk_dataset_info *data, const char *path);

void lki_exactness_id(const lk_train_config *config, const lk_dataset_info *data, char out[33]);

/* Returns a loss scaler as JSON for a checkpoint. */
json_t *lki_scaler_json(const lk_loss_scaler *scaler);

/* Adds the hash of the recorded schedule up to the last step, if there is one. */
#define LKI_SCHEDULE_KEY "schedule-hash"
void lki_schedule_write(json_t *object, const lk_parallel *parallel);

/* Reads a loss scaler from a checkpoint.  Leaves *scaler unchanged if the checkpoint has no loss
 * scaler. */
void    lki_scaler_read(const json_t *object, lk_loss_scaler *scaler);

/* Returns the averages of the gradient noise scale as JSON for a checkpoint. */
json_t *lki_noise_json(const lk_noise *noise);

/* Reads averages of the gradient noise scale from a checkpoint.  Leaves *noise unchanged if the
 * checkpoint has none. */
void    lki_noise_read(const json_t *object, lk_noise *noise);

/* Appends the bits of a step's loss to the hash chain of losses. */
void lki_loss_chain_add(char chain[65], const char bits[17]);
void lki_loss_bits(double loss, char hex[17]);

/* Computes the hash of all weights.  Collective. */
LK_NODISCARD lk_status lki_weights_hash(const lki_session *session, char hex[65]);

/* Computes the hash of the run: weights, running state, optimizer state and losses.  Collective. */
LK_NODISCARD lk_status lki_run_hash(const lki_session *session, const char *weights, char hex[65]);

#endif
