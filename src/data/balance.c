/* balance.c -- dealing samples that differ in length, so that virtual workers have as much to do.
 *
 * The longest sample first, each goes to the virtual worker that has the fewest tokens so far of
 * those that have room; of equals the first (Graham, "Bounds on multiprocessing timing anomalies",
 * SIAM J. Appl. Math. 17, 1969, with as many places for each).  So each has its samples in order
 * of their lengths, and those of one micro-batch are nearly as long: little of it is padding.
 *
 * Of samples as long as each other the first in the batch goes first.  So who has what is a
 * function of the step alone, and every worker finds it out for itself: S log S + S V operations.
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
