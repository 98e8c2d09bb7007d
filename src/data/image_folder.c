/* image_folder.c -- folder:DIR: images in a folder for each class, as ImageNet is unpacked.
 *
 *     DIR/train/CLASS/NAME.jpg   DIR/val/CLASS/NAME.jpg      or      DIR/CLASS/NAME.png
 *
 * Classes are numbered in byte order of their names, and samples are in byte order of class and
 * path.  Opening lists all files and reads them once, for the content hash.  A sample is read and
 * decoded when it is needed, so damage inside an image is found only then.  A file that has changed
 * since opening is an error.
 *
 * Memory: the path of a file below its class, and 24 bytes.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/sort.h"
#include "data/picture.h"
#include "data/pixels.h"

enum { PATH_BYTES = 4096 };

typedef struct {
    size_t   name; /* offset in `names` */
    uint32_t class, bytes;
    int64_t  written; /* modification time in nanoseconds */
} entry;

typedef struct {
    char       *train, *val; /* folders of the parts; `val` may be NULL */
    char      **classes;
    size_t      class_count;
    entry      *samples;
    size_t      count, capacity, train_count;
    char       *names; /* the paths below the folders of classes, each with a NUL */
    size_t      names_used, names_capacity;
    uint32_t    channels;
} folder;

/* ---- Folders -------------------------------------------------------------------------------- */

static bool has_folder(const char *parent, const char *name)
{
    char path[PATH_BYTES];
    return snprintf(path, sizeof path, "%s/%s", parent, name) < PATH_BYTES && lki_is_folder(path);
}

/* Returns the next entry of a folder, or NULL, with errno 0 at the end. */
static const struct dirent *next_entry(DIR *handle)
{
    errno = 0;
    return readdir(handle);
}

/* Lists the folders in a folder, also those behind links, in byte order.  The caller frees the list
 * with lki_listing_close(), also on failure.  (lki_listing_open() lists files, and follows no
 * links.) */
static lk_status list_folders(lki_listing *out, const char *path)
{
    DIR *handle = opendir(path);
    *out        = (lki_listing){ NULL, 0, 0 };
    if (handle == NULL)
        return lk_fail(LK_EIO, "cannot open the folder '%s': %s", path, strerror(errno));
    lk_status            status = LK_OK;
    const struct dirent *item;
    while (status == LK_OK && (item = next_entry(handle)) != NULL) {
        if (item->d_name[0] == '.' || !has_folder(path, item->d_name))
            continue;
        status = lki_reserve((void **)&out->paths, &out->capacity, out->count, sizeof *out->paths,
                             "list of folders");
        if (status == LK_OK)
            status = lki_path_join(&out->paths[out->count], "", item->d_name);
        out->count += status == LK_OK;
    }
    if (status == LK_OK && errno != 0)
        status = lk_fail(LK_EIO, "cannot list '%s': %s", path, strerror(errno));
    (void)closedir(handle);
    if (out->count > 0)
        qsort(out->paths, out->count, sizeof *out->paths, lki_by_bytes);
    return status;
}

static bool has_name(const lki_listing *folders, const char *name)
{
    for (size_t i = 0; i < folders->count; i++)
        if (strcmp(folders->paths[i], name) == 0)
            return true;
    return false;
}

/* Returns the first folder whose name is not that of a part; NULL if there is none. */
static const char *first_class(const lki_listing *folders)
{
    static const char *const parts[] = { "train", "val", "validation", "test" };
    for (size_t i = 0; i < folders->count; i++) {
        bool known = false;
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++)
            known = known || strcmp(folders->paths[i], parts[p]) == 0;
        if (!known)
            return folders->paths[i];
    }
    return NULL;
}

/* Returns true if a name is in a list, in any case. */
static bool is_like(const char *name, const char *const *list)
{
    while (*list != NULL && strcasecmp(name, *list) != 0)
        list++;
    return *list != NULL;
}

/* Fails if folders that would be classes have names like those of parts: all of them, or one like
 * `val` and another one. */
static lk_status check_classes(const lki_listing *folders, const char *path)
{
    static const char *const held[] = { "val", "valid", "validation", NULL };
    static const char *const rest[] = { "train", "training", "test", "testing", NULL };
    const char              *first = NULL, *last = NULL;
    bool                     val = false;
    size_t                   alike = 0;
    for (size_t i = 0; i < folders->count; i++) {
        const char *name = folders->paths[i];
        const bool  is_val = is_like(name, held);
        if (!is_val && !is_like(name, rest))
            continue;
        val   = val || is_val;
        first = first != NULL ? first : name;
        last  = name;
        alike++;
    }
    if (alike == 0 || (alike < folders->count && !(val && alike > 1)))
        return LK_OK;
    return lk_fail(LK_EFORMAT, "'%s' has %s%s%s, which are no names for classes, and parts are "
                               "called train, val or validation, and test: rename them, or give a "
                               "part alone as 'folder:%s/%s'", path, first,
                   alike > 1 ? " and " : "", alike > 1 ? last : "", path, first);
}

/* Sets *parts to true if the folders are parts of a data set, `train` and perhaps others, and not
 * classes, one of which may be called `train`.  Fails if they are a mix of both, parts without
 * `train`, or parts with other names. */
static lk_status check_parts(bool *parts, const lki_listing *folders, const char *path)
{
    const char *class = first_class(folders);
    const char *val   = has_name(folders, "val") ? "val" : "validation";
    const bool  train = has_name(folders, "train");
    *parts            = train && class == NULL;
    if (train && class != NULL && has_name(folders, val))
        return lk_fail(LK_EFORMAT, "'%s' has the parts train and %s, and %s, which is no part: "
                                   "move %s away, or give 'folder:%s/train' and `validation` "
                                   "FRACTION", path, val, class, class, path);
    if (!train && class == NULL && folders->count > 0)
        return lk_fail(LK_EFORMAT, "'%s' has the part %s, but no train; give a part alone as "
                                   "'folder:%s/%s'", path, folders->paths[0], path,
                       folders->paths[0]);
    return *parts ? LK_OK : check_classes(folders, path);
}

/* Sets the folders of the training and validation parts. */
static lk_status find_parts(lk_dataset *dataset, const char *path)
{
    folder     *self = dataset->state;
    lki_listing folders;
    bool        parts  = false;
    lk_status   status = list_folders(&folders, path);
    if (status == LK_OK)
        status = check_parts(&parts, &folders, path);
    if (status == LK_OK)
        status = parts ? lki_path_join(&self->train, path, "train")
                       : lki_path_join(&self->train, "", path);
    for (size_t i = 0; parts && status == LK_OK && i < folders.count; i++) {
        const char *name = folders.paths[i];
        if (strncmp(name, "val", 3) != 0 || dataset->options.validation > 0)
            continue;
        if (self->val != NULL)
            status = lk_fail(LK_EFORMAT, "the folder '%s' has val and validation; leave one", path);
        else
            status = lki_path_join(&self->val, path, name);
    }
    lki_listing_close(&folders);
    return status;
}

/* ---- Files ---------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *const *endings)
{
    const char *dot = strrchr(path, '.');
    for (; dot != NULL && *endings != NULL; endings++)
        if (strcasecmp(dot, *endings) == 0)
            return true;
    return false;
}

static lk_status path_of(const folder *self, const entry *sample, char out[PATH_BYTES])
{
    const bool  train = (size_t)(sample - self->samples) < self->train_count ||
                       self->val == NULL;
    const char *part  = train ? self->train : self->val;
    if (snprintf(out, PATH_BYTES, "%s/%s/%s", part, self->classes[sample->class],
                 self->names + sample->name) >= PATH_BYTES)
        return lk_fail(LK_EINVAL, "'%s' has a path of over %d bytes", part, PATH_BYTES - 1);
    return LK_OK;
}

static lk_status look_at(const char *path, struct stat *info, int64_t *written)
{
    *info = (struct stat){ .st_size = 0 };
    if (stat(path, info) != 0)
        return lk_fail(LK_EIO, "cannot look at '%s': %s", path, strerror(errno));
    *written = (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
    return LK_OK;
}

static lk_status keep_name(folder *self, const char *name, size_t *at)
{
    const size_t bytes = strlen(name) + 1;
    while (self->names_capacity - self->names_used < bytes)
        LK_TRY(lki_reserve((void **)&self->names, &self->names_capacity, self->names_capacity, 1,
                           "names of files"));
    *at = self->names_used;
    memcpy(self->names + *at, name, bytes);
    self->names_used += bytes;
    return LK_OK;
}

static lk_status add_file(folder *self, const char *path, const char *name, uint32_t class)
{
    static const char *const others[] = { ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", NULL };
    static const char *const known[]  = { ".jpg", ".jpeg", ".png", NULL };
    char                     whole[PATH_BYTES];
    struct stat              info;
    if (ends_in(name, others))
        return lk_fail(LK_EUNSUPPORTED, "'%s/%s' is neither JPEG nor PNG; convert it, or take it "
                                        "away", path, name);
    if (!ends_in(name, known))
        return LK_OK;
    LK_TRY(lki_reserve((void **)&self->samples, &self->capacity, self->count,
                       sizeof *self->samples, "files of a folder"));
    entry *added = &self->samples[self->count];
    *added       = (entry){ .class = class };
    if (snprintf(whole, sizeof whole, "%s/%s", path, name) >= PATH_BYTES)
        return lk_fail(LK_EINVAL, "'%s' has a path of over %d bytes", path, PATH_BYTES - 1);
    LK_TRY(look_at(whole, &info, &added->written));
    if (info.st_size == 0 || info.st_size > UINT32_MAX)
        return lk_fail(LK_EFORMAT, "'%s' has %lld bytes; it is no image", whole,
                       (long long)info.st_size);
    added->bytes = (uint32_t)info.st_size;
    LK_TRY(keep_name(self, name, &added->name));
    self->count++;
    return LK_OK;
}

/* Adds the images of a class. */
static lk_status add_class(folder *self, const char *part, uint32_t class)
{
    char        path[PATH_BYTES];
    lki_listing files;
    size_t      before = self->count;
    if (snprintf(path, sizeof path, "%s/%s", part, self->classes[class]) >= PATH_BYTES)
        return lk_fail(LK_EINVAL, "'%s' has a path of over %d bytes", part, PATH_BYTES - 1);
    LK_TRY(lki_listing_open(&files, path, true));
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < files.count; i++)
        status = add_file(self, path, files.paths[i], class);
    lki_listing_close(&files);
    if (status == LK_OK && self->count == before)
        status = lk_fail(LK_EFORMAT, "the folder '%s' has no image: no .jpg, .jpeg or .png (links "
                                     "are not followed)", path);
    return status;
}

/* ---- Classes -------------------------------------------------------------------------------- */

static lk_status add_training(folder *self, const char *spec)
{
    lki_listing classes;
    lk_status   status = list_folders(&classes, self->train);
    if (status != LK_OK || classes.count == 0) {
        lki_listing_close(&classes);
        return status != LK_OK ? status
                               : lk_fail(LK_EFORMAT, "the folder '%s' has no folder for each class",
                                         self->train);
    }
    self->classes     = classes.paths;
    self->class_count = classes.count;
    if (classes.count > UINT32_MAX / 2)
        return lk_fail(LK_EFORMAT, "'%s' has too many classes", spec);
    for (uint32_t c = 0; c < self->class_count; c++)
        LK_TRY(add_class(self, self->train, c));
    self->train_count = self->count;
    return LK_OK;
}

/* Adds the validation part, whose classes must be among those of the training part. */
static lk_status add_validation(folder *self)
{
    lki_listing classes;
    lk_status   status = list_folders(&classes, self->val);
    for (size_t i = 0; status == LK_OK && i < classes.count; i++) {
        char *const *found = bsearch(&classes.paths[i], self->classes, self->class_count,
                                     sizeof *self->classes, lki_by_bytes);
        if (found == NULL)
            status = lk_fail(LK_EFORMAT, "'%s' has a class '%s' that '%s' lacks", self->val,
                             classes.paths[i], self->train);
        else
            status = add_class(self, self->val, (uint32_t)(found - self->classes));
    }
    if (status == LK_OK && self->count == self->train_count)
        status = lk_fail(LK_EFORMAT, "the folder '%s' has no folder for each class: sort its "
                                     "images into such folders, or give `validation` FRACTION",
                         self->val);
    lki_listing_close(&classes);
    return status;
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* Maps the file of a sample, which must be as it was when the data set was opened. */
static lk_status map_sample(const folder *self, size_t index, char path[PATH_BYTES], lki_map *out)
{
    const entry *sample = &self->samples[index];
    struct stat  info;
    int64_t      written = 0;
    LK_TRY(path_of(self, sample, path));
    LK_TRY(look_at(path, &info, &written));
    if (info.st_size != sample->bytes || written != sample->written)
        return lk_fail(LK_EIO, "'%s' has changed since the data set was opened; put it back and "
                               "continue from the newest checkpoint, or start again", path);
    return lki_map_open(out, path);
}

static lk_status decode(const folder *self, size_t index, lki_image *out)
{
    char    path[PATH_BYTES];
    lki_map map;
    LK_TRY(map_sample(self, index, path, &map));
    const char       *ending  = strrchr(path, '.');
    const lki_picture picture = { .bytes  = map.bytes,
                                  .is_png = lki_picture_is_png(map.data, map.bytes, ending + 1) };
    lki_image_place   place   = { path, self->names + self->samples[index].name, 0 };
    lk_status status = lki_picture_decode(&picture, map.data, self->channels, &place, out);
    lki_map_close(&map);
    return status;
}

/* Reads a sample: the part drawn by `draw`, or the centre if `draw` is NULL. */
static lk_status folder_read_part(const lk_dataset *dataset, uint64_t index, const lki_draw *draw,
                                  float *x, int32_t *label)
{
    const folder *self = dataset->state;
    lki_image     image;
    LK_TRY(decode(self, index, &image));
    lk_status status = lki_picture_fit(dataset, &image, draw, x);
    *label           = (int32_t)self->samples[index].class;
    lki_image_free(&image);
    return status;
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* Hashes the files, one hash for each. */
static lk_status hash_files(const folder *self, char (*hashes)[33])
{
    for (size_t i = 0; i < self->count; i++) {
        char    path[PATH_BYTES];
        lki_map map;
        LK_TRY(map_sample(self, i, path, &map));
        lki_xxh3_128(map.data, map.bytes, hashes[i]);
        lki_map_close(&map);
    }
    return LK_OK;
}

/* Hashes what the decoder makes of the first file, because decoders may differ in bits. */
static lk_status hash_decoder(const folder *self, char hex[33])
{
    lki_image image;
    LK_TRY(decode(self, 0, &image));
    lki_xxh3_128(image.pixels, (size_t)image.width * image.height * image.channels, hex);
    lki_image_free(&image);
    return LK_OK;
}

/* Hashes the class of each file, and how many files are for training. */
static lk_status hash_places(const folder *self, char hex[33])
{
    uint64_t *places = NULL;
    LK_TRY(LKI_NEW(&places, self->count + 1, "places of files"));
    for (size_t i = 0; i < self->count; i++)
        places[i] = self->samples[i].class;
    places[self->count] = self->train_count;
    lki_xxh3_128(places, (self->count + 1) * sizeof *places, hex);
    lki_free(places);
    return LK_OK;
}

/* Sets the content hash: of all files, their names and places, the classes, and the decoder. */
static lk_status hash_content(lk_dataset *dataset)
{
    const folder *self        = dataset->state;
    const size_t  count       = self->count + self->class_count;
    char        (*hashes)[33] = NULL;
    LK_TRY(LKI_NEW(&hashes, count + 3, "hashes"));
    for (size_t c = 0; c < self->class_count; c++)
        lki_xxh3_128(self->classes[c], strlen(self->classes[c]), hashes[self->count + c]);
    lki_xxh3_128(self->names, self->names_used, hashes[count]);
    lk_status status = hash_files(self, hashes);
    if (status == LK_OK)
        status = hash_decoder(self, hashes[count + 1]);
    if (status == LK_OK)
        status = hash_places(self, hashes[count + 2]);
    if (status == LK_OK)
        status = lki_hash_of_hashes(dataset->info.content_hash, hashes, count + 3);
    lki_free(hashes);
    return status == LK_OK ? lki_picture_hash(dataset) : status;
}

static lk_status folder_open(lk_dataset *dataset, const char *rest)
{
    folder *self = NULL;
    char   *path = NULL;
    LK_TRY(LKI_NEW(&self, 1, "a folder of images"));
    dataset->state   = self;
    lk_status status = lki_picture_spec(dataset, &path, rest, NULL);
    if (status == LK_OK)
        status = find_parts(dataset, path);
    lki_free(path);
    LK_TRY(status);
    self->channels = (uint32_t)dataset->info.x.dims[2];
    lki_pixels_set(dataset, 1, (float[]){ 0.5f }, (float[]){ 0.5f });
    LK_TRY(add_training(self, rest));
    if (self->val != NULL)
        LK_TRY(add_validation(self));
    dataset->total            = self->count;
    dataset->held_out         = self->count - self->train_count;
    dataset->info.classes     = (uint32_t)self->class_count;
    dataset->info.class_names = (const char *const *)self->classes;
    return hash_content(dataset);
}

static void folder_close(lk_dataset *dataset)
{
    folder *self = dataset->state;
    for (size_t c = 0; c < self->class_count; c++)
        lki_free(self->classes[c]);
    lki_free(self->classes);
    lki_free(self->samples);
    lki_free(self->names);
    lki_free(self->train);
    lki_free(self->val);
    lki_free(self);
}

const lki_source lki_source_folder = {
    .name      = "folder",
    .open      = folder_open,
    .close     = folder_close,
    .read_part = folder_read_part,
};
