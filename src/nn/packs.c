/* packs.c -- the layout of packed weights; see packs.h. */
#include "nn/packs.h"

#include "base/hash.h"
#include "base/memory.h"
#include "nn/engine.h"
#include "nn/engine_packs.h"
#include "nn/widen.h"

enum { LINE = 64 };

static size_t bytes_of(const lki_block_entry *entry, const lki_place *place, const lk_exec *exec,
                       lk_dtype dtype, uint32_t micro_batch, bool backward)
{
    bool wanted = !backward || (place->wanted && place->dx[0]);
    if (entry->type->pack_bytes == NULL || !wanted)
        return 0;
    return entry->type->pack_bytes(&entry->block, exec, lki_taken_dtype(entry, dtype), micro_batch,
                                   backward);
}

lk_status lki_packs_init(lki_packs *packs, const lki_layout *layout, const lk_model *model,
                         const lk_exec *exec, uint32_t micro_batch)
{
    *packs = (lki_packs){ .at = NULL };
    const size_t count = 2 * model->block_count;
    size_t       end   = LINE; /* after the identity of the layout */
    LK_TRY(LKI_NEW(&packs->at, count, "packs of weights"));
    for (size_t i = 0; i < count; i++) {
        size_t bytes = bytes_of(&model->blocks[i / 2], &layout->places[i / 2], exec, layout->dtype,
                                micro_batch, i % 2 == 1);
        packs->at[i] = bytes > 0 ? end : SIZE_MAX;
        if (bytes > 0)
            end += LINE + lki_round_up(bytes, LINE);
    }
    packs->bytes  = end > LINE ? end : 0;
    packs->layout = lki_xxh3(packs->at, count * sizeof *packs->at) | 1;
    return LK_OK;
}

void lki_packs_keep(lki_packs *packs, void *memory, size_t bytes)
{
    _Atomic uint64_t *layout = memory;
    uint64_t          found  = 0;
    const bool        fits   = memory != NULL && packs->bytes > 0 && packs->bytes <= bytes &&
                      (atomic_compare_exchange_strong(layout, &found, packs->layout) ||
                       found == packs->layout);
    packs->memory = fits ? memory : NULL;
}

void lki_packs_deinit(lki_packs *packs)
{
    lki_free(packs->at);
}

const lk_pack *lki_packs_of(const lki_packs *packs, lk_pack *room, uint32_t b, bool backward,
                            uint64_t version)
{
    size_t at = packs->at[2 * (size_t)b + backward];
    if (packs->memory == NULL || at == SIZE_MAX || version == 0)
        return NULL;
    *room = (lk_pack){ .state   = (lki_pack_state *)(void *)(packs->memory + at),
                       .version = version,
                       .data    = (float *)(void *)(packs->memory + at + LINE) };
    return room;
}

lk_status lki_engine_pack_bytes(size_t *out, const lk_model *model, const lk_exec *exec,
                                lk_dtype dtype, uint32_t micro_batch)
{
    lki_layout layout;
    lki_packs  packs;

    LK_TRY(lki_layout_init(&layout, model, exec, dtype, micro_batch, 1, false));
    lk_status status = lki_packs_init(&packs, &layout, model, exec, micro_batch);
    *out             = packs.bytes;
    lki_packs_deinit(&packs);
    lki_layout_deinit(&layout);
    return status;
}

void lki_engine_keep_packs(lk_engine *engine, void *memory, size_t bytes)
{
    lki_packs_keep(&engine->packs, memory, bytes);
}
