/* parallel/offload/vector_file.h -- a file in which a rank stores some values of its spans:
 * vector_file.c. */
#ifndef LKI_PARALLEL_OFFLOAD_VECTOR_FILE_H
#define LKI_PARALLEL_OFFLOAD_VECTOR_FILE_H

#include "base/store.h"
#include "parallel/state.h"

typedef struct {
    uint64_t offset, hash;
    size_t   first, end;     /* range of places in parallel->owned.spans */
    size_t   payload, bytes; /* bytes of values, and bytes rounded up to whole pages */
    bool     written;        /* false: the chunk is all zeros */
} lki_chunk;

struct lki_vector_file {
    lk_parallel *parallel;
    const char  *what;    /* for messages: "the optimizer's state" */
    uint32_t     columns; /* vectors for each span, one after another */
    lki_store   *store;
    lki_chunk   *chunks;
    size_t       chunk_count, widest;
    uint32_t    *chunk_of; /* [span_count]: the chunk of each of this rank's spans */
    size_t      *at;       /* [span_count]: offset of the span in its chunk, in elements */
    void        *memory;
    uint8_t     *buffers[LKI_STORE_SLOTS]; /* in `memory` */
    uint32_t     ring;                     /* the first `ring` buffers are used in turn */
    uint32_t     own;     /* the buffer used by lki_vector_file_get() and lki_vector_file_put() */
    size_t       here;    /* the chunk in buffer `own`; chunk_count: none */
    bool         changed; /* the chunk in buffer `own` must be written */
    double       stalled; /* seconds spent waiting */
};

/* The number of buffers for transfers in progress.  With `apart` there are more, because values may
 * be requested during the transfers. */
enum { LKI_VECTOR_FILE_RING = 4, LKI_VECTOR_FILE_RING_APART = 7 };

/* Returns the maximum number of bytes that the buffers of all ranks of a host need for `columns`
 * vectors.  Needs only the layout. */
size_t lki_vector_file_memory(const lk_parallel *parallel, uint32_t columns, bool apart);

/* Opens the file, once this rank's spans are known.  `what` is borrowed. */
LK_NODISCARD lk_status lki_vector_file_open(lki_vector_file **out, lk_parallel *parallel,
                                            const char *what, uint32_t columns, bool apart);

/* Closes the file; NULL is allowed. */
void lki_vector_file_close(lki_vector_file *self);

/* Starts to read chunk k into buffer k mod ring.  Waits first if the buffer's last transfer is not
 * complete. */
LK_NODISCARD lk_status lki_vector_file_begin_read(lki_vector_file *self, size_t k);

/* Returns true if the read of chunk k is complete. */
bool lki_vector_file_is_read(lki_vector_file *self, size_t k);

/* Waits for the read of chunk k, and compares its hash with the hash of the values that were
 * written. */
LK_NODISCARD lk_status lki_vector_file_end_read(lki_vector_file *self, size_t k);

/* Starts to write chunk k from its buffer. */
void lki_vector_file_begin_write(lki_vector_file *self, size_t k);

/* Returns a column of a span, given by its number in the layout.  The span's chunk must be in
 * memory. */
float *lki_vector_file_find(const lki_vector_file *self, size_t span, uint32_t column);

/* Copies elements [from, from + count) of a span's column from its chunk, which is read first if
 * necessary. */
LK_NODISCARD lk_status lki_vector_file_get(lki_vector_file *self, size_t span, uint32_t column,
                                           size_t from, size_t count, float *out);

/* Copies all elements of a span's column to its chunk, which is read first if necessary. */
LK_NODISCARD lk_status lki_vector_file_put(lki_vector_file *self, size_t span, uint32_t column,
                                           const float *values);

/* Writes the chunk that lki_vector_file_put() has changed, and waits. */
LK_NODISCARD lk_status lki_vector_file_put_back(lki_vector_file *self);

/* Writes the chunk that lki_vector_file_put() has changed, and waits for all transfers. */
LK_NODISCARD lk_status lki_vector_file_settle(lki_vector_file *self);

#endif
