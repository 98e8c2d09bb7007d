/* data/batch.h -- reads several samples into consecutive memory. */
#ifndef LKI_DATA_BATCH_H
#define LKI_DATA_BATCH_H

#include "lockstep/data.h"

/* Reads `count` samples of a part. *length becomes the number of ids and targets stored per sample
 * if samples are documents, else 0 (as in lk_batch). */
LK_NODISCARD lk_status lki_batch_read(const lk_dataset *dataset, bool validation, uint64_t epoch,
                                      const uint64_t *indices, uint32_t count, void *x, int32_t *y,
                                      uint32_t *length);

/* Makes all samples the validation part, in the order of the files.  Text then begins at its first
 * token.  A validation part that was asked for, or that the source has, stays as it is. */
void lki_dataset_hold_all(lk_dataset *dataset);

#endif
