/* stream.c -- stream:PATH and stream:- (standard input): samples in the order of arrival.
 *
 * Tokens:  bytes, or with ?width=16 or 32 little-endian ids below ?vocab=.  Sample i is the tokens
 *          [iT, (i + 1) T); its targets are the tokens shifted by one.  If fewer than T tokens
 *          remain at the end, they are not a sample.
 * Images:  with ?h=, w=, c= and classes=, records like CIFAR-10's binary version: a byte for the
 *          class, then one channel after the other, row by row.
 * Archives: with ?tar=1 and classes=, images as in tar: (stream_tar.c).
 *
 * The reader takes the samples of a step and one more sample, so that it recognises the last step.
 * The state is a number of samples, and thus of bytes.  A file can be read from any position, a
 * pipe cannot.
 */
#include "data/stream_source.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/pixels.h"

/* Stands for an unknown number of samples.  The value is large, but sums with it do not
 * overflow. */
#define UNKNOWN ((uint64_t)1 << 60)

typedef lki_stream_source source;

/* ---- The data set --------------------------------------------------------------------------- */

static lk_status describe_images(lk_dataset *dataset, source *self, const char *rest)
{
    lk_dataset_info *info = &dataset->info;
    if (self->classes > 256)
        return lk_fail(LK_EINVAL, "'stream:%s': a record's class is a byte; there are at most 256",
                       rest);
    self->channels = self->channels > 0 ? self->channels : 1;
    self->record   = 1 + self->height * self->columns * self->channels;
    info->x        = (lk_shape){ .rank = 3, .dims = { self->height, self->columns,
                                                      self->channels } };
    info->classes  = (uint32_t)self->classes;
    return LK_OK;
}

static lk_status describe_archive(lk_dataset *dataset, source *self, const char *rest)
{
    lk_dataset_info *info = &dataset->info;
    self->height   = self->height > 0 ? self->height : LKI_PICTURE_SIDE;
    self->columns  = self->columns > 0 ? self->columns : LKI_PICTURE_SIDE;
    self->channels = self->channels > 0 ? self->channels : LKI_PICTURE_CHANNELS;
    if (self->classes == 0)
        return lk_fail(LK_EINVAL, "'stream:%s' must have classes=: nobody knows the largest of an "
                                  "archive that is read once", rest);
    if (self->channels != 1 && self->channels != 3)
        return lk_fail(LK_EINVAL, "'stream:%s': c is 1 (grey) or 3 (colours)", rest);
    info->x       = (lk_shape){ .rank = 3, .dims = { self->height, self->columns,
                                                     self->channels } };
    info->classes = (uint32_t)self->classes;
    return LK_OK;
}

static lk_status describe_tokens(lk_dataset *dataset, source *self, const char *rest)
{
    lk_dataset_info *info = &dataset->info;
    if (self->width != 0 && self->width != 16 && self->width != 32)
        return lk_fail(LK_EINVAL, "'stream:%s': width is 16 or 32", rest);
    if ((self->width == 0) != (self->vocabulary == 0))
        return lk_fail(LK_EINVAL, "'stream:%s': tokens have width= and vocab=, both", rest);
    if (dataset->options.context == 0)
        return lk_fail(LK_EINVAL, "'stream:%s' is a stream of tokens: give the length of a sample, "
                                  "`context`", rest);
    self->width    = self->width > 0 ? self->width / 8 : 1;
    info->classes  = (uint32_t)(self->vocabulary > 0 ? self->vocabulary : 256);
    info->tokens   = true;
    dataset->bytes = self->vocabulary == 0;
    self->record   = dataset->options.context * self->width;
    self->beyond   = self->width;
    return LK_OK;
}

static lk_status describe(lk_dataset *dataset, source *self, const char *rest)
{
    bool images = self->height > 0 || self->columns > 0 || self->channels > 0 || self->classes > 0;
    bool tokens = self->width > 0 || self->vocabulary > 0, archive = self->archive > 0;
    if (dataset->options.validation > 0)
        return lk_fail(LK_EINVAL, "'stream:%s' has no part to keep for validation: nobody knows "
                                  "where it ends; leave out `validation`", rest);
    if (dataset->options.weights != NULL || dataset->options.loss_weights != NULL)
        return lk_fail(LK_EINVAL, "'stream:%s' has no number of samples to have weights; leave out "
                                  "`weights` and `loss_weights`", rest);
    if (((images || archive) && tokens) ||
        (images && !archive && (self->height == 0 || self->columns == 0 || self->classes == 0)))
        return lk_fail(LK_EINVAL, "'stream:%s' must have h=, w= and classes= (and c=) for images, "
                                  "tar=1 and classes= for pictures in an archive, width= and "
                                  "vocab= for tokens, or none of them for bytes", rest);
    dataset->total = UNKNOWN;
    if (archive)
        return describe_archive(dataset, self, rest);
    return images ? describe_images(dataset, self, rest) : describe_tokens(dataset, self, rest);
}

static lk_status stream_open(lk_dataset *dataset, const char *rest)
{
    source *self = NULL;
    LK_TRY(LKI_NEW(&self, 1, "a stream"));
    dataset->state            = self;
    const lki_setting table[] = {
        { "width", &self->width, 16, 32 },
        { "vocab", &self->vocabulary, 1, LKI_CLASSES_MAX },
        { "h", &self->height, 1, 4096 },
        { "w", &self->columns, 1, 4096 },
        { "c", &self->channels, 1, 64 },
        { "classes", &self->classes, 1, LKI_CLASSES_MAX },
        { "tar", &self->archive, 1, 1 },
        { NULL, NULL, 0, 0 },
    };
    const char *settings = strchr(rest, '?');
    LK_TRY(lki_path_join(&self->path, "", rest));
    if (settings != NULL) {
        self->path[settings - rest] = '\0';
        LK_TRY(lki_settings_parse(settings + 1, '&', table, rest));
    }
    if (strcmp(self->path, "-") != 0 && access(self->path, R_OK) != 0)
        return lk_fail(LK_EIO, "cannot read '%s': %s", self->path, strerror(errno));
    LK_TRY(describe(dataset, self, rest));
    if (!dataset->info.tokens)
        lki_pixels_set(dataset, 1, (float[]){ 0.5f }, (float[]){ 0.5f });
    lki_xxh3_128(rest, strlen(rest), dataset->info.content_hash);
    return LK_OK;
}

static void stream_close(lk_dataset *dataset)
{
    source *self = dataset->state;
    lki_free(self->path);
    lki_free(self);
}

const lki_source lki_source_stream = {
    .name  = "stream",
    .open  = stream_open,
    .close = stream_close,
};

bool lki_dataset_is_stream(const lk_dataset *dataset)
{
    return dataset->source == &lki_source_stream;
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* Skips the first `skip` samples.  In an archive, walks through the members to find the end of
 * these samples. */
static lk_status skip_samples(lki_stream *stream, uint64_t skip)
{
    const source *self = stream->dataset->state;
    off_t         at   = (off_t)(skip * self->record);
    stream->position   = skip;
    if (lseek(stream->fd, at, SEEK_SET) == at || skip == 0)
        return LK_OK;
    return lk_fail(LK_EINVAL, "'stream:%s' cannot go to byte %llu, for sample %llu: %s; a run goes "
                              "on with a stream only where that is a file",
                   self->path, (unsigned long long)at, (unsigned long long)skip, strerror(errno));
}

static lk_status open_bytes(lki_stream *stream, uint64_t skip, uint64_t most)
{
    const source *self = stream->dataset->state;
    bool          in   = strcmp(self->path, "-") == 0;
    stream->fd = in ? STDIN_FILENO : open(self->path, O_RDONLY | O_CLOEXEC);
    if (stream->fd < 0)
        return lk_fail(LK_EIO, "cannot open '%s': %s", self->path, strerror(errno));
    LK_TRY(skip_samples(stream, skip));
    if (self->archive > 0)
        return lki_stream_tar_open(&stream->tar, stream, skip);
    stream->room = (most + 1) * self->record + self->beyond;
    return lki_alloc((void **)&stream->bytes, stream->room, "what a stream holds");
}

lk_status lki_stream_open(lki_stream **out, const lk_dataset *dataset, uint64_t skip,
                          uint64_t most)
{
    lki_stream *stream = NULL;
    LK_ASSERT(lki_dataset_is_stream(dataset));
    *out = NULL;
    LK_TRY(LKI_NEW(&stream, 1, "a stream"));
    stream->dataset  = dataset;
    lk_status status = open_bytes(stream, skip, most);
    if (status != LK_OK) {
        lki_stream_close(stream);
        return status;
    }
    *out = stream;
    return LK_OK;
}

void lki_stream_close(lki_stream *stream)
{
    if (stream == NULL)
        return;
    if (stream->fd > STDIN_FILENO)
        (void)close(stream->fd);
    lki_stream_tar_close(stream->tar);
    lki_free(stream->bytes);
    lki_free(stream);
}

/* Waits until bytes can be read, which is always true for a file. */
static lk_status wait_for_bytes(const lki_stream *stream)
{
    struct pollfd any[2] = { { .fd = stream->fd, .events = POLLIN },
                             { .fd = stream->wake, .events = POLLIN } };
    while (poll(any, 2, -1) < 0)
        if (errno != EINTR)
            return lk_fail(LK_EIO, "cannot wait for a stream: %s", strerror(errno));
    if (any[1].revents != 0)
        return lk_fail(LK_ESTOPPED, "reading a stream is stopped");
    return LK_OK;
}

lk_status lki_stream_fetch(lki_stream *stream, uint8_t *to, size_t room, size_t *held)
{
    const source *self = stream->dataset->state;
    LK_TRY(wait_for_bytes(stream));
    ssize_t got = read(stream->fd, to + *held, room - *held);
    if (got < 0 && errno == EINTR)
        return LK_OK;
    if (got < 0)
        return lk_fail(LK_EIO, "cannot read 'stream:%s': %s", self->path, strerror(errno));
    *held += (size_t)got;
    stream->ended = got == 0;
    return LK_OK;
}

static lk_status take_tokens(const lki_stream *stream, const uint8_t *from, uint64_t number,
                             int32_t *x, int32_t *y)
{
    const source *self  = stream->dataset->state;
    uint32_t      count = stream->dataset->options.context, limit = stream->dataset->info.classes;
    for (uint32_t i = 0; i <= count; i++, from += self->width) {
        uint32_t token = 0;
        for (size_t b = self->width; b-- > 0;)
            token = token << 8 | from[b];
        if (token >= limit)
            return lk_fail(LK_EFORMAT, "'stream:%s': token %llu is %u; there are %u", self->path,
                           (unsigned long long)(number * count + i), token, limit);
        if (i < count)
            x[i] = (int32_t)token;
        if (i > 0)
            y[i - 1] = (int32_t)token;
    }
    return LK_OK;
}

static lk_status take_image(const lki_stream *stream, const uint8_t *from, uint64_t number,
                            float *x, int32_t *y)
{
    const source *self  = stream->dataset->state;
    size_t        plane = self->height * self->columns;
    if (from[0] >= self->classes && !lki_is_ignored(stream->dataset, from[0]))
        return lk_fail(LK_EFORMAT, "'stream:%s': record %llu at byte %llu has class %u, expected 0 "
                                   "to %llu", self->path, (unsigned long long)number,
                       (unsigned long long)(number * self->record), from[0],
                       (unsigned long long)self->classes - 1);
    *y = from[0];
    for (size_t i = 0; i < plane; i++)
        for (size_t c = 0; c < self->channels; c++)
            x[i * self->channels + c] = lki_pixel(stream->dataset, c, from[1 + c * plane + i]);
    return lki_augment_apply(stream->dataset, &(lki_draw){ 0, number }, false, x);
}

static lk_status take_records(lki_stream *stream, uint64_t count, void *x, int32_t *y,
                              uint64_t *got, bool *last)
{
    const lk_dataset *dataset = stream->dataset;
    const source     *self    = dataset->state;
    bool              tokens  = dataset->info.tokens;
    size_t            values  = dataset->elements;
    LK_ASSERT((count + 1) * self->record + self->beyond <= stream->room);
    while (stream->held < (count + 1) * self->record + self->beyond && !stream->ended)
        LK_TRY(lki_stream_fetch(stream, stream->bytes, (count + 1) * self->record + self->beyond,
                               &stream->held));
    uint64_t whole = stream->held < self->beyond ? 0
                                                 : (stream->held - self->beyond) / self->record;
    *got  = lki_min(count, whole);
    *last = whole <= count;
    if (*last && !tokens && stream->held % self->record != 0)
        return lk_fail(LK_EFORMAT, "'stream:%s' ends inside record %llu: it has %zu of %zu bytes",
                       self->path, (unsigned long long)(stream->position + whole),
                       stream->held % self->record, self->record);
    for (uint64_t i = 0; i < *got; i++) {
        const uint8_t *from   = stream->bytes + i * self->record;
        uint64_t       number = stream->position + i;
        LK_TRY(tokens ? take_tokens(stream, from, number, (int32_t *)x + i * values,
                                    y + i * values)
                      : take_image(stream, from, number, (float *)x + i * values, y + i));
    }
    stream->position += *got;
    stream->held -= *got * self->record;
    memmove(stream->bytes, stream->bytes + *got * self->record, stream->held);
    return LK_OK;
}

lk_status lki_stream_take(lki_stream *stream, int wake, uint64_t count, void *x, int32_t *y,
                          uint64_t *got, bool *last)
{
    const lk_dataset *dataset = stream->dataset;
    stream->wake = wake;
    if (stream->tar != NULL)
        LK_TRY(lki_stream_tar_take(stream->tar, count, x, y, got, last));
    else
        LK_TRY(take_records(stream, count, x, y, got, last));
    lki_ignore(dataset, *got * (dataset->info.tokens ? dataset->elements : 1), y);
    return LK_OK;
}
