/* safetensors_write.c -- writes safetensors files that other readers accept.
 *
 * Tensors are written in the given order.  The header is padded with spaces to a multiple of 8
 * bytes, so tensors of one element type are aligned in a mapping.  The metadata contains "format":
 * "pt", which the usual Python loaders require.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/safetensors.h"

static lk_status check_tensor(const char *file, const lk_tensor *tensor, bool fetched,
                              json_t *seen)
{
    uint64_t count, bytes;
    if (tensor->name == NULL || tensor->name[0] == '\0' ||
        strcmp(tensor->name, "__metadata__") == 0)
        return lk_fail(LK_EINVAL, "%s: a tensor without a usable name", file);
    if (lk_dtype_bytes(tensor->dtype) == 0)
        return lk_fail(LK_EINVAL, "%s: tensor '%s' has no element type", file, tensor->name);
    if (tensor->shape.rank > LK_RANK_MAX)
        return lk_fail(LK_EINVAL, "%s: tensor '%s' has %u dimensions, at most %d", file,
                       tensor->name, tensor->shape.rank, LK_RANK_MAX);
    if (!lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes))
        return lk_fail(LK_EINVAL, "%s: the size of tensor '%s' overflows", file, tensor->name);
    if (tensor->data == NULL && bytes > 0 && !fetched)
        return lk_fail(LK_EINVAL, "%s: tensor '%s' has no data", file, tensor->name);
    if (json_object_get(seen, tensor->name) != NULL)
        return lk_fail(LK_EINVAL, "%s: tensor '%s' is there twice", file, tensor->name);
    if (json_object_set_new(seen, tensor->name, json_true()) != 0)
        return lk_fail(LK_EINVAL, "%s: the name of tensor '%s' is not UTF-8", file, tensor->name);
    return LK_OK;
}

lk_status lki_tensors_check(const lk_checkpoint_file *file)
{
    json_t   *seen   = json_object();
    lk_status status = seen == NULL ? lk_fail(LK_ENOMEM, "the names of '%s'", file->name) : LK_OK;
    for (size_t i = 0; i < file->tensor_count && status == LK_OK; i++)
        status = check_tensor(file->name, &file->tensors[i], file->fetch != NULL, seen);
    json_decref(seen);
    return status;
}

/* Returns the header as JSON; NULL if an allocation fails. */
static json_t *header_of(const lk_tensor *tensors, size_t count)
{
    json_t  *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t at   = 0;
    for (size_t i = 0; i < count && root != NULL; i++) {
        uint64_t elements, bytes;
        bool     fits = lki_shape_size(tensors[i].shape, tensors[i].dtype, &elements, &bytes);
        LK_ASSERT(fits);
        uint64_t end   = at + bytes;
        json_t  *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", lk_dtype_name(tensors[i].dtype),
                                   "shape", lki_shape_dump(tensors[i].shape), "data_offsets",
                                   (json_int_t)at, (json_int_t)end);
        at = end;
        if (json_object_set_new(root, tensors[i].name, entry) != 0) {
            json_decref(root);
            root = NULL;
        }
    }
    return root;
}

static lk_status put_header(lki_output *output, const lk_tensor *tensors, size_t count)
{
    static const char spaces[8] = "        ";
    json_t           *root      = header_of(tensors, count);
    char             *text      = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "the header of '%s'", output->path);

    size_t    used   = strlen(text);
    uint64_t  padded = lki_round_up(used, sizeof spaces);
    lk_status status = LK_OK;
    if (padded > LKI_SAFETENSORS_HEADER_MAX)
        status =
            lk_fail(LK_EINVAL, "%s: %zu tensors need a header of %" PRIu64 " bytes, at most %u",
                    output->path, count, padded, LKI_SAFETENSORS_HEADER_MAX);
    if (status == LK_OK)
        status = lki_output_add(output, &padded, sizeof padded);
    if (status == LK_OK)
        status = lki_output_add(output, text, used);
    if (status == LK_OK)
        status = lki_output_add(output, spaces, (size_t)padded - used);
    free(text);
    return status;
}

static lk_status put_fetched(lki_output *output, const lk_checkpoint_file *file, size_t tensor,
                             size_t elements)
{
    const size_t width = lk_dtype_bytes(file->tensors[tensor].dtype);
    char        *piece = NULL;
    lk_status    status = LKI_NEW(&piece, LK_CHECKPOINT_PIECE * width, "a piece of a tensor");

    for (size_t at = 0; status == LK_OK && at < elements; at += LK_CHECKPOINT_PIECE) {
        size_t count = lki_min(elements - at, LK_CHECKPOINT_PIECE);
        status       = file->fetch(file->context, tensor, at, count, piece);
        if (status == LK_OK)
            status = lki_output_add(output, piece, count * width);
        else if (lk_error_last()->status != status) /* the callback has set no error */
            (void)lk_fail(status, "%s: fetch() could not supply elements %zu to %zu of tensor '%s' "
                                  "(%s)", file->name, at, at + count - 1,
                          file->tensors[tensor].name, lk_status_text(status));
    }
    lki_free(piece);
    return status;
}

lk_status lki_safetensors_put(lki_output *output, const lk_checkpoint_file *file)
{
    LK_TRY(put_header(output, file->tensors, file->tensor_count));
    for (size_t i = 0; i < file->tensor_count; i++) {
        const lk_tensor *tensor = &file->tensors[i];
        uint64_t         elements, bytes;
        bool             fits = lki_shape_size(tensor->shape, tensor->dtype, &elements, &bytes);
        LK_ASSERT(fits);
        if (tensor->data == NULL)
            LK_TRY(put_fetched(output, file, i, (size_t)elements));
        else
            LK_TRY(lki_output_add(output, tensor->data, (size_t)bytes));
    }
    return LK_OK;
}

lk_status lk_safetensors_write(const char *path, const lk_tensor *tensors, size_t count)
{
    const lk_checkpoint_file file = { .name = path, .tensors = tensors, .tensor_count = count };
    LK_TRY(lki_check_given("lk_safetensors_write", "path", path, 1));
    LK_TRY(lki_check_given("lk_safetensors_write", "tensors", tensors, count));
    LK_TRY(lki_tensors_check(&file));
    lki_output output;
    lk_status  status = lki_output_open(&output, path, false);
    if (status == LK_OK)
        status = lki_safetensors_put(&output, &file);
    if (status == LK_OK)
        status = lki_output_finish(&output, false);
    lki_output_free(&output);
    return status;
}
