/* cifar10.c -- cifar10:DIR, the binary version of CIFAR-10.
 *
 * A record is a label byte and 32 x 32 red, then green, then blue bytes.  A sample is (32, 32, 3),
 * channels innermost.  A channel is standardised by its mean and standard deviation over the
 * published training set (to the usual four digits), even if only some files of that set are
 * present.
 *
 * The training data are all data_batch_*.bin in byte order.  Without a validation fraction,
 * test_batch.bin, if present, is the validation part, as is usual for reported results.  With a
 * fraction, test_batch.bin is not read, and the validation part is taken from the training data.
 */
#include "data/pixels.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"

enum { PLANE = 32 * 32, RECORD = 1 + 3 * PLANE, CLASSES = 10 };

typedef struct {
    lki_map *maps;
    size_t   count, capacity;
} cifar10;

static lk_status check_records(const lk_dataset *dataset, const lki_map *map, const char *path)
{
    if (map->bytes == 0)
        return lk_fail(LK_EFORMAT, "'%s' is empty", path);
    if (map->bytes % RECORD != 0)
        return lk_fail(LK_EFORMAT, "'%s' has %zu bytes: %zu records of %d and %zu left over; it is "
                                   "truncated, or not CIFAR-10's binary version", path,
                       map->bytes, map->bytes / RECORD, RECORD, map->bytes % RECORD);
    for (size_t i = 0; i < map->bytes; i += RECORD)
        if (map->data[i] >= CLASSES && !lki_is_ignored(dataset, map->data[i]))
            return lk_fail(LK_EFORMAT, "'%s': record %zu has label %u, expected 0 to %d", path,
                           i / RECORD, map->data[i], CLASSES - 1);
    return LK_OK;
}

/* Adds one file.  `self` owns the file even if its contents turn out to be invalid. */
static lk_status add_file(lk_dataset *dataset, const char *folder, const char *name)
{
    cifar10 *self = dataset->state;
    char    *path = NULL;
    LK_TRY(lki_reserve((void **)&self->maps, &self->capacity, self->count, sizeof *self->maps,
                       "CIFAR-10 files"));
    LK_TRY(lki_path_join(&path, folder, name));
    lk_status status = lki_map_open(&self->maps[self->count], path);
    if (status == LK_OK) {
        self->count++;
        status = lki_file_watch(dataset, path);
    }
    if (status == LK_OK)
        status = check_records(dataset, &self->maps[self->count - 1], path);
    lki_free(path);
    return status;
}

static bool is_batch(const char *name)
{
    size_t length = strlen(name);
    return strncmp(name, "data_batch_", 11) == 0 && length > 15 &&
           strcmp(name + length - 4, ".bin") == 0;
}

static lk_status add_batches(lk_dataset *dataset, const char *folder)
{
    const cifar10 *self = dataset->state;
    lki_listing    files;
    LK_TRY(lki_listing_open(&files, folder, false));
    lk_status status = LK_OK;
    for (size_t i = 0; i < files.count && status == LK_OK; i++)
        if (is_batch(files.paths[i]))
            status = add_file(dataset, folder, files.paths[i]);
    lki_listing_close(&files);
    if (status == LK_OK && self->count == 0)
        status = lk_fail(LK_EIO, "'%s' has no data_batch_*.bin; give the folder of CIFAR-10's "
                                 "binary version (cifar-10-batches-bin)", folder);
    return status;
}

static lk_status add_test(lk_dataset *dataset, const char *folder)
{
    static const char name[] = "test_batch.bin";
    cifar10          *self   = dataset->state;
    char             *path   = NULL;
    LK_TRY(lki_path_join(&path, folder, name));
    bool there = access(path, F_OK) == 0;
    lki_free(path);
    if (!there)
        return LK_OK;
    LK_TRY(add_file(dataset, folder, name));
    dataset->held_out = self->maps[self->count - 1].bytes / RECORD;
    return LK_OK;
}

static lk_status hash_files(lk_dataset *dataset)
{
    const cifar10 *self = dataset->state;
    char (*hashes)[33]  = NULL;
    LK_TRY(LKI_NEW(&hashes, self->count, "hashes"));
    for (size_t i = 0; i < self->count; i++)
        lki_xxh3_128(self->maps[i].data, self->maps[i].bytes, hashes[i]);
    lk_status status = lki_hash_of_hashes(dataset->info.content_hash, hashes, self->count);
    lki_free(hashes);
    return status;
}

static lk_status cifar10_open(lk_dataset *dataset, const char *rest)
{
    cifar10 *self = NULL;
    LK_TRY(LKI_NEW(&self, 1, "CIFAR-10"));
    dataset->state = self;
    LK_TRY(add_batches(dataset, rest));
    if (!(dataset->options.validation > 0))
        LK_TRY(add_test(dataset, rest));
    for (size_t i = 0; i < self->count; i++)
        dataset->total += self->maps[i].bytes / RECORD;
    lki_pixels_set(dataset, 3, (float[]){ 0.4914f, 0.4822f, 0.4465f },
                   (float[]){ 0.2470f, 0.2435f, 0.2616f });
    dataset->info.x       = (lk_shape){ .rank = 3, .dims = { 32, 32, 3 } };
    dataset->info.classes = CLASSES;
    return hash_files(dataset);
}

static void cifar10_close(lk_dataset *dataset)
{
    cifar10 *self = dataset->state;
    for (size_t i = 0; i < self->count; i++)
        lki_map_close(&self->maps[i]);
    lki_free(self->maps);
    lki_free(self);
}

static lk_status cifar10_read_sample(const lk_dataset *dataset, uint64_t index, float *x,
                                int32_t *label)
{
    const cifar10 *self = dataset->state;
    const lki_map *map  = self->maps;
    for (; index >= map->bytes / RECORD; map++)
        index -= map->bytes / RECORD;
    const uint8_t *record = map->data + index * RECORD;
    const uint32_t channels = dataset->pixels.channels;
    *label = record[0];
    for (size_t i = 0; i < PLANE; i++)
        for (size_t c = 0; c < 3; c++)
            x[3 * i + c] = dataset->pixels.value[c % channels][record[1 + c * PLANE + i]];
    return LK_OK;
}

static uint32_t cifar10_file_count(const lk_dataset *dataset)
{
    return (uint32_t)((const cifar10 *)dataset->state)->count - (dataset->held_out > 0);
}

static uint32_t cifar10_file_of(const lk_dataset *dataset, uint64_t index)
{
    const lki_map *map = ((const cifar10 *)dataset->state)->maps;
    uint32_t       file = 0;
    for (; index >= map[file].bytes / RECORD; file++)
        index -= map[file].bytes / RECORD;
    return file;
}

const lki_source lki_source_cifar10 = {
    .name        = "cifar10",
    .open        = cifar10_open,
    .close       = cifar10_close,
    .read_sample = cifar10_read_sample,
    .file_count  = cifar10_file_count,
    .file_of     = cifar10_file_of,
};
