/* claims.c -- words that ranks of a host change by compare and swap; see claims.h. */
#include "parallel/claims.h"

#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/group.h"

/* A word: the round in its upper half; then one of these and a rank, or a place once it is done. */
typedef enum { CLAIMED = 0, TWICE, WON, DONE } standing;
enum { VALUE_BITS = 30, NAP_NS = 20000 };
static const double PATIENCE = 0.5; /* of what a virtual worker takes */

static uint64_t word_of(const lki_claims *c, standing what, uint32_t value)
{
    return c->round << 32 | (uint64_t)what << VALUE_BITS | value;
}

static standing standing_of(uint64_t word)
{
    return (standing)(word >> VALUE_BITS & 3);
}

static uint32_t value_of(uint64_t word)
{
    return (uint32_t)word & ((UINT32_C(1) << VALUE_BITS) - 1);
}

static uint64_t look(const lki_claims *c, uint32_t leaf)
{
    return atomic_load(&c->of[leaf].word);
}

static bool is_anybodys(const lki_claims *c, uint64_t word)
{
    return word >> 32 == (c->round & UINT32_MAX);
}

static bool change(const lki_claims *c, uint32_t leaf, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong(&c->of[leaf].word, &from, to);
}

/* ---- Opening ----------------------------------------------------------------------------- */

lk_status lki_claims_describe(lk_parallel *parallel, const lk_parallel_options *options)
{
    if (!options->duplicate)
        return LK_OK;
    if (parallel->ops->begin_other == NULL)
        return lk_fail(LK_EUNSUPPORTED, "strategy %s sums gradients while others are made: "
                                        "duplicates of virtual workers are for ddp and zero1",
                       parallel->ops->name);
    if (parallel->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "in lock step a rank makes all of its virtual workers at a "
                                        "time: none is made by another");
    if (options->audit > 0)
        return lk_fail(LK_EUNSUPPORTED, "an audit goes by who has made a virtual worker: give "
                                        "audit or duplicate, not both");
    if (options->hook != NULL)
        return lk_fail(LK_EUNSUPPORTED, "a hook is called once for each virtual worker's buckets, "
                                        "which two ranks may make: give hook or duplicate, not "
                                        "both");
    bool full            = parallel->ledger.kept || parallel->leaves < 2 * parallel->ranks;
    parallel->duplicates = true;
    parallel->spares     = full ? 1 : 0;
    return LK_OK;
}

lk_status lki_claims_open(lk_parallel *parallel)
{
    lki_claims *c;

    if (!parallel->duplicates)
        return LK_OK;
    LK_TRY(LKI_NEW(&parallel->claims, 1, "claims"));
    c     = parallel->claims;
    c->of = parallel->claim_words;
    LK_TRY(LKI_NEW(&c->queue, parallel->leaves, "virtual workers"));
    return lki_alloc((void **)&c->report, parallel->report_bytes, "a report");
}

void lki_claims_close(lk_parallel *parallel)
{
    if (parallel->claims == NULL)
        return;
    lki_free(parallel->claims->queue);
    lki_free(parallel->claims->report);
    lki_free(parallel->claims);
    parallel->claims = NULL;
}

void lki_claims_clear(lk_parallel *parallel)
{
    for (uint32_t leaf = 0; parallel->claims != NULL && leaf < parallel->leaves; leaf++)
        atomic_store(&parallel->claims->of[leaf].word, 0);
}

void lki_claims_begin(lk_parallel *parallel)
{
    lki_claims *c = parallel->claims;
    if (c == NULL)
        return;
    c->round++;
    c->on      = c->round > 1 && !parallel->remains.there && parallel->ranks > 1;
    c->closing = false;
}

/* ---- Making ------------------------------------------------------------------------------ */

bool lki_claims_take(lk_parallel *parallel, uint32_t leaf)
{
    const lki_claims *c    = parallel->claims;
    uint64_t          word = look(c, leaf);
    return !is_anybodys(c, word) && change(c, leaf, word, word_of(c, CLAIMED, parallel->rank));
}

bool lki_claims_lost(const lk_parallel *parallel)
{
    return standing_of(look(parallel->claims, lki_leaf_now(parallel))) >= WON;
}

bool lki_claims_win(lk_parallel *parallel)
{
    const lki_claims *c    = parallel->claims;
    uint32_t          leaf = lki_leaf_now(parallel);
    uint64_t          word = look(c, leaf);

    while (standing_of(word) < WON)
        if (change(c, leaf, word, word_of(c, WON, parallel->rank))) {
            memcpy(lki_report_of(parallel, leaf), c->report, parallel->report_bytes);
            return true;
        } else
            word = look(c, leaf);
    return false;
}

void lki_claims_done(lk_parallel *parallel, uint32_t leaf, uint32_t place)
{
    atomic_store(&parallel->claims->of[leaf].word, word_of(parallel->claims, DONE, place));
}

void lki_claims_from(lk_parallel *parallel, double seconds)
{
    if (parallel->claims != NULL)
        parallel->claims->least = seconds;
}

void lki_claims_note(lk_parallel *parallel, double seconds)
{
    parallel->claims->pace = seconds;
}

lk_status lki_claims_await(lk_parallel *parallel, uint32_t leaf, bool patient, uint32_t *place,
                           bool *there)
{
    static const struct timespec nap   = { .tv_nsec = NAP_NS };
    const lki_claims            *c     = parallel->claims;
    double                       begun = lki_seconds();

    for (;;) {
        uint64_t word = look(c, leaf);
        *place        = value_of(word);
        *there        = standing_of(word) == DONE;
        if (*there)
            return LK_OK;
        if (lki_failed(parallel->comm))
            return lki_group_failure(parallel->comm);
        if (standing_of(word) != WON && !patient &&
            lki_seconds() - begun > PATIENCE * c->pace)
            return LK_OK;
        (void)nanosleep(&nap, NULL);
    }
}

/* ---- For others -------------------------------------------------------------------------- */

/* There is room for it. */
static bool make(lk_parallel *parallel, uint32_t leaf)
{
    parallel->claims->leaf = leaf;
    parallel->helping      = true;
    return true;
}

bool lki_claims_again(lk_parallel *parallel, uint32_t leaf)
{
    lki_claims *c    = parallel->claims;
    uint64_t    word = look(c, leaf);

    if (standing_of(word) == CLAIMED)
        (void)change(c, leaf, word, word_of(c, TWICE, value_of(word)));
    return parallel->ops->begin_other(parallel, &parallel->current[0], &c->place) &&
           make(parallel, leaf);
}

/* Of a rank of this host: how many nobody has begun, which are the last of its queue; out: the very
 * last. */
static uint32_t left_of(lk_parallel *parallel, uint32_t rank, uint32_t *leaf)
{
    const lki_claims *c     = parallel->claims;
    lki_share         share = lki_share_of(&parallel->dealing, rank);
    uint32_t          left  = 0;

    for (uint32_t i = 0; i < share.count; i++)
        c->queue[i] = share.first + i;
    if (parallel->largest)
        lki_virtual_order(c->queue, parallel->leaves, share.first, share.count);
    for (uint32_t i = 0; i < share.count; i++)
        if (!is_anybodys(c, look(c, c->queue[i]))) {
            *leaf = c->queue[i];
            left++;
        }
    return left;
}

static bool is_here(const lk_parallel *parallel, uint32_t rank)
{
    return parallel->world.host_of[rank] == parallel->world.host_of[parallel->rank];
}

/* The last of whose most are left. */
static bool find_left(lk_parallel *parallel, uint32_t *leaf)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        uint32_t last = 0;
        uint32_t left = r != parallel->rank && is_here(parallel, r)
                            ? left_of(parallel, r, &last) : 0;
        if (left <= most)
            continue;
        most  = left;
        *leaf = last;
    }
    return most > 0;
}

/* One that one rank has begun, and nobody finished; and its word. */
static bool find_begun(const lk_parallel *parallel, uint32_t *leaf, uint64_t *word)
{
    const lki_claims *c = parallel->claims;
    for (uint32_t v = 0; v < parallel->leaves; v++) {
        *leaf = v;
        *word = look(c, v);
        if (is_anybodys(c, *word) && standing_of(*word) == CLAIMED &&
            value_of(*word) != parallel->rank)
            return true;
    }
    return false;
}

static lk_status find_work(lk_parallel *parallel, bool *more)
{
    lki_claims *c   = parallel->claims;
    double      end = lki_seconds() + PATIENCE * c->pace;
    uint32_t    leaf;
    uint64_t    word;

    for (bool over = false; !over && !*more;) {
        double left = end - lki_seconds();
        if (find_left(parallel, &leaf))
            *more = lki_claims_take(parallel, leaf) && make(parallel, leaf);
        else if (!find_begun(parallel, &leaf, &word))
            return LK_OK;
        else if (left > 0)
            LK_TRY(parallel->ops->watch(parallel, left, &over));
        else
            *more = change(c, leaf, word, word_of(c, TWICE, value_of(word))) &&
                    make(parallel, leaf);
    }
    return LK_OK;
}

lk_status lki_claims_help(lk_parallel *parallel, bool *more)
{
    lki_claims *c = parallel->claims;

    *more = false;
    if (c->closing || c->pace < c->least ||
        !parallel->ops->begin_other(parallel, &parallel->current[0], &c->place))
        return LK_OK;
    lk_status status = find_work(parallel, more);
    if (!*more)
        parallel->ops->end_other(parallel, 0, c->place, false);
    return status;
}

uint32_t lki_claims_count(const lk_parallel *parallel)
{
    uint32_t count = 0;
    for (uint32_t v = 0; lki_claims_on(parallel) && v < parallel->leaves; v++)
        count += lki_report_of(parallel, v)->maker != lki_share_rank(&parallel->dealing, v);
    return count;
}
