/* offload.c -- stores the optimizer's state, parameters, or both in files.
 *
 * The state and the parameters are in separate files of chunks (vector_file.h), whose chunks have
 * the same spans.  An update visits the chunks in order.  While one chunk is updated, the next two
 * are read and the previous one is written.  Between updates parameters are read by units; see
 * unit_reader.c.
 *
 * Cost: a step reads and writes every state once (LAMB: twice).  It reads every parameter once
 *       (LARS: twice, LAMB: three times) and writes it once.  Units are read in addition.
 */
#include "parallel/offload/offload.h"

#include "base/memory.h"
#include "parallel/offload/vector_file.h"

enum { AHEAD = 2 };

lk_status lki_offload_open(lk_parallel *parallel)
{
    uint32_t states = lk_optimizer_state_count(&parallel->optimizer);
    if (parallel->offload.kinds & LK_OFFLOADED_STATES)
        LK_TRY(lki_vector_file_open(&parallel->offload.states, parallel, "the optimizer's state",
                                    states, false));
    if (parallel->offload.kinds & LK_OFFLOADED_PARAMETERS)
        LK_TRY(lki_vector_file_open(&parallel->offload.params, parallel,
                                    "its part of the parameters", 1, true));
    return LK_OK;
}

void lki_offload_close(lk_parallel *parallel)
{
    lki_vector_file_close(parallel->offload.states);
    lki_vector_file_close(parallel->offload.params);
    parallel->offload.states = parallel->offload.params = NULL;
}

/* ---- Memory -------------------------------------------------------------------------------- */

size_t lki_offload_states_memory(const lk_parallel *parallel)
{
    uint32_t states = lk_optimizer_state_count(&parallel->optimizer);
    bool     file   = (parallel->offload.kinds & LK_OFFLOADED_STATES) != 0;
    return file ? lki_vector_file_memory(parallel, states, false) : 0;
}

size_t lki_offload_params_memory(const lk_parallel *parallel)
{
    bool file = (parallel->offload.kinds & LK_OFFLOADED_PARAMETERS) != 0;
    return file ? lki_vector_file_memory(parallel, 1, true) : 0;
}

/* Returns the bytes of all files of a host: the maximum over all hosts. */
size_t lki_offload_files(const lk_parallel *parallel)
{
    size_t most = 0, columns = (parallel->offload.kinds & LK_OFFLOADED_PARAMETERS) != 0;
    for (uint32_t s = 0; s < parallel->layout->shards; s++)
        most = lki_max(most, parallel->layout->shard_elements[s]);
    if (parallel->offload.kinds & LK_OFFLOADED_STATES)
        columns += lk_optimizer_state_count(&parallel->optimizer);
    return most * columns * sizeof(float);
}

/* ---- Walking over chunks ------------------------------------------------------------------- */

bool lki_offload_has(const lk_parallel *parallel, unsigned over)
{
    return (parallel->offload.states != NULL && (over & LKI_OVER_STATES)) ||
           (parallel->offload.params != NULL && (over & LKI_OVER_PARAMS));
}

/* Either file may be NULL. */
typedef struct {
    lki_vector_file *files[2];
    bool             written[2];
} walk;

static lk_status for_each(const walk *w, lk_status (*call)(lki_vector_file *file, size_t k),
                          size_t      k)
{
    for (int i = 0; i < 2; i++)
        if (w->files[i] != NULL)
            LK_TRY(call(w->files[i], k));
    return LK_OK;
}

static lk_status settle(lki_vector_file *file, size_t k)
{
    (void)k;
    return lki_vector_file_settle(file);
}

lk_status lki_offload_walk(lk_parallel *parallel, unsigned over, lki_offload_visit visit,
                           void *context)
{
    walk w = { .files = { over & LKI_OVER_STATES ? parallel->offload.states : NULL,
                          over & LKI_OVER_PARAMS ? parallel->offload.params : NULL },
               .written = { true, (over & LKI_OVER_CHANGES) != 0 } };
    const lki_vector_file *any = w.files[0] != NULL ? w.files[0] : w.files[1];
    if (any == NULL)
        return LK_OK;
    LK_TRY(for_each(&w, settle, 0));
    for (size_t k = 0; k < lki_min(AHEAD, any->chunk_count); k++)
        LK_TRY(for_each(&w, lki_vector_file_begin_read, k));
    for (size_t k = 0; k < any->chunk_count; k++) {
        if (k + AHEAD < any->chunk_count)
            LK_TRY(for_each(&w, lki_vector_file_begin_read, k + AHEAD));
        LK_TRY(for_each(&w, lki_vector_file_end_read, k));
        visit(context, any->chunks[k].first, any->chunks[k].end);
        for (int i = 0; i < 2; i++)
            if (w.files[i] != NULL && w.written[i])
                lki_vector_file_begin_write(w.files[i], k);
    }
    /* settled, so that units can be read */
    return w.files[1] != NULL ? lki_vector_file_settle(w.files[1]) : LK_OK;
}

void lki_offload_states(const lk_parallel *parallel, size_t span, float **states)
{
    for (uint32_t i = 0; i < parallel->offload.states->columns; i++)
        states[i] = lki_vector_file_find(parallel->offload.states, span, i);
}

float *lki_offload_values(const lk_parallel *parallel, size_t span)
{
    return lki_vector_file_find(parallel->offload.params, span, 0);
}

/* ---- Single values ------------------------------------------------------------------------- */

lk_status lki_offload_get(lk_parallel *parallel, size_t span, uint32_t which, size_t from,
                          size_t count, float *out)
{
    return which == 0
               ? lki_vector_file_get(parallel->offload.params, span, 0, from, count, out)
               : lki_vector_file_get(parallel->offload.states, span, which - 1, from, count, out);
}

lk_status lki_offload_put(lk_parallel *parallel, size_t span, uint32_t which, const float *values)
{
    return which == 0 ? lki_vector_file_put(parallel->offload.params, span, 0, values)
                      : lki_vector_file_put(parallel->offload.states, span, which - 1, values);
}

static double take_stalled(lki_vector_file *file)
{
    double stalled = file != NULL ? file->stalled : 0;
    if (file != NULL)
        file->stalled = 0;
    return stalled;
}

double lki_offload_stalled(lk_parallel *parallel)
{
    return take_stalled(parallel->offload.states) + take_stalled(parallel->offload.params);
}

const char *lk_parallel_offload_how(const lk_parallel *parallel)
{
    parallel = lki_in_use(parallel);
    const lki_vector_file *any = parallel->offload.states != NULL ? parallel->offload.states
                                                                  : parallel->offload.params;
    return any == NULL ? "" : lki_store_how(any->store);
}
