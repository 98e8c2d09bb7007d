/* balance.c -- distributes samples of different lengths evenly over virtual workers.
 *
 * Samples are assigned in descending order of length.  Each sample is assigned to the virtual
 * worker that has the fewest tokens so far among the virtual workers with room.  If several have
 * equally few tokens, the first of them gets the sample (Graham, "Bounds on multiprocessing timing
 * anomalies", SIAM J. Appl. Math. 17, 1969, with an equal number of places per virtual worker).
 * Each virtual worker thus has its samples in order of length, and the samples of a micro-batch
 * have similar lengths, so there is little padding.
 *
 * Samples of equal length are assigned in batch order.  The assignment is therefore a function of
 * the step, and every worker computes it by itself in S log S + S V operations.
 */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "data/sampler.h"

static int longest_first(const void *a, const void *b)
{
    const lki_dealt *left = a, *right = b;
    if (left->tokens != right->tokens)
        return left->tokens > right->tokens ? -1 : 1;
    return left->position < right->position ? -1 : left->position > right->position;
}

void lki_deal(lki_dealt *samples, size_t count, uint32_t virtual_workers, uint32_t each,
              uint64_t *slots, lki_hand *hands)
{
    qsort(samples, count, sizeof *samples, longest_first);
    memset(hands, 0, virtual_workers * sizeof *hands);
    for (size_t i = 0; i < count; i++) {
        uint32_t to = virtual_workers;
        for (uint32_t v = 0; v < virtual_workers; v++)
            if (hands[v].samples < each &&
                (to == virtual_workers || hands[v].tokens < hands[to].tokens))
                to = v;
        LK_ASSERT(to < virtual_workers);
        slots[(size_t)to * each + hands[to].samples++] = samples[i].index;
        hands[to].tokens += samples[i].tokens;
    }
}
