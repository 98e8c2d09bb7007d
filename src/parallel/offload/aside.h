/* parallel/offload/aside.h -- what a rank lays aside of the spans that it owns, in a file: aside.c.
 */
#ifndef LKI_PARALLEL_OFFLOAD_ASIDE_H
#define LKI_PARALLEL_OFFLOAD_ASIDE_H

#include "base/store.h"
#include "parallel/strategy.h"

typedef struct {
    uint64_t offset, hash;
    size_t   first, end;     /* places in parallel->mine */
    size_t   payload, bytes; /* what it has; and that in whole pages */
    bool     written;        /* else zeros */
} lki_chunk;

struct lki_aside {
    lk_parallel *parallel;
    const char  *what;     /* for messages: "the optimizer's state" */
    uint32_t     columns;  /* vectors of each span's width, one behind the other */
    lki_store   *store;
    lki_chunk   *chunks;
    size_t       chunk_count, widest;
    uint32_t    *chunk_of; /* [span_count], of my spans */
    size_t      *at;       /* likewise: elements from the beginning of its chunk */
    void        *memory;
    uint8_t     *buffers[LKI_STORE_SLOTS]; /* in it */
    uint32_t     ring;     /* so many of them, the first, go round */
    uint32_t     own;      /* the one for lki_aside_get() and lki_aside_put() */
    size_t       here;     /* the chunk that is in it; chunk_count: none */
    bool         changed;  /* and is to be written */
    double       stalled;  /* seconds of waiting */
};

/* How many buffers one has: of several chunks that are under way, and with `apart` one more, so
 * that values can be asked for meanwhile. */
enum { LKI_ASIDE_RING = 4, LKI_ASIDE_RING_APART = 7 };

/* Of `columns` vectors: the bytes of all ranks' buffers on a host, at most; of the layout alone. */
size_t lki_aside_memory(const lk_parallel *parallel, uint32_t columns, bool apart);

/* Once my spans are known.  `what` is borrowed.  lki_aside_close() accepts NULL. */
LK_NODISCARD lk_status lki_aside_open(lki_aside **out, lk_parallel *parallel, const char *what,
                                      uint32_t columns, bool apart);
void                   lki_aside_close(lki_aside *aside);

/* The chunks' buffers: chunk k goes into number k mod ring.  A read begins when what the buffer has
 * is written, or this waits for it; lki_aside_end_read() waits, and compares with the hash. */
LK_NODISCARD lk_status lki_aside_begin_read(lki_aside *aside, size_t k);
bool                   lki_aside_is_read(lki_aside *aside, size_t k);
LK_NODISCARD lk_status lki_aside_end_read(lki_aside *aside, size_t k);
void                   lki_aside_begin_write(lki_aside *aside, size_t k);

/* A column of a span (by its number in the layout) whose chunk is there. */
float *lki_aside_find(const lki_aside *aside, size_t span, uint32_t column);

/* Copies elements [from, from + count) of a span's column out of, or all into, its chunk, which is
 * fetched if need be. */
LK_NODISCARD lk_status lki_aside_get(lki_aside *aside, size_t span, uint32_t column, size_t from,
                                     size_t count, float *out);
LK_NODISCARD lk_status lki_aside_put(lki_aside *aside, size_t span, uint32_t column,
                                     const float *values);

/* What was put is in the file; and whatever else is under way, too. */
LK_NODISCARD lk_status lki_aside_put_back(lki_aside *aside);
LK_NODISCARD lk_status lki_aside_settle(lki_aside *aside);

#endif
