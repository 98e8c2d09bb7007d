/* cache.c -- memory for what blocks keep of earlier positions; see cache.h. */
#include "nn/cache.h"

#include "base/memory.h"
#include "nn/widen.h"

static size_t bytes_of(const lki_block_entry *entry, const lk_exec *exec, lk_dtype dtype,
                       uint32_t samples)
{
    if (entry->type->cache_bytes == NULL)
        return 0;
    return entry->type->cache_bytes(&entry->block, exec, lki_taken_dtype(entry, dtype), samples);
}

lk_status lki_cache_init(lki_cache *cache, const lk_model *model, const lk_exec *exec,
                         lk_dtype dtype, uint32_t samples)
{
    size_t total = 0;
    LK_TRY(LKI_NEW(&cache->at, model->block_count, "a cache"));
    for (size_t b = 0; b < model->block_count; b++) {
        size_t bytes = bytes_of(&model->blocks[b], exec, dtype, samples);
        if (!model->blocks[b].type->by_position)
            return lk_fail(LK_EINVAL,
                           "%s: it needs all positions at once, so there is no cache for them",
                           model->blocks[b].label);
        cache->at[b] = bytes > 0 ? total : SIZE_MAX;
        total += lki_round_up(bytes, LKI_LINE);
    }
    cache->positions = (uint32_t)model->input.dims[0];
    return lki_alloc((void **)&cache->memory, total, "keys and values of all positions");
}

void lki_cache_deinit(lki_cache *cache)
{
    lki_free(cache->memory);
    lki_free(cache->at);
}

void *lki_cache_of(const lki_cache *cache, uint32_t b)
{
    return cache->at == NULL || cache->at[b] == SIZE_MAX ? NULL : cache->memory + cache->at[b];
}
