/* data/loader.h -- what is written down of a loader's threads, and what a loader takes. */
#ifndef LKI_DATA_LOADER_H
#define LKI_DATA_LOADER_H

#include "base/trace.h"
#include "lockstep/data.h"

/* From here on every micro-batch that a thread prepares (LKI_SPAN_LOAD) is added to its track, of
 * which those of `trace` from `first` on are the threads'; NULL: to none. */
void lki_loader_trace(lk_loader *loader, lki_trace *trace, uint32_t first);

/* Bytes of the micro-batches that a loader with these options has room for, of samples of so many
 * bytes, targets included. */
size_t lki_loader_bytes(const lk_loader_options *options, size_t sample);

#endif
