/* checkpoint/safetensors.h -- the header of a safetensors file, parsed and written in memory.
 *
 * The format (Hugging Face safetensors) is a u64 with the header's length, the header (JSON, name
 * -> {dtype, shape, data_offsets}, padded with spaces), then the data of all tensors without
 * gaps.
 */
#ifndef LKI_SAFETENSORS_H
#define LKI_SAFETENSORS_H

#include <jansson.h>

#include "base/status.h"
#include "checkpoint/output.h"
#include "lockstep/checkpoint.h"

#define LKI_SAFETENSORS_HEADER_MAX 100000000u /* the limit in Hugging Face's own reader */

/* The tensors of one file in the order of their data. */
typedef struct {
    lk_tensor *tensors;
    char      *names;
    uint64_t  *begins; /* offset in the file of each tensor's data */
    size_t     count;
    size_t     data_at; /* offset of the first tensor's data */
} lki_safetensors_index;

/* Parses a whole file in memory.  Tensors point into `data`, possibly unaligned. `path` is used
 * only in messages.  On failure *out is empty. */
LK_NODISCARD lk_status lki_safetensors_parse(lki_safetensors_index *out, const uint8_t *data,
                                             size_t bytes, const char *path);

/* Checks `header`, the header length that the first 8 bytes of a file state.  The file has `bytes`
 * bytes. */
LK_NODISCARD lk_status lki_safetensors_header_check(uint64_t header, uint64_t bytes,
                                                    const char *path);
/* Parses only a header, for a file that is not in memory.  Tensors have no data.  `text` has the
 * `header` bytes after the length. */
LK_NODISCARD lk_status lki_safetensors_parse_header(lki_safetensors_index *out, const char *text,
                                                    size_t header, uint64_t bytes,
                                                    const char *path);

/* Writes to `out` the name of the tensor that is stored in bytes [first, end) of the file. `index`
 * may be empty. */
void lki_safetensors_contents(char out[160], const lki_safetensors_index *index, uint64_t first,
                              uint64_t end);
void lki_safetensors_index_free(lki_safetensors_index *index);

/* Opens `bytes` bytes that are already mapped, as lk_safetensors_open() does.  The bytes must
 * outlive *out. */
LK_NODISCARD lk_status lki_safetensors_view(lk_safetensors **out, const uint8_t *data,
                                            size_t bytes, const char *path);

/* Appends a file with these tensors to an open output. */
LK_NODISCARD lk_status lki_safetensors_put(lki_output *output, const lk_checkpoint_file *file);

/* Checks the tensors of a file.  Returns LK_EINVAL, naming the tensor, for names that are empty,
 * duplicate or not UTF-8, shapes that overflow, and data that is NULL and cannot be fetched. */
LK_NODISCARD lk_status lki_tensors_check(const lk_checkpoint_file *file);

/* Parses a shape in a safetensors header or a manifest. */
LK_NODISCARD lk_status lki_shape_parse(lk_shape *out, const json_t *array, const char *path,
                                       const char *name);
/* Parses the name of a data type in a safetensors header or a manifest. */
LK_NODISCARD lk_status lki_dtype_parse(lk_dtype *out, const char *text, const char *path,
                                       const char *name);
/* Returns a shape as a JSON array. */
json_t *lki_shape_dump(lk_shape shape);

/* Computes the number of elements and bytes.  Returns false if either overflows. */
bool lki_shape_size(lk_shape shape, lk_dtype dtype, uint64_t *count, uint64_t *bytes);

#endif
