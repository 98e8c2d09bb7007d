/* nn/spill.h -- values that are stored in a file between their forward and their backward pass; see
 * spill.c. */
#ifndef LKI_NN_SPILL_H
#define LKI_NN_SPILL_H

#include "base/store.h"

/* The number of values in memory at the same time.  All other values are in the file. */
enum { LKI_SPILL_RING = 3 };

typedef struct {
    lki_store     *store;
    const char    *dir;     /* borrowed */
    uint32_t       count;   /* number of values, in the order in which forward computes them */
    size_t         each;    /* bytes of one value in one context */
    size_t         bytes;   /* bytes of one value in all contexts, rounded up to whole pages */
    void          *memory;
    /* value i is in ring[i mod LKI_SPILL_RING] while it is in memory */
    unsigned char *ring[LKI_SPILL_RING];
    uint64_t      *hashes;  /* [count]: hashes of the written values */
    bool          *coming;  /* [count]: the value is being read from the file */
    lk_error       failure; /* the first failure, after which nothing is transferred */
    double         stalled; /* seconds spent waiting */
} lki_spill;

/* Returns the bytes of memory for `count` values of `each` bytes in `contexts` contexts, and sets
 * *file to the bytes of the file.  There is a file only if the ring has too few buffers. */
size_t lki_spill_bytes(uint32_t count, size_t each, uint32_t contexts, uint64_t *file);

/* Opens the file.  If `dir` is NULL all values are in memory, and lki_spill_leave() must not be
 * called.  lki_spill_deinit() accepts a zeroed struct. */
LK_NODISCARD lk_status lki_spill_init(lki_spill *self, const char *dir, uint32_t count,
                                      size_t each, uint32_t contexts);
void                   lki_spill_deinit(lki_spill *self);

/* Returns the address of value `i` of a context while it is in memory. */
void *lki_spill_at(const lki_spill *self, uint32_t i, uint32_t context);

/* Waits for the buffer of a value that forward will compute next. */
void lki_spill_make(lki_spill *self, uint32_t i);

/* Starts to write a value that forward does not read again. */
void lki_spill_leave(lki_spill *self, uint32_t i);

/* Waits for a value that backward will read next. */
void lki_spill_need(lki_spill *self, uint32_t i);

/* Releases the buffer of a value after backward has read it for the last time. */
void lki_spill_drop(lki_spill *self, uint32_t i);

#endif
