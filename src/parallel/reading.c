/* reading.c -- parameters that are read as blocks of 8 bits (device/quantise.h).
 *
 * Owners keep the values that the optimizer moves, FP32, and what is read is rounded, whoever reads
 * it and whether it has travelled or not, so it depends on the values alone: a block is one of a
 * tensor, and no span's border cuts it.  Where hosts gather their parameters these come so
 * (units.c).  Elsewhere a host has them twice: as they are, and here as they are read.
 *
 * Memory: as many elements again.
 * Cost:   after an update, or when values are loaded, all are read and written once more.
 */
#include "base/memory.h"
#include "device/quantise.h"
#include "parallel/strategies/shards.h"
#include "tensor/exec.h"

enum { SPANS_PER_TASK = 16 };

typedef struct {
    lk_parallel *parallel;
    size_t       first, end;
} stretch;

static void renew_some(void *context, size_t task)
{
    const stretch     *s        = context;
    const lk_parallel *parallel = s->parallel;
    size_t             from     = s->first + task * SPANS_PER_TASK;

    for (size_t i = from; i < lki_min(from + SPANS_PER_TASK, s->end); i++) {
        const lki_param_span *span = &parallel->layout->spans[i];
        if (lki_tends(parallel, span))
            lki_rounding_loops(LK_I8)->rounded(span->count, lki_values_of(parallel, span), 1,
                                               parallel->read + span->at);
    }
}

void lki_reading_renew(lk_parallel *parallel, size_t first, size_t end)
{
    stretch s = { parallel, first, end };
    if (parallel->read != NULL)
        lk_parallel_for(parallel->exec, (end - first + SPANS_PER_TASK - 1) / SPANS_PER_TASK,
                        renew_some, &s);
}

lk_status lki_reading_publish(lk_parallel *parallel)
{
    const bool sends = parallel->shards > 1 && !parallel->gathers;
    if (sends)
        LK_TRY(lki_shards_gather_params(parallel));
    lki_reading_renew(parallel, 0, parallel->layout->span_count);
    return sends && parallel->read == NULL ? LK_OK : lk_barrier(parallel->comm);
}
