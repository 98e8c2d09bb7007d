/* nn/packs.h -- memory for the packed weights of a model's blocks. */
#ifndef LKI_NN_PACKS_H
#define LKI_NN_PACKS_H

#include "nn/layout.h"
#include "tensor/packs.h"

/* Each block has two packs, for forward and backward.  Each pack is preceded by its state.  Offsets
 * are from the start of the memory.
 *
 * Which weights have packs depends on the threads and the instruction set as well, so engines of
 * one model may have different layouts.  The first line of the memory holds the identity of the
 * layout of the first engine that used it.  Engines with another layout store no packs. */
typedef struct {
    size_t        *at;     /* [block_count][2]; SIZE_MAX: none */
    size_t         bytes;  /* total size of all packs, with the first line; 0: there are none */
    uint64_t       layout; /* identity of the offsets, not 0 */
    /* owned by the caller, possibly shared with other engines; NULL: packs are not stored */
    unsigned char *memory;
} lki_packs;

LK_NODISCARD lk_status lki_packs_init(lki_packs *packs, const lki_layout *layout,
                                      const lk_model *model, const lk_exec *exec,
                                      uint32_t micro_batch);
void                   lki_packs_deinit(lki_packs *packs);

/* Stores packs in `memory`, or nowhere if it is NULL, smaller than all packs, or has another
 * layout. */
void lki_packs_keep(lki_packs *packs, void *memory, size_t bytes);

/* Fills *room and returns it.  Returns NULL if block `b` has no pack or `version` is 0. */
const lk_pack *lki_packs_of(const lki_packs *packs, lk_pack *room, uint32_t b, bool backward,
                            uint64_t version);

#endif
