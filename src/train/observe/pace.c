/* pace.c -- statistics of slow ranks: moved virtual workers (parallel/balance.h has the rule) and
 * stragglers.
 *
 * All ranks know the time of each rank for its virtual workers in a step (lki_balance_time()).  All
 * ranks keep these statistics, since any rank may become rank 0.
 */
#include "train/observe/pace.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/file.h"
#include "comm/worker.h"
#include "train/core/feed.h"
#include "train/observe/network.h"
#include "train/observe/observe.h"
#include "train/observe/stragglers.h"

/* The steps that dropped a rank, and the number of its virtual workers in them. */
typedef struct {
    uint64_t steps, virtual_workers;
} dropped;

enum { LISTED_MOST = 256 }; /* of ranks, whose times are logged */
#define LISTED_SECONDS 1.0

struct lki_pace {
    lki_stragglers stragglers;
    lki_network    network; /* of links between hosts */
    lki_rank_time  *times;  /* [ranks]: of the last step */
    uint32_t      *bounds; /* [ranks + 1]: first virtual worker of each range; last entry: V */
    uint32_t      *before; /* [ranks + 1]: bounds before the last change */
    bool           moved;  /* ranges have changed at least once */
    bool           judged; /* the last step completed a window */
    uint64_t       moves, workers; /* steps that changed ranges; virtual workers moved in all */
    uint64_t       duplicated; /* virtual workers computed by a rank they were not assigned to */
    dropped       *dropped;    /* [ranks], with backup workers */
    uint64_t       steps;      /* number of steps so far */
    double         listed;     /* time of the last line with the times of all ranks */
};

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
    lki_journal_waits(s->journal, ""); /* that rank may be lost */
}

const uint32_t *lki_pace_bounds(const lki_session *s)
{
    return s->pace->bounds;
}

/* ---- A step ------------------------------------------------------------------------------ */

/* Adds the times of a step to the statistics of stragglers.  Ignores a step in which some rank has
 * no time.  Such a rank was lost, or had not begun the step when the step was complete. */
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
    return lki_network_step(&p->network, s->comm, lki_seconds() - s->attempted, longest);
}

/* Reopens the data of a rank that was dropped from a step before it had read all data of the
 * step. */
static lk_status skip_data(lki_session *s, uint64_t done)
{
    if (s->pace->times[s->rank].dropped == 0 ||
        s->turn.count == (uint64_t)s->count * s->micro_count)
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

/* ---- Reporting --------------------------------------------------------------------------- */

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

/* Prints text such as "rank 0 has 11 virtual workers, 8 before: it takes 10.1 ms for each". */
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
    if (s->config->elastic.rebalance_seed == 0)
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
                        (unsigned long long)step - all->steps + 1, (unsigned long long)step, who,
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

/* Writes the name of a slow host or, with two hosts, "the link between hosts 0 and 1". */
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
                        (unsigned long long)step - steps + 1, (unsigned long long)step, who,
                        each, of->times, against(p), 100 * of->share);
    json_t *hosts = p->network.hosts == 2 ? json_pack("[i, i]", 0, 1) : json_pack("[i]", (int)h);
    json_t *line  = json_pack("{s:I, s:{s:o, s:s, s:f, s:f, s:f, s:I}}", "step", (json_int_t)step,
                              "straggler", "hosts", hosts, "cause", "network", "times_others",
                              of->times, "ms_of_mib", 1e3 * mib, "share", of->share, "steps",
                              (json_int_t)steps);
    return lki_journal_event(s->journal, line);
}

/* Logs the time of each rank in the last step, about once a second. */
static lk_status tell_workers(lki_session *s, uint64_t step)
{
    lki_pace *p    = s->pace;
    json_t   *list = json_array();
    p->listed      = lki_seconds();
    for (uint32_t r = 0; r < s->ranks; r++) {
        json_t *one = json_pack("{s:I, s:I, s:I, s:I}", "rank",
                                (json_int_t)lk_comm_world_rank(s->comm, r), "host",
                                (json_int_t)lk_comm_host(s->comm, r), "first",
                                (json_int_t)p->bounds[r], "virtual_workers",
                                (json_int_t)(p->bounds[r + 1] - p->bounds[r]));
        if (p->times[r].seconds > 0)
            (void)json_object_set_new(one, "ms", json_real(1e3 * p->times[r].seconds));
        (void)json_array_append_new(list, one);
    }
    return lki_journal_event(s->journal, json_pack("{s:I, s:o}", "step", (json_int_t)step,
                                                   "workers", list));
}

/* Tells the display who is slow. */
static void tell_waits(const lki_session *s)
{
    char who[LKI_WHO_BYTES] = "";
    for (uint32_t r = s->pace->stragglers.ranks; r-- > 0;)
        if (s->pace->stragglers.of[r].slow)
            name_rank(s, r, who);
    lki_journal_waits(s->journal, who);
}

lk_status lki_pace_tell(lki_session *s, const lki_step_record *record, bool *told)
{
    const lki_stragglers *all = &s->pace->stragglers;
    bool whole  = s->attempted <= s->begun; /* times of a repeated step are of its missing parts */
    bool listed = s->journal != NULL && s->config->log != NULL && s->pace->times != NULL && whole &&
                  s->ranks <= LISTED_MOST && lki_seconds() - s->pace->listed >= LISTED_SECONDS;

    if (listed)
        LK_TRY(tell_workers(s, record->step));
    if (s->pace->judged)
        tell_waits(s);
    *told = listed || record->moved > 0 || s->pace->judged || s->pace->network.full;
    if (!*told)
        return LK_OK;
    LK_TRY(tell_moved(s, record));
    for (uint32_t r = 0; s->pace->judged && r < all->ranks; r++)
        LK_TRY(tell_straggler(s, record->step, r));
    for (uint32_t h = 0; s->pace->network.full && h < s->pace->network.hosts; h++)
        LK_TRY(tell_slow_host(s, record->step, h));
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
