/* data/stream_source.h -- a stream, and what kinds of it share. */
#ifndef LKI_DATA_STREAM_SOURCE_H
#define LKI_DATA_STREAM_SOURCE_H

#include "data/picture.h"
#include "data/source.h"
#include "data/stream.h"

/* What a spec says. */
typedef struct {
    char    *path;
    uint64_t width, vocabulary; /* of tokens; width in bits in the spec, in bytes here */
    uint64_t height, columns, channels, classes;
    uint64_t archive; /* 1: of pictures */
    size_t   record;  /* bytes from one sample to the next; 0 in an archive */
    size_t   beyond;  /* bytes of the next that a sample needs, too */
    float    pixel[256];
} lki_stream_source;

typedef struct lki_stream_tar lki_stream_tar;

struct lki_stream {
    const lk_dataset *dataset;
    int               fd, wake;
    uint8_t          *bytes; /* read and not yet taken */
    size_t            held, room;
    uint64_t          position; /* of the next sample */
    bool              ended;    /* there are no more bytes */
    lki_stream_tar   *tar;      /* which reads it, or NULL */
};

/* Waits until there are bytes, and reads up to `room` behind the *held, or finds the end. */
LK_NODISCARD lk_status lki_stream_fetch(lki_stream *stream, uint8_t *to, size_t room, size_t *held);

/* An archive, see stream_tar.c: opened behind its first `skip` samples. */
LK_NODISCARD lk_status lki_stream_tar_open(lki_stream_tar **out, lki_stream *stream, uint64_t skip);
void                   lki_stream_tar_close(lki_stream_tar *tar);

/* As lki_stream_take(). */
LK_NODISCARD lk_status lki_stream_tar_take(lki_stream_tar *tar, uint64_t count, float *x,
                                           int32_t *y, uint64_t *got, bool *last);

#endif
