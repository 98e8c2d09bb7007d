/* parallel/strategy.h -- the interface of strategies, each a way to sum V gradients.
 *
 * A strategy places the gradients of the virtual workers that its rank runs.  It computes the
 * canonical sum over all V for every span that the rank owns.  The work that all strategies share
 * (owners, norms, clipping, the update, attestation) is in step.c, which calls the strategy.  A
 * strategy never sees a model, and a model never sees a strategy.
 *
 * Ownership: `parallel` belongs to the core.  A strategy owns parallel->private alone, and frees it
 * in detach(), which must accept a half-built state.
 */
#ifndef LKI_PARALLEL_STRATEGY_H
#define LKI_PARALLEL_STRATEGY_H

#include <stddef.h>

#include "base/status.h"
#include "lockstep/parallel.h"
#include "parallel/virtual.h"

/* The number of times that a host sends every element of the gradients.  branches: the number of
 * subtrees that it sends to other hosts.  sums: the number of whole sums of which the host computes
 * and sends a part. */
typedef struct {
    uint64_t branches, sums;
} lki_passes;

/* The memory of one virtual worker's gradients, or of the sums over all virtual workers. */
typedef struct {
    float        *gradients; /* if `places` is NULL: a whole gradient space; else the pieces that
                              * this rank owns */
    /* NULL, or the offsets of this rank's pieces in `gradients`, indexed by lki_layout_piece() */
    const size_t *places;
    float        *states;    /* micro_count rows of state_width */
} lki_gradients;

/* Functions with which idle ranks of a host compute other ranks' virtual workers. */
typedef struct {
    /* Begins another rank's virtual worker in a free buffer, and sets *place to the buffer's number
     * on the host.  Returns false if no buffer is free.  `out` is filled as by begin_leaf(). */
    bool (*begin)(lk_parallel *parallel, lki_gradients *out, uint32_t *place);
    /* Ends a virtual worker that begin() has begun.  If `taken`, the result counts, and its buffer
     * stays in use for this step. */
    void (*end)(lk_parallel *parallel, uint32_t leaf, uint32_t place, bool taken);
    /* Uses the finished gradient in buffer `place` for virtual worker `leaf` of this rank's share.
     * If `begun`, `leaf` is the current virtual worker, else the next one. */
    lk_status (*use)(lk_parallel *parallel, uint32_t leaf, uint32_t place, bool begun);
    /* Called after this rank's own virtual workers are handed in.  Waits up to `seconds` for other
     * ranks, and sets *over to true when they have handed in theirs. */
    lk_status (*watch)(lk_parallel *parallel, double seconds, bool *over);
} lki_exchange;

typedef struct {
    const char *name;
    bool        sharded;      /* each host stores the optimizer's state of its own shard only */
    /* the hosts that store one copy of the model form a group, and there are several groups */
    bool        replicates;
    bool        rounds;       /* virtual workers are assigned in rounds, not in ranges */
    bool        whole_blocks; /* a bucket ends only where a block's terms end */
    bool        gathers;      /* each host stores the parameters of its own shard only */
    bool        survives;     /* a dead rank's results stay in arenas; see ledger.h */
    bool        raw;          /* the memory of a term is not zeroed when a virtual worker begins */
    /* Returns the bytes of gradients that a host holds.  The result may exceed any machine's
     * memory; 0 means overflow.  Reads only the model, the world and the virtual workers. */
    size_t (*bytes)(const lk_parallel *parallel, uint32_t host);
    lk_status (*attach)(lk_parallel *parallel);
    void (*detach)(lk_parallel *parallel);

    /* Starts the virtual worker lki_leaf_of_turn(parallel, n), the rank's next, and returns its
     * buffers in *out.  Its running state is zeroed, and its gradients too, unless `raw` is set.
     * In lock step this is called for all of the rank's virtual workers before any of them is
     * computed. */
    lk_status (*begin_leaf)(lk_parallel *parallel, uint32_t n, lki_gradients *out);

    /* (optional) Sets *out to the memory to which the current virtual worker adds a term.  It may
     * differ from turn to turn.  Waits until a buffer is free.  *out is valid memory for the term
     * even on failure. */
    lk_status (*find_term)(lk_parallel *parallel, uint32_t term, float **out);

    /* Reports that the current virtual worker has finished a term or, in lock step, that all of the
     * rank's virtual workers have finished it.  Advances communication without waiting. */
    lk_status (*term_ready)(lk_parallel *parallel, uint32_t term);
    /* Ends the current virtual worker or, in lock step, all of the rank's.  term_ready() has been
     * called for every term. */
    lk_status (*end_leaf)(lk_parallel *parallel);

    /* (optional) Advances communication without waiting. */
    lk_status (*progress)(lk_parallel *parallel);

    /* (if parameters are gathered) Completes all pending communication for which another rank might
     * wait while this rank waits to gather. */
    lk_status (*settle)(lk_parallel *parallel);

    /* Waits for the sums over all virtual workers of this rank's spans, and sets *sums to their
     * place. */
    lk_status (*reduce)(lk_parallel *parallel, lki_gradients *sums);

    /* (optional) Switches to another layout with the same number of elements, between two steps. */
    lk_status (*relay)(lk_parallel *parallel);

    /* (optional, together with redeal()) Returns true if the buffers suffice for `dealing`. */
    bool (*fits)(const lk_parallel *parallel, const lki_dealing *dealing);
    /* (optional, together with fits()) Switches to the ranges of parallel->dealing, between two
     * steps. */
    lk_status (*redeal)(lk_parallel *parallel);

    /* (optional) Allows ranks to compute each other's virtual workers. */
    const lki_exchange *exchange;

    /* (optional) Replaces all results of this rank's virtual workers in this step by zeros, sends
     * the zeros, and ends this rank's last virtual worker. */
    lk_status (*leave_out)(lk_parallel *parallel);

    /* (optional) Determines which results remain of the step after the first `steps` steps, and
     * stores them in parallel->remains.  Called after a group has failed.  Collective. */
    lk_status (*salvage)(lk_parallel *parallel, uint64_t steps);

    /* Returns how often a host sends every element of the gradients.  Reads only the fields that
     * bytes() reads. */
    lki_passes (*passes)(const lk_parallel *parallel, uint32_t host);
} lki_strategy_ops;

extern const lki_strategy_ops lki_strategy_ddp, lki_strategy_zero1, lki_strategy_zero2,
    lki_strategy_zero3, lki_strategy_hybrid, lki_strategy_single;

/* Finds a strategy by name; NULL is the default.  Defined in names.c. */
LK_NODISCARD lk_status lki_strategy_find(const lki_strategy_ops **out, const char *name);

#endif
