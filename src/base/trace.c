/* trace.c -- rings of trace intervals (spans), one per thread.
 *
 * A ring has one writing and one reading thread.  `added` counts the spans written, `taken` the
 * spans read.  Both only grow, and span n is stored at n mod capacity, a power of two.
 */
#include "base/trace.h"

#include <stdatomic.h>

#include "base/memory.h"

struct lki_track {
    lki_trace_span        *ring;
    uint64_t         capacity;
    _Atomic uint64_t added, lost;        /* written by the track's thread */
    _Alignas(64) _Atomic uint64_t taken; /* written by the thread that drains the rings */
};

struct lki_trace {
    uint32_t  track_count;
    lki_track *tracks;
    lki_trace_span *memory;
};

const char *lki_trace_text(lki_span_kind kind)
{
    static const char *const texts[] = {
#define LKI_SPAN_TEXT(name, text) text,
        LKI_SPAN_TABLE(LKI_SPAN_TEXT)
#undef LKI_SPAN_TEXT
    };
    LK_ASSERT(kind < LKI_SPAN_KINDS);
    return texts[kind];
}

lk_status lki_trace_open(lki_trace **out, uint32_t tracks, size_t spans)
{
    lki_trace *trace    = NULL;
    size_t     capacity = 64;
    *out                = NULL;
    LK_ASSERT(tracks > 0 && spans < SIZE_MAX / 4);
    while (capacity < spans)
        capacity *= 2;
    LK_TRY(LKI_NEW(&trace, 1, "trace"));
    trace->track_count = tracks;
    lk_status status  = LKI_NEW(&trace->tracks, tracks, "trace");
    if (status == LK_OK)
        status = LKI_NEW(&trace->memory, tracks * capacity, "spans of a trace");
    if (status != LK_OK) {
        lki_trace_free(trace);
        return status;
    }
    for (uint32_t i = 0; i < tracks; i++) {
        trace->tracks[i].ring     = trace->memory + i * capacity;
        trace->tracks[i].capacity = capacity;
    }
    *out = trace;
    return LK_OK;
}

void lki_trace_free(lki_trace *trace)
{
    if (trace == NULL)
        return;
    lki_free(trace->memory);
    lki_free(trace->tracks);
    lki_free(trace);
}

lki_track *lki_trace_track(lki_trace *trace, uint32_t track)
{
    return trace == NULL || track >= trace->track_count ? NULL : &trace->tracks[track];
}

void lki_track_add(lki_track *track, lki_trace_span span)
{
    uint64_t added = atomic_load_explicit(&track->added, memory_order_relaxed);
    if (added - atomic_load_explicit(&track->taken, memory_order_acquire) == track->capacity) {
        atomic_fetch_add_explicit(&track->lost, 1, memory_order_relaxed);
        return;
    }
    track->ring[added & (track->capacity - 1)] = span;
    atomic_store_explicit(&track->added, added + 1, memory_order_release);
}

bool lki_trace_presses(const lki_trace *trace)
{
    for (uint32_t i = 0; i < trace->track_count; i++) {
        const lki_track *track = &trace->tracks[i];
        if (atomic_load_explicit(&track->added, memory_order_relaxed) -
                atomic_load_explicit(&track->taken, memory_order_relaxed) >
            track->capacity / 2)
            return true;
    }
    return false;
}

void lki_trace_drain(lki_trace *trace, lki_trace_sink sink, void *context)
{
    for (uint32_t i = 0; i < trace->track_count; i++) {
        lki_track *track  = &trace->tracks[i];
        uint64_t  end   = atomic_load_explicit(&track->added, memory_order_acquire);
        uint64_t  taken = atomic_load_explicit(&track->taken, memory_order_relaxed);
        while (taken < end) {
            uint64_t at    = taken & (track->capacity - 1);
            size_t   count = lki_min(end - taken, track->capacity - at);
            sink(context, i, track->ring + at, count);
            taken += count;
        }
        atomic_store_explicit(&track->taken, taken, memory_order_release);
    }
}

uint64_t lki_trace_lost(const lki_trace *trace)
{
    uint64_t lost = 0;
    for (uint32_t i = 0; i < trace->track_count; i++)
        lost += atomic_load_explicit(&trace->tracks[i].lost, memory_order_relaxed);
    return lost;
}
