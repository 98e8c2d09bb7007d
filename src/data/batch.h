/* data/batch.h -- several samples at once, one behind the other. */
#ifndef LKI_DATA_BATCH_H
#define LKI_DATA_BATCH_H

#include "lockstep/data.h"

/* Reads `count` samples of a part.  *length becomes that of lk_batch: 0, or with documents as many
 * ids and targets as there are of each. */
LK_NODISCARD lk_status lki_batch_read(const lk_dataset *dataset, bool validation, uint64_t epoch,
                                      const uint64_t *indices, uint32_t count, void *x, int32_t *y,
                                      uint32_t *length);

#endif
