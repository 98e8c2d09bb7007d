/* journal.c -- any bytes as the log of a resumed run: only whole lines are kept, and a second pass
 * keeps all these lines. */
#include "fuzz.h"

#include "base/status.h"
#include "train/core/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    for (uint64_t step = 0; step < 4; step++) {
        size_t kept = lki_log_prefix(data, bytes, step);
        LK_ASSERT(kept <= bytes && (kept == 0 || data[kept - 1] == '\n'));
        LK_ASSERT(lki_log_prefix(data, kept, step) == kept);
        LK_ASSERT(lki_log_prefix(data, bytes, step + 1) >= kept);
    }
    return 0;
}
