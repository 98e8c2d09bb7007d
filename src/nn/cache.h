/* nn/cache.h -- what blocks keep of earlier positions, such as keys and values. */
#ifndef LKI_NN_CACHE_H
#define LKI_NN_CACHE_H

#include "nn/model.h"

typedef struct {
    unsigned char *memory;
    size_t        *at;        /* [block_count]: offsets; NULL: there is no cache */
    uint32_t       positions; /* of the model */
} lki_cache;

/* Allocates the memory for `samples` samples.  Returns LK_EINVAL, with the name of the block, if a
 * block cannot compute some positions without the others. */
LK_NODISCARD lk_status lki_cache_init(lki_cache *cache, const lk_model *model, const lk_exec *exec,
                                      lk_dtype dtype, uint32_t samples);
void                   lki_cache_deinit(lki_cache *cache);

/* Returns the memory of block `b`; NULL if it has none. */
void *lki_cache_of(const lki_cache *cache, uint32_t b);

#endif
