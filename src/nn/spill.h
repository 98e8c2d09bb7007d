/* nn/spill.h -- values that lie in a file between their forward and their backward pass: spill.c.
 */
#ifndef LKI_NN_SPILL_H
#define LKI_NN_SPILL_H

#include "base/store.h"

/* Values that are in memory at a time: the others are in the file. */
enum { LKI_SPILL_RING = 3 };

typedef struct {
    lki_store     *store;
    const char    *dir;     /* borrowed */
    uint32_t       count;   /* values, in the order in which forward makes them */
    size_t         each;    /* bytes of one, of one context */
    size_t         bytes;   /* of one, of all contexts, in whole pages */
    void          *memory;
    unsigned char *ring[LKI_SPILL_RING]; /* in it: value i lies in number i mod LKI_SPILL_RING */
    uint64_t      *hashes;  /* [count], of what was written */
    bool          *coming;  /* [count]: is being read */
    lk_error       failure; /* the first; nothing is moved after it */
    double         stalled; /* seconds of waiting */
} lki_spill;

/* Bytes in memory, and in a file, of so many values of `each` bytes of so many contexts; there is
 * a file only if they are more than the ring has room for. */
size_t lki_spill_bytes(uint32_t count, size_t each, uint32_t contexts, uint64_t *file);

/* With `dir` NULL the values are in memory, and none may be left.  lki_spill_deinit() accepts a
 * zeroed one. */
LK_NODISCARD lk_status lki_spill_init(lki_spill *spill, const char *dir, uint32_t count,
                                      size_t each, uint32_t contexts);
void                   lki_spill_deinit(lki_spill *spill);

/* Where value `i` of a context lies while it is in memory. */
void *lki_spill_at(const lki_spill *spill, uint32_t i, uint32_t context);

/* Forward is about to make a value; nothing in its pass reads it any more; backward is about to
 * read it; and has done so for the last time. */
void lki_spill_make(lki_spill *spill, uint32_t i);
void lki_spill_leave(lki_spill *spill, uint32_t i);
void lki_spill_need(lki_spill *spill, uint32_t i);
void lki_spill_drop(lki_spill *spill, uint32_t i);

#endif
