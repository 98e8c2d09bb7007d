/* tokenizer/ids_testing.h -- for tests: collects the ids that an encoder emits. */
#ifndef LKI_TOKENIZER_IDS_TESTING_H
#define LKI_TOKENIZER_IDS_TESTING_H

#include <string.h>

#include "tokenizer/tokenizer.h"

/* Appends ids; `context` is a lki_ids. */
static inline lk_status lkt_keep_ids(void *context, const int32_t *ids, size_t count)
{
    lki_ids *all = context;
    LK_TRY(lki_ids_room(all, count));
    if (count > 0)
        memcpy(all->ids + all->count, ids, count * sizeof *ids);
    all->count += count;
    return LK_OK;
}

#endif
