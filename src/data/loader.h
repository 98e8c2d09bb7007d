/* data/loader.h -- what is written down of a loader's thread. */
#ifndef LKI_DATA_LOADER_H
#define LKI_DATA_LOADER_H

#include "base/trace.h"
#include "lockstep/data.h"

/* From here on every micro-batch that the thread prepares (LKI_SPAN_LOAD) is added to `track`. */
void lki_loader_trace(lk_loader *loader, lki_track *track);

#endif
