/* merge.c -- adds or zeroes gradients with all threads of a rank. */
#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/state.h"
#include "tensor/exec.h"

enum { MERGE_CHUNK = 16384 }; /* elements that one task merges or zeroes */

typedef struct {
    float       *right;
    const float *left; /* NULL: clear */
    size_t       count;
    lk_dtype     rounded;
} stretch;

static void merge_chunk(void *context, size_t i)
{
    const stretch *s     = context;
    size_t         first = i * MERGE_CHUNK, n = lki_min(MERGE_CHUNK, s->count - first);
    if (s->left == NULL)
        memset(s->right + first, 0, n * sizeof(float));
    else
        lki_merge_right_f32(s->rounded, n, s->left + first, s->right + first);
}

static void merge(const lk_parallel *parallel, stretch s)
{
    lki_track *track = lki_exec_track(parallel->exec);
    uint64_t   begun = lki_trace_begin(track);
    lk_parallel_for(parallel->exec, (s.count + MERGE_CHUNK - 1) / MERGE_CHUNK, merge_chunk, &s);
    lki_trace_end(track, LKI_SPAN_MERGE, 0, begun);
}

void lki_merge(const lk_parallel *parallel, lk_dtype rounded, float *right, const float *left,
               size_t count)
{
    merge(parallel, (stretch){ right, left, count, rounded });
}

void lki_clear(const lk_parallel *parallel, float *at, size_t count)
{
    merge(parallel, (stretch){ at, NULL, count, LK_F32 });
}
