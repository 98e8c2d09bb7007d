/* checkpoint/safetensors.h -- the header of a safetensors file, read and made in memory.
 *
 * The format (Hugging Face safetensors): a u64 with the header's length, the header (JSON, name ->
 * {dtype, shape, data_offsets}, padded with spaces), then the data of all tensors without holes.
 */
#ifndef LKI_SAFETENSORS_H
#define LKI_SAFETENSORS_H

#include <jansson.h>

#include "base/status.h"
#include "checkpoint/output.h"
#include "lockstep/checkpoint.h"

#define LKI_SAFETENSORS_HEADER_MAX 100000000u /* the cap of the reference reader */

/* The tensors of one file in the order of their data. */
typedef struct {
    lk_tensor *tensors;
    char      *names;
    uint64_t  *begins; /* where each tensor's data begins in the file */
    size_t     count;
    size_t     data_at; /* bytes before the first tensor's data */
} lki_safetensors_index;

/* Reads a whole file from memory; tensors point into `data`, perhaps unaligned.  `path` is for
 * messages.  On failure *out is empty. */
LK_NODISCARD lk_status lki_safetensors_parse(lki_safetensors_index *out, const uint8_t *data,
                                             size_t bytes, const char *path);

/* The same by steps, for who does not have the file in memory: tensors have no data.  `header` is
 * the length that a file of `bytes` bytes begins with, and that of `text`, which follows it. */
LK_NODISCARD lk_status lki_safetensors_header_check(uint64_t header, uint64_t bytes,
                                                    const char *path);
LK_NODISCARD lk_status lki_safetensors_parse_header(lki_safetensors_index *out, const char *text,
                                                    size_t header, uint64_t bytes,
                                                    const char *path);

/* Says which tensor lies in bytes [first, end) of the file of this index, which may be empty. */
void lki_safetensors_contents(char out[160], const lki_safetensors_index *index, uint64_t first,
                              uint64_t end);
void lki_safetensors_index_free(lki_safetensors_index *index);

/* lk_safetensors_open() of `bytes` bytes that are mapped already; they must outlive *out. */
LK_NODISCARD lk_status lki_safetensors_view(lk_safetensors **out, const uint8_t *data,
                                            size_t bytes, const char *path);

/* Appends a file with these tensors to an open output. */
LK_NODISCARD lk_status lki_safetensors_put(lki_output *output, const lk_checkpoint_file *file);

/* Refuses names that are empty, twice there or no UTF-8, shapes that overflow, data that is NULL
 * and cannot be fetched.  LK_EINVAL names the tensor. */
LK_NODISCARD lk_status lki_tensors_check(const lk_checkpoint_file *file);

/* Pieces of the header that the manifest shares. */
LK_NODISCARD lk_status lki_shape_parse(lk_shape *out, const json_t *array, const char *path,
                                       const char *name);
LK_NODISCARD lk_status lki_dtype_parse(lk_dtype *out, const char *text, const char *path,
                                       const char *name);
json_t *lki_shape_dump(lk_shape shape);

/* False if the number of elements or of bytes overflows. */
bool lki_shape_size(lk_shape shape, lk_dtype dtype, uint64_t *count, uint64_t *bytes);

#endif
