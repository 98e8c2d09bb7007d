/* tar.c -- tar:PATH: images and their classes in tar archives, as WebDataset packs them.
 *
 * Consecutive members with the same key form one sample.  The key is the name up to the first dot
 * after the last slash; the rest is the extension.
 *
 *     train/00017.jpg  train/00017.cls  train/00018.png  train/00018.json  train/00018.cls
 *
 * Members that are neither an image nor a class (picture.c) are ignored, and so are keys that have
 * neither.  Archives are mapped and scanned once when they are opened, to find all members.  So
 * samples can be read in any order, and the state of a run remains one integer.  Decoding is slow
 * and is done when a sample is read; damage inside an image is therefore found only then.
 */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/fileset.h"
#include "data/picture.h"
#include "data/pixels.h"

typedef struct {
    lki_fileset  shards;
    lki_picture *samples;
    size_t       count, capacity;
    lki_picture  now; /* while scanning: the sample to which members are still added */
    uint64_t     classes; /* from the spec; 0: not given */
} archive;

/* ---- Samples -------------------------------------------------------------------------------- */

static lk_status add_member(void *context, const lki_tar *tar, const lki_tar_member *member,
                            const char *extension)
{
    return lki_picture_add(&((archive *)context)->now, tar, member, extension);
}

static lk_status finish_sample(void *context, const lki_tar *tar, const char *key, size_t start)
{
    archive    *self = context;
    lki_picture done = self->now;
    bool        is_one;
    self->now        = (lki_picture){ .shard = done.shard, .label = -1 };
    LK_TRY(lki_picture_end(&done, tar->path, key, start, &is_one));
    if (!is_one)
        return LK_OK;
    LK_TRY(lki_reserve((void **)&self->samples, &self->capacity, self->count,
                       sizeof *self->samples, "samples of archives"));
    self->samples[self->count++] = done;
    return LK_OK;
}

static lk_status find_samples(lk_dataset *dataset, const char *path)
{
    static const char *const endings[] = { ".tar", NULL };
    archive                 *self      = dataset->state;
    const lki_tar_visitor    visitor   = { self, add_member, finish_sample };
    LK_TRY(lki_fileset_open(&self->shards, dataset, path, endings));
    for (size_t i = 0; i < self->shards.count; i++) {
        self->now = (lki_picture){ .shard = (uint32_t)i, .label = -1 };
        LK_TRY(lki_tar_visit(&self->shards.at[i], &visitor));
    }
    return LK_OK;
}

/* ---- Opening -------------------------------------------------------------------------------- */

static lk_status count_classes(lk_dataset *dataset, const char *rest)
{
    const archive *self = dataset->state;
    uint64_t       most = 0;
    for (size_t i = 0; i < self->count; i++)
        if (!lki_is_ignored(dataset, self->samples[i].label))
            most = lki_max(most, (uint64_t)self->samples[i].label);
    if (self->classes > 0 && most >= self->classes)
        return lk_fail(LK_EFORMAT, "'%s' has a sample of class %llu, but classes=%llu: 0 to %llu",
                       rest, (unsigned long long)most, (unsigned long long)self->classes,
                       (unsigned long long)self->classes - 1);
    dataset->info.classes = (uint32_t)(self->classes > 0 ? self->classes : most + 1);
    return LK_OK;
}

static lk_status decode(const lk_dataset *dataset, uint64_t index, lki_image *out)
{
    const archive     *self = dataset->state;
    const lki_picture *from = &self->samples[index];
    const lki_mapped  *in   = &self->shards.at[from->shard];
    lki_tar_member member = { .name = "" };
    lki_tar        tar;
    bool           more;
    lki_tar_begin(&tar, in->map.data, in->map.bytes, in->path);
    tar.at = from->start;
    LK_TRY(lki_tar_next(&tar, &member, &more));
    lki_image_place place = { in->path, member.name, from->start };
    return lki_picture_decode(from, member.content, (uint32_t)dataset->info.x.dims[2], &place, out);
}

/* Hashes the first decoded JPEG, because decoders may differ in bits and their output is part of
 * the content. */
static lk_status hash_decoder(const lk_dataset *dataset, char hex[33])
{
    const archive *self = dataset->state;
    lki_image      image;
    size_t         first = 0;
    while (first < self->count && self->samples[first].is_png)
        first++;
    if (first == self->count) {
        lki_xxh3_128("", 0, hex);
        return LK_OK;
    }
    LK_TRY(decode(dataset, first, &image));
    lki_xxh3_128(image.pixels, (size_t)image.width * image.height * image.channels, hex);
    lki_image_free(&image);
    return LK_OK;
}

static lk_status tar_open(lk_dataset *dataset, const char *rest)
{
    archive *self = NULL;
    char    *path = NULL, decoder[33];
    LK_TRY(LKI_NEW(&self, 1, "archives"));
    dataset->state   = self;
    lk_status status = lki_picture_spec(dataset, &path, rest, &self->classes);
    if (status == LK_OK)
        status = find_samples(dataset, path);
    lki_free(path);
    LK_TRY(status);
    if (self->count == 0)
        return lk_fail(LK_EFORMAT, "'%s' has no samples: %zu archives without a member .cls beside "
                                   "an image", rest, self->shards.count);
    LK_TRY(count_classes(dataset, rest));
    lki_pixels_set(dataset, 1, (float[]){ 0.5f }, (float[]){ 0.5f });
    dataset->total = self->count;
    LK_TRY(hash_decoder(dataset, decoder));
    LK_TRY(lki_fileset_hash(&self->shards, decoder, dataset->info.content_hash));
    return lki_picture_hash(dataset);
}

static void tar_close(lk_dataset *dataset)
{
    archive *self = dataset->state;
    lki_fileset_close(&self->shards);
    lki_free(self->samples);
    lki_free(self);
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* Reads a sample: the part drawn by `draw`, or the centre if `draw` is NULL. */
static lk_status tar_read_part(const lk_dataset *dataset, uint64_t index, const lki_draw *draw,
                               float *x, int32_t *label)
{
    const archive *self = dataset->state;
    lki_image      image;
    LK_TRY(decode(dataset, index, &image));
    lk_status status = lki_picture_fit(dataset, &image, draw, x);
    *label = self->samples[index].label;
    lki_image_free(&image);
    return status;
}

static uint32_t tar_file_count(const lk_dataset *dataset)
{
    return (uint32_t)((const archive *)dataset->state)->shards.count;
}

static uint32_t tar_file_of(const lk_dataset *dataset, uint64_t index)
{
    return ((const archive *)dataset->state)->samples[index].shard;
}

const lki_source lki_source_tar = {
    .name       = "tar",
    .open       = tar_open,
    .close      = tar_close,
    .read_part  = tar_read_part,
    .file_count = tar_file_count,
    .file_of    = tar_file_of,
};
