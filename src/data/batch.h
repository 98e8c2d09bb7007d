/* data/batch.h -- reads several samples at once, and opens data for a trained model. */
#ifndef LKI_DATA_BATCH_H
#define LKI_DATA_BATCH_H

#include "base/status.h"
#include "lockstep/data.h"

/* Reads `count` samples of a part. *length becomes the number of ids and targets stored per sample
 * if samples are documents, else 0 (as in lk_batch). */
LK_NODISCARD lk_status lki_batch_read(const lk_dataset *dataset, bool validation, uint64_t epoch,
                                      const uint64_t *indices, uint32_t count, void *x, int32_t *y,
                                      uint32_t *length);

/* Opens a data set as lk_dataset_open() does.  With `columns` it must be a table that has these
 * columns in this order, and its numbers and texts become values by their means, deviations and
 * levels, not by those of its own training part.  Borrows the texts of the columns until the data
 * set is freed, and the structs for the call. */
LK_NODISCARD lk_status lki_dataset_open_as(lk_dataset **out, const char *spec,
                                           const lk_dataset_options *options,
                                           const lk_column *columns, uint32_t column_count);

/* Returns true if the token ids are the bytes of a text, which no tokenizer has cut. */
bool lki_dataset_is_bytes(const lk_dataset *dataset);

/* Returns the hash of the content without the weights of samples, which is that of the description
 * if there are none. */
const char *lki_dataset_content(const lk_dataset *dataset);

/* Makes all samples the validation part, in the order of the files.  A validation part that the
 * source has stays as it is. */
void lki_dataset_hold_all(lk_dataset *dataset);

/* Opens a data set as lk_dataset_open() does, and makes all samples the validation part in the same
 * way.  Windows of a text begin at its first token, so one token more than `context` is enough.  If
 * `fixed`, the caller cannot have another `context`, and no message advises it. */
LK_NODISCARD lk_status lki_dataset_open_whole(lk_dataset **out, const char *spec,
                                              const lk_dataset_options *options, bool fixed);

#endif
