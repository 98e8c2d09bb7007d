/* tensor/packs.h -- packed weights, stored until the weights change.
 *
 * Products of the next micro-batch need the packed form of a weight again.  A pack is memory for
 * the packed form, which several threads and processes may share.  A word holds the version of the
 * weight in the pack.  Equal versions must mean equal values.
 *
 *      a caller that finds another version     fills the pack, and then sets the word
 *      a caller that finds the pack being      packs the weight for itself.  No caller waits, so a
 *      filled, or in another layout            caller that dies while filling a pack blocks no
 *                                              other caller, and its pack is never read
 *
 * Instruction sets have different layouts, and processes of a host may have chosen different ones.
 * The caller that fills a pack decides its layout.
 *
 * No caller may request another version while a pack of one version is being filled or read.  So
 * ranks synchronise between two versions.
 */
#ifndef LKI_TENSOR_PACKS_H
#define LKI_TENSOR_PACKS_H

#include <stdatomic.h>
#include <stdint.h>

#include "lockstep/tensor.h"

/* Products with more rows have no packs, because packing takes less than one percent of their time
 * and a pack is as large as the weight. */
enum { LKI_PACKED_ROWS = 512 };

/* The limit for convolutions of bf16 values, which AMX tiles compute eight times as fast. */
enum { LKI_PACKED_PIXELS = 4096 };

/* From the lowest bit: whether the pack is complete, 3 bits for its layout, and the version. */
typedef _Atomic uint64_t lki_pack_state;
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "processes share it");

struct lk_pack {
    lki_pack_state *state;   /* 0 in new memory */
    uint64_t        version; /* current version of the weight, from 1 */
    float          *data;    /* 64-byte aligned */
};

typedef enum {
    LKI_PACK_NONE = 0, /* there is no pack, or another caller is filling it */
    LKI_PACK_MINE,     /* the caller must fill the pack, and then call lki_pack_end() */
    LKI_PACK_THERE,
} lki_pack_turn;

/* Returns the state of a pack that is being filled in `layout`, which is at most 7. */
static inline uint64_t lki_pack_filling(const lk_pack *pack, uint32_t layout)
{
    return pack->version << 4 | layout << 1;
}

/* Determines whether the caller must fill the pack in `layout` or can read it.  `pack` may be
 * NULL. */
static inline lki_pack_turn lki_pack_begin(const lk_pack *pack, uint32_t layout)
{
    if (pack == NULL)
        return LKI_PACK_NONE;
    uint64_t filling = lki_pack_filling(pack, layout);
    uint64_t found   = atomic_load_explicit(pack->state, memory_order_acquire);
    if (found == filling + 1)
        return LKI_PACK_THERE;
    if (found >> 4 != pack->version && atomic_compare_exchange_strong(pack->state, &found, filling))
        return LKI_PACK_MINE;
    return LKI_PACK_NONE;
}

/* Marks the pack as complete, unless another caller has begun a newer version since. */
static inline void lki_pack_end(const lk_pack *pack, uint32_t layout)
{
    uint64_t filling = lki_pack_filling(pack, layout);
    (void)atomic_compare_exchange_strong(pack->state, &filling, filling + 1);
}

#endif
