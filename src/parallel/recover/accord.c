/* accord.c -- hosts that have come to different places of a step agree on where it is.
 *
 * Each host has a ledger, and a copy of all that ddp keeps.  When a group has failed one may have
 * marks of a step, and the other none yet:
 *
 *      host A      sums - meeting - mark t - update - meeting        t + 1: sums ...
 *      host B      sums - meeting                                    (or dead)
 *
 * A mark is written by who has left a meeting to which every rank of every host has come, each with
 * its sums in its host's memory.  So where anybody left has a mark of t, every host that has anyone
 * left has all sums of t, and can update its copy by itself; what it may lack is what the meeting
 * told: the tally and the reports, from which running state has its counts.  A host without the
 * mark gets both from a rank that has it.  The reports are there before its own mark is, for that
 * is what a mark says when one more is lost on the way: whoever has one can give all of it.
 *
 * No host is further behind, for t + 1 is met for by those who have left the meeting after the
 * update of t, to which all have come.  Where only lost hosts had a mark of t, nothing that they
 * did is known elsewhere: rank 0 tells a step after that meeting.  So the step is made again, as if
 * there had been no mark, and has the same bits.
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/strategy.h"

static size_t report_bytes(const lk_parallel *parallel)
{
    return parallel->leaves * parallel->report_bytes;
}

/* Reports stand in the order of who runs them now, or ran them then: what is done with those of a
 * step that was decided on goes over all of them. */
static lk_status hear_decision(lk_parallel *parallel, uint32_t root, bool knows, lki_tally *tally,
                               char *room)
{
    size_t bytes = report_bytes(parallel);

    if (parallel->rank == root) {
        memcpy(room, tally, sizeof *tally);
        memcpy(room + sizeof *tally, parallel->reports, bytes);
    }
    LK_TRY(lk_broadcast(parallel->comm, room, sizeof *tally + bytes, root));
    memcpy(tally, room, sizeof *tally);
    if (!knows && parallel->local == 0)
        memcpy(parallel->reports, room + sizeof *tally, bytes);
    LK_TRY(lk_barrier(parallel->comm));
    if (!knows)
        lki_ledger_mark(parallel, tally);
    return LK_OK;
}

/* The first of all ranks that knows the most, and whether others know less. */
static uint32_t find_root(const uint64_t *told, uint32_t ranks, bool *differ)
{
    uint32_t root = 0;
    *differ       = false;
    for (uint32_t r = 1; r < ranks; r++) {
        *differ = *differ || told[r] != told[0];
        root    = told[r] > told[root] ? r : root;
    }
    return root;
}

lk_status lki_ledger_accord(lk_parallel *parallel, uint64_t *last, lki_tally *out)
{
    uint64_t *told = NULL;
    char     *room = NULL;
    bool      differ;

    *last = lki_ledger_last(parallel, out);
    if (parallel->world.hosts == 1)
        return LK_OK;
    LK_TRY(LKI_NEW(&told, parallel->ranks, "steps of hosts"));
    lk_status status = lk_all_gather(parallel->comm, last, told, sizeof *last);
    uint32_t  root   = find_root(told, parallel->ranks, &differ);
    if (status == LK_OK && differ)
        status = LKI_NEW(&room, sizeof *out + report_bytes(parallel), "what a meeting told");
    if (status == LK_OK && differ) {
        bool knows     = *last == told[root];
        *last          = told[root];
        parallel->step = *last - 1;
        status         = hear_decision(parallel, root, knows, out, room);
    }
    lki_free(told);
    lki_free(room);
    return status;
}
