/* parallel/claims.h -- who makes which virtual worker of a step, where idle ranks make others'.
 *
 * What a virtual worker computes does not depend on who makes it, so a rank that has nothing left
 * to do makes one of a rank that is late: of those that nobody has begun, from the end of its queue
 * (Blumofe and Leiserson, Scheduling Multithreaded Computations by Work Stealing, 1999), and, when
 * there are none, one that its rank has begun and not finished (backup tasks: Dean and Ghemawat,
 * MapReduce, 2004, section 3.6).  The first result counts; both are the same bits.
 *
 *      claim     a word for each virtual worker, in an arena of the host, by compare and swap:
 *                nobody -> claimed by a rank -> claimed twice -> won -> done, at a place
 *      first     who turns it to "won" copies its report to where all look for it, and says where
 *                the gradient is; the other drops what it has at the next border of a block
 *      summed    by the rank whose it is, from that place: so once, whoever has made it
 *
 * A rank makes its own from the first of its queue on, so what others have taken of it is the rest
 * of the queue.  It waits for them half as long as a virtual worker takes, then makes them itself;
 * as long a rank without work waits before it makes one twice.  So between ranks that are equally
 * fast nothing is made by another, and no rank waits for one that has stopped, but for the slices
 * of sums and parameters that are that rank's.
 *
 * Words count steps since this was opened: what an earlier step left in them means "nobody".  In
 * the first step, in which buckets may be laid out anew, and in one that is mended (remains.h) each
 * rank makes its own.  Only ranks of one host make others'.
 *
 * Memory: a word for each virtual worker; one gradient of each rank where it has none to spare.
 */
#ifndef LKI_PARALLEL_CLAIMS_H
#define LKI_PARALLEL_CLAIMS_H

#include "parallel/strategy.h"

/* From options: whether, and how many gradients more a rank has for it.  LK_EUNSUPPORTED says why
 * not.  Opening is for who is; closing accepts what was not opened. */
LK_NODISCARD lk_status lki_claims_describe(lk_parallel *parallel,
                                           const lk_parallel_options *options);
LK_NODISCARD lk_status lki_claims_open(lk_parallel *parallel);
void                   lki_claims_close(lk_parallel *parallel);

/* After a failure, on one rank of each host, before anybody begins a step: nobody has anything. */
void lki_claims_clear(lk_parallel *parallel);

/* A step begins; see lki_claims_on(). */
void lki_claims_begin(lk_parallel *parallel);

/* One of my own: false if another rank has it. */
bool lki_claims_take(lk_parallel *parallel, uint32_t leaf);

/* Whether somebody else's result of the current one counts. */
bool lki_claims_lost(const lk_parallel *parallel);

/* The current one is made: whether mine counts; then my report does.  And when its gradient is
 * where it stays. */
bool lki_claims_win(lk_parallel *parallel);
void lki_claims_done(lk_parallel *parallel, uint32_t leaf, uint32_t place);

/* Waits for one of my own that another rank has: true and where it is; false: it takes too long, or
 * waiting has failed.  `patient`: for as long as it takes. */
LK_NODISCARD lk_status lki_claims_await(lk_parallel *parallel, uint32_t leaf, bool patient,
                                        uint32_t *place, bool *there);

/* Others' are made only by ranks whose own take so many seconds each: less would not be worth what
 * it takes to begin one, of data above all.  0 until it is said. */
void lki_claims_from(lk_parallel *parallel, double seconds);

/* What I took for one of my own. */
void lki_claims_note(lk_parallel *parallel, double seconds);

/* Chooses one of another rank's to be made by me, and makes it the current one; waits until it is
 * clear whether there is any.  My own are handed in. */
LK_NODISCARD lk_status lki_claims_help(lk_parallel *parallel, bool *more);

/* The same for one of my own that takes too long: false if there is no room. */
bool lki_claims_again(lk_parallel *parallel, uint32_t leaf);

/* How many of this step were made by another rank than theirs; the same on all. */
uint32_t lki_claims_count(const lk_parallel *parallel);

typedef struct lki_claim {
    _Atomic uint64_t word;
} lki_claim;

struct lki_claims {
    lki_claim  *of;     /* [virtual workers], in the model's arena */
    lki_report *report; /* of the current one */
    uint32_t   *queue;  /* of a rank that is being looked at */
    uint64_t    round;  /* steps that were begun */
    bool        on;     /* in this step */
    bool        closing; /* nothing more is begun */
    double      pace;   /* seconds of a virtual worker of mine ... */
    double      least;  /* ... from which on I make others' */
    uint32_t    leaf, place; /* another's, that I make */
};

/* Whether virtual workers are claimed in this step. */
static inline bool lki_claims_on(const lk_parallel *parallel)
{
    return parallel->claims != NULL && parallel->claims->on;
}

#endif
