/* data/loader.h -- internals of the loader: tracing of its threads, and its memory. */
#ifndef LKI_DATA_LOADER_H
#define LKI_DATA_LOADER_H

#include "base/trace.h"
#include "lockstep/data.h"

/* Records every micro-batch begun from now on as a trace interval (LKI_SPAN_LOAD), in the track of
 * the thread that prepares the micro-batch.  The threads use the tracks of `trace` from `first` on.
 * NULL stops recording. */
void lki_loader_trace(lk_loader *loader, lki_trace *trace, uint32_t first);

/* Returns the bytes of all micro-batches of a loader with these options, for samples of `sample`
 * bytes (targets included). */
size_t lki_loader_bytes(const lk_loader_options *options, size_t sample);

#endif
