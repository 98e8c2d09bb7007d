/* data/files.h -- parsers of the file formats, which read from memory and open no files.
 *
 * All parsers accept hostile bytes: they check every number before it is used or multiplied, and
 * allocate no more memory than the size of the input justifies. `path` is used only in messages.
 * Outputs point into `data`, so `data` must outlive the outputs.
 */
#ifndef LKI_DATA_FILES_H
#define LKI_DATA_FILES_H

#include "base/status.h"

/* ---- IDX: unsigned bytes, plain or gzip ---------------------------------------------------- */

typedef struct {
    uint64_t       dims[3];
    const uint8_t *values;
    size_t         count;  /* the product of the dimensions */
    const uint8_t *plain;  /* the uncompressed file */
    size_t         plain_bytes;
    uint8_t       *memory; /* the inflated data, or NULL */
} lki_idx;

/* Parses a file.  `rank` is the expected rank: 3 for images, 1 for labels. */
LK_NODISCARD lk_status lki_idx_parse(lki_idx *out, const uint8_t *data, size_t bytes,
                                     uint32_t rank, const char *path);
void lki_idx_close(lki_idx *idx);

/* ---- npy ------------------------------------------------------------------------------------ */

enum { LKI_NPY_RANK_MAX = 4 };

typedef struct {
    lk_dtype       dtype; /* F32, F64, and integers */
    uint32_t       rank;
    uint64_t       dims[LKI_NPY_RANK_MAX];
    const uint8_t *values; /* possibly unaligned */
    size_t         count;
} lki_npy;

/* Parses a C-ordered array with at least one dimension.  All dimensions must be above 0. */
LK_NODISCARD lk_status lki_npy_parse(lki_npy *out, const uint8_t *data, size_t bytes,
                                     const char *path);

/* Returns element `index` as a number.  Rounds FP64 and wide integers. */
float lki_npy_number(const lki_npy *array, size_t index);

/* ---- Tables with commas or tabs -------------------------------------------------------------- */

typedef struct {
    const uint8_t *data;
    size_t         bytes, at;
    char           delimiter;
    const char    *path;
    uint64_t       line, next_line; /* numbers of lines, from 1: of the record, and after it */
    size_t         count;           /* fields of the record */
    char          *text;            /* the fields, each with a NUL after it */
    size_t         text_bytes, text_capacity;
    size_t        *starts; /* offsets of the fields in `text` */
    size_t         capacity;
} lki_csv;

void lki_csv_begin(lki_csv *csv, const uint8_t *data, size_t bytes, char delimiter,
                   const char *path);
void lki_csv_end(lki_csv *csv);

/* Reads the next record; *more is false at the end.  LK_EFORMAT names a damaged line. */
LK_NODISCARD lk_status lki_csv_next(lki_csv *csv, bool *more);

/* Returns a field of the record, valid until the next call. */
const char *lki_csv_field(const lki_csv *csv, size_t index);

/* ---- Token files ---------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *values; /* possibly unaligned */
    uint64_t       count;
    uint32_t       width; /* bytes per token: 2 or 4 */
    uint32_t       max;   /* the largest token */
} lki_tokens;

/* Returns the bytes per token: `bits` / 8 if a setting gives them, else by the suffix .u16 or .u32;
 * 0: the header has them. */
uint32_t lki_tokens_width(uint64_t bits, const char *path);

/* Parses a token file.  `width` 0: read from the header; `vocabulary` 0: any token is valid. */
LK_NODISCARD lk_status lki_tokens_parse(lki_tokens *out, const uint8_t *data, size_t bytes,
                                        uint32_t width, uint64_t vocabulary, const char *path);

/* Copies tokens [first, first + count). */
void lki_tokens_copy(const lki_tokens *tokens, uint64_t first, size_t count, int32_t *out);

/* ---- tar ------------------------------------------------------------------------------------ */

enum { LKI_TAR_NAME_MAX = 1023 };

typedef struct lki_tar {
    const uint8_t *data; /* the part of the archive in memory: `bytes` bytes from offset `from`
                          * on */
    size_t         from, bytes;
    const char    *path;
    size_t         at, start;          /* offsets of the next header and of the first header of the
                                        * current member */
    bool           has_name, has_size; /* given by an extended header */
    uint64_t       size;
    char           name[LKI_TAR_NAME_MAX + 1];

    /* Loads the archive up to offset `end`, or to its end.  May drop the bytes before offset `at`.
     * The pointer is NULL if the whole archive is in memory. */
    lk_status (*hold)(struct lki_tar *tar, size_t end);
    void *context; /* for hold() */
} lki_tar;

/* A regular file in an archive. */
typedef struct {
    const char    *name;    /* `name` and `content` are valid until the next call */
    size_t         start;   /* offset of the member's first header; a walk can begin there */
    size_t         offset;  /* offset of the content */
    const uint8_t *content; /* `bytes` bytes */
    size_t         bytes;
} lki_tar_member;

void lki_tar_begin(lki_tar *tar, const uint8_t *data, size_t bytes, const char *path);

/* Finds the next regular file; *more is false at the end of the archive.  LK_EFORMAT names the byte
 * at which the archive is truncated or damaged. */
LK_NODISCARD lk_status lki_tar_next(lki_tar *tar, lki_tar_member *out, bool *more);

/* Called at the end of an archive.  Several archives may be written to one file or pipe. *more
 * becomes true if another archive follows, after any number of zero blocks.  Returns LK_EFORMAT if
 * other bytes follow. */
LK_NODISCARD lk_status lki_tar_follows(lki_tar *tar, bool *more);

/* ---- gzip ----------------------------------------------------------------------------------- */

typedef struct lki_gunzip lki_gunzip;

bool lki_is_gzip(const uint8_t *data, size_t bytes);
LK_NODISCARD lk_status lki_gunzip_open(lki_gunzip **out, const uint8_t *data, size_t bytes,
                                       const char *path);
void lki_gunzip_close(lki_gunzip *gunzip);

/* Inflates up to `bytes` bytes; *got is below `bytes` only at the end of the content. */
LK_NODISCARD lk_status lki_gunzip_read(lki_gunzip *gunzip, uint8_t *out, size_t bytes,
                                       size_t *got);

/* Returns LK_EFORMAT unless all content has been read and the file has no further bytes. */
LK_NODISCARD lk_status lki_gunzip_finish(lki_gunzip *gunzip);

#endif
