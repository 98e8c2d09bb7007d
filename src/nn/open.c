/* open.c -- the life of an engine, and its memory. */
#include <unistd.h>

#include "base/memory.h"
#include "nn/engine.h"
#include "tensor/exec.h"

/* Refuses more memory than the machine has, because the process would be killed on first use. */
static lk_status check_memory(const lk_engine *engine, size_t bytes)
{
    long   pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    double has = (double)pages * (double)page_bytes, gib = 1024.0 * 1024.0 * 1024.0;
    if (pages > 0 && page_bytes > 0 && (double)bytes > has)
        return lk_fail(LK_ENOMEM,
                       "model %s: activations of %u x %u samples take %.1f GiB, this machine "
                       "has %.1f; lower the micro-batch or the model's size",
                       engine->model->name, engine->contexts, engine->micro_batch,
                       (double)bytes / gib, has / gib);
    return LK_OK;
}

/* Counts the bytes of the contexts in *bytes, and those of the whole engine in *total. */
static lk_status count_bytes(const lki_layout *layout, const lk_model *model, uint32_t contexts,
                             size_t *bytes, size_t *total)
{
    uint64_t file;
    size_t spilled = lki_spill_bytes(layout->spilled_count, layout->spilled_bytes, contexts, &file);
    if (__builtin_mul_overflow(layout->context_bytes, (size_t)contexts, bytes) ||
        __builtin_add_overflow(*bytes,
                               spilled + layout->scratch_bytes + layout->wide_bytes +
                                   layout->parts_bytes + layout->loss_rows * 5 +
                                   lki_statistics_bytes(model, contexts),
                               total))
        return lk_fail(LK_ENOMEM,
                       "model %s: activations of %u contexts of %zu bytes are more than any "
                       "machine has; walk fewer at a time",
                       model->name, contexts, layout->context_bytes);
    return LK_OK;
}

lk_status lk_engine_bytes(size_t *out, uint64_t *files, const lk_model *model, const lk_exec *exec,
                          lk_dtype dtype, uint32_t micro_batch, uint32_t contexts)
{
    lki_layout layout;
    size_t     bytes;

    LK_TRY(lki_layout_init(&layout, model, exec, dtype, micro_batch, 1, files != NULL));
    lk_status status = count_bytes(&layout, model, contexts, &bytes, out);
    if (files != NULL)
        (void)lki_spill_bytes(layout.spilled_count, layout.spilled_bytes, contexts, files);
    lki_layout_deinit(&layout);
    return status;
}

lk_status lki_engine_parts_bytes(size_t *out, const lk_model *model, const lk_exec *exec,
                                 lk_dtype dtype, uint32_t micro_batch, uint32_t parts)
{
    lki_layout layout;
    size_t     bytes;

    LK_TRY(lki_layout_init(&layout, model, exec, dtype, micro_batch * parts, parts, false));
    lk_status status = count_bytes(&layout, model, 1, &bytes, out);
    lki_layout_deinit(&layout);
    return status;
}

static lk_status allocate(lk_engine *engine, const char *dir)
{
    const lki_layout *layout = &engine->layout;
    const lk_model   *model  = engine->model;
    size_t            bytes = 0, total = 0;

    LK_TRY(count_bytes(layout, model, engine->contexts, &bytes, &total));
    LK_TRY(check_memory(engine, total));
    LK_TRY(lki_pool_alloc((void **)&engine->memory, lki_exec_pool(engine->exec), bytes,
                          "activations; a smaller micro-batch needs less"));
    LK_TRY(lki_spill_init(&engine->spill, dir, layout->spilled_count, layout->spilled_bytes,
                          engine->contexts));
    LK_TRY(lki_pool_alloc((void **)&engine->scratch, lki_exec_pool(engine->exec),
                          layout->scratch_bytes, "the blocks' scratch memory"));
    LK_TRY(lki_alloc((void **)&engine->slots, layout->parts_bytes, "sums of virtual workers"));
    LK_TRY(lki_alloc((void **)&engine->wide, layout->wide_bytes, "copies of values"));
    LK_TRY(LKI_NEW(&engine->loss, layout->loss_rows, "rows of loss"));
    LK_TRY(LKI_NEW(&engine->hits, layout->loss_rows, "rows of hits"));
    LK_TRY(LKI_NEW(&engine->first_terms, model->block_count, "an engine"));
    LK_TRY(lki_packs_init(&engine->packs, layout, model, engine->exec, engine->micro_batch));
    LK_TRY(lki_statistics_init(&engine->statistics, model, engine->contexts));
    for (size_t t = model->term_count; t-- > 0;)
        engine->first_terms[model->terms[t].block] = (uint32_t)t;
    return LK_OK;
}

void lk_engine_set_frozen(lk_engine *engine, const float *const *values)
{
    engine->frozen = values;
}

static uint32_t count_positions(const lk_model *model)
{
    uint64_t positions = model->input.rank > 0 ? model->input.dims[0] : 0;
    for (size_t b = 0; b < model->block_count; b++) {
        lk_shape y = model->blocks[b].block.y;
        if (y.rank == 0 || y.dims[0] != positions)
            return 0;
    }
    return positions <= UINT32_MAX ? (uint32_t)positions : 0;
}

/* Checks the arguments, and creates an engine without memory for values. */
static lk_status new_engine(lk_engine **out, const lk_model *model, lk_exec *exec, lk_dtype dtype,
                            uint32_t micro_batch, uint32_t contexts)
{
    lk_engine *engine;

    if (dtype != LK_F32 && dtype != LK_BF16 && dtype != LK_F16)
        return lk_fail(LK_EINVAL, "an engine stores values as F32, BF16 or F16, not %s",
                       lk_dtype_name(dtype));
    if (micro_batch == 0 || contexts == 0)
        return lk_fail(LK_EINVAL, "an engine for %u contexts of %u samples: both are at least 1",
                       contexts, micro_batch);
    for (size_t b = 0; b < model->block_count; b++)
        if (model->blocks[b].type->forward == NULL)
            return lk_fail(LK_EUNSUPPORTED, "%s has sizes but no forward: such models are for "
                                            "plans", model->blocks[b].label);
    LK_TRY(LKI_NEW(&engine, 1, "an engine"));
    engine->model       = model;
    engine->exec        = exec;
    engine->micro_batch = micro_batch;
    engine->contexts    = contexts;
    engine->positions   = count_positions(model);
    *out                = engine;
    return LK_OK;
}

static lk_status end_open(lk_engine **out, lk_engine *engine, lk_status status)
{
    if (status == LK_OK)
        *out = engine;
    else
        lk_engine_free(engine);
    return status;
}

/* Opens an engine for `micro_batch` samples, which may have up to `parts` parts. */
static lk_status open_engine(lk_engine **out, const lk_model *model, lk_exec *exec, lk_dtype dtype,
                             uint32_t micro_batch, uint32_t parts, uint32_t contexts,
                             const char *dir)
{
    lk_engine *engine;

    *out = NULL;
    LK_TRY(new_engine(&engine, model, exec, dtype, micro_batch, contexts));
    lk_status st = lki_layout_init(&engine->layout, model, exec, dtype, micro_batch, parts,
                                   dir != NULL);
    if (st == LK_OK)
        st = allocate(engine, dir);
    return end_open(out, engine, st);
}

lk_status lk_engine_open(lk_engine **out, const lk_model *model, lk_exec *exec, lk_dtype dtype,
                         uint32_t micro_batch, uint32_t contexts)
{
    return open_engine(out, model, exec, dtype, micro_batch, 1, contexts, NULL);
}

lk_status lk_engine_open_offloaded(lk_engine **out, const lk_model *model, lk_exec *exec,
                                   lk_dtype dtype, uint32_t micro_batch, uint32_t contexts,
                                   const char *dir)
{
    return open_engine(out, model, exec, dtype, micro_batch, 1, contexts, dir);
}

lk_status lki_engine_open_parts(lk_engine **out, const lk_model *model, lk_exec *exec,
                                lk_dtype dtype, uint32_t micro_batch, uint32_t parts)
{
    return open_engine(out, model, exec, dtype, micro_batch * parts, parts, 1, NULL);
}

lk_status lk_engine_open_cached(lk_engine **out, const lk_model *model, lk_exec *exec,
                                lk_dtype dtype, uint32_t samples, uint32_t positions)
{
    const uint32_t all = count_positions(model);
    lk_engine     *engine;

    *out = NULL;
    if (positions == 0 || positions > all)
        return lk_fail(LK_EINVAL, "an engine for %u positions; model %s has %u", positions,
                       model->name, all);
    LK_TRY(new_engine(&engine, model, exec, dtype, samples, 1));
    engine->positions = positions;
    lk_status st      = lki_layout_init_short(&engine->layout, model, exec, dtype, samples,
                                              positions);
    if (st == LK_OK)
        st = lki_cache_init(&engine->cache, model, exec, dtype, samples);
    if (st == LK_OK)
        st = allocate(engine, NULL);
    return end_open(out, engine, st);
}

void lk_engine_free(lk_engine *engine)
{
    if (engine == NULL)
        return;
    lki_layout_deinit(&engine->layout);
    lki_packs_deinit(&engine->packs);
    lki_spill_deinit(&engine->spill);
    lki_free(engine->memory);
    lki_free(engine->scratch);
    lki_free(engine->slots);
    lki_free(engine->wide);
    lki_free(engine->loss);
    lki_free(engine->hits);
    lki_free(engine->first_terms);
    lki_statistics_deinit(&engine->statistics);
    lki_cache_deinit(&engine->cache);
    lki_free(engine);
}
