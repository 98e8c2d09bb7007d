/* pace.c -- what is seen of ranks that are slower than others: shares that have moved (the rule is
 * in parallel/balance.h), and stragglers.
 *
 * All ranks know what each has taken for its virtual workers in a step (lki_balance_time()),
 * and each keeps the books, for rank 0 may be another one tomorrow.
 */
#include "train/observe/pace.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/file.h"
#include "comm/control.h"
#include "train/observe/network.h"
#include "train/observe/stragglers.h"
#include "train/recover/succession.h"

/* Of a rank, so far: steps in which it did not count, and its virtual workers in them. */
typedef struct {
    uint64_t steps, virtual_workers;
} dropped;

struct lki_pace {
    lki_stragglers stragglers;
    lki_network    network; /* between hosts */
    lki_rank_time  *times;  /* [ranks]: of a step */
    uint32_t      *bounds; /* [ranks + 1]: where shares begin, and V */
    uint32_t      *before; /* likewise, before the last change */
    bool           moved;  /* they have ever */
    bool           judged; /* the last step has filled a window */
    uint64_t       moves, workers; /* so far: steps after which some have, and how many */
    uint64_t       duplicated; /* virtual workers that others have made, so far */
    dropped       *dropped;    /* [ranks], with backup workers */
    uint64_t       steps;      /* so far */
};

/* ---- Whether ----------------------------------------------------------------------------- */

static const char *why_not(const lk_train_config *c)
{
    const char *strategy = c->strategy != NULL ? lk_strategy_name(c->strategy) : "ddp";
    if (strcmp(strategy, "ddp") != 0 && strcmp(strategy, "zero1") != 0)
        return "deals virtual workers in rounds, a turn of all workers each, which an unequal "
               "share would only make longer; take --strategy ddp or zero1";
    if (c->model_options.batchnorm == LK_BATCHNORM_SYNC)
        return "with --batchnorm sync has a worker's virtual workers computed at the same time, "
               "in memory for as many as it begins with; take --batchnorm ghost";
    return NULL;
}

/* The same of virtual workers that others make. */
static const char *why_none_others(const lk_train_config *c)
{
    if (c->model_options.batchnorm == LK_BATCHNORM_SYNC)
        return "with --batchnorm sync has all virtual workers made at the same time; take "
               "--batchnorm ghost";
    if (why_not(c) != NULL)
        return "sums each round of virtual workers before the next, so none can be made by "
               "another; take --strategy ddp or zero1";
    return c->audit > 0 ? "with --audit compares what two workers have made; leave one of them out"
                        : NULL;
}

bool lki_pace_moves(const lk_train_config *c)
{
    return c->rebalance == LK_REBALANCE_ON ||
           (c->rebalance == LK_REBALANCE_DEFAULT && c->backup_workers == 0 && why_not(c) == NULL);
}

bool lki_pace_duplicates(const lk_train_config *c)
{
    bool free = !c->survives && c->virtual_workers >= 2 * c->workers && c->hook == NULL;
    return c->duplicate == LK_DUPLICATE_ON ||
           (c->duplicate == LK_DUPLICATE_AUTO && free && why_none_others(c) == NULL);
}

/* With what no worker can be dropped from a step; NULL: nothing of that. */
static const char *why_no_backups(const lk_train_config *c)
{
    return c->workers_here > 0 && c->workers_here < c->workers
               ? "is for workers of one host"
           : c->strategy != NULL && strcmp(c->strategy, "ddp") != 0 &&
                   strcmp(c->strategy, "zero1") != 0
               ? "drops gradients before they are summed: take --strategy ddp or zero1"
           : c->model_options.batchnorm == LK_BATCHNORM_SYNC
               ? "cannot drop what --batchnorm sync has already shared: take --batchnorm ghost"
           : c->rebalance == LK_REBALANCE_ON ? "keeps equal shares: leave out --rebalance"
           : c->duplicate != LK_DUPLICATE_OFF
               ? "drops what is late, and --duplicate has it made: leave one of them out"
           : c->audit > 0 ? "drops what --audit would compare: leave one of them out"
           : c->noise_decay > 0 ? "drops what --noise-scale compares: leave one of them out"
           : c->survives ? "is not for runs that go on where workers are lost: leave out "
                           "--on-failure continue, and MIN of --workers MIN:MAX"
           : c->hook != NULL ? "may drop what a hook was given: leave one of them out"
                             : NULL;
}

static lk_status check_backups(const lk_train_config *c)
{
    const char *why = why_no_backups(c);
    if (c->backup_workers == 0)
        return LK_OK;
    if (c->backup_workers >= c->workers)
        return lk_fail(LK_EINVAL, "--backup-workers %u of --workers %u leaves none that counts: "
                                  "give fewer", c->backup_workers, c->workers);
    return why == NULL ? LK_OK : lk_fail(LK_EINVAL, "--backup-workers %s", why);
}

lk_status lki_pace_check(const lk_train_config *c)
{
    LK_TRY(check_backups(c));
    const char *name   = c->strategy != NULL ? c->strategy : "ddp";
    const char *why    = why_not(c);
    const char *others = why_none_others(c);
    if (c->rebalance == LK_REBALANCE_ON && why != NULL)
        return lk_fail(LK_EINVAL, "--rebalance: --strategy %s %s", name, why);
    if (c->duplicate == LK_DUPLICATE_ON && others != NULL)
        return lk_fail(LK_EINVAL, "--duplicate: --strategy %s %s", name, others);
    return LK_OK;
}

/* ---- Opening ----------------------------------------------------------------------------- */

static void free_books(lki_pace *p)
{
    lki_stragglers_close(&p->stragglers);
    lki_network_close(&p->network);
    lki_free(p->times);
    lki_free(p->bounds);
    lki_free(p->before);
    lki_free(p->dropped);
    p->times  = NULL;
    p->bounds = p->before = NULL;
    p->dropped            = NULL;
    p->moved = p->judged = false;
}

static void note_bounds(const lki_session *s, uint32_t *bounds)
{
    const lki_dealing *dealing = lki_parallel_dealing(s->parallel);
    for (uint32_t r = 0; r < s->ranks; r++)
        bounds[r] = lki_share_of(dealing, r).first;
    bounds[s->ranks] = dealing->leaves;
}

static lk_status open_books(lki_session *s)
{
    lki_pace *p = s->pace;

    LK_TRY(lki_stragglers_open(&p->stragglers, s->ranks));
    LK_TRY(lki_network_open(&p->network, s->comm));
    LK_TRY(LKI_NEW(&p->times, s->ranks, "times of ranks"));
    LK_TRY(LKI_NEW(&p->bounds, (size_t)s->ranks + 1, "shares of ranks"));
    LK_TRY(LKI_NEW(&p->before, (size_t)s->ranks + 1, "shares of ranks"));
    LK_TRY(LKI_NEW(&p->dropped, s->ranks, "times of ranks"));
    note_bounds(s, p->bounds);
    return LK_OK;
}

lk_status lki_pace_open(lki_session *s)
{
    LK_TRY(LKI_NEW(&s->pace, 1, "times of ranks"));
    return LK_OK;
}

void lki_pace_close(lki_session *s)
{
    if (s->pace == NULL)
        return;
    free_books(s->pace);
    lki_free(s->pace);
    s->pace = NULL;
}

void lki_pace_regroup(lki_session *s)
{
    free_books(s->pace);
}

const uint32_t *lki_pace_bounds(const lki_session *s)
{
    return s->pace->moved ? s->pace->bounds : NULL;
}

/* ---- A step ------------------------------------------------------------------------------ */

/* A step does not say how fast ranks are of which one that was lost has made a part, or that was
 * over before one of them had begun it. */
static void add_times(const lki_session *s)
{
    lki_pace *p     = s->pace;
    bool      known = true;

    for (uint32_t r = 0; r < s->ranks; r++) {
        p->times[r] = lki_balance_time(s->parallel, r);
        p->dropped[r].steps += p->times[r].dropped > 0;
        p->dropped[r].virtual_workers += p->times[r].dropped;
        known = known && p->times[r].seconds > 0;
    }
    p->steps++;
    p->judged = known && lki_stragglers_add(&p->stragglers, p->times);
}

static lk_status add_to_network(const lki_session *s)
{
    lki_pace *p       = s->pace;
    double    longest = 0;
    for (uint32_t r = 0; r < s->ranks; r++)
        longest = p->times[r].seconds > longest ? p->times[r].seconds : longest;
    return lki_network_step(&p->network, s->comm, lki_seconds() - s->begun, longest);
}

/* What was not read of a step that this rank was dropped from is not waited for. */
static lk_status skip_data(lki_session *s, uint64_t done)
{
    if (s->pace->times[s->rank].dropped == 0 || s->turns == (uint64_t)s->count * s->micro_count)
        return LK_OK;
    LK_TRY(lki_feed_deal(s, done));
    lki_observe_loader(s);
    return LK_OK;
}

lk_status lki_pace_step(lki_session *s, uint64_t done, const lk_step_result *result)
{
    lki_pace *p = s->pace;

    if (p->times == NULL)
        LK_TRY(open_books(s));
    add_times(s);
    p->duplicated += result->duplicated;
    LK_TRY(skip_data(s, done));
    LK_TRY(add_to_network(s));
    if (result->moved == 0)
        return LK_OK;
    memcpy(p->before, p->bounds, ((size_t)s->ranks + 1) * sizeof *p->before);
    note_bounds(s, p->bounds);
    p->moved = true;
    p->moves++;
    p->workers += result->moved;
    lk_parallel_share(s->parallel, &s->first, &s->count, &s->stride);
    LK_TRY(lki_feed_deal(s, done));
    lki_observe_loader(s);
    return LK_OK;
}

/* ---- Telling ----------------------------------------------------------------------------- */

static void name_rank(const lki_session *s, uint32_t r, char text[LKI_WHO_BYTES])
{
    uint32_t hosts = lk_comm_hosts(s->comm);
    if (hosts > 1)
        (void)snprintf(text, LKI_WHO_BYTES, "rank %u (host %u)", lk_comm_world_rank(s->comm, r),
                       lk_comm_host(s->comm, r));
    else
        (void)snprintf(text, LKI_WHO_BYTES, "rank %u", lk_comm_world_rank(s->comm, r));
}

static json_t *shares_json(const lki_session *s)
{
    json_t *shares = json_array();
    for (uint32_t r = 0; r < s->ranks; r++)
        (void)json_array_append_new(
            shares, json_pack("{s:I, s:I, s:I, s:f}", "rank",
                              (json_int_t)lk_comm_world_rank(s->comm, r), "first",
                              (json_int_t)s->pace->bounds[r], "virtual_workers",
                              (json_int_t)(s->pace->bounds[r + 1] - s->pace->bounds[r]), "ms",
                              1e3 * lki_balance_time(s->parallel, r).pace));
    return shares;
}

/* "rank 0 takes 11 virtual workers (8 before, 10.1 ms each), rank 1 5 (8, 20.0 ms)". */
static void say_moved(const lki_session *s, uint64_t step)
{
    const lki_pace *p = s->pace;
    char            who[LKI_WHO_BYTES], each[LKI_PACE_BYTES];

    for (uint32_t r = 0; r < s->ranks; r++) {
        uint32_t now = p->bounds[r + 1] - p->bounds[r], then = p->before[r + 1] - p->before[r];
        if (now == then)
            continue;
        name_rank(s, r, who);
        lki_pace_text(each, lki_balance_time(s->parallel, r).pace);
        lki_journal_say(s->journal, "after step %llu %s has %u virtual worker%s, %u before: it "
                        "takes %s for each", (unsigned long long)step, who, now,
                        now > 1 ? "s" : "", then, each);
    }
}

static lk_status tell_moved(lki_session *s, const lki_step_record *record)
{
    if (record->moved == 0 || s->journal == NULL)
        return LK_OK;
    if (s->config->rebalance_seed == 0)
        say_moved(s, record->step);
    json_t *line = json_pack("{s:I, s:{s:I, s:o}}", "step", (json_int_t)record->step, "rebalance",
                             "moved", (json_int_t)record->moved, "shares", shares_json(s));
    return lki_journal_event(s->journal, line);
}

static lk_status tell_straggler(lki_session *s, uint64_t step, uint32_t r)
{
    const lki_stragglers *all = &s->pace->stragglers;
    const lki_straggler  *of  = &all->of[r];
    char                  who[LKI_WHO_BYTES], each[LKI_PACE_BYTES];

    if (s->journal == NULL || !of->slow)
        return LK_OK;
    name_rank(s, r, who);
    lki_pace_text(each, of->seconds);
    if (!of->was_slow)
        lki_journal_say(s->journal, "straggler: in steps %llu to %llu %s took %s for a "
                        "virtual worker, %.2f times the median; cause: %s",
                        (unsigned long long)(step - all->steps + 1), (unsigned long long)step, who,
                        each, of->times, lki_cause_name(of->cause));
    json_t *line = json_pack("{s:I, s:{s:I, s:I, s:s, s:f, s:f, s:f, s:I}}", "step",
                             (json_int_t)step, "straggler", "rank",
                             (json_int_t)lk_comm_world_rank(s->comm, r), "host",
                             (json_int_t)lk_comm_host(s->comm, r), "cause",
                             lki_cause_name(of->cause), "times_median", of->times, "ms",
                             1e3 * of->seconds, "data_ms", 1e3 * of->data, "steps",
                             (json_int_t)all->steps);
    return lki_journal_event(s->journal, line);
}

/* Of two hosts the link is named: "the link between hosts 0 and 1". */
static void name_link(const lki_pace *p, uint32_t h, char text[LKI_WHO_BYTES])
{
    if (p->network.hosts == 2)
        (void)snprintf(text, LKI_WHO_BYTES, "the link between hosts 0 and 1");
    else
        (void)snprintf(text, LKI_WHO_BYTES, "host %u", h);
}

static const char *against(const lki_pace *p)
{
    return p->network.hosts == 2 ? "its best" : "the others'";
}

static lk_status tell_slow_host(const lki_session *s, uint64_t step, uint32_t h)
{
    const lki_pace      *p     = s->pace;
    const lki_slow_host *of    = &p->network.of[h];
    const double         mib   = of->pace * 0x1p20;
    uint32_t             steps = p->network.steps;
    char                 who[LKI_WHO_BYTES], each[LKI_PACE_BYTES];

    if (s->journal == NULL || !of->slow)
        return LK_OK;
    name_link(p, h, who);
    lki_pace_text(each, mib);
    if (!of->was_slow)
        lki_journal_say(s->journal, "straggler: in steps %llu to %llu %s took %s for a MiB, %.2f "
                        "times %s, which is %.0f %% of the steps' time; cause: network",
                        (unsigned long long)(step - steps + 1), (unsigned long long)step, who,
                        each, of->times, against(p), 100 * of->share);
    json_t *hosts = p->network.hosts == 2 ? json_pack("[i, i]", 0, 1) : json_pack("[i]", (int)h);
    json_t *line  = json_pack("{s:I, s:{s:o, s:s, s:f, s:f, s:f, s:I}}", "step", (json_int_t)step,
                              "straggler", "hosts", hosts, "cause", "network", "times_others",
                              of->times, "ms_of_mib", 1e3 * mib, "share", of->share, "steps",
                              (json_int_t)steps);
    return lki_journal_event(s->journal, line);
}

lk_status lki_pace_tell(lki_session *s, const lki_step_record *record)
{
    const lki_stragglers *all = &s->pace->stragglers;

    if (record->moved == 0 && !s->pace->judged && !s->pace->network.full)
        return LK_OK;
    LK_TRY(tell_moved(s, record));
    for (uint32_t r = 0; s->pace->judged && r < all->ranks; r++)
        LK_TRY(tell_straggler(s, record->step, r));
    for (uint32_t h = 0; s->pace->network.full && h < s->pace->network.hosts; h++)
        LK_TRY(tell_slow_host(s, record->step, h));
    if (s->survival != NULL)
        lki_note_all_said(s);
    return LK_OK;
}

void lki_pace_summary(const lki_session *s)
{
    const lki_pace *p = s->pace;
    char            who[LKI_WHO_BYTES];

    for (uint32_t r = 0; r < p->stragglers.ranks; r++) {
        const lki_straggler *of = &p->stragglers.of[r];
        if (of->windows == 0)
            continue;
        name_rank(s, r, who);
        lki_journal_say(s->journal, "straggler: %s in %u of %u windows, up to %.2f times the "
                        "median; cause: %s", who, of->windows, p->stragglers.windows, of->worst,
                        lki_cause_name(lki_straggler_cause(of)));
    }
    for (uint32_t h = 0; p->network.of != NULL && h < p->network.hosts; h++) {
        const lki_slow_host *of = &p->network.of[h];
        name_link(p, h, who);
        if (of->windows > 0)
            lki_journal_say(s->journal, "straggler: %s in %u of %u windows, up to %.2f times %s; "
                            "cause: network", who, of->windows, p->network.windows, of->worst,
                            against(p));
    }
    for (uint32_t r = 0; p->dropped != NULL && r < p->stragglers.ranks; r++) {
        const dropped *of = &p->dropped[r];
        name_rank(s, r, who);
        if (of->steps > 0)
            lki_journal_say(s->journal, "backup workers: %s was dropped from %llu of %llu steps, "
                            "with %llu virtual workers", who, (unsigned long long)of->steps,
                            (unsigned long long)p->steps, (unsigned long long)of->virtual_workers);
    }
    if (p->moves > 0)
        lki_journal_say(s->journal, "shares moved after %llu step%s: %llu virtual workers in all",
                        (unsigned long long)p->moves, p->moves > 1 ? "s" : "",
                        (unsigned long long)p->workers);
    if (p->duplicated > 0)
        lki_journal_say(s->journal, "%llu virtual worker%s of late workers made by others",
                        (unsigned long long)p->duplicated, p->duplicated > 1 ? "s" : "");
}
