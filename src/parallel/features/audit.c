/* audit.c -- checks that another rank computes the same gradients; see lk_parallel_options.audit.
 *
 *      all         run their own turns.  The rank of an audited virtual worker hashes each term
 *                  when it is announced, running state, and the reported loss
 *      the second  recomputes the virtual worker, in separate memory
 *      all         exchange the hashes.  If the two differ:
 *      the third   recomputes it once more, and all exchange hashes again.  The faulty rank is the
 *                  one that agrees with neither of the others
 *
 * The recomputation takes place when all sums of the step are available, and before the update.
 * The seed and the step determine the audited virtual workers and the ranks that recompute them, so
 * no message is needed to select them.  All audited virtual workers of one rank have the same
 * second rank, so that the work is balanced.  A virtual worker with a skipped turn has no result
 * and is not audited.
 *
 * Cost:   the turns of the audited virtual workers are computed once more, their gradients are read
 *         once, and every rank sends 16 bytes to all ranks for each of these virtual workers.
 * Memory: one gradient on each rank.
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "comm/worker.h"
#include "device/reduce.h"
#include "parallel/features/table.h"
#include "parallel/state.h"

typedef enum { OWN, SECOND, THIRD, OVER } stage;
typedef enum { FIRST_TIME, AGAIN, MAKINGS } making;
#define NOWHERE UINT32_MAX
enum { DIFFERENCE_BYTES = sizeof((lk_audit_finding *)NULL)->what };

typedef struct {
    double           rate;
    uint64_t         seed, steps; /* steps: number of steps that may still be audited */
    float           *scratch; /* a gradient space for the recomputed gradient */
    lki_report      *report;  /* of the recomputed virtual worker */
    bool             found;
    lk_audit_finding finding;

    /* The step in progress.  Each audited virtual worker has a place, a number from 0. */
    uint32_t *leaves;         /* [places]: its virtual worker */
    uint32_t *places;         /* [virtual workers]: place of the virtual worker, or NOWHERE */
    uint32_t  count, turn;    /* turn: distance from the owner's rank to the second rank, less 1 */
    uint32_t  alike;          /* places with equal results */
    bool     *differs;        /* [places] */
    uint64_t *terms[MAKINGS]; /* [places][term_count]: hashes that this rank computed */
    /* Hashes of whole results, 0 if a rank has computed none.  `mine` has [places][MAKINGS] hashes
     * of this rank, `words` has [ranks][places][MAKINGS]. */
    uint64_t *mine, *words;
    stage     stage;
    uint32_t  at, micro; /* the place that this rank recomputes, and the current micro-batch */
} audit;

static audit *audit_of(const lk_parallel *parallel)
{
    return lki_feature_state(parallel, &lki_feature_audit);
}

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status refuse(const lk_parallel *parallel)
{
    if (parallel->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "an audit makes one virtual worker's gradient again, but "
                                        "in lock step it needs the others' (SyncBatchNorm): leave "
                                        "out audit");
    if (parallel->gathers)
        return lk_fail(LK_EUNSUPPORTED,
                       "an audit makes a gradient again on one rank, but with "
                       "strategy %s over several hosts, or with parameters in "
                       "files, all ranks gather what it reads: leave out audit, "
                       "or take zero2",
                       parallel->ops->name);
    return LK_OK;
}

static lk_status audit_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    audit *a = NULL;

    if (!(options->audit >= 0 && options->audit <= 1))
        return lk_fail(LK_EINVAL, "audit is %g; give a share of the steps from 0 to 1",
                       options->audit);
    if (options->audit == 0)
        return LK_OK;
    LK_TRY(LKI_NEW(&a, 1, "audit"));
    *out               = a;
    a->rate            = options->audit;
    a->seed            = options->seed;
    a->steps           = options->audit_steps == 0 ? UINT64_MAX : options->audit_steps;
    /* repeats an interrupted step, because salvage() does not find results of audits */
    parallel->effects.restarts = true;
    parallel->effects.watches  = true;
    parallel->effects.audits   = true;
    return LK_OK;
}

static lk_status audit_attach(lk_parallel *parallel, void *context)
{
    size_t leaves = parallel->leaves, terms = parallel->layout->term_count;
    audit *a = context;

    LK_TRY(refuse(parallel));
    LK_TRY(LKI_NEW(&a->scratch, parallel->width, "a gradient to compare with"));
    LK_TRY(lki_alloc((void **)&a->report, parallel->report_bytes, "a report to compare with"));
    LK_TRY(LKI_NEW(&a->leaves, leaves, "audits"));
    LK_TRY(LKI_NEW(&a->places, leaves, "audits"));
    LK_TRY(LKI_NEW(&a->differs, leaves, "audits"));
    LK_TRY(LKI_NEW(&a->terms[FIRST_TIME], leaves * terms, "hashes of terms"));
    LK_TRY(LKI_NEW(&a->terms[AGAIN], leaves * terms, "hashes of terms"));
    LK_TRY(LKI_NEW(&a->mine, leaves * MAKINGS, "hashes of gradients"));
    return LKI_NEW(&a->words, leaves * MAKINGS * parallel->ranks, "hashes of gradients");
}

static void audit_close(void *context)
{
    audit *a = context;
    lki_free(a->scratch);
    lki_free(a->report);
    lki_free(a->leaves);
    lki_free(a->places);
    lki_free(a->differs);
    lki_free(a->terms[FIRST_TIME]);
    lki_free(a->terms[AGAIN]);
    lki_free(a->mine);
    lki_free(a->words);
    lki_free(a);
}

static uint64_t audit_hash(const lk_parallel_options *options)
{
    const uint64_t steps = options->audit_steps;
    return lki_xxh3(&options->audit, sizeof options->audit) ^ lki_xxh3(&steps, sizeof steps);
}

/* ---- Choice of virtual workers and ranks ------------------------------------------------- */

static lki_random draw(const lk_parallel *parallel, const audit *a, uint32_t leaf)
{
    return lki_philox(a->seed, LKI_RNG_AUDIT, (uint32_t)parallel->step,
                      (uint32_t)(parallel->step >> 32), leaf, 0);
}

static void audit_begin_step(lk_parallel *parallel, void *context)
{
    audit     *a    = context;
    const bool over = a->steps == 0;

    a->steps -= !over;
    if (over) {
        parallel->effects.audits = false;
        lki_free(a->scratch);
        a->scratch = NULL;
    }
    a->stage = OWN;
    a->at    = 0;
    a->micro = 0;
    a->count = 0;
    a->alike = 0;
    a->turn  = parallel->ranks > 2 ? draw(parallel, a, 0).word[1] % (parallel->ranks - 1) : 0;
    for (uint32_t leaf = 0; leaf < parallel->leaves; leaf++) {
        bool wanted     = !over && (double)draw(parallel, a, leaf).word[0] * 0x1p-32 < a->rate;
        a->places[leaf] = wanted ? a->count : NOWHERE;
        if (wanted)
            a->leaves[a->count++] = leaf;
    }
    memset(a->mine, 0, a->count * MAKINGS * sizeof *a->mine);
    memset(a->differs, 0, a->count * sizeof *a->differs);
}

static uint32_t maker(const lk_parallel *parallel, const audit *a, uint32_t leaf, stage which)
{
    uint32_t own = lki_share_rank(&parallel->dealing, leaf), others = parallel->ranks - 1;
    if (which == OWN || others == 0)
        return own;
    return (own + 1 + (a->turn + (which == THIRD)) % others) % parallel->ranks;
}

/* Returns the job-wide number of the rank that computes `leaf` in a stage. */
static uint32_t named(const lk_parallel *parallel, const audit *a, uint32_t leaf, stage which)
{
    return lk_comm_world_rank(parallel->comm, maker(parallel, a, leaf, which));
}

/* Returns true if a virtual worker of the turn is audited and this is its first or second
 * computation. */
static bool watches(const lk_parallel *parallel, const audit *a, uint32_t index)
{
    return a->places[lki_leaf_now(parallel, index)] != NOWHERE;
}

/* ---- Hashes ------------------------------------------------------------------------------ */

static making now(const lk_parallel *parallel)
{
    return parallel->turn.kind == LKI_TURN_AGAIN ? AGAIN : FIRST_TIME;
}

/* Returns the hashes of the terms of a virtual worker of the turn. */
static uint64_t *terms_now(const lk_parallel *parallel, const audit *a, uint32_t index)
{
    const size_t place = a->places[lki_leaf_now(parallel, index)];
    return a->terms[now(parallel)] + place * parallel->layout->term_count;
}

static lk_status audit_term_ready(lk_parallel *parallel, void *context, uint32_t index,
                                  uint32_t term)
{
    const audit      *a      = context;
    const lki_layout *layout = parallel->layout;
    size_t            count  = layout->sizes[layout->terms[term].param];
    if (watches(parallel, a, index))
        terms_now(parallel, a, index)[term] = lki_xxh3(lki_gradient_now(parallel, index, term),
                                                       count * sizeof(float));
    return LK_OK;
}

/* Hashes the results of the audited virtual worker, after all its terms are computed. */
static void audit_end_leaf(lk_parallel *parallel, void *context, uint32_t index)
{
    const audit          *a      = context;
    const lki_turn_state *turn   = &parallel->turn;
    const lki_report     *report = lki_report_now(parallel, index);
    const float          *states = turn->current[index].states;
    uint64_t              words[5];

    if (!watches(parallel, a, index))
        return;
    words[0] = lki_xxh3(terms_now(parallel, a, index),
                        parallel->layout->term_count * sizeof words[0]);
    words[1] = lki_xxh3(states, parallel->now.micros * parallel->state_width * sizeof *states);
    memcpy(&words[2], &report->loss, sizeof words[2]);
    words[3] = report->count;
    words[4] = report->hits;
    a->mine[a->places[lki_leaf_now(parallel, index)] * MAKINGS + now(parallel)] =
        turn->left_out ? 0 : lki_xxh3(words, sizeof words);
}

/* Returns the hash that the rank of stage `which` has published for a place. */
static uint64_t told(const lk_parallel *parallel, const audit *a, uint32_t place, stage which)
{
    const size_t rank = maker(parallel, a, a->leaves[place], which);
    return a->words[(rank * a->count + place) * MAKINGS + (which == OWN ? FIRST_TIME : AGAIN)];
}

/* ---- The verdict ------------------------------------------------------------------------- */

/* Describes the difference between the owner's and the second rank's results.  `all` has every
 * rank's hashes of terms, from both computations. */
static void name_difference(const lk_parallel *parallel, const audit *a, const uint64_t *all,
                            uint32_t leaf, char text[DIFFERENCE_BYTES])
{
    const lki_layout *layout = parallel->layout;
    const size_t      count  = layout->term_count;
    const uint64_t   *left   = all + MAKINGS * count * maker(parallel, a, leaf, OWN);
    const uint64_t   *right  = all + MAKINGS * count * maker(parallel, a, leaf, SECOND) + count;
    uint32_t          t      = 0;

    while (t < count && left[t] == right[t])
        t++;
    if (t < count)
        (void)snprintf(text, DIFFERENCE_BYTES, "gradient of '%s'",
                       layout->params[layout->terms[t].param].name);
    else
        (void)snprintf(text, DIFFERENCE_BYTES, "loss or running state");
}

/* Finds the first term that differs.  Collective. */
static lk_status find_difference(lk_parallel *parallel, const audit *a, uint32_t place,
                                 char text[DIFFERENCE_BYTES])
{
    const size_t count = parallel->layout->term_count;
    uint64_t    *all = NULL, *mine = NULL;
    lk_status    status = LKI_NEW(&all, MAKINGS * count * parallel->ranks, "hashes of terms");

    if (status == LK_OK)
        status = LKI_NEW(&mine, MAKINGS * count, "hashes of terms");
    if (status == LK_OK) {
        memcpy(mine, a->terms[FIRST_TIME] + place * count, count * sizeof *mine);
        memcpy(mine + count, a->terms[AGAIN] + place * count, count * sizeof *mine);
        status = lk_all_gather(parallel->comm, mine, all, MAKINGS * count * sizeof *mine);
    }
    if (status == LK_OK)
        name_difference(parallel, a, all, a->leaves[place], text);
    lki_free(all);
    lki_free(mine);
    return status;
}

/* Reports a difference for which no single rank can be held responsible. */
static lk_status accuse_nobody(const audit *a)
{
    const lk_audit_finding *f    = &a->finding;
    unsigned long long      step = f->step;

    if (f->count == 1)
        return lk_fail(LK_ECORRUPT,
                       "step %llu: rank %u has made virtual worker %u twice and got "
                       "two results (%s): its processor or memory is faulty, or its program looks "
                       "at something else (nothing was updated)",
                       step, f->ranks[0], f->virtual_worker, f->what);
    if (f->count == 2)
        return lk_fail(LK_ECORRUPT,
                       "step %llu: ranks %u and %u have made different results of "
                       "virtual worker %u (%s): the processor or memory of one is faulty, and "
                       "there is no third rank to tell which (nothing was updated)",
                       step, f->ranks[0], f->ranks[1], f->virtual_worker, f->what);
    return lk_fail(LK_ECORRUPT,
                   "step %llu: no two of ranks %u, %u and %u have made the same of "
                   "virtual worker %u (%s): it may be that the program looks at something else "
                   "than its samples and parameters (nothing was updated)",
                   step, f->ranks[0], f->ranks[1], f->ranks[2], f->virtual_worker, f->what);
}

/* Reports the rank whose result differs from the other two.  With options.survives the run
 * continues without that rank: every rank marks it as failed, and the first rank to do so ends all
 * waits. */
static lk_status accuse(lk_parallel *parallel, audit *a, stage odd)
{
    lk_audit_finding *f    = &a->finding;
    uint32_t          rank = f->ranks[odd];

    f->odd = odd;
    (void)lk_fail(LK_ECORRUPT,
                  "step %llu: rank %u has made other results of virtual worker %u "
                  "(%s) than ranks %u and %u, which agree: its processor or memory is faulty "
                  "(nothing was updated)",
                  (unsigned long long)f->step, rank, f->virtual_worker, f->what,
                  f->ranks[odd == OWN ? SECOND : OWN], f->ranks[THIRD]);
    if (!parallel->ledger.kept)
        return LK_ECORRUPT;
    const lk_error  verdict = *lk_error_last();
    const lk_status status  = lki_fail_group(parallel->comm, rank, LK_EPEER, "%s", verdict.message);
    return maker(parallel, a, f->virtual_worker, odd) == parallel->rank ? lki_fail_again(&verdict)
                                                                        : status;
}

/* Reports a virtual worker whose results differ.  All ranks have the same hashes. */
static lk_status judge_one(lk_parallel *parallel, audit *a, uint32_t place)
{
    const uint32_t leaf  = a->leaves[place];
    const uint64_t third = told(parallel, a, place, THIRD);
    const bool     more  = parallel->ranks > 2;

    if (more && third == 0)
        return LK_OK;
    a->found   = true;
    a->finding = (lk_audit_finding){ .step           = parallel->step + 1,
                                     .virtual_worker = leaf,
                                     .count          = more ? 3 : parallel->ranks,
                                     .odd            = UINT32_MAX };
    for (uint32_t s = OWN; s < a->finding.count; s++)
        a->finding.ranks[s] = named(parallel, a, leaf, (stage)s);
    LK_TRY(find_difference(parallel, a, place, a->finding.what));
    /* no live rank leaves before all ranks have the description */
    lk_status heard = lk_barrier(parallel->comm);
    (void)heard;
    if (more && third == told(parallel, a, place, OWN))
        return accuse(parallel, a, SECOND);
    if (more && third == told(parallel, a, place, SECOND))
        return accuse(parallel, a, OWN);
    return accuse_nobody(a);
}

/* Compares the hashes of the first two computations of each audited virtual worker.  Returns how
 * many pairs differ. */
static uint32_t compare(const lk_parallel *parallel, audit *a)
{
    uint32_t many = 0;

    for (uint32_t p = 0; p < a->count; p++) {
        uint64_t own = told(parallel, a, p, OWN), second = told(parallel, a, p, SECOND);
        if (own == 0 || second == 0)
            continue;
        a->alike += own == second;
        a->differs[p] = own != second;
        many += a->differs[p];
    }
    return many;
}

static lk_status judge(lk_parallel *parallel, audit *a)
{
    a->at    = 0;
    a->micro = 0;
    if (a->stage == SECOND) {
        bool odd = compare(parallel, a) > 0;
        a->stage = odd && parallel->ranks > 2 ? THIRD : OVER;
        if (!odd || a->stage == THIRD)
            return LK_OK;
    }
    a->stage = OVER;
    for (uint32_t p = 0; p < a->count; p++)
        if (a->differs[p])
            LK_TRY(judge_one(parallel, a, p));
    return LK_OK;
}

/* ---- Turns ------------------------------------------------------------------------------- */

/* Prepares the first turn of a virtual worker that this rank recomputes. */
static void clear(lk_parallel *parallel, const audit *a)
{
    float *states = a->scratch + parallel->layout->grad_elements;

    lki_turn_clear(parallel);
    memset(a->report, 0, parallel->report_bytes);
    lki_clear(parallel, states, parallel->width - parallel->layout->grad_elements);
    parallel->turn.current[0] = (lki_gradients){ .gradients = a->scratch, .states = states };
}

/* Starts the next turn that this rank recomputes in this stage.  Returns false if there is none. */
static bool make_next(lk_parallel *parallel, audit *a)
{
    lki_turn_state *turn = &parallel->turn;

    for (; a->at < a->count; a->at++, a->micro = 0) {
        bool wanted = a->stage == SECOND || a->differs[a->at];
        if (!wanted || maker(parallel, a, a->leaves[a->at], a->stage) != parallel->rank ||
            a->micro == parallel->now.micros)
            continue;
        if (a->micro == 0)
            clear(parallel, a);
        turn->micro   = a->micro++;
        turn->kind    = LKI_TURN_AGAIN;
        turn->guest   = a->leaves[a->at];
        turn->report  = a->report;
        turn->owner   = lki_feature_row(&lki_feature_audit);
        turn->running = true;
        return true;
    }
    return false;
}

/* Starts the next turn to recompute, once all sums are available.  *more is set to false after the
 * last turn.  Collective. */
static lk_status find_next(lk_parallel *parallel, audit *a, bool *more)
{
    if (a->stage == OWN)
        a->stage = SECOND;
    while (a->count > 0 && a->stage != OVER) {
        *more = make_next(parallel, a);
        if (*more)
            return LK_OK;
        LK_TRY(
            lk_all_gather(parallel->comm, a->mine, a->words, a->count * MAKINGS * sizeof *a->mine));
        LK_TRY(judge(parallel, a));
    }
    return LK_OK;
}

/* Waits for the sums after the rank's own turns.  Then the rank may have to recompute virtual
 * workers of other ranks. */
static bool audit_next_turn(lk_parallel *parallel, void *context)
{
    bool more = false;

    if (!parallel->now.reduced)
        lki_step_keep(parallel, parallel->ops->reduce(parallel, &parallel->now.sums));
    parallel->now.reduced = true;
    if (!lki_step_failed(parallel))
        lki_step_keep(parallel, find_next(parallel, context, &more));
    return more;
}

/* Ends a turn that recomputes a virtual worker.  Only hashes of its results are stored. */
static void audit_end_turn(lk_parallel *parallel, void *context)
{
    lki_turn_state *turn = &parallel->turn;

    if (turn->micro + 1 == parallel->now.micros) {
        lki_turn_end_terms(parallel, 0);
        audit_end_leaf(parallel, context, 0);
    }
    lki_turn_catch_up(parallel);
    turn->micro   = 0;
    turn->running = false;
    turn->kind    = LKI_TURN_OWN;
    turn->report  = NULL;
    turn->owner   = LKI_NO_FEATURE;
}

static lk_status audit_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    const audit *a = context;
    (void)parallel;
    result->audited = a->alike;
    return LK_OK;
}

const lki_feature lki_feature_audit = {
    .name         = "audit",
    .open         = audit_open,
    .close        = audit_close,
    .hash_options = audit_hash,
    .attach       = audit_attach,
    .begin_step   = audit_begin_step,
    .term_ready   = audit_term_ready,
    .end_leaf     = audit_end_leaf,
    .next_turn    = audit_next_turn,
    .end_turn     = audit_end_turn,
    .reports      = audit_reports,
};

bool lk_parallel_finding(const lk_parallel *parallel, lk_audit_finding *out)
{
    parallel = lki_in_use(parallel);
    const audit *a     = audit_of(parallel);
    bool         found = a != NULL && a->found;
    if (found)
        *out = a->finding;
    return found;
}
