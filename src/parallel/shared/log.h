/* parallel/shared/log.h -- the file of a recorded run.
 *
 * The file has blocks of LKI_LOG_BLOCK bytes.  The first one has the header.  Each other block
 * belongs to one rank, which maps it and appends entries, or is zero: a rank maps several blocks at
 * a time, and may not need all of them.  So entries are in the file as soon as they are in memory,
 * even if the rank is killed.  An entry never crosses blocks.  A zero byte at the place of an entry
 * ends the block.
 *
 * An entry is two numbers, in 7 bits a byte, the lower ones first.  The first number is the kind of
 * the entry and its value; it is never zero.  The first byte of an entry is written last.
 *
 *     TASK     task           ticket          begins a task
 *     READ     span           version         the task has read a span
 *     WRITE    span           version         a push is about to change this version of a span
 *     HASH     0              0, then 8 bytes ends a push: the hash of its message
 *     END      0              0               ends the task
 *
 * Spans are differences from the span of the previous entry of the task.
 */
#ifndef LKI_PARALLEL_SHARED_LOG_H
#define LKI_PARALLEL_SHARED_LOG_H

#include "base/file.h"
#include "parallel/shared/internal.h"

enum { LKI_LOG_BLOCK = 1 << 16, LKI_LOG_ENTRY_MAX = 28 };

typedef enum {
    LKI_LOG_TASK = 0, LKI_LOG_READ, LKI_LOG_WRITE, LKI_LOG_HASH, LKI_LOG_END, LKI_LOG_KINDS
} lki_log_kind;

typedef struct {
    char     magic[8]; /* "lkshared" */
    uint32_t revision, ranks;
    uint64_t count;
    uint32_t shift, zero;
} lki_log_header;

typedef struct {
    char     magic[4]; /* "lkbk" */
    uint32_t rank;
} lki_log_block;

typedef struct {
    lki_log_kind kind;
    uint64_t     value; /* a task, a span, or 0 */
    uint64_t     second; /* a ticket, a version, or the hash */
} lki_log_entry;

/* ---- Writing ----------------------------------------------------------------------------- */

/* Creates the file on rank 0, and opens it on all ranks.  Collective. */
LK_NODISCARD lk_status lki_log_open(lk_shared_vector *v, const char *path);
void lki_log_close(lki_shared_log *log);

/* Begins a block. */
LK_NODISCARD lk_status lki_log_new_block(lk_shared_vector *v);

/* Makes room for `entries` entries, at most LKI_LOG_BLOCK / LKI_LOG_ENTRY_MAX - 1. */
static inline lk_status lki_log_reserve(lk_shared_vector *v, size_t entries)
{
    const size_t end = v->log.used + entries * LKI_LOG_ENTRY_MAX;
    return v->log.block != NULL && end <= LKI_LOG_BLOCK ? LK_OK : lki_log_new_block(v);
}

/* Appends an entry, for which there is room. */
void lki_log_append(lki_shared_log *log, lki_log_kind kind, uint64_t value, uint64_t second);

/* Appends a READ for each of `count` versions of spans, for which there is room. */
void lki_log_append_reads(lki_shared_log *log, const lki_span_version *reads, size_t count);

/* ---- Reading ----------------------------------------------------------------------------- */

typedef struct {
    lki_map        map;
    lki_log_header header;
    uint32_t       blocks; /* with that of the header */
    uint32_t      *next;   /* [blocks]: the next block of the same rank; 0: none */
    uint32_t      *first;  /* [header.ranks]: the first block of a rank; 0: none */
} lki_log_file;

/* A place in the entries of a rank. */
typedef struct {
    uint64_t at;      /* offset in the file */
    uint64_t last;    /* the span of the last entry */
    bool     damaged; /* other bytes follow where the entries end */
} lki_log_cursor;

/* Maps a file and finds the blocks of each rank.  Returns LK_EFORMAT if it is no such file. */
LK_NODISCARD lk_status lki_log_map(lki_log_file *out, const char *path);
void lki_log_unmap(lki_log_file *file);

/* Returns the cursor before the first entry of a rank. */
lki_log_cursor lki_log_begin(const lki_log_file *file, uint32_t rank);

/* Reads an entry and advances the cursor.  Returns false at the end of the rank's entries, which
 * may be in the middle of an entry if the rank died. */
bool lki_log_read(const lki_log_file *file, lki_log_cursor *cursor, lki_log_entry *out);

#endif
