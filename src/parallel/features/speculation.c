/* speculation.c -- idle ranks compute virtual workers of slow ranks.
 *
 * The result of a virtual worker does not depend on the rank that computes it, so a rank that has
 * finished its own virtual workers computes one of a slow rank.  It takes an unstarted one from the
 * end of the slow rank's queue (Blumofe and Leiserson, Scheduling Multithreaded Computations by
 * Work Stealing, 1999).  If there is none, it takes one that the slow rank has started and not
 * finished (backup tasks: Dean and Ghemawat, MapReduce, 2004, section 3.6).  The first result
 * counts; both have the same bits.
 *
 *      claim     a word for each virtual worker, in an arena of the host, changed by compare and
 *                swap: nobody -> claimed by a rank -> claimed twice -> won -> done, at a place
 *      first     the rank that sets "won" copies its report to the common table and publishes the
 *                place of the gradient.  The other rank stops after its current block
 *      summed    by the rank to which the virtual worker belongs, from that place.  So it is summed
 *                once, whichever rank computed it
 *
 * A rank computes its own virtual workers from the beginning of its queue, and other ranks take
 * them from the end.  When it reaches a virtual worker that another rank has claimed, it waits half
 * the time of one virtual worker and then computes it as well.  An idle rank waits equally long
 * before it computes a started one a second time.  So equally fast ranks never compute for each
 * other.  Ranks wait for a stopped rank only if they need the slices of sums and parameters that it
 * owns.
 *
 * Words contain the number of steps since opening, so a word of an earlier step means "nobody".
 * Each rank computes its own virtual workers in two cases: in the first step, after which the
 * layout of buckets may change, and in a step that is continued after a loss (remains.h).  Ranks
 * help only ranks of their own host.
 *
 * Memory: a word for each virtual worker; one more gradient for each rank without a spare buffer.
 */
#include "parallel/features/speculation.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/features/table.h"
#include "parallel/state.h"

typedef struct {
    _Atomic uint64_t word;
} claim;

typedef struct {
    claim      *of;     /* [virtual workers], in the model's arena */
    lki_report *report; /* of the current virtual worker */
    uint32_t   *queue;  /* scratch: the queue of another rank */
    uint64_t    round;  /* number of steps begun */
    bool        on;     /* virtual workers are claimed in the current step */
    double      pace;   /* seconds that a virtual worker of this rank takes */
    /* the minimum `pace` at which this rank computes other ranks' virtual workers */
    double   least;
    uint32_t place; /* the buffer in which this rank computes another rank's virtual worker */
} speculation;

/* The state of a virtual worker.  The upper half of its word is the round; then follow one of these
 * states and the number of a rank or, for DONE, of a place. */
typedef enum { CLAIMED = 0, TWICE, WON, DONE } standing;
enum { VALUE_BITS = 30, NAP_NS = 20000 };
static const double PATIENCE = 0.5; /* longest wait, as a fraction of one virtual worker's time */

static uint64_t word_of(const speculation *self, standing what, uint32_t value)
{
    return self->round << 32 | (uint64_t)what << VALUE_BITS | value;
}

static standing standing_of(uint64_t word)
{
    return (standing)(word >> VALUE_BITS & 3);
}

static uint32_t value_of(uint64_t word)
{
    return (uint32_t)word & ((UINT32_C(1) << VALUE_BITS) - 1);
}

static uint64_t look(const speculation *self, uint32_t leaf)
{
    return atomic_load(&self->of[leaf].word);
}

static bool is_anybodys(const speculation *self, uint64_t word)
{
    return word >> 32 == (self->round & UINT32_MAX);
}

static bool change(const speculation *self, uint32_t leaf, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong(&self->of[leaf].word, &from, to);
}

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status speculation_open(lk_parallel *parallel, const lk_parallel_options *options,
                                  void **out)
{
    speculation *self = NULL;

    if (!options->duplicate)
        return LK_OK;
    if (parallel->ops->exchange == NULL)
        return lk_fail(LK_EUNSUPPORTED,
                       "strategy %s sums gradients while others are computed: "
                       "`duplicate` is for ddp and zero1",
                       parallel->ops->name);
    if (parallel->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "in lock step a rank computes all its virtual workers at "
                                        "once, so no other rank can compute one");
    if (options->audit > 0)
        return lk_fail(LK_EUNSUPPORTED, "an audit depends on the rank that computed a virtual "
                                        "worker: give `audit` or `duplicate`, not both");
    if (options->hook != NULL)
        return lk_fail(LK_EUNSUPPORTED, "a hook is called once for each bucket of a virtual "
                                        "worker, which two ranks may compute: give `hook` or "
                                        "`duplicate`, not both");
    LK_TRY(LKI_NEW(&self, 1, "the state of speculation"));
    self->least              = options->duplicate_seconds;
    *out                     = self;
    bool full                = options->survives || parallel->leaves < 2 * parallel->ranks;
    parallel->effects.lends  = true;
    parallel->effects.single = true;
    parallel->effects.spares = full ? 1 : 0;
    return LK_OK;
}

static uint64_t speculation_hash(const lk_parallel_options *options)
{
    return options->duplicate;
}

static size_t speculation_lay_out(lk_parallel *parallel, void *context, char *base, size_t at)
{
    speculation *self = context;
    self->of          = lki_carve(base, &at, parallel->leaves * sizeof *self->of);
    return at;
}

static lk_status speculation_attach(lk_parallel *parallel, void *context)
{
    speculation *self = context;
    LK_TRY(LKI_NEW(&self->queue, parallel->leaves, "virtual workers"));
    return lki_alloc((void **)&self->report, parallel->report_bytes, "a report");
}

static void speculation_close(void *context)
{
    speculation *self = context;
    lki_free(self->queue);
    lki_free(self->report);
    lki_free(self);
}

/* Resets all words after a failure, on one rank of each host. */
static void speculation_take_over(lk_parallel *parallel, void *context, const void *before)
{
    const speculation *self = context;
    (void)before;
    for (uint32_t leaf = 0; parallel->local == 0 && leaf < parallel->leaves; leaf++)
        atomic_store(&self->of[leaf].word, 0);
}

static void speculation_begin_step(lk_parallel *parallel, void *context)
{
    speculation *self = context;
    self->round++;
    self->on = self->round > 1 && !parallel->remains.there && parallel->ranks > 1;
    if (!self->on)
        return;
    parallel->turn.owner  = lki_feature_row(&lki_feature_speculation);
    parallel->turn.report = self->report;
}

/* ---- Computing --------------------------------------------------------------------------- */

/* Claims a virtual worker.  Returns false if another rank has claimed it already. */
static bool take(const lk_parallel *parallel, const speculation *self, uint32_t leaf)
{
    uint64_t word = look(self, leaf);
    return !is_anybodys(self, word) &&
           change(self, leaf, word, word_of(self, CLAIMED, parallel->rank));
}

static bool is_lost(const lk_parallel *parallel, const speculation *self)
{
    return self->on && standing_of(look(self, lki_leaf_now(parallel, 0))) >= WON;
}

static bool speculation_is_moot(lk_parallel *parallel, void *context, bool over)
{
    return !over && is_lost(parallel, context);
}

/* Ends the current virtual worker.  Returns true if this rank's result counts; its report is then
 * published. */
static bool win(const lk_parallel *parallel, const speculation *self)
{
    uint32_t leaf = lki_leaf_now(parallel, 0);
    uint64_t word = look(self, leaf);

    while (standing_of(word) < WON)
        if (change(self, leaf, word, word_of(self, WON, parallel->rank))) {
            memcpy(lki_report_of(parallel, leaf), self->report, parallel->report_bytes);
            return true;
        } else
            word = look(self, leaf);
    return false;
}

/* Waits for a virtual worker of this rank that another rank has claimed.  When the virtual worker
 * is done, sets *there to true and *place to its buffer.  Gives up after a while, unless
 * `patient`. */
static lk_status await_result(const lk_parallel *parallel, const speculation *self, uint32_t leaf,
                              bool patient, uint32_t *place, bool *there)
{
    static const struct timespec nap   = { .tv_nsec = NAP_NS };
    double                       begun = lki_seconds();

    for (;;) {
        uint64_t word = look(self, leaf);
        *place        = value_of(word);
        *there        = standing_of(word) == DONE;
        if (*there)
            return LK_OK;
        if (lki_comm_has_failed(parallel->comm))
            return lki_group_failure(parallel->comm);
        if (standing_of(word) != WON && !patient && lki_seconds() - begun > PATIENCE * self->pace)
            return LK_OK;
        (void)nanosleep(&nap, NULL);
    }
}

/* ---- For other ranks --------------------------------------------------------------------- */

/* Makes `leaf` the current virtual worker.  Its buffer has been chosen. */
static bool make(lk_parallel *parallel, uint32_t leaf)
{
    parallel->turn.kind  = LKI_TURN_HELP;
    parallel->turn.guest = leaf;
    return true;
}

/* Begins one of this rank's virtual workers for which another rank takes too long.  Returns false
 * if no buffer is free. */
static bool make_again(lk_parallel *parallel, speculation *self, uint32_t leaf)
{
    uint64_t word = look(self, leaf);

    if (standing_of(word) == CLAIMED)
        (void)change(self, leaf, word, word_of(self, TWICE, value_of(word)));
    return parallel->ops->exchange->begin(parallel, &parallel->turn.current[0], &self->place) &&
           make(parallel, leaf);
}

/* Counts the unstarted virtual workers of a rank of this host, which are at the end of its queue.
 * Sets *leaf to the last one. */
static uint32_t left_of(const lk_parallel *parallel, const speculation *self, uint32_t rank,
                        uint32_t *leaf)
{
    lki_share share = lki_share_of(&parallel->dealing, rank);
    uint32_t  left  = 0;

    for (uint32_t i = 0; i < share.count; i++)
        self->queue[i] = share.first + i;
    if (parallel->effects.largest)
        lki_virtual_order(self->queue, parallel->leaves, share.first, share.count);
    for (uint32_t i = 0; i < share.count; i++)
        if (!is_anybodys(self, look(self, self->queue[i]))) {
            *leaf = self->queue[i];
            left++;
        }
    return left;
}

static bool is_here(const lk_parallel *parallel, uint32_t rank)
{
    return parallel->world.host_of[rank] == parallel->world.host_of[parallel->rank];
}

/* Finds the rank with the most unstarted virtual workers, and sets *leaf to its last one. */
static bool find_left(const lk_parallel *parallel, const speculation *self, uint32_t *leaf)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        uint32_t last = 0;
        uint32_t left = r != parallel->rank && is_here(parallel, r)
                            ? left_of(parallel, self, r, &last)
                            : 0;
        if (left <= most)
            continue;
        most  = left;
        *leaf = last;
    }
    return most > 0;
}

/* Finds a virtual worker that one other rank has started and no rank has finished.  Sets *leaf to
 * its number and *word to its word. */
static bool find_begun(const lk_parallel *parallel, const speculation *self, uint32_t *leaf,
                       uint64_t *word)
{
    for (uint32_t v = 0; v < parallel->leaves; v++) {
        *leaf = v;
        *word = look(self, v);
        if (is_anybodys(self, *word) && standing_of(*word) == CLAIMED &&
            value_of(*word) != parallel->rank)
            return true;
    }
    return false;
}

static lk_status find_work(lk_parallel *parallel, const speculation *self, bool *more)
{
    double   end = lki_seconds() + PATIENCE * self->pace;
    uint32_t leaf;
    uint64_t word;

    for (bool over = false; !over && !*more;) {
        double left = end - lki_seconds();
        if (find_left(parallel, self, &leaf))
            *more = take(parallel, self, leaf) && make(parallel, leaf);
        else if (!find_begun(parallel, self, &leaf, &word))
            return LK_OK;
        else if (left > 0)
            LK_TRY(parallel->ops->exchange->watch(parallel, left, &over));
        else
            *more = change(self, leaf, word, word_of(self, TWICE, value_of(word))) &&
                    make(parallel, leaf);
    }
    return LK_OK;
}

/* Chooses another rank's virtual worker and makes it the current one.  Waits until it is certain
 * whether there is one.  This rank's own virtual workers must be handed in. */
static lk_status help(lk_parallel *parallel, speculation *self, bool *more)
{
    const lki_exchange *exchange = parallel->ops->exchange;

    *more = false;
    if (parallel->turn.closing || self->pace < self->least ||
        !exchange->begin(parallel, &parallel->turn.current[0], &self->place))
        return LK_OK;
    lk_status status = find_work(parallel, self, more);
    if (!*more)
        exchange->end(parallel, 0, self->place, false);
    return status;
}

/* ---- Turns ------------------------------------------------------------------------------- */

/* Begins another rank's virtual worker. */
static void begin_other(lk_parallel *parallel)
{
    lki_turn_clear(parallel);
    lki_report_begin(parallel, 0);
    lki_step_keep(parallel, lki_features_begin_leaves(parallel));
}

/* Waits for this rank's next virtual worker, which another rank has claimed.  Returns true if this
 * rank must compute it as well. */
static bool take_back(lk_parallel *parallel, speculation *self)
{
    uint32_t leaf = lki_leaf_now(parallel, 0), place;
    bool     there;

    lki_step_keep(parallel,
                  await_result(parallel, self, leaf, parallel->turn.closing, &place, &there));
    if (lki_step_failed(parallel))
        return false;
    if (!there)
        return make_again(parallel, self, leaf);
    lki_step_keep(parallel, parallel->ops->exchange->use(parallel, leaf, place, false));
    parallel->turn.leaf++;
    return false;
}

static bool speculation_next_turn(lk_parallel *parallel, void *context)
{
    speculation    *self  = context;
    lki_turn_state *turn  = &parallel->turn;
    bool            other = false;

    if (!self->on)
        return false;
    if (turn->kind == LKI_TURN_HELP || turn->micro > 0) {
        lki_turn_begin(parallel);
        return true;
    }
    while (!other && !lki_step_failed(parallel) && turn->leaf < lki_turns(parallel)) {
        if (take(parallel, self, lki_leaf_now(parallel, 0)))
            return lki_turn_begin_own(parallel);
        other = take_back(parallel, self);
    }
    if (!other && !lki_step_failed(parallel))
        lki_step_keep(parallel, help(parallel, self, &other));
    if (!other || lki_step_failed(parallel))
        return false;
    begin_other(parallel);
    lki_turn_begin(parallel);
    return true;
}

/* Ends another rank's virtual worker.  If `mine`, this rank's result counts. */
static void end_other(lk_parallel *parallel, const speculation *self, bool mine)
{
    const uint32_t leaf = lki_leaf_now(parallel, 0);

    parallel->ops->exchange->end(parallel, leaf, self->place, mine);
    if (mine) /* publishes the place of the gradient, which stays there */
        atomic_store(&self->of[leaf].word, word_of(self, DONE, self->place));
    parallel->turn.kind = LKI_TURN_OWN;
}

/* Ends the current virtual worker.  Its report is complete and, unless it was dropped, its gradient
 * too. */
static void end_leaf(lk_parallel *parallel, speculation *self)
{
    const uint32_t  leaf    = lki_leaf_now(parallel, 0);
    lki_turn_state *turn    = &parallel->turn;
    const bool      dropped = turn->dropped;
    uint32_t        place   = 0;
    bool            there;

    if (!dropped)
        lki_features_end_leaf(parallel, 0);
    bool mine     = !dropped && !lki_step_failed(parallel) && win(parallel, self);
    turn->micro   = 0;
    turn->dropped = false;
    if (turn->kind == LKI_TURN_HELP) {
        end_other(parallel, self, mine);
        return;
    }
    self->pace = self->report->seconds;
    /* the other result counts only after its report is stored */
    if (!mine && !lki_step_failed(parallel))
        lki_step_keep(parallel, await_result(parallel, self, leaf, true, &place, &there));
    if (!lki_step_failed(parallel))
        lki_step_keep(parallel, dropped ? parallel->ops->exchange->use(parallel, leaf, place, true)
                                        : parallel->ops->end_leaf(parallel));
    turn->leaf++;
}

static void speculation_end_turn(lk_parallel *parallel, void *context)
{
    speculation    *self = context;
    lki_turn_state *turn = &parallel->turn;

    if (turn->micro + 1 == parallel->now.micros)
        lki_turn_end_terms(parallel, 0);
    turn->running = false;
    self->report->seconds += lki_seconds() - turn->since - turn->waited;
    if (++turn->micro == parallel->now.micros || turn->dropped)
        end_leaf(parallel, self);
}

/* Counts the virtual workers that were computed by a rank other than their own. */
static lk_status speculation_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    const speculation *self = context;
    for (uint32_t v = 0; self->on && v < parallel->leaves; v++)
        result->duplicated += lki_report_of(parallel, v)->maker !=
                              lki_share_rank(&parallel->dealing, v);
    return LK_OK;
}

const lki_feature lki_feature_speculation = {
    .name         = "speculative duplicates",
    .open         = speculation_open,
    .close        = speculation_close,
    .hash_options = speculation_hash,
    .lay_out      = speculation_lay_out,
    .attach       = speculation_attach,
    .take_over    = speculation_take_over,
    .begin_step   = speculation_begin_step,
    .is_moot      = speculation_is_moot,
    .next_turn    = speculation_next_turn,
    .end_turn     = speculation_end_turn,
    .reports      = speculation_reports,
};

/* ---- For tests -------------------------------------------------------------------------- */

bool lki_speculation_lost(const lk_parallel *parallel)
{
    return is_lost(parallel, lki_feature_state(parallel, &lki_feature_speculation));
}
