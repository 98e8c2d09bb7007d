/* tensor/packs.h -- weights in the order in which products read them, kept while they stay.
 *
 * What a product packs of a weight it needs again for the next micro-batch.  A pack is memory for
 * that, which several threads and processes may share: a word says which version of the weight is
 * there.  Versions tell values apart: where two are equal, so are the values.
 *
 *      who finds another version      makes the pack, and says that it is there
 *      who finds it being made        does without: nobody waits, so nobody can be held up by one
 *                                     that dies meanwhile, and what it leaves is never read
 *
 * While one makes or reads a version nobody may ask for another one: ranks meet between two.
 */
#ifndef LKI_TENSOR_PACKS_H
#define LKI_TENSOR_PACKS_H

#include <stdatomic.h>
#include <stdint.h>

#include "lockstep/tensor.h"

/* Products of more rows have no packs: packing takes less than a hundredth of them, and what is
 * packed as much memory as the weight. */
enum { LKI_PACKED_ROWS = 512 };

typedef _Atomic uint64_t lki_pack_state; /* 2 x version, and 1 more when the pack is there */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "processes share it");

struct lk_pack {
    lki_pack_state *state;   /* 0 in new memory */
    uint64_t        version; /* of the weight now, from 1 */
    float          *data;    /* 64-byte aligned */
};

typedef enum {
    LKI_PACK_NONE = 0, /* there is none, or another one makes it */
    LKI_PACK_MINE,     /* the caller makes it, and then calls lki_pack_end() */
    LKI_PACK_THERE,
} lki_pack_turn;

/* `pack` may be NULL. */
static inline lki_pack_turn lki_pack_begin(const lk_pack *pack)
{
    if (pack == NULL)
        return LKI_PACK_NONE;
    uint64_t making = 2 * pack->version;
    uint64_t found  = atomic_load_explicit(pack->state, memory_order_acquire);
    if (found == making + 1)
        return LKI_PACK_THERE;
    if (found != making && atomic_compare_exchange_strong(pack->state, &found, making))
        return LKI_PACK_MINE;
    return LKI_PACK_NONE;
}

/* Not over another's turn: who comes so late has been given up. */
static inline void lki_pack_end(const lk_pack *pack)
{
    uint64_t making = 2 * pack->version;
    (void)atomic_compare_exchange_strong(pack->state, &making, making + 1);
}

#endif
