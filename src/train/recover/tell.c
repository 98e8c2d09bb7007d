/* tell.c -- what the user sees of groups that follow each other: a line for each, and a sum. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "comm/control.h"
#include "comm/group.h"
#include "parallel/virtual.h"
#include "train/recover/succession.h"

enum { FATE_BYTES = LKI_LIST_BYTES + 32 };

/* ---- Numbers ----------------------------------------------------------------------------- */

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

/* ---- Who has taken what over ------------------------------------------------------------- */

/* Whether rank `r` of a group is in the one that followed it. */
static bool is_left(const lk_comm *before, uint32_t r, const lk_comm *now)
{
    for (uint32_t i = 0; i < lk_comm_size(now); i++)
        if (lk_comm_world_rank(now, i) == lk_comm_world_rank(before, r))
            return true;
    return false;
}

/* Virtual workers of somebody who is gone, and who has them now. */
typedef struct {
    lki_list ranks, workers, gone;
} legacy;

/* Whether rank `r` of the group now has one. */
static bool takes_over(const lki_dealing *deal, uint32_t r, const lki_dealing *then,
                       const lk_comm *before, const lk_comm *now)
{
    lki_share share = lki_share_of(deal, r);
    for (uint32_t i = 0; i < share.count; i++)
        if (!is_left(before, lki_share_rank(then, share.first + i * share.stride), now))
            return true;
    return false;
}

static void list_gone(lki_list *gone, const lki_succession *t)
{
    for (uint32_t r = 0; r < lk_comm_size(t->before); r++)
        if (!is_left(t->before, r, t->now))
            lki_list_add(gone, lk_comm_world_rank(t->before, r));
    lki_list_end(gone);
}

static void find_legacy(legacy *l, const lki_succession *t, uint32_t leaves)
{
    const lk_comm    *before = t->before, *now = t->now;
    const lki_dealing then   = { leaves, lk_comm_size(before), t->rounds, t->bounds };
    const lki_dealing deal   = { leaves, lk_comm_size(now), t->rounds, NULL };

    *l = (legacy){ .ranks = { .count = 0 } };
    list_gone(&l->gone, t);
    for (uint32_t v = 0; v < leaves; v++)
        if (!is_left(before, lki_share_rank(&then, v), now))
            lki_list_add(&l->workers, v);
    for (uint32_t r = 0; r < lk_comm_size(now); r++)
        if (takes_over(&deal, r, &then, before, now))
            lki_list_add(&l->ranks, lk_comm_world_rank(now, r));
    lki_list_end(&l->ranks);
    lki_list_end(&l->workers);
}

/* Who is new, and what is his now. */
static void tell_entered(const lki_session *s, const lki_succession *t)
{
    const lki_dealing deal = { s->config->virtual_workers, lk_comm_size(t->now), t->rounds, NULL };
    lki_list          ranks = { .count = 0 }, workers = { .count = 0 };
    char              who[LKI_WHO_BYTES], several[LKI_LIST_BYTES + 8];

    for (uint32_t r = 0; r < lk_comm_size(t->now); r++)
        if (lki_comm_is_fresh(t->now, r)) {
            lki_list_add(&ranks, lk_comm_world_rank(t->now, r));
            lki_board_who(who, t->now->board, lk_comm_world_rank(t->now, r), "");
        }
    for (uint32_t v = 0; v < deal.leaves; v++)
        if (lki_comm_is_fresh(t->now, lki_share_rank(&deal, v)))
            lki_list_add(&workers, v);
    lki_list_end(&ranks);
    lki_list_end(&workers);
    (void)snprintf(several, sizeof several, "ranks %s", ranks.text);
    bool one = ranks.count == 1;
    lki_journal_note(s->journal, "%s %s after step %llu and %s over virtual worker%s %s; nothing "
                     "was redone; %.1f ms", one ? who : several, one ? "enters" : "enter",
                     (unsigned long long)t->done, one ? "takes" : "take",
                     workers.count > 1 ? "s" : "", workers.text, 1e3 * t->seconds);
}

/* What is first missed of a rank of another host is its connection; its launcher says more, and by
 * the time of the next group that is known everywhere. */
static void say_what_killed(const lki_succession *t, char why[LKI_WHY_BYTES])
{
    char who[LKI_WHO_BYTES], when[40] = "before the first step";

    if (!t->early)
        (void)snprintf(when, sizeof when, "at step %llu", (unsigned long long)t->done + 1);
    (void)snprintf(why, LKI_WHY_BYTES, "%s", t->why);
    if (t->late || lk_comm_hosts(t->before) == 1 || strstr(why, " was killed by ") != NULL)
        return;
    for (uint32_t r = 0; r < lk_comm_size(t->before); r++) {
        uint32_t rank   = lk_comm_world_rank(t->before, r);
        int      signal = atomic_load(&t->now->board->ranks[rank].signal);
        if (is_left(t->before, r, t->now) || signal == 0)
            continue;
        lki_board_who(who, t->now->board, rank, "");
        (void)snprintf(why, LKI_WHY_BYTES, "%s was killed by SIG%s %s", who, sigabbrev_np(signal),
                       when);
        return;
    }
}

/* " (ranks 1-2 are lost)", where the reason does not tell it. */
static void say_fate(const lki_succession *t, const lki_list *gone, char fate[FATE_BYTES])
{
    bool several = gone->count > 1;

    fate[0] = '\0';
    if (t->planned ? t->left > 0 && t->lost > 0 : several || (t->late && gone->count > 0))
        (void)snprintf(fate, FATE_BYTES, " (rank%s %s %s)", several ? "s" : "", gone->text,
                       t->planned ? several ? "are gone" : "is gone"
                       : !t->late ? "are lost"
                       : several  ? "were killed"
                                  : "was killed");
}

/* Nobody had anything yet that others could take over. */
static void tell_early(const lki_session *s, const lki_succession *t)
{
    lki_list gone = { .count = 0 };
    char     why[LKI_WHY_BYTES], fate[FATE_BYTES];

    list_gone(&gone, t);
    say_what_killed(t, why);
    say_fate(t, &gone, fate);
    lki_journal_note(s->journal, "%s%s; the run begins with %u of %u workers; %.1f ms", why, fate,
                     s->ranks, lk_comm_size(s->given), 1e3 * t->seconds);
}

static void tell_gone(const lki_session *s, const lki_succession *t)
{
    uint32_t leaves = s->config->virtual_workers;
    legacy   l;
    char     why[LKI_WHY_BYTES], fate[FATE_BYTES], redone[64] = "nothing was redone";

    find_legacy(&l, t, leaves);
    bool several = l.gone.count > 1;
    if (t->planned && t->left == 0) /* nobody wished it: the group changed for one to enter */
        (void)snprintf(why, sizeof why, "rank%s %s %s lost after step %llu, when another was to "
                       "enter", several ? "s" : "", l.gone.text, several ? "were" : "was",
                       (unsigned long long)t->done);
    else
        say_what_killed(t, why);
    say_fate(t, &l.gone, fate);
    if (!t->planned)
        (void)snprintf(redone, sizeof redone, "%u of %u were unfinished", t->unfinished, leaves);
    lki_journal_note(s->journal, "%s%s; rank%s %s took over virtual worker%s %s; %s; %.1f ms",
                     why, fate, l.ranks.count > 1 ? "s" : "", l.ranks.text,
                     l.workers.count > 1 ? "s" : "", l.workers.text, redone, 1e3 * t->seconds);
}

void lki_tell_succession(const lki_session *s, const lki_succession *t)
{
    if (t->early)
        tell_early(s, t);
    else if (t->lost + t->left > 0)
        tell_gone(s, t);
    if (t->entered > 0)
        tell_entered(s, t);
    else if (t->refused != NULL)
        lki_journal_note(s->journal, "nobody has entered after step %llu: %s; nothing was redone; "
                         "%.1f ms", (unsigned long long)t->done, t->refused, 1e3 * t->seconds);
}

/* ---- At the end -------------------------------------------------------------------------- */

void lki_tell_summary(const lki_session *s)
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
