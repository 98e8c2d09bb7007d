/* nn/packs.h -- where the weights of a model's blocks are kept as products read them. */
#ifndef LKI_NN_PACKS_H
#define LKI_NN_PACKS_H

#include "nn/layout.h"
#include "tensor/packs.h"

/* Of each block two packs, of forward and of backward, each with its state in front.  Offsets are
 * from the start of the memory. */
typedef struct {
    size_t        *at;     /* [block_count][2]; SIZE_MAX: none */
    size_t         bytes;  /* of all */
    unsigned char *memory; /* the caller's, and maybe others' too; NULL: none are kept */
} lki_packs;

LK_NODISCARD lk_status lki_packs_init(lki_packs *packs, const lki_layout *layout,
                                      const lk_model *model, const lk_exec *exec,
                                      uint32_t micro_batch);
void                   lki_packs_deinit(lki_packs *packs);

/* *room, or NULL where block `b` has no pack or there is no version to keep. */
const lk_pack *lki_packs_of(const lki_packs *packs, lk_pack *room, uint32_t b, bool backward,
                            uint64_t version);

#endif
