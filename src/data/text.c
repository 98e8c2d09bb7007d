/* text.c -- text as tokens: a file, or all text files of a folder one after another.
 *
 * Tokens are bytes or, with a tokenizer, its ids.  These are computed when the text is opened, and
 * the text is not needed any more.
 *
 * A file is mapped, so workers of one host share its pages.  A folder is read into memory, because
 * its many small files may be edited during training.  The copy does not change, and the content
 * hash identifies it.  A file that contains a NUL byte is not text and is skipped.
 */
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "data/encoded.h"

typedef struct {
    lki_map        map;    /* the mapping, if the text is a file */
    uint8_t       *memory; /* the copy, if the text is a folder */
    const uint8_t *bytes;
    lki_encoded    encoded;
} text;

/* Appends at most `room` bytes of the file to memory + *used, unless the file contains a NUL. */
static lk_status append(uint8_t *memory, size_t *used, size_t room, const char *path)
{
    size_t got = 0;
    int    fd  = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return lk_fail(LK_EIO, "cannot open '%s': %s", path, strerror(errno));
    while (got < room) {
        ssize_t now = read(fd, memory + *used + got, room - got);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0) {
            int error = errno;
            (void)close(fd);
            return lk_fail(LK_EIO, "cannot read '%s': %s", path, strerror(error));
        }
        if (now == 0)
            break;
        got += (size_t)now;
    }
    (void)close(fd);
    if (got > 0 && memchr(memory + *used, 0, got) == NULL)
        *used += got;
    return LK_OK;
}

static lk_status file_size(size_t *out, const char *folder, const char *name)
{
    char       *path = NULL;
    struct stat info;
    LK_TRY(lki_path_join(&path, folder, name));
    lk_status status = LK_OK;
    if (lstat(path, &info) != 0)
        status = lk_fail(LK_EIO, "cannot read '%s': %s", path, strerror(errno));
    else
        *out = (size_t)info.st_size;
    lki_free(path);
    return status;
}

/* Reads a folder: determines the sizes of its files, allocates once, and reads at most those
 * sizes. */
static lk_status read_folder(text *self, size_t *bytes, const char *folder,
                             const lki_listing *files)
{
    size_t *sizes = NULL, total = 0;
    LK_TRY(LKI_NEW(&sizes, files->count, "sizes of files"));
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < files->count; i++) {
        status = file_size(&sizes[i], folder, files->paths[i]);
        total += sizes[i];
    }
    if (status == LK_OK)
        status = lki_alloc((void **)&self->memory, total, "text of a folder");
    *bytes = 0;
    for (size_t i = 0; status == LK_OK && i < files->count; i++) {
        char *path = NULL;
        status = lki_path_join(&path, folder, files->paths[i]);
        if (status == LK_OK)
            status = append(self->memory, bytes, sizes[i], path);
        lki_free(path);
    }
    lki_free(sizes);
    return status;
}

static lk_status open_folder(text *self, size_t *bytes, const char *folder)
{
    lki_listing files;
    LK_TRY(lki_listing_open(&files, folder, true));
    lk_status status = read_folder(self, bytes, folder, &files);
    if (status == LK_OK && *bytes == 0)
        status = lk_fail(LK_EFORMAT, "the folder '%s' holds no text: %zu files, all empty or with "
                                     "NUL bytes (hidden files, links and folders named build are "
                                     "left out)", folder, files.count);
    lki_listing_close(&files);
    self->bytes = self->memory;
    return status;
}

static lk_status open_file(lk_dataset *dataset, size_t *bytes, const char *path)
{
    text *self = dataset->state;
    LK_TRY(lki_map_open(&self->map, path));
    LK_TRY(lki_file_watch(dataset, path));
    if (self->map.bytes == 0)
        return lk_fail(LK_EFORMAT, "'%s' is empty", path);
    self->bytes = self->map.data;
    *bytes      = self->map.bytes;
    return LK_OK;
}

/* Replaces the text by its ids, if there is a tokenizer. */
static lk_status encode(lk_dataset *dataset, size_t bytes)
{
    text *self = dataset->state;
    if (self->encoded.tokenizer == NULL)
        return LK_OK;
    LK_TRY(lki_encoded_add(&self->encoded, self->bytes, bytes));
    LK_TRY(lki_encoded_hash(&self->encoded, dataset->info.content_hash));
    LK_TRY(lk_dataset_check(dataset));
    lki_encoded_finish(&self->encoded, &dataset->info);
    lki_file_watch_end(dataset);
    lki_map_close(&self->map);
    lki_free(self->memory);
    self->map             = (lki_map){ .data = NULL };
    self->memory          = NULL;
    dataset->total        = self->encoded.ids.count;
    dataset->bytes        = false;
    dataset->info.classes = lk_tokenizer_describe(self->encoded.tokenizer)->vocabulary;
    return LK_OK;
}

static lk_status text_open(lk_dataset *dataset, const char *rest)
{
    text       *self  = NULL;
    size_t      bytes = 0;
    struct stat info;
    LK_TRY(LKI_NEW(&self, 1, "text"));
    dataset->state = self;
    LK_TRY(lki_encoded_open(&self->encoded, dataset->options.tokenizer));
    if (stat(rest, &info) != 0)
        return lk_fail(LK_EIO, "cannot open '%s': %s", rest, strerror(errno));
    if (S_ISDIR(info.st_mode))
        LK_TRY(open_folder(self, &bytes, rest));
    else
        LK_TRY(open_file(dataset, &bytes, rest));
    dataset->total        = bytes;
    dataset->bytes        = true;
    dataset->info.tokens  = true;
    dataset->info.classes = 256;
    lki_xxh3_128(self->bytes, bytes, dataset->info.content_hash);
    return encode(dataset, bytes);
}

static void text_close(lk_dataset *dataset)
{
    text *self = dataset->state;
    lki_map_close(&self->map);
    lki_free(self->memory);
    lki_encoded_close(&self->encoded);
    lki_free(self);
}

static void text_read_tokens(const lk_dataset *dataset, uint64_t first, size_t count,
                             int32_t *out)
{
    const text    *self = dataset->state;
    const uint8_t *from = self->bytes + first;
    if (self->encoded.tokenizer != NULL) {
        lki_tokens_copy(&self->encoded.ids, first, count, out);
        return;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = from[i];
}

const lki_source lki_source_text = {
    .name        = "text",
    .open        = text_open,
    .close       = text_close,
    .read_tokens = text_read_tokens,
};
