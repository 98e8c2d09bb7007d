/* data/files.h -- the file formats, each parsed from memory: nothing here opens a file.
 *
 * All take bytes that may be hostile, check every number before it is used or multiplied, and
 * allocate nothing that the bytes do not vouch for.  `path` is for messages.  What they put out
 * points into `data`, which must outlive it.
 */
#ifndef LKI_DATA_FILES_H
#define LKI_DATA_FILES_H

#include "base/status.h"

/* ---- IDX: unsigned bytes, plain or gzip ---------------------------------------------------- */

typedef struct {
    uint64_t       dims[3];
    const uint8_t *values;
    size_t         count;  /* the product of the dimensions */
    const uint8_t *plain;  /* the file as it is without gzip */
    size_t         plain_bytes;
    uint8_t       *memory; /* what was inflated, if it was */
} lki_idx;

/* `rank` is what the file must have: 3 for images, 1 for labels. */
LK_NODISCARD lk_status lki_idx_parse(lki_idx *out, const uint8_t *data, size_t bytes,
                                     uint32_t rank, const char *path);
void lki_idx_close(lki_idx *idx);

/* ---- npy ------------------------------------------------------------------------------------ */

enum { LKI_NPY_RANK_MAX = 4 };

typedef struct {
    lk_dtype       dtype; /* F32, F64, and integers */
    uint32_t       rank;
    uint64_t       dims[LKI_NPY_RANK_MAX];
    const uint8_t *values; /* maybe not aligned */
    size_t         count;
} lki_npy;

/* A C-ordered array of at least one dimension, none of them 0. */
LK_NODISCARD lk_status lki_npy_parse(lki_npy *out, const uint8_t *data, size_t bytes,
                                     const char *path);

/* Element `index` as a number.  FP64 and wide integers are rounded. */
float lki_npy_number(const lki_npy *array, size_t index);

/* ---- Token files ---------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *values; /* maybe not aligned */
    uint64_t       count;
    uint32_t       width; /* bytes of a token: 2 or 4 */
    uint32_t       max;   /* the largest token */
} lki_tokens;

/* `width` 0 means that a header says it; `vocabulary` 0 that any token is good. */
LK_NODISCARD lk_status lki_tokens_parse(lki_tokens *out, const uint8_t *data, size_t bytes,
                                        uint32_t width, uint64_t vocabulary, const char *path);

/* Tokens [first, first + count). */
void lki_tokens_copy(const lki_tokens *tokens, uint64_t first, size_t count, int32_t *out);

/* ---- tar ------------------------------------------------------------------------------------ */

enum { LKI_TAR_NAME_MAX = 1023 };

typedef struct lki_tar {
    const uint8_t *data; /* what is in memory: `bytes` of the archive, from `from` on */
    size_t         from, bytes;
    const char    *path;
    size_t         at, start;          /* the next header; the first header of the member at hand */
    bool           has_name, has_size; /* an extended header has said them */
    uint64_t       size;
    char           name[LKI_TAR_NAME_MAX + 1];

    /* NULL, or where memory does not hold all: makes it hold what there is up to `end`.  What lies
     * before `at` may go. */
    lk_status (*hold)(struct lki_tar *tar, size_t end);
    void *context; /* hold()'s */
} lki_tar;

/* A regular file. */
typedef struct {
    const char    *name;    /* this and content: until the next call */
    size_t         start;   /* of its headers: where a walk can begin */
    size_t         offset;  /* of its content */
    const uint8_t *content; /* `bytes` of it */
    size_t         bytes;
} lki_tar_member;

void lki_tar_begin(lki_tar *tar, const uint8_t *data, size_t bytes, const char *path);

/* The next regular file; *more is false where the archive ends.  LK_EFORMAT says at which byte it
 * is truncated or damaged. */
LK_NODISCARD lk_status lki_tar_next(lki_tar *tar, lki_tar_member *out, bool *more);

/* Where an archive has ended: whether another one follows, as where several were written into one
 * file or pipe, behind any number of blocks of zeros.  What is not zeros must be one. */
LK_NODISCARD lk_status lki_tar_follows(lki_tar *tar, bool *more);

/* ---- gzip ----------------------------------------------------------------------------------- */

typedef struct lki_gunzip lki_gunzip;

bool lki_is_gzip(const uint8_t *data, size_t bytes);
LK_NODISCARD lk_status lki_gunzip_open(lki_gunzip **out, const uint8_t *data, size_t bytes,
                                       const char *path);
void lki_gunzip_close(lki_gunzip *gunzip);

/* Inflates up to `bytes`; *got is less only where the content ends. */
LK_NODISCARD lk_status lki_gunzip_read(lki_gunzip *gunzip, uint8_t *out, size_t bytes,
                                       size_t *got);

/* LK_EFORMAT unless content and file end here. */
LK_NODISCARD lk_status lki_gunzip_finish(lki_gunzip *gunzip);

#endif
