/* audit.c -- do other ranks make the same gradients?  See lk_parallel_options.audit.
 *
 *      all         their own turns.  Of a virtual worker that is audited its rank hashes what it
 *                  has made: each term as it is announced, running state, and what it reported
 *      the second  makes it again, into memory of its own
 *      all         tell each other the hashes.  Where these two differ,
 *      the third   makes it once more, and all tell again: the odd one is who agrees with nobody
 *
 * This happens when all sums of the step are there and before anything is updated.  Which virtual
 * workers they are, and who makes them again, follows from the seed and the step, so every rank
 * knows without being told: the second of all of a rank is one other rank, so that no rank has more
 * to do than another.  A turn that a program leaves out says nothing, and is not audited.
 *
 * Cost:   the turns of a share of the virtual workers once more; a reading of their gradients; 16
 *         bytes for each from every rank to all.
 * Memory: one gradient, of each rank.
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "comm/group.h"
#include "device/reduce.h"
#include "parallel/strategy.h"

typedef enum { OWN, SECOND, THIRD, OVER } stage;
typedef enum { FIRST_TIME, AGAIN, MAKINGS } making;
#define NOWHERE UINT32_MAX
enum { DIFFERENCE_BYTES = sizeof ((lk_audit_finding *)NULL)->what };

struct lki_audit {
    double      rate;
    uint64_t    seed;
    float      *scratch;     /* a gradient space, for what is made again */
    lki_report *report;      /* of it */
    bool        found;
    lk_audit_finding finding;

    /* The step under way: virtual workers that are audited have a place each. */
    uint32_t *leaves; /* [places] */
    uint32_t *places; /* [virtual workers]: or NOWHERE */
    uint32_t  count, turn; /* turn: by how much the second's rank is above the first's */
    uint32_t  alike;       /* of them */
    bool     *differs; /* [places] */
    uint64_t *terms[MAKINGS]; /* [places][term_count]: hashes that I have made */
    uint64_t *mine, *words; /* [places][MAKINGS], and of each rank so many: hashes of the whole, or
                             * 0 of what it has not made */
    stage    stage;
    uint32_t at, micro; /* the place that I make again */
    bool     left_out;  /* a turn of what is being made */
};

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status refuse(const lk_parallel *parallel)
{
    if (parallel->lock_step)
        return lk_fail(LK_EUNSUPPORTED, "an audit makes one virtual worker's gradient again, but "
                                        "in lock step it needs the others' (SyncBatchNorm): leave "
                                        "out audit");
    if (parallel->gathers)
        return lk_fail(LK_EUNSUPPORTED, "an audit makes a gradient again on one rank, but with "
                                        "strategy %s over several hosts, or with parameters in "
                                        "files, all ranks gather what it reads: leave out audit, "
                                        "or take zero2",
                       parallel->ops->name);
    return LK_OK;
}

lk_status lki_audit_open(lk_parallel *parallel, double rate, uint64_t seed)
{
    size_t     leaves = parallel->leaves, terms = parallel->layout->term_count;
    lki_audit *a;

    LK_TRY(refuse(parallel));
    LK_TRY(LKI_NEW(&parallel->audit, 1, "audit"));
    a       = parallel->audit;
    a->rate = rate;
    a->seed = seed;
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

void lki_audit_close(lk_parallel *parallel)
{
    lki_audit *a = parallel->audit;
    if (a == NULL)
        return;
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
    parallel->audit = NULL;
}

/* ---- Which, and who ---------------------------------------------------------------------- */

static lki_random draw(const lk_parallel *parallel, uint32_t leaf)
{
    return lki_philox(parallel->audit->seed, LKI_RNG_AUDIT, (uint32_t)parallel->step,
                      (uint32_t)(parallel->step >> 32), leaf, 0);
}

void lki_audit_begin(lk_parallel *parallel)
{
    lki_audit *a = parallel->audit;

    a->stage     = OWN;
    a->at        = 0;
    a->micro     = 0;
    a->left_out  = false;
    a->count     = 0;
    a->alike     = 0;
    a->turn      = parallel->ranks > 2 ? draw(parallel, 0).word[1] % (parallel->ranks - 1) : 0;
    for (uint32_t leaf = 0; leaf < parallel->leaves; leaf++) {
        bool wanted     = (double)draw(parallel, leaf).word[0] * 0x1p-32 < a->rate;
        a->places[leaf] = wanted ? a->count : NOWHERE;
        if (wanted)
            a->leaves[a->count++] = leaf;
    }
    memset(a->mine, 0, a->count * MAKINGS * sizeof *a->mine);
    memset(a->differs, 0, a->count * sizeof *a->differs);
}

static uint32_t maker(const lk_parallel *parallel, uint32_t leaf, stage which)
{
    uint32_t own = lki_share_rank(&parallel->dealing, leaf), others = parallel->ranks - 1;
    if (which == OWN || others == 0)
        return own;
    return (own + 1 + (parallel->audit->turn + (which == THIRD)) % others) % parallel->ranks;
}

/* As users know it. */
static uint32_t named(const lk_parallel *parallel, uint32_t leaf, stage which)
{
    return lk_comm_world_rank(parallel->comm, maker(parallel, leaf, which));
}

bool lki_audit_watches(const lk_parallel *parallel)
{
    const lki_audit *a = parallel->audit;
    return a != NULL && a->places[lki_leaf_now(parallel)] != NOWHERE;
}

uint32_t lki_audit_leaf(const lk_parallel *parallel)
{
    return parallel->audit->leaves[parallel->audit->at];
}

lki_report *lki_audit_report(const lk_parallel *parallel)
{
    return parallel->audit->report;
}

/* ---- Hashes ------------------------------------------------------------------------------ */

static making now(const lk_parallel *parallel)
{
    return parallel->remaking ? AGAIN : FIRST_TIME;
}

/* Of the current virtual worker. */
static uint64_t *terms_now(const lk_parallel *parallel)
{
    const lki_audit *a     = parallel->audit;
    const size_t     place = a->places[lki_leaf_now(parallel)];
    return a->terms[now(parallel)] + place * parallel->layout->term_count;
}

void lki_audit_term(lk_parallel *parallel, uint32_t term)
{
    const lki_layout *layout = parallel->layout;
    size_t            count  = layout->sizes[layout->terms[term].param];
    terms_now(parallel)[term] =
        lki_xxh3(lki_gradient_now(parallel, term), count * sizeof(float));
}

void lki_audit_leave_out(lk_parallel *parallel)
{
    if (lki_audit_watches(parallel))
        parallel->audit->left_out = true;
}

void lki_audit_finish(lk_parallel *parallel)
{
    lki_audit        *a      = parallel->audit;
    const uint32_t    leaf   = lki_leaf_now(parallel);
    const lki_report *report = parallel->remaking ? a->report : lki_report_of(parallel, leaf);
    const float      *states = parallel->current[parallel->chosen].states;
    uint64_t          words[5];

    words[0] = lki_xxh3(terms_now(parallel), parallel->layout->term_count * sizeof words[0]);
    words[1] = lki_xxh3(states, parallel->micros * parallel->state_width * sizeof *states);
    memcpy(&words[2], &report->loss, sizeof words[2]);
    words[3] = report->count;
    words[4] = report->hits;
    a->mine[a->places[leaf] * MAKINGS + now(parallel)] =
        a->left_out ? 0 : lki_xxh3(words, sizeof words);
    a->left_out = false;
}

/* What the maker of a stage has told. */
static uint64_t told(const lk_parallel *parallel, uint32_t place, stage which)
{
    const lki_audit *a    = parallel->audit;
    const size_t     rank = maker(parallel, a->leaves[place], which);
    return a->words[(rank * a->count + place) * MAKINGS +
                    (which == OWN ? FIRST_TIME : AGAIN)];
}

/* ---- The verdict ------------------------------------------------------------------------- */

/* `all` has what every rank has hashed of the terms of this virtual worker, in both makings. */
static void name_difference(const lk_parallel *parallel, const uint64_t *all, uint32_t leaf,
                            char text[DIFFERENCE_BYTES])
{
    const lki_layout *layout = parallel->layout;
    const size_t      count  = layout->term_count;
    const uint64_t   *left   = all + MAKINGS * count * maker(parallel, leaf, OWN);
    const uint64_t   *right  = all + MAKINGS * count * maker(parallel, leaf, SECOND) + count;
    uint32_t          t      = 0;

    while (t < count && left[t] == right[t])
        t++;
    if (t < count)
        (void)snprintf(text, DIFFERENCE_BYTES, "gradient of '%s'",
                       layout->params[layout->terms[t].param].name);
    else
        (void)snprintf(text, DIFFERENCE_BYTES, "loss or running state");
}

/* Collective: the first term that differs. */
static lk_status find_difference(lk_parallel *parallel, uint32_t place, char text[DIFFERENCE_BYTES])
{
    const lki_audit *a     = parallel->audit;
    const size_t     count = parallel->layout->term_count;
    uint64_t        *all = NULL, *mine = NULL;
    lk_status        status = LKI_NEW(&all, MAKINGS * count * parallel->ranks, "hashes of terms");

    if (status == LK_OK)
        status = LKI_NEW(&mine, MAKINGS * count, "hashes of terms");
    if (status == LK_OK) {
        memcpy(mine, a->terms[FIRST_TIME] + place * count, count * sizeof *mine);
        memcpy(mine + count, a->terms[AGAIN] + place * count, count * sizeof *mine);
        status = lk_all_gather(parallel->comm, mine, all, MAKINGS * count * sizeof *mine);
    }
    if (status == LK_OK)
        name_difference(parallel, all, a->leaves[place], text);
    lki_free(all);
    lki_free(mine);
    return status;
}

/* Nobody can be named. */
static lk_status accuse_nobody(const lk_parallel *parallel)
{
    const lk_audit_finding *f    = &parallel->audit->finding;
    unsigned long long      step = f->step;

    if (f->count == 1)
        return lk_fail(LK_ECORRUPT, "step %llu: rank %u has made virtual worker %u twice and got "
                       "two results (%s): its processor or memory is faulty, or its program looks "
                       "at something else (nothing was updated)", step, f->ranks[0],
                       f->virtual_worker, f->what);
    if (f->count == 2)
        return lk_fail(LK_ECORRUPT, "step %llu: ranks %u and %u have made different results of "
                       "virtual worker %u (%s): the processor or memory of one is faulty, and "
                       "there is no third rank to tell which (nothing was updated)", step,
                       f->ranks[0], f->ranks[1], f->virtual_worker, f->what);
    return lk_fail(LK_ECORRUPT, "step %llu: no two of ranks %u, %u and %u have made the same of "
                   "virtual worker %u (%s): it may be that the program looks at something else "
                   "than its samples and parameters (nothing was updated)", step, f->ranks[0],
                   f->ranks[1], f->ranks[2], f->virtual_worker, f->what);
}

/* The other two agree.  Where a run goes on without ranks that it loses, this one is lost: all say
 * so, and whoever comes first ends everybody's waits. */
static lk_status accuse(lk_parallel *parallel, stage odd)
{
    lki_audit        *a    = parallel->audit;
    lk_audit_finding *f    = &a->finding;
    uint32_t          rank = f->ranks[odd];

    f->odd = odd;
    (void)lk_fail(LK_ECORRUPT, "step %llu: rank %u has made other results of virtual worker %u "
                  "(%s) than ranks %u and %u, which agree: its processor or memory is faulty "
                  "(nothing was updated)", (unsigned long long)f->step, rank, f->virtual_worker,
                  f->what, f->ranks[odd == OWN ? SECOND : OWN], f->ranks[THIRD]);
    if (!parallel->ledger.kept)
        return LK_ECORRUPT;
    const lk_error  verdict = *lk_error_last();
    const lk_status status  = lki_fail_group(parallel->comm, rank, LK_EPEER, "%s",
                                             verdict.message);
    return maker(parallel, f->virtual_worker, odd) == parallel->rank ? lki_fail_again(&verdict)
                                                                     : status;
}

/* All have the same words. */
static lk_status judge_one(lk_parallel *parallel, uint32_t place)
{
    lki_audit       *a     = parallel->audit;
    const uint32_t   leaf  = a->leaves[place];
    const uint64_t   third = told(parallel, place, THIRD);
    const bool       more  = parallel->ranks > 2;

    if (more && third == 0)
        return LK_OK;
    a->found   = true;
    a->finding = (lk_audit_finding){ .step           = parallel->step + 1,
                                     .virtual_worker = leaf,
                                     .count          = more ? 3 : parallel->ranks,
                                     .odd            = UINT32_MAX };
    for (uint32_t s = OWN; s < a->finding.count; s++)
        a->finding.ranks[s] = named(parallel, leaf, (stage)s);
    LK_TRY(find_difference(parallel, place, a->finding.what));
    lk_status heard = lk_barrier(parallel->comm); /* nobody leaves before all know, if they live */
    (void)heard;
    if (more && third == told(parallel, place, OWN))
        return accuse(parallel, SECOND);
    if (more && third == told(parallel, place, SECOND))
        return accuse(parallel, OWN);
    return accuse_nobody(parallel);
}

/* What two ranks have made of each place. */
static uint32_t compare(lk_parallel *parallel)
{
    lki_audit *a    = parallel->audit;
    uint32_t   many = 0;

    for (uint32_t p = 0; p < a->count; p++) {
        uint64_t own = told(parallel, p, OWN), second = told(parallel, p, SECOND);
        if (own == 0 || second == 0)
            continue;
        a->alike += own == second;
        a->differs[p] = own != second;
        many += a->differs[p];
    }
    return many;
}

static lk_status judge(lk_parallel *parallel)
{
    lki_audit *a = parallel->audit;

    a->at    = 0;
    a->micro = 0;
    if (a->stage == SECOND) {
        bool odd = compare(parallel) > 0;
        a->stage = odd && parallel->ranks > 2 ? THIRD : OVER;
        if (!odd || a->stage == THIRD)
            return LK_OK;
    }
    a->stage = OVER;
    for (uint32_t p = 0; p < a->count; p++)
        if (a->differs[p])
            LK_TRY(judge_one(parallel, p));
    return LK_OK;
}

/* ---- Turns ------------------------------------------------------------------------------- */

/* The first turn of what this rank makes again. */
static void clear(lk_parallel *parallel)
{
    const lki_audit *a     = parallel->audit;
    const size_t     terms = parallel->layout->term_count;

    memset(parallel->ready, 0, terms);
    memset(parallel->begun, 0, terms);
    memset(a->report, 0, parallel->report_bytes);
    lki_clear(parallel, a->scratch + parallel->layout->grad_elements,
              parallel->width - parallel->layout->grad_elements);
    parallel->current[0] = (lki_gradients){ .gradients = a->scratch,
                                            .states    = a->scratch +
                                                      parallel->layout->grad_elements };
}

/* Whether there is something left for this rank to make in this stage. */
static bool make_next(lk_parallel *parallel)
{
    lki_audit *a = parallel->audit;

    for (; a->at < a->count; a->at++, a->micro = 0) {
        bool wanted = a->stage == SECOND || a->differs[a->at];
        if (!wanted || maker(parallel, a->leaves[a->at], a->stage) != parallel->rank ||
            a->micro == parallel->micros)
            continue;
        if (a->micro == 0)
            clear(parallel);
        parallel->micro    = a->micro++;
        parallel->remaking = true;
        return true;
    }
    return false;
}

lk_status lki_audit_next(lk_parallel *parallel, bool *more)
{
    lki_audit *a = parallel->audit;

    *more = false;
    if (a->stage == OWN)
        a->stage = SECOND;
    while (a->count > 0 && a->stage != OVER) {
        *more = make_next(parallel);
        if (*more)
            return LK_OK;
        LK_TRY(lk_all_gather(parallel->comm, a->mine, a->words,
                             a->count * MAKINGS * sizeof *a->mine));
        LK_TRY(judge(parallel));
    }
    return LK_OK;
}

uint32_t lki_audit_alike(const lk_parallel *parallel)
{
    return parallel->audit == NULL ? 0 : parallel->audit->alike;
}

bool lk_parallel_finding(const lk_parallel *parallel, lk_audit_finding *out)
{
    bool found = parallel->audit != NULL && parallel->audit->found;
    if (found)
        *out = parallel->audit->finding;
    return found;
}
