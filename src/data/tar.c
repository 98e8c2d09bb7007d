/* tar.c -- tar:PATH: pictures and their classes in tar archives, as WebDataset packs them.
 *
 * Members that follow each other and have the same key are one sample: the key is the name up to
 * the first dot after the last slash, and what follows says what it is.
 *
 *      train/00017.jpg  train/00017.cls  train/00018.png  train/00018.json  train/00018.cls
 *
 * An image is .jpg, .jpeg or .png, a class .cls, a number in ASCII; other members are passed over,
 * and so are keys that have neither.  Archives are mapped, and walked through once when they are
 * opened, which finds where everything is: so a sample is read from its place at once, in any
 * order, and the position of a run stays one integer.  What costs time, decoding, is done when a
 * sample is read; of the damage that there can be, only what is inside an image is found as late.
 */
#include "data/source.h"

#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/image.h"
#include "data/fileset.h"

enum { SIDE = 32, CHANNELS = 3 };

typedef struct {
    uint64_t start;  /* of the image's headers */
    uint64_t offset; /* of its content */
    uint64_t bytes;
    uint32_t shard;
    int32_t  label; /* -1: not seen */
    bool     is_png, has_image;
} sample;

typedef struct {
    lki_fileset shards;
    sample    *samples;
    size_t     count, capacity;
    sample     now; /* while they are walked through: the one that may get more */
    uint64_t   height, width, channels, classes; /* as the spec says them; 0: it does not */
    float      pixel[256];
} archive;

/* ---- Samples -------------------------------------------------------------------------------- */

static lk_status read_label(sample *out, const lki_tar *tar, const lki_tar_member *member)
{
    const uint8_t *text  = tar->data + member->offset;
    size_t         bytes = member->bytes, i = 0;
    uint64_t       label = 0;
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r' ||
                         text[bytes - 1] == ' '))
        bytes--;
    while (i < bytes && i < 10 && text[i] >= '0' && text[i] <= '9')
        label = label * 10 + (uint64_t)(text[i++] - '0');
    if (bytes == 0 || i < bytes || label >= LKI_CLASSES_MAX)
        return lk_fail(LK_EFORMAT, "'%s': '%s' at byte %zu is no class: '%.*s', expected a number "
                                   "from 0 to %d", tar->path, member->name, member->start,
                       (int)lki_min(bytes, 20), (const char *)text, INT32_MAX - 1);
    out->label = (int32_t)label;
    return LK_OK;
}

/* Adds what a member says to its sample; one thing twice is a mistake. */
static lk_status add_member(void *context, const lki_tar *tar, const lki_tar_member *member,
                            const char *extension)
{
    sample *to = &((archive *)context)->now;
    bool is_label = strcasecmp(extension, "cls") == 0, is_png = strcasecmp(extension, "png") == 0;
    if (!is_label && !is_png && strcasecmp(extension, "jpg") != 0 &&
        strcasecmp(extension, "jpeg") != 0)
        return LK_OK;
    if (is_label ? to->label >= 0 : to->has_image)
        return lk_fail(LK_EFORMAT, "'%s': '%s' at byte %zu is the second %s of its sample",
                       tar->path, member->name, member->start, is_label ? "class" : "image");
    if (is_label)
        return read_label(to, tar, member);
    to->has_image = true;
    to->is_png    = is_png;
    to->start     = member->start;
    to->offset    = member->offset;
    to->bytes     = member->bytes;
    return LK_OK;
}

static lk_status finish_sample(void *context, const lki_tar *tar, const char *key, size_t start)
{
    archive *self = context;
    sample   done = self->now;
    self->now     = (sample){ .shard = done.shard, .label = -1 };
    if (!done.has_image && done.label < 0)
        return LK_OK;
    if (!done.has_image || done.label < 0)
        return lk_fail(LK_EFORMAT, "'%s': the sample '%s' at byte %zu has %s", tar->path, key,
                       start, done.has_image ? "an image but no class (.cls)"
                                      : "a class but no image (.jpg, .jpeg or .png)");
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
        self->now = (sample){ .shard = (uint32_t)i, .label = -1 };
        LK_TRY(lki_tar_visit(&self->shards.at[i], &visitor));
    }
    return LK_OK;
}

/* ---- Opening -------------------------------------------------------------------------------- */

static lk_status parse_spec(lk_dataset *dataset, char **path, const char *rest)
{
    archive          *self    = dataset->state;
    const lki_setting table[] = {
        { "h", &self->height, 1, 4096 },
        { "w", &self->width, 1, 4096 },
        { "c", &self->channels, 1, 3 },
        { "classes", &self->classes, 1, LKI_CLASSES_MAX },
        { NULL, NULL, 0, 0 },
    };
    const char *settings = strchr(rest, '?');
    LK_TRY(lki_path_join(path, "", rest));
    if (settings != NULL) {
        (*path)[settings - rest] = '\0';
        LK_TRY(lki_settings_parse(settings + 1, '&', table, rest));
    }
    self->height   = self->height > 0 ? self->height : SIDE;
    self->width    = self->width > 0 ? self->width : SIDE;
    self->channels = self->channels > 0 ? self->channels : CHANNELS;
    if (self->channels == 2)
        return lk_fail(LK_EINVAL, "'%s': c is 1 (grey) or 3 (colours)", rest);
    return LK_OK;
}

static lk_status count_classes(lk_dataset *dataset, const char *rest)
{
    const archive *self = dataset->state;
    uint64_t       most = 0;
    for (size_t i = 0; i < self->count; i++)
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
    const archive *self = dataset->state;
    const sample  *from = &self->samples[index];
    const lki_mapped *in = &self->shards.at[from->shard];
    lki_tar_member member = { .name = "" };
    lki_tar        tar;
    bool           more;
    lki_tar_begin(&tar, in->map.data, in->map.bytes, in->path);
    tar.at = from->start;
    LK_TRY(lki_tar_next(&tar, &member, &more));
    lki_image_place place = { in->path, member.name, from->start };
    return (from->is_png ? lki_png_decode : lki_jpeg_decode)(
        out, in->map.data + from->offset, from->bytes, (uint32_t)self->channels, &place);
}

/* Decoders of JPEG need not agree to the bit: what the first one becomes is part of the content. */
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
    lk_status status = parse_spec(dataset, &path, rest);
    if (status == LK_OK)
        status = find_samples(dataset, path);
    lki_free(path);
    LK_TRY(status);
    if (self->count == 0)
        return lk_fail(LK_EFORMAT, "'%s' has no samples: %zu archives without a member .cls beside "
                                   "an image", rest, self->shards.count);
    LK_TRY(count_classes(dataset, rest));
    lki_pixel_table(self->pixel, 0.5f, 0.5f);
    dataset->total  = self->count;
    dataset->info.x = (lk_shape){ .rank = 3,
                                  .dims = { self->height, self->width, self->channels } };
    LK_TRY(hash_decoder(dataset, decoder));
    return lki_fileset_hash(&self->shards, decoder, dataset->info.content_hash);
}

static void tar_close(lk_dataset *dataset)
{
    archive *self = dataset->state;
    lki_fileset_close(&self->shards);
    lki_free(self->samples);
    lki_free(self);
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* `draw`: of a part; NULL: the middle. */
static lk_status tar_read_part(const lk_dataset *dataset, uint64_t index, const lki_draw *draw,
                               float *x, int32_t *label)
{
    const archive *self  = dataset->state;
    uint8_t       *bytes = NULL;
    lki_image      image;
    LK_TRY(decode(dataset, index, &image));
    lk_status status = lki_alloc((void **)&bytes, dataset->elements, "an image");
    lki_rectangle part = { 0, 0, 0, 0 };
    if (draw != NULL)
        part = lki_part_of(dataset, draw, image.height, image.width);
    if (status == LK_OK)
        status = lki_image_fit(&image, draw != NULL ? &part : NULL, (uint32_t)self->height,
                               (uint32_t)self->width, bytes);
    for (size_t i = 0; status == LK_OK && i < dataset->elements; i++)
        x[i] = self->pixel[bytes[i]];
    *label = self->samples[index].label;
    lki_free(bytes);
    lki_image_free(&image);
    return status;
}

static lk_status tar_read_sample(const lk_dataset *dataset, uint64_t index, float *x,
                                 int32_t *label)
{
    return tar_read_part(dataset, index, NULL, x, label);
}

static float tar_blank(const lk_dataset *dataset, uint32_t channel)
{
    (void)channel;
    return ((const archive *)dataset->state)->pixel[0];
}

const lki_source lki_source_tar = {
    .name        = "tar",
    .open        = tar_open,
    .close       = tar_close,
    .read_sample = tar_read_sample,
    .read_part   = tar_read_part,
    .blank       = tar_blank,
};
