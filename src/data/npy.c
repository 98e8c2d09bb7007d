/* npy.c -- npy:X,Y: NumPy arrays of samples and of their labels.
 *
 * X is (N, features), (N, H, W), read as (H, W, 1), or (N, H, W, C); (N) counts as one feature.
 * Bytes (uint8) are pixels (pixels.c).  All other numbers are used unscaled, rounded to FP32.  Y is
 * (N) or (N, 1), of any integer type; there are max + 1 classes.
 */
#include "data/source.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/pixels.h"

typedef struct {
    lki_map  map[2]; /* X, Y */
    lki_npy  x;
    int32_t *labels;
} npy;

/* Returns element `index` of an integer array, sign- or zero-extended to 64 bits. */
static uint64_t integer_at(const lki_npy *array, size_t index)
{
    size_t   width = lk_dtype_bytes(array->dtype);
    uint64_t value = 0;
    LK_ASSERT(width > 0 && width <= sizeof value);
    for (size_t i = width; i-- > 0;)
        value = value << 8 | array->values[index * width + i];
    bool is_signed = array->dtype == LK_I8 || array->dtype == LK_I16 || array->dtype == LK_I32;
    if (is_signed && (value >> (8 * width - 1) & 1) != 0)
        value |= ~UINT64_C(0) << (8 * width);
    return value; /* a negative number becomes a huge unsigned one, which is refused later */
}

static lk_status check_finite(const lki_npy *array, const char *path)
{
    if (array->dtype != LK_F32 && array->dtype != LK_F64)
        return LK_OK;
    for (size_t i = 0; i < array->count; i++)
        if (!isfinite(lki_npy_number(array, i)))
            return lk_fail(LK_EFORMAT, "'%s': element %zu of %zu is not a finite FP32 number",
                           path, i, array->count);
    return LK_OK;
}

static lk_shape sample_shape(const lki_npy *array)
{
    switch (array->rank) {
    case 1: return (lk_shape){ .rank = 1, .dims = { 1 } };
    case 2: return (lk_shape){ .rank = 1, .dims = { array->dims[1] } };
    case 3: return (lk_shape){ .rank = 3, .dims = { array->dims[1], array->dims[2], 1 } };
    default:
        return (lk_shape){ .rank = 3, .dims = { array->dims[1], array->dims[2], array->dims[3] } };
    }
}

static lk_status read_labels(lk_dataset *dataset, const lki_npy *y, char *const path[2])
{
    npy *self = dataset->state;
    if (y->rank > 2 || (y->rank == 2 && y->dims[1] != 1))
        return lk_fail(LK_EFORMAT, "'%s' has %u dimensions of %llu by %llu ...; labels are one "
                                   "column of integers", path[1], y->rank,
                       (unsigned long long)y->dims[0], (unsigned long long)y->dims[1]);
    if (y->dtype == LK_F32 || y->dtype == LK_F64)
        return lk_fail(LK_EFORMAT, "'%s' has labels of type %s; save y.astype('int64')", path[1],
                       lk_dtype_name(y->dtype));
    if (y->dims[0] != self->x.dims[0])
        return lk_fail(LK_EFORMAT, "'%s' has %llu samples, but '%s' has %llu labels", path[0],
                       (unsigned long long)self->x.dims[0], path[1],
                       (unsigned long long)y->dims[0]);
    LK_TRY(LKI_NEW(&self->labels, y->count, "labels"));
    for (size_t i = 0; i < y->count; i++) {
        uint64_t label  = integer_at(y, i);
        self->labels[i] = -1;
        if (lki_is_ignored(dataset, (int64_t)label))
            continue;
        if (label >= LKI_CLASSES_MAX)
            return lk_fail(LK_EFORMAT, "'%s': label %zu is %lld, expected 0 to %d", path[1], i,
                           (long long)label, INT32_MAX - 1);
        self->labels[i] = (int32_t)label;
        if (label >= dataset->info.classes)
            dataset->info.classes = (uint32_t)label + 1;
    }
    return LK_OK;
}

static lk_status open_files(lk_dataset *dataset, char *const path[2])
{
    npy    *self = dataset->state;
    lki_npy y;
    LK_TRY(lki_map_open(&self->map[0], path[0]));
    LK_TRY(lki_file_watch(dataset, path[0]));
    LK_TRY(lki_npy_parse(&self->x, self->map[0].data, self->map[0].bytes, path[0]));
    LK_TRY(lki_map_open(&self->map[1], path[1])); /* its labels are copied */
    LK_TRY(lki_npy_parse(&y, self->map[1].data, self->map[1].bytes, path[1]));
    LK_TRY(check_finite(&self->x, path[0]));
    return read_labels(dataset, &y, path);
}

static lk_status npy_open(lk_dataset *dataset, const char *rest)
{
    npy  *self    = NULL;
    char *path[2] = { NULL, NULL };
    LK_TRY(LKI_NEW(&self, 1, "npy files"));
    dataset->state   = self;
    lk_status status = lki_split_pair(path, rest, "npy:X,Y");
    if (status == LK_OK)
        status = open_files(dataset, path);
    lki_free(path[0]);
    lki_free(path[1]);
    if (status != LK_OK)
        return status;
    if (self->x.dtype == LK_U8)
        lki_pixels_set(dataset, 1, (float[]){ 0.5f }, (float[]){ 0.5f });
    dataset->pixels.by_training = self->x.dtype == LK_U8;
    dataset->total  = self->x.dims[0];
    dataset->info.x = sample_shape(&self->x);
    char hashes[2][33];
    for (int i = 0; i < 2; i++)
        lki_xxh3_128(self->map[i].data, self->map[i].bytes, hashes[i]);
    return lki_hash_of_hashes(dataset->info.content_hash, hashes, 2);
}

static void npy_close(lk_dataset *dataset)
{
    npy *self = dataset->state;
    lki_map_close(&self->map[0]);
    lki_map_close(&self->map[1]);
    lki_free(self->labels);
    lki_free(self);
}

static lk_status npy_read_sample(const lk_dataset *dataset, uint64_t index, float *x,
                                 int32_t *label)
{
    const npy *self  = dataset->state;
    size_t     count = dataset->elements, first = index * count;
    if (self->x.dtype == LK_F32)
        memcpy(x, self->x.values + first * sizeof *x, count * sizeof *x);
    else if (self->x.dtype == LK_U8)
        lki_pixels_convert(dataset, count, self->x.values + first, x);
    else
        for (size_t i = 0; i < count; i++)
            x[i] = lki_npy_number(&self->x, first + i);
    *label = self->labels[index];
    return LK_OK;
}

const lki_source lki_source_npy = {
    .name        = "npy",
    .open        = npy_open,
    .close       = npy_close,
    .read_sample = npy_read_sample,
};
