/* reading.c -- parameters that are read in a narrower type than their owners store.
 *
 * Owners store the FP32 values that the optimizer updates.  Blocks may read a narrower type:
 *
 * bf16         The parameters that all readers would round to bf16 (lk_param.bf16), if hosts store
 *              shards.  So results stay the same, bit for bit, and a host has FP32 values only of
 *              its own shard.  A host reads two bytes per element of the whole model, and owners
 *              send each other these two bytes after an update.
 * 8 bits       All parameters, as blocks (device/quantise.h), on every host, even if they were not
 *              sent.  A quantised block belongs to one tensor and to one span.
 *
 * Gathered units arrive in the narrow type (units.c).  Without gathering, an owner writes the
 * narrow values during the update, span by span, while the new values are in its cache.  Before the
 * update it compares the narrow values with the old ones.
 *
 * Memory: in addition to the FP32 values that the host owns, a copy of all parameters.  The copy
 *         takes two bytes for each bf16 element and four for each other element.  With 8 bits it
 *         takes four bytes for every element, because it holds the quantised values as FP32.
 * Cost:   quantised, over several hosts: parameters received from other hosts are read and written
 *         once more.
 */
#include <string.h>

#include "base/memory.h"
#include "device/quantise.h"
#include "parallel/strategies/shards.h"
#include "tensor/exec.h"

enum { SPANS_PER_TASK = 16, PIECE = 1024 }; /* PIECE: a multiple of the size of a quantised block */

size_t lki_reading_bytes(const lk_parallel *parallel)
{
    bool apart = parallel->quantised || parallel->layout->bf16;
    return apart && !parallel->gathers ? parallel->layout->read_bytes : 0;
}

static void round_values(const lk_parallel *parallel, uint32_t param, size_t count,
                         const float *values, void *out)
{
    if (parallel->quantised)
        lki_rounding_loops(LK_I8)->rounded(count, values, 1, out);
    else if (lki_layout_read_dtype(parallel->layout, param) == LK_BF16)
        lki_rounding_loops(LK_BF16)->store(count, values, 1, out);
    else
        memcpy(out, values, count * sizeof *values);
}

void lki_reading_put(const lk_parallel *parallel, const lki_param_span *span, const float *values)
{
    round_values(parallel, span->param, span->count, values, parallel->read + span->read_at);
}

bool lki_reading_holds(const lk_parallel *parallel, const lki_param_span *span, const float *values)
{
    const size_t width = lk_dtype_bytes(lki_layout_read_dtype(parallel->layout, span->param));
    float        rounded[PIECE];

    for (size_t i = 0; i < span->count; i += PIECE) {
        size_t count = lki_min(PIECE, span->count - i);
        round_values(parallel, span->param, count, values + i, rounded);
        if (memcmp(rounded, parallel->read + span->read_at + i * width, count * width) != 0)
            return false;
    }
    return true;
}

/* Converts spans of other hosts' shards.  The ranks of a host divide these spans between them. */
static void put_some(void *context, size_t task)
{
    const lk_parallel *parallel = context;
    const lki_layout  *layout   = parallel->layout;
    size_t             from     = task * SPANS_PER_TASK;

    for (size_t i = from; i < lki_min(from + SPANS_PER_TASK, layout->span_count); i++) {
        const lki_param_span *span = &layout->spans[i];
        if (lki_tends(parallel, span) && !lki_owns(parallel, span))
            lki_reading_put(parallel, span, lki_values_of(parallel, span));
    }
}

lk_status lki_reading_publish(lk_parallel *parallel)
{
    if (parallel->shards == 1 || parallel->gathers)
        return lk_barrier(parallel->comm);
    LK_TRY(lki_shards_gather_params(parallel));
    if (!parallel->quantised)
        return LK_OK;
    lk_parallel_for(parallel->exec,
                    (parallel->layout->span_count + SPANS_PER_TASK - 1) / SPANS_PER_TASK, put_some,
                    parallel);
    return lk_barrier(parallel->comm);
}
