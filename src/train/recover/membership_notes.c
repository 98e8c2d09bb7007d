/* membership_notes.c -- reports changes of the communicator to the user: one line per change, and
 * totals at the end of the run. */
#include <stdio.h>
#include <string.h>

#include "comm/worker.h"
#include "parallel/virtual.h"
#include "train/recover/succession.h"

/* LOSSES_BYTES: all reasons of losses.  LINE_BYTES: a whole line. */
enum { LOSSES_BYTES = 1600, LINE_BYTES = LOSSES_BYTES + LKI_WHY_BYTES + LKI_LIST_BYTES + 64 };

/* ---- Lists of numbers -------------------------------------------------------------------- */

void lki_list_end(lki_list *l)
{
    size_t used = strlen(l->text);
    if (l->count > 0)
        (void)snprintf(l->text + used, sizeof l->text - used, l->from == l->to ? "%s%u" : "%s%u-%u",
                       used > 0 ? ", " : "", l->from, l->to);
}

void lki_list_add(lki_list *l, uint32_t number)
{
    if (l->count > 0 && l->to == number)
        return;
    if (l->count > 0 && l->to + 1 == number) {
        l->to = number;
    } else {
        lki_list_end(l);
        l->from = l->to = number;
    }
    l->count++;
}

/* ---- Who took over what ------------------------------------------------------------------ */

/* Returns true if rank `r` of the communicator `before` is in the communicator `now`. */
static bool is_left(const lk_comm *before, uint32_t r, const lk_comm *now)
{
    for (uint32_t i = 0; i < lk_comm_size(now); i++)
        if (lk_comm_world_rank(now, i) == lk_comm_world_rank(before, r))
            return true;
    return false;
}

/* The virtual workers of lost ranks, and the ranks that have taken them over. */
typedef struct {
    lki_list ranks, workers;
} legacy;

/* Returns true if rank `r` of the communicator `now` has a virtual worker of a lost rank. */
static bool takes_over(const lki_dealing *deal, uint32_t r, const lki_dealing *then,
                       const lk_comm *before, const lk_comm *now)
{
    lki_share share = lki_share_of(deal, r);
    for (uint32_t i = 0; i < share.count; i++)
        if (!is_left(before, lki_share_rank(then, share.first + i * share.stride), now))
            return true;
    return false;
}

static void find_legacy(legacy *l, const lki_succession *t, uint32_t leaves)
{
    const lk_comm    *before = t->before, *now = t->now;
    const lki_dealing then   = { .leaves = leaves,
                                 .ranks  = lk_comm_size(before),
                                 .rounds = t->rounds,
                                 .bounds = t->bounds };
    const lki_dealing deal   = { .leaves = leaves,
                                 .ranks  = lk_comm_size(now),
                                 .rounds = t->rounds,
                                 .bounds = t->next };

    *l = (legacy){ .ranks = { .count = 0 } };
    for (uint32_t v = 0; v < leaves; v++)
        if (!is_left(before, lki_share_rank(&then, v), now))
            lki_list_add(&l->workers, v);
    for (uint32_t r = 0; r < lk_comm_size(now); r++)
        if (takes_over(&deal, r, &then, before, now))
            lki_list_add(&l->ranks, lk_comm_world_rank(now, r));
    lki_list_end(&l->ranks);
    lki_list_end(&l->workers);
}

/* Prints the ranks that have entered, and their virtual workers. */
static void note_entered(const lki_session *s, const lki_succession *t)
{
    const lki_dealing deal = { .leaves = s->config->virtual_workers,
                               .ranks  = lk_comm_size(t->now),
                               .rounds = t->rounds,
                               .bounds = t->next };
    lki_list          ranks = { .count = 0 }, workers = { .count = 0 };
    char              who[LKI_WHO_BYTES], several[LKI_LIST_BYTES + 8];

    for (uint32_t r = 0; r < lk_comm_size(t->now); r++)
        if (lki_comm_is_fresh(t->now, r)) {
            lki_list_add(&ranks, lk_comm_world_rank(t->now, r));
            lki_comm_who(t->now, r, who);
        }
    for (uint32_t v = 0; v < deal.leaves; v++)
        if (lki_comm_is_fresh(t->now, lki_share_rank(&deal, v)))
            lki_list_add(&workers, v);
    lki_list_end(&ranks);
    lki_list_end(&workers);
    (void)snprintf(several, sizeof several, "ranks %s", ranks.text);
    bool one = ranks.count == 1;
    if (lki_is_async(s->config)) {
        lki_journal_note(s->journal, "%s %s after step %llu and %s tasks of any group; nothing was "
                         "redone; %.1f ms", one ? who : several, one ? "enters" : "enter",
                         (unsigned long long)t->done, one ? "computes" : "compute",
                         1e3 * t->seconds);
        return;
    }
    lki_journal_note(s->journal, "%s %s after step %llu and %s over virtual worker%s %s; nothing "
                     "was redone; %.1f ms", one ? who : several, one ? "enters" : "enter",
                     (unsigned long long)t->done, one ? "takes" : "take",
                     workers.count > 1 ? "s" : "", workers.text, 1e3 * t->seconds);
}

/* The reasons of losses.  `others` lists the lost ranks whose reason is unknown or does not fit
 * into the text. */
typedef struct {
    char     text[LOSSES_BYTES];
    lki_list others;
    bool     first; /* the text has the reason of the rank that caused the failure */
} losses;

/* Collects the reasons of losses.  Adds the common reason of two ranks that were lost with their
 * host only once. */
static void find_losses(losses *l, const lki_succession *t)
{
    uint32_t culprit = lki_comm_culprit(t->before);
    char     how[LKI_LOSS_BYTES];
    size_t   used = 0;

    *l = (losses){ .others = { .count = 0 } };
    for (uint32_t r = 0; r < lk_comm_size(t->before); r++) {
        uint32_t rank = lk_comm_world_rank(t->before, r);
        if (is_left(t->before, r, t->now))
            continue;
        if (!lki_comm_loss(t->now, t->before, r, how)) {
            lki_list_add(&l->others, rank);
            continue;
        }
        l->first = l->first || rank == culprit;
        if (strstr(l->text, how) != NULL)
            continue;
        if (used + strlen(how) + 3 > sizeof l->text)
            lki_list_add(&l->others, rank);
        else
            used += (size_t)snprintf(l->text + used, sizeof l->text - used, "%s%s",
                                     used > 0 ? ", " : "", how);
    }
    lki_list_end(&l->others);
}

/* Writes why the communicator was replaced.  The error that ended a wait is not always the cause;
 * launchers may know the cause. */
static void say_cause(const lki_succession *t, char cause[LINE_BYTES])
{
    losses l;
    bool   leave = t->planned && t->left > 0, enter = t->planned && t->left == 0;

    find_losses(&l, t);
    bool several = l.others.count > 1;
    bool told    = l.text[0] != '\0' && !leave && (l.others.count == 0 || (l.first && !enter));
    if (told)
        (void)snprintf(cause, LINE_BYTES, "%s", l.text);
    else if (enter) /* the lost rank had not asked to leave */
        (void)snprintf(cause, LINE_BYTES, "rank%s %s %s lost after step %llu, when another was to "
                       "enter", several ? "s" : "", l.others.text, several ? "were" : "was",
                       (unsigned long long)t->done);
    else
        (void)snprintf(cause, LINE_BYTES, "%s", t->why);
    size_t used = strlen(cause);
    if (!told && l.text[0] != '\0')
        used += (size_t)snprintf(cause + used, LINE_BYTES - used, ", %s", l.text);
    if (leave ? l.others.count > t->left : l.others.count > (told || t->late ? 0 : 1) && !enter)
        (void)snprintf(cause + used, LINE_BYTES - used, " (rank%s %s %s %s)", several ? "s" : "",
                       l.others.text, several ? "are" : "is", leave ? "gone" : "lost");
}

/* Reports losses before the first step, when there is no work to take over. */
static void note_early(const lki_session *s, const lki_succession *t)
{
    char cause[LINE_BYTES];

    say_cause(t, cause);
    lki_journal_note(s->journal, "%s; the run begins with %u of %u workers; %.1f ms", cause,
                     s->ranks, lk_comm_size(s->given), 1e3 * t->seconds);
}

/* Asynchronous training assigns no virtual workers to ranks. */
static void note_gone_async(const lki_session *s, const lki_succession *t, const char *cause,
                            const char *redone)
{
    lki_list ranks = { .count = 0 };
    for (uint32_t r = 0; r < lk_comm_size(t->now); r++)
        lki_list_add(&ranks, lk_comm_world_rank(t->now, r));
    lki_list_end(&ranks);
    lki_journal_note(s->journal, "%s; rank%s %s took over the tasks in flight; %s; %.1f ms", cause,
                     ranks.count > 1 ? "s" : "", ranks.text, redone, 1e3 * t->seconds);
}

static void note_gone(const lki_session *s, const lki_succession *t)
{
    uint32_t leaves = s->config->virtual_workers;
    legacy   l;
    char     cause[LINE_BYTES], redone[64] = "nothing was redone";

    find_legacy(&l, t, leaves);
    say_cause(t, cause);
    if (!t->planned)
        (void)snprintf(redone, sizeof redone, "%u of %u were unfinished", t->unfinished, leaves);
    if (lki_is_async(s->config)) {
        note_gone_async(s, t, cause, redone);
        return;
    }
    lki_journal_note(s->journal, "%s; rank%s %s took over virtual worker%s %s; %s; %.1f ms", cause,
                     l.ranks.count > 1 ? "s" : "", l.ranks.text, l.workers.count > 1 ? "s" : "",
                     l.workers.text, redone, 1e3 * t->seconds);
}

void lki_note_succession(const lki_session *s, const lki_succession *t)
{
    if (t->early)
        note_early(s, t);
    else if (t->lost + t->left > 0)
        note_gone(s, t);
    if (t->entered > 0)
        note_entered(s, t);
    else if (t->refused != NULL)
        lki_journal_note(s->journal, "nobody has entered after step %llu: %s; nothing was redone; "
                         "%.1f ms", (unsigned long long)t->done, t->refused, 1e3 * t->seconds);
}

/* ---- The log ----------------------------------------------------------------------------- */

/* Returns the ranks of the communicator `of` that `other` lacks. */
static json_t *ranks_without(const lk_comm *of, const lk_comm *other)
{
    json_t *list = json_array();
    for (uint32_t r = 0; r < lk_comm_size(of); r++)
        if (!is_left(of, r, other))
            (void)json_array_append_new(list, json_integer(lk_comm_world_rank(of, r)));
    return list;
}

/* Returns who computes which virtual workers. */
static json_t *shares_json(const lki_dealing *deal, const lk_comm *comm)
{
    json_t *shares = json_array();
    for (uint32_t r = 0; r < deal->ranks; r++) {
        const lki_share share = lki_share_of(deal, r);
        (void)json_array_append_new(
            shares, json_pack("{s:i, s:i, s:i, s:i}", "rank", (int)lk_comm_world_rank(comm, r),
                              "first", (int)share.first, "virtual_workers", (int)share.count,
                              "stride", (int)share.stride));
    }
    return shares;
}

lk_status lki_log_succession(const lki_session *s, const lki_succession *t)
{
    const lki_dealing then = { .leaves = s->config->virtual_workers,
                               .ranks  = lk_comm_size(t->before),
                               .rounds = t->rounds,
                               .bounds = t->bounds };
    const lki_dealing deal = { .leaves = then.leaves,
                               .ranks  = lk_comm_size(t->now),
                               .rounds = t->rounds,
                               .bounds = t->next };
    char              cause[LINE_BYTES];
    if (s->journal == NULL || t->early || t->lost + t->left + t->entered == 0)
        return LK_OK;
    json_t *change = json_pack(
        "{s:o, s:o, s:i, s:f}", t->lost > 0 ? "lost" : "left", ranks_without(t->before, t->now),
        "entered", ranks_without(t->now, t->before), "workers", (int)lk_comm_size(t->now), "ms",
        1e3 * t->seconds);
    if (!lki_is_async(s->config)) { /* else virtual workers are of no rank */
        (void)json_object_set_new(change, "before", shares_json(&then, t->before));
        (void)json_object_set_new(change, "shares", shares_json(&deal, t->now));
    }
    if (t->lost + t->left > 0) {
        say_cause(t, cause);
        (void)json_object_set_new(change, "cause", json_string(cause));
    }
    if (!t->planned)
        (void)json_object_set_new(change, "unfinished", json_integer(t->unfinished));
    return lki_journal_event(s->journal, json_pack("{s:I, s:o}", "step", (json_int_t)t->done,
                                                   "membership", change));
}

/* ---- At the end -------------------------------------------------------------------------- */

void lki_note_summary(const lki_session *s)
{
    const lki_survival *self     = s->survival;
    char                more[64] = "";

    if (self->left > 0)
        (void)snprintf(more, sizeof more, " %u left on request;", self->left);
    if (self->entered > 0)
        (void)snprintf(more + strlen(more), sizeof more - strlen(more), " %u entered;",
                       self->entered);
    if (self->lost > 0)
        lki_journal_note(s->journal, "note: the run has lost %u rank%s and went on with %u;%s that "
                         "took %.1f ms in all", self->lost, self->lost > 1 ? "s" : "", s->ranks,
                         more, 1e3 * self->seconds);
    else if (self->left > 0)
        lki_journal_note(s->journal, "note: %u rank%s left on request, and the run went on with "
                         "%u; that took %.1f ms in all", self->left, self->left > 1 ? "s" : "",
                         s->ranks, 1e3 * self->seconds);
    else if (self->entered > 0)
        lki_journal_note(s->journal, "note: %u rank%s joined the run, and it ended with %u; that "
                         "took %.1f ms in all", self->entered, self->entered > 1 ? "s" : "",
                         s->ranks, 1e3 * self->seconds);
}
