/* data/stream_source.h -- a stream, and helpers shared by its kinds. */
#ifndef LKI_DATA_STREAM_SOURCE_H
#define LKI_DATA_STREAM_SOURCE_H

#include "data/picture.h"
#include "data/source.h"
#include "data/stream.h"

/* The arguments of the spec. */
typedef struct {
    char    *path;
    uint64_t width, vocabulary; /* width in bytes (in the spec: bits) and vocabulary of tokens */
    uint64_t height, columns, channels, classes;
    uint64_t archive; /* 1: an archive of images */
    size_t   record;  /* bytes from one sample to the next; 0 in an archive */
    size_t   beyond;  /* bytes of the next sample that a sample also needs */
} lki_stream_source;

typedef struct lki_stream_tar lki_stream_tar;

struct lki_stream {
    const lk_dataset *dataset;
    int               fd, wake;
    uint8_t          *bytes; /* read and not yet consumed */
    size_t            held, room;
    uint64_t          position; /* position of the next sample */
    bool              ended;    /* the end of the stream was reached */
    lki_stream_tar   *tar;      /* the reader of an archive, or NULL */
};

/* Waits for bytes.  Appends up to `room` bytes to the *held bytes at `to`, and increases *held.
 * Sets stream->ended at the end of the stream. */
LK_NODISCARD lk_status lki_stream_fetch(lki_stream *stream, uint8_t *to, size_t room, size_t *held);

/* Opens an archive after its first `skip` samples (stream_tar.c). */
LK_NODISCARD lk_status lki_stream_tar_open(lki_stream_tar **out, lki_stream *stream, uint64_t skip);
void                   lki_stream_tar_close(lki_stream_tar *self);

/* Reads samples as lki_stream_take() does. */
LK_NODISCARD lk_status lki_stream_tar_take(lki_stream_tar *tar, uint64_t count, float *x,
                                           int32_t *y, uint64_t *got, bool *last);

#endif
