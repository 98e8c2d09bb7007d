/* stream_tar.c -- images in an archive that is read once, from beginning to end.
 *
 * Memory holds one member of the archive at a time, with its headers, and the next sample.  An
 * image is decoded when it arrives; the sample is complete when it also has a class, whichever of
 * the two comes first.  Other members are skipped.  After the end of an archive another archive may
 * begin, as `cat` writes them.
 *
 * An archive has no random access.  To resume after some samples, the reader walks through the
 * members before them without decoding.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "data/fileset.h"
#include "data/stream_source.h"

struct lki_stream_tar {
    lki_stream  *stream;
    char        *path; /* for messages; includes the kind of data */
    lki_tar_walk walk;
    uint8_t     *memory; /* walk.tar's window */
    size_t       capacity;
    lki_picture  now;    /* the current sample */
    uint64_t     number, skip; /* number of samples found so far, and of samples to skip */
    float       *x;      /* the next sample, if ready */
    bool         ready, over;
    lk_error     error;  /* .status is LK_OK if no failure has occurred */
};

/* ---- The window ----------------------------------------------------------------------------- */

static lk_status hold(lki_tar *tar, size_t end)
{
    lki_stream_tar *self = tar->context;
    size_t          gone = tar->at - tar->from;
    tar->bytes -= gone;
    tar->from = tar->at;
    if (tar->bytes > 0)
        memmove(self->memory, self->memory + gone, tar->bytes);
    while (tar->bytes < end - tar->from && !self->stream->ended) {
        LK_TRY(lki_reserve((void **)&self->memory, &self->capacity, tar->bytes, 1,
                           "a member of an archive"));
        LK_TRY(lki_stream_fetch(self->stream, self->memory,
                               lki_min(self->capacity, end - tar->from), &tar->bytes));
    }
    tar->data = self->memory;
    return LK_OK;
}

lk_status lki_stream_tar_open(lki_stream_tar **out, lki_stream *stream, uint64_t skip)
{
    const lki_stream_source *source = stream->dataset->state;
    lki_stream_tar          *self   = NULL;
    LK_TRY(LKI_NEW(&self, 1, "a stream's archive"));
    *out         = self;
    self->stream = stream;
    self->skip   = skip;
    self->now    = (lki_picture){ .label = -1 };
    LK_TRY(lki_alloc((void **)&self->path, strlen(source->path) + 8, "a stream's name"));
    (void)snprintf(self->path, strlen(source->path) + 8, "stream:%s", source->path);
    LK_TRY(LKI_NEW(&self->x, stream->dataset->elements, "a sample of a stream"));
    lki_tar_begin(&self->walk.tar, NULL, 0, self->path);
    self->walk.tar.hold    = hold;
    self->walk.tar.context = self;
    return LK_OK;
}

void lki_stream_tar_close(lki_stream_tar *self)
{
    if (self == NULL)
        return;
    lki_free(self->path);
    lki_free(self->memory);
    lki_free(self->x);
    lki_free(self);
}

/* ---- Samples -------------------------------------------------------------------------------- */

static lk_status see_picture(lki_stream_tar *self)
{
    const lk_dataset        *dataset = self->stream->dataset;
    const lki_stream_source *source  = dataset->state;
    const lki_tar_member    *member  = &self->walk.member;
    const lki_image_place    place   = { self->path, member->name, member->start };
    const lki_draw           draw    = { 0, self->number };
    bool                     part    = dataset->options.augment.resized_crop > 0;
    lki_image                image;
    LK_TRY(lki_picture_decode(&self->now, member->content, (uint32_t)source->channels, &place,
                              &image));
    lk_status status = lki_picture_fit(dataset, &image, part ? &draw : NULL, self->x);
    lki_image_free(&image);
    return status == LK_OK ? lki_augment_apply(dataset, &draw, part, self->x) : status;
}

static lk_status see_member(lki_stream_tar *self)
{
    const lki_stream_source *source = self->stream->dataset->state;
    lki_picture              before = self->now;
    LK_TRY(lki_picture_add(&self->now, &self->walk.tar, &self->walk.member, self->walk.extension));
    if (self->now.label != before.label && (uint64_t)self->now.label >= source->classes &&
        !lki_is_ignored(self->stream->dataset, self->now.label))
        return lk_fail(LK_EFORMAT, "'%s': '%s' at byte %zu is class %d, expected 0 to %llu",
                       self->path, self->walk.member.name, self->walk.member.start,
                       self->now.label, (unsigned long long)source->classes - 1);
    if (self->now.has_image && !before.has_image && self->number >= self->skip)
        LK_TRY(see_picture(self));
    bool had = before.has_image && before.label >= 0;
    self->ready = !had && self->now.has_image && self->now.label >= 0;
    return LK_OK;
}

/* Advances to the next sample, or to the end of the stream. */
static lk_status find_sample(lki_stream_tar *self)
{
    while (!self->ready && !self->over) {
        lki_tar_event event;
        bool          more;
        LK_TRY(lki_tar_walk_next(&self->walk, &event));
        if (event == LKI_TAR_MEMBER) {
            LK_TRY(see_member(self));
        } else if (event == LKI_TAR_SAMPLE) {
            LK_TRY(lki_picture_end(&self->now, self->path, self->walk.key, self->walk.begun,
                                   &more));
            self->now = (lki_picture){ .label = -1 };
        } else {
            LK_TRY(lki_tar_follows(&self->walk.tar, &more));
            self->over = !more;
        }
    }
    return LK_OK;
}

static void leave_sample(lki_stream_tar *self)
{
    self->ready = false;
    self->number++;
}

static lk_status look(lki_stream_tar *self)
{
    LK_TRY(find_sample(self));
    while (self->number < self->skip && !self->over) {
        leave_sample(self);
        LK_TRY(find_sample(self));
    }
    return LK_OK;
}

/* Takes samples.  If reading ahead to the following sample fails, the next call reports the
 * failure. */
lk_status lki_stream_tar_take(lki_stream_tar *self, uint64_t count, float *x, int32_t *y,
                              uint64_t *got, bool *last)
{
    size_t values = self->stream->dataset->elements;
    for (*got = 0, *last = false;; ++*got) {
        if (self->error.status == LK_OK && look(self) != LK_OK)
            self->error = *lk_error_last();
        if (self->error.status != LK_OK)
            return *got < count ? lki_fail_again(&self->error) : LK_OK;
        *last = self->over;
        if (self->over || *got == count)
            return LK_OK;
        memcpy(x + *got * values, self->x, values * sizeof *x);
        y[*got] = self->now.label;
        leave_sample(self);
    }
}
