/* idx.c -- idx:IMAGES,LABELS: grey images and their classes, in the format of MNIST.
 *
 * Unless normalized otherwise, a pixel v becomes (v/255 - 0.5) / 0.5, in [-1, 1].  A sample is
 * (H, W, 1).
 */
#include "data/source.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/pixels.h"

typedef struct {
    lki_map map[2]; /* images, labels */
    lki_idx file[2];
} idx;

static lk_status open_files(lk_dataset *dataset, const char *rest)
{
    idx  *self    = dataset->state;
    char *path[2] = { NULL, NULL };
    lk_status status = lki_split_pair(path, rest, "idx:IMAGES,LABELS");
    for (int i = 0; i < 2 && status == LK_OK; i++) {
        status = lki_map_open(&self->map[i], path[i]);
        if (status == LK_OK)
            status = lki_idx_parse(&self->file[i], self->map[i].data, self->map[i].bytes,
                                   i == 0 ? 3 : 1, path[i]);
        if (status == LK_OK && self->file[i].memory == NULL) /* not inflated into a copy */
            status = lki_file_watch(dataset, path[i]);
    }
    if (status == LK_OK && self->file[0].dims[0] != self->file[1].dims[0])
        status = lk_fail(LK_EFORMAT, "'%s' has %llu images, but '%s' has %llu labels", path[0],
                         (unsigned long long)self->file[0].dims[0], path[1],
                         (unsigned long long)self->file[1].dims[0]);
    lki_free(path[0]);
    lki_free(path[1]);
    return status;
}

static lk_status idx_open(lk_dataset *dataset, const char *rest)
{
    idx *self = NULL;
    LK_TRY(LKI_NEW(&self, 1, "IDX files"));
    dataset->state = self;
    LK_TRY(open_files(dataset, rest));
    lki_pixels_set(dataset, 1, (float[]){ 0.5f }, (float[]){ 0.5f });
    dataset->pixels.by_training = true;
    const lki_idx *images = &self->file[0], *labels = &self->file[1];
    uint8_t        max = 0;
    char           hashes[2][33];
    for (size_t i = 0; i < labels->count; i++)
        if (labels->values[i] > max && !lki_is_ignored(dataset, labels->values[i]))
            max = labels->values[i];
    dataset->total        = images->dims[0];
    dataset->info.classes = (uint32_t)max + 1;
    dataset->info.x       = (lk_shape){ .rank = 3,
                                        .dims = { images->dims[1], images->dims[2], 1 } };
    for (int i = 0; i < 2; i++)
        lki_xxh3_128(self->file[i].plain, self->file[i].plain_bytes, hashes[i]);
    return lki_hash_of_hashes(dataset->info.content_hash, hashes, 2);
}

static void idx_close(lk_dataset *dataset)
{
    idx *self = dataset->state;
    for (int i = 0; i < 2; i++) {
        lki_idx_close(&self->file[i]);
        lki_map_close(&self->map[i]);
    }
    lki_free(self);
}

static lk_status idx_read_sample(const lk_dataset *dataset, uint64_t index, float *x,
                                 int32_t *label)
{
    const idx     *self  = dataset->state;
    size_t         count = dataset->elements;
    const uint8_t *from  = self->file[0].values + index * count;
    lki_pixels_convert(dataset, count, from, x);
    *label = self->file[1].values[index];
    return LK_OK;
}

const lki_source lki_source_idx = {
    .name        = "idx",
    .open        = idx_open,
    .close       = idx_close,
    .read_sample = idx_read_sample,
};
