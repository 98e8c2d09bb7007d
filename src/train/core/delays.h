/* train/core/delays.h -- times of tasks of asynchronous training that are not random: from a file,
 * or by the number of tokens.  See delays.c. */
#ifndef LKI_TRAIN_CORE_DELAYS_H
#define LKI_TRAIN_CORE_DELAYS_H

#include "train/config.h"

typedef struct lki_delays lki_delays;

/* Reads exchange.async.trace, if it is given, and sets trace_hash. */
LK_NODISCARD lk_status lki_trace_check(lk_train_config *config);

/* Opens the times of LK_DELAYS_GIVEN; *out becomes NULL for other delays.  Borrows both
 * arguments. */
LK_NODISCARD lk_status lki_delays_open(lki_delays **out, const lk_train_config *config,
                                       const lk_dataset *dataset);
void                   lki_delays_close(lki_delays *delays);

/* Returns the time of a task (lk_task_time); `delays` is an lki_delays. */
double lki_delays_time(void *delays, uint32_t group, uint64_t clock, uint64_t task);

/* Returns true if tasks differ in tokens only in a short last batch (`last`) or not at all. */
bool lki_tokens_are_equal(const lk_train_config *config, const lk_dataset_info *data, bool *last);

#endif
