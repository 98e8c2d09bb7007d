/* agreement.c -- makes hosts agree on the progress of a step after a failure.
 *
 * Each host has a ledger and, with ddp, a copy of all values.  When a group has failed, one host
 * may have marks of a step while another has none yet:
 *
 *      host A      sums - meeting - mark t - update - meeting        t + 1: sums ...
 *      host B      sums - meeting                                    (or dead)
 *
 * A rank writes its mark after a meeting that every rank of every host has reached with its sums in
 * its host's memory.  So if any live rank has a mark of t, every host with a live rank has all sums
 * of t and can update its copy alone.  Such a host may only lack the results of the meeting:
 * the tally, and the reports, whose counts running state needs.  A host without the mark receives
 * both from a rank that has it.  It stores the reports before it writes its own mark.  So if one
 * more rank is lost, any host with a mark can still send both.
 *
 * No host is further behind, because ranks meet for t + 1 only after all have reached the meeting
 * that follows the update of t.  If only lost hosts had a mark of t, no other host has seen the
 * results of t, because rank 0 reports a step only after that meeting.  So the step is computed
 * again as if there had been no mark, with the same bits.
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/durable.h"
#include "parallel/state.h"

static size_t report_bytes(const lk_parallel *parallel)
{
    return parallel->leaves * parallel->report_bytes;
}

/* Sends the tally and the reports to hosts without the mark.  The reports may be in the order of an
 * earlier assignment of virtual workers.  Their order does not matter, because a decided step uses
 * only the total of all reports. */
static lk_status receive_decision(lk_parallel *parallel, uint32_t root, bool knows,
                                  lki_tally *tally, char *room)
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
        parallel->durable->mark(parallel, tally);
    return LK_OK;
}

/* Returns the first rank whose ledger has the latest step.  Sets *differ to true if the ledgers of
 * other ranks have an earlier step. */
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

lk_status lki_ledger_agree(lk_parallel *parallel, uint64_t *last, lki_tally *out)
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
        status         = receive_decision(parallel, root, knows, out, room);
    }
    lki_free(told);
    lki_free(room);
    return status;
}
