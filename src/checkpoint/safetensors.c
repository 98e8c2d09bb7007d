/* safetensors.c -- a strict reader of safetensors files.
 *
 * A file may come from any source, so nothing in it is trusted.  The header's length is limited and
 * must fit in the file.  The JSON must be UTF-8 without duplicate keys or unknown fields.  Every
 * product is checked for overflow, and the tensors' ranges, sorted, must tile the data exactly.  A
 * file that passes can be read without further checks.
 *
 * Cost: the header is parsed once.  The data is mapped.  Only tensors that are not aligned to their
 * element size are copied; some other programs write such tensors.
 */
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

struct lk_safetensors {
    lki_map               map; /* empty for a view of another mapping */
    lki_safetensors_index index;
    void                **copies; /* [index.count]: copies of unaligned tensors; NULL for tensors
                                   * used in the mapping */
};

typedef struct {
    lk_tensor tensor;
    uint64_t  begin, end; /* offsets from the start of the data */
    size_t    order;      /* position in the header; determines the order of empty tensors, which
                           * share offsets */
} entry;

/* ---- Helpers shared with the manifest ------------------------------------------------------ */

bool lki_shape_size(lk_shape shape, lk_dtype dtype, uint64_t *count, uint64_t *bytes)
{
    *count = 1;
    for (uint32_t i = 0; i < shape.rank; i++)
        if (__builtin_mul_overflow(*count, shape.dims[i], count))
            return false;
    return !__builtin_mul_overflow(*count, (uint64_t)lk_dtype_bytes(dtype), bytes) &&
           *bytes <= INT64_MAX;
}

lk_status lki_shape_parse(lk_shape *out, const json_t *array, const char *path, const char *name)
{
    *out = (lk_shape){ 0 };
    if (!json_is_array(array))
        return lk_fail(LK_EFORMAT, "%s: the shape of '%s' is not an array", path, name);
    if (json_array_size(array) > LK_RANK_MAX)
        return lk_fail(LK_EUNSUPPORTED, "%s: '%s' has %zu dimensions; at most %d are supported",
                       path, name, json_array_size(array), LK_RANK_MAX);
    out->rank = (uint32_t)json_array_size(array);
    for (uint32_t i = 0; i < out->rank; i++) {
        const json_t *dim = json_array_get(array, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return lk_fail(LK_EFORMAT, "%s: dimension %u of '%s' is not a whole number from 0",
                           path, i, name);
        out->dims[i] = (uint64_t)json_integer_value(dim);
    }
    return LK_OK;
}

json_t *lki_shape_dump(lk_shape shape)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < shape.rank; i++)
        if (json_array_append_new(array, json_integer((json_int_t)shape.dims[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

lk_status lki_dtype_parse(lk_dtype *out, const char *text, const char *path, const char *name)
{
    static const struct { const char *text; lk_dtype dtype; } known[] = {
#define LKI_DTYPE_ROW(name_, code, bytes, text_) { text_, LK_##name_ },
        LK_DTYPE_TABLE(LKI_DTYPE_ROW)
#undef LKI_DTYPE_ROW
        { "BOOL", LK_U8 }, /* masks written by other programs: bytes 0 and 1 */
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].text, text) == 0) {
            *out = known[i].dtype;
            return LK_OK;
        }
    return lk_fail(LK_EUNSUPPORTED, "%s: '%s' has the element type '%.20s', which is not supported",
                   path, name, text);
}

/* ---- The header ---------------------------------------------------------------------------- */

static lk_status parse_metadata(const json_t *value, const char *path)
{
    const char *key;
    json_t     *text;
    if (!json_is_object(value))
        return lk_fail(LK_EFORMAT, "%s: __metadata__ is not an object", path);
    for (void *at = json_object_iter((json_t *)(uintptr_t)value); at != NULL;
         at       = json_object_iter_next((json_t *)(uintptr_t)value, at)) {
        key  = json_object_iter_key(at);
        text = json_object_iter_value(at);
        if (!json_is_string(text))
            return lk_fail(LK_EFORMAT, "%s: __metadata__ '%.60s' is not a string", path, key);
    }
    return LK_OK;
}

static lk_status parse_entry(entry *out, const char *name, json_t *value, const char *path)
{
    json_error_t error;
    const char  *dtype;
    json_t      *shape;
    json_int_t   begin, end;
    if (json_unpack_ex(value, &error, JSON_STRICT, "{s:s, s:o, s:[I, I]}", "dtype", &dtype, "shape",
                       &shape, "data_offsets", &begin, &end) != 0)
        return lk_fail(LK_EFORMAT, "%s: tensor '%s': %s", path, name, error.text);
    if (begin < 0 || end < begin)
        return lk_fail(LK_EFORMAT, "%s: tensor '%s' lies at bytes %lld to %lld", path, name,
                       (long long)begin, (long long)end);
    out->begin = (uint64_t)begin;
    out->end   = (uint64_t)end;
    LK_TRY(lki_dtype_parse(&out->tensor.dtype, dtype, path, name));
    LK_TRY(lki_shape_parse(&out->tensor.shape, shape, path, name));

    uint64_t count, bytes;
    if (!lki_shape_size(out->tensor.shape, out->tensor.dtype, &count, &bytes))
        return lk_fail(LK_EFORMAT, "%s: the size of tensor '%s' overflows", path, name);
    if (bytes != out->end - out->begin)
        return lk_fail(LK_EFORMAT,
                       "%s: tensor '%s' needs %" PRIu64 " bytes for its shape but has %" PRIu64,
                       path, name, bytes, out->end - out->begin);
    return LK_OK;
}

static int by_offset(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

/* Checks that the sorted tensors tile the data from 0 to its end. */
static lk_status check_tiling(const entry *entries, size_t count, uint64_t data_bytes,
                              const char *path)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (entries[i].begin != at)
            return lk_fail(LK_EFORMAT,
                           "%s: tensor '%s' starts at byte %" PRIu64 " of the data, after %s at "
                           "%" PRIu64,
                           path, entries[i].tensor.name, entries[i].begin,
                           entries[i].begin > at ? "a hole that starts" : "a tensor that ends", at);
        at = entries[i].end;
    }
    if (at != data_bytes)
        return lk_fail(LK_EFORMAT, "%s: the tensors take %" PRIu64 " bytes, but the file has %"
                       PRIu64 " for them: it %s", path, at, data_bytes,
                       data_bytes < at ? "is truncated" : "has others behind them");
    return LK_OK;
}

static lk_status index_fill(lki_safetensors_index *out, const entry *entries, size_t count)
{
    size_t name_bytes = 0;
    for (size_t i = 0; i < count; i++)
        name_bytes += strlen(entries[i].tensor.name) + 1;
    LK_TRY(LKI_NEW(&out->tensors, count + 1, "the tensors of a file"));
    LK_TRY(LKI_NEW(&out->begins, count + 1, "the tensors of a file"));
    LK_TRY(LKI_NEW(&out->names, name_bytes + 1, "the names of a file's tensors"));

    char *name = out->names;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = strlen(entries[i].tensor.name) + 1;
        memcpy(name, entries[i].tensor.name, bytes);
        out->tensors[i]      = entries[i].tensor;
        out->tensors[i].name = name;
        out->begins[i]       = out->data_at + entries[i].begin;
        name += bytes;
    }
    out->count = count;
    return LK_OK;
}

static lk_status parse_entries(lki_safetensors_index *out, json_t *root, uint64_t data_bytes,
                               const char *path)
{
    entry *entries = NULL;
    size_t count   = 0;
    LK_TRY(LKI_NEW(&entries, json_object_size(root) + 1, "the header of a file"));

    lk_status status = LK_OK;
    for (void *at = json_object_iter(root); at != NULL && status == LK_OK;
         at       = json_object_iter_next(root, at)) {
        const char *name = json_object_iter_key(at);
        if (strcmp(name, "__metadata__") == 0) {
            status = parse_metadata(json_object_iter_value(at), path);
            continue;
        }
        entries[count].order       = count;
        entries[count].tensor.name = name;
        status = parse_entry(&entries[count], name, json_object_iter_value(at), path);
        count++;
    }
    if (status == LK_OK) {
        qsort(entries, count, sizeof *entries, by_offset);
        status = check_tiling(entries, count, data_bytes, path);
    }
    if (status == LK_OK)
        status = index_fill(out, entries, count);
    lki_free(entries);
    return status;
}

lk_status lki_safetensors_header_check(uint64_t header, uint64_t bytes, const char *path)
{
    if (header > LKI_SAFETENSORS_HEADER_MAX || header > bytes - sizeof header)
        return lk_fail(LK_EFORMAT,
                       "%s is not a safetensors file, or is truncated: a header of %" PRIu64
                       " bytes in a file of %" PRIu64 " (at most %u)",
                       path, header, bytes, LKI_SAFETENSORS_HEADER_MAX);
    return LK_OK;
}

lk_status lki_safetensors_parse_header(lki_safetensors_index *out, const char *text, size_t header,
                                       uint64_t bytes, const char *path)
{
    *out = (lki_safetensors_index){ 0 };
    if (header == 0 || text[0] != '{')
        return lk_fail(LK_EFORMAT, "%s: the header does not start with '{'", path);

    json_error_t error;
    json_t      *root = json_loadb(text, header, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return lk_fail(LK_EFORMAT, "%s: the header, byte %d: %s", path, error.position, error.text);
    out->data_at     = sizeof(uint64_t) + header;
    lk_status status = parse_entries(out, root, bytes - out->data_at, path);
    json_decref(root);
    if (status != LK_OK)
        lki_safetensors_index_free(out);
    return status;
}

lk_status lki_safetensors_parse(lki_safetensors_index *out, const uint8_t *data, size_t bytes,
                                const char *path)
{
    *out = (lki_safetensors_index){ 0 };
    uint64_t header;
    if (bytes < sizeof header)
        return lk_fail(LK_EFORMAT, "%s: %zu bytes are too few for a safetensors file", path, bytes);
    memcpy(&header, data, sizeof header);
    LK_TRY(lki_safetensors_header_check(header, bytes, path));
    LK_TRY(lki_safetensors_parse_header(out, (const char *)data + sizeof header, (size_t)header,
                                        bytes, path));
    for (size_t i = 0; i < out->count; i++)
        out->tensors[i].data = data + out->begins[i];
    return LK_OK;
}

void lki_safetensors_contents(char out[160], const lki_safetensors_index *index, uint64_t first,
                              uint64_t end)
{
    (void)snprintf(out, 160, "%s", first == 0 ? "the header" : "its tensors unknown");
    for (size_t i = 0; i < index->count && first >= index->data_at; i++) {
        uint64_t at = index->begins[i], count, bytes;
        if (lki_shape_size(index->tensors[i].shape, index->tensors[i].dtype, &count, &bytes) &&
            at < end && at + bytes > first) {
            (void)snprintf(out, 160, "tensor '%.120s'", index->tensors[i].name);
            break;
        }
    }
    if (first < index->data_at && index->count > 0)
        (void)snprintf(out, 160, "the header and tensor '%.120s'", index->tensors[0].name);
}

void lki_safetensors_index_free(lki_safetensors_index *index)
{
    lki_free(index->begins);
    lki_free(index->tensors);
    lki_free(index->names);
    *index = (lki_safetensors_index){ 0 };
}

/* ---- Open files ---------------------------------------------------------------------------- */

/* Copies tensors that are not aligned for access through a typed pointer. */
static lk_status align(lk_safetensors *file)
{
    LK_TRY(LKI_NEW(&file->copies, file->index.count + 1, "the copies of unaligned tensors"));
    for (size_t i = 0; i < file->index.count; i++) {
        lk_tensor *tensor = &file->index.tensors[i];
        uint64_t   count, bytes;
        bool       fits = lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes);
        LK_ASSERT(fits);
        if ((uintptr_t)tensor->data % lk_dtype_bytes(tensor->dtype) == 0)
            continue;
        LK_TRY(lki_alloc(&file->copies[i], (size_t)bytes + 1, "an unaligned tensor"));
        if (bytes > 0)
            memcpy(file->copies[i], tensor->data, (size_t)bytes);
        tensor->data = file->copies[i];
    }
    return LK_OK;
}

lk_status lki_safetensors_view(lk_safetensors **out, const uint8_t *data, size_t bytes,
                               const char *path)
{
    *out                 = NULL;
    lk_safetensors *file = NULL;
    LK_TRY(LKI_NEW(&file, 1, "an open safetensors file"));
    lk_status status = lki_safetensors_parse(&file->index, data, bytes, path);
    if (status == LK_OK)
        status = align(file);
    if (status != LK_OK)
        lk_safetensors_free(file);
    else
        *out = file;
    return status;
}

lk_status lk_safetensors_open(lk_safetensors **out, const char *path)
{
    lki_map map;
    *out = NULL;
    LK_TRY(lki_check_given("lk_safetensors_open", "path", path, 1));
    LK_TRY(lki_map_open(&map, path));
    lk_status status = lki_safetensors_view(out, map.data, map.bytes, path);
    if (status == LK_OK)
        (*out)->map = map;
    else
        lki_map_close(&map);
    return status;
}

void lk_safetensors_free(lk_safetensors *file)
{
    if (file == NULL)
        return;
    for (size_t i = 0; file->copies != NULL && i < file->index.count; i++)
        lki_free(file->copies[i]);
    lki_free(file->copies);
    lki_safetensors_index_free(&file->index);
    lki_map_close(&file->map);
    lki_free(file);
}

size_t lk_safetensors_count(const lk_safetensors *file)
{
    return file->index.count;
}

const lk_tensor *lk_safetensors_at(const lk_safetensors *file, size_t index)
{
    return index < file->index.count ? &file->index.tensors[index] : NULL;
}

const lk_tensor *lk_safetensors_find(const lk_safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->index.count && name != NULL; i++)
        if (strcmp(file->index.tensors[i].name, name) == 0)
            return &file->index.tensors[i];
    return NULL;
}
