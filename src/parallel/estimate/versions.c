/* versions.c -- computes the memory of asynchronous training. */
#include "base/memory.h"
#include "parallel/estimate/dealt.h"
#include "parallel/versions/internal.h"

/* Fills in the parts of the arena by what they are for.  The rest of it are tables. */
static void divide(const lk_parallel *parallel, size_t arena, lk_parallel_cost *out)
{
    const lki_versions *v      = parallel->versions;
    const lk_parallel  *model  = v->model;
    const size_t        states = lk_optimizer_state_count(&model->optimizer);
    out->params    = v->live_count * v->buffer_bytes;
    const size_t        copies = v->sharded.count > 0 ? 1 : 2;
    out->optimizer = copies * states * lki_stored_elements(model) * sizeof(float);
    out->gradients = v->message_count * model->width * sizeof(float);
    out->tables    = arena - out->params - out->optimizer - out->gradients;
    out->shard     = model->layout->elements * sizeof(float);
}

/* Adds the memory of each rank's own model, of which `model` is one. */
static lk_status add_models(lk_parallel *model, uint32_t ranks, lk_parallel_cost *out)
{
    const size_t bytes = model->ops->bytes(model, 0);
    if (bytes == 0)
        return lk_fail(LK_ENOMEM, "the gradients of this model are more bytes than can be counted");
    out->gradients += ranks * bytes;
    out->tables += ranks * lki_parallel_arena(model);
    return LK_OK;
}

lk_status lki_estimate_versions(lk_parallel_cost *out, const lk_param *params,
                                uint32_t param_count, const lk_parallel_options *options,
                                const uint32_t *host_sizes, uint32_t hosts, uint32_t most)
{
    lki_versions   versions = { .window = 0 };
    lk_parallel    whole    = { .versions = &versions };
    const uint32_t one      = 1;
    const lki_part part     = { .joint = most, .bare = true };

    *out = (lk_parallel_cost){ 0 };
    LK_TRY(lki_async_read(&versions.options, options->async, options->virtual_workers));
    versions.width      = options->virtual_workers / versions.options.groups;
    versions.speculates = options->duplicate;
    versions.survives   = options->survives;
    versions.hosts.count = hosts;
    for (uint32_t h = 0; h < hosts; h++)
        whole.ranks = (uint32_t)lki_max(whole.ranks, host_sizes[h]);
    versions.seats = whole.ranks;
    const lk_parallel_options group  = lki_versions_inner(options, versions.width);
    lk_status                 status = lki_estimate_describe(&versions.model, params, param_count,
                                                             &group, &one, 1, &part);
    if (status == LK_OK) {
        divide(&whole, lki_versions_bytes(&whole), out);
        status = add_models(versions.model, whole.ranks, out);
    }
    lk_parallel_free(versions.model);
    return status;
}
