/* replacement.c -- a new process that replaces a lost one.
 *
 * The process opens data and model, then waits.  When the communicator admits it, between two steps
 * (membership.c), it receives the arenas.  They contain the parameters and everything about the
 * last step (survive.c).  The ranks then continue as after the loss of a rank.  Rank 0 sends the
 * state that is not in an arena, because each rank has computed it step by step.
 *
 * Before the process has entered, its failures do not affect other ranks.  All ranks check that it
 * has the data and the options of the run before it receives anything.  If they differ, the ranks
 * dissolve the communicator and form one without it.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/stored.h"
#include "train/core/delays.h"
#include "train/core/identity.h"
#include "train/core/progress.h"
#include "train/observe/observe.h"
#include "train/observe/pace.h"
#include "train/recover/succession.h"
#include "train/saves/base.h"

/* State that is equal on all ranks, computed from the steps so far. */
typedef struct {
    char         loss_chain[65];
    bool         judged_best;
    lk_label     inherited;
    uint64_t     start, chained, judged, audited;
    lki_stopping stopping;
    uint32_t     lost, left, entered;
    double       seconds;
} news;

static news news_of(const lki_session *s)
{
    const lki_survival *self = s->survival;
    news                n    = { .start       = s->progress.start,
                                 .chained     = s->progress.chained,
                                 .judged      = s->progress.judged,
                                 .audited     = s->progress.audited,
                                 .judged_best = s->progress.judged_best,
                                 .inherited   = s->inherited,
                                 .stopping    = s->progress.stopping,
                                 .lost        = self->lost,
                                 .left        = self->left,
                                 .entered     = self->entered,
                                 .seconds     = self->seconds };
    memcpy(n.loss_chain, s->progress.loss_chain, sizeof n.loss_chain);
    return n;
}

static void believe(lki_session *s, const news *n, uint32_t entered)
{
    lki_survival *self = s->survival;

    s->progress.start       = n->start;
    s->progress.chained     = n->chained;
    s->progress.judged      = n->judged;
    s->progress.audited     = n->audited;
    s->progress.judged_best = n->judged_best;
    s->progress.stopping    = n->stopping;
    self->lost              = n->lost;
    self->left              = n->left;
    self->entered           = n->entered + entered;
    self->seconds           = n->seconds;
    memcpy(s->progress.loss_chain, n->loss_chain, sizeof s->progress.loss_chain);
    lki_inherit_label(s, n->inherited);
}

lk_status lki_welcome(lki_session *s, lk_comm *comm)
{
    uint32_t entered = lk_comm_entered(comm);
    news     n;

    if (entered == 0)
        return LK_OK;
    n = news_of(s);
    LK_TRY(lk_broadcast(comm, &n, sizeof n, 0));
    if (lki_comm_is_fresh(comm, lk_comm_rank(comm)))
        believe(s, &n, entered);
    return LK_OK;
}

/* A rank that has other data or options than rank 0, which is a member. */
typedef struct {
    uint32_t         rank;  /* the number of ranks: there is none */
    const lki_field *field; /* NULL: its data differ */
    bool             mine;  /* this rank's differ, too */
} odd_one;

static lk_status find_odd(const lki_session *s, lk_comm *comm, odd_one *odd)
{
    lki_common mine, *all;
    lki_common_of(&mine, s);
    /* Entering ranks resume nothing, and a restarted run resumes without the option. */
    mine.fields[lki_field_find("resume") - lki_fields] = 0;
    *odd = (odd_one){ .rank = lk_comm_size(comm) };
    LK_TRY(LKI_NEW(&all, odd->rank, "values to compare"));
    lk_status status = lk_all_gather(comm, &mine, all, sizeof mine);
    for (uint32_t r = odd->rank; status == LK_OK && r-- > 1;)
        if (memcmp(&all[r], &all[0], sizeof mine) != 0)
            odd->rank = r;
    if (status == LK_OK && odd->rank < lk_comm_size(comm)) {
        odd->field = lki_common_field(&all[0], &all[odd->rank]);
        odd->mine  = memcmp(&mine, &all[0], sizeof mine) != 0;
    }
    lki_free(all);
    return status;
}

/* Dissolves the communicator if hosts were lost before the first step, so that the model is sharded
 * without them.  Entering ranks cannot determine the shards of such a model.  Only ranks that were
 * members at that time know this, so they inform the entering ranks here. */
static lk_status check_parts(const lki_session *s, lk_comm *comm)
{
    bool     all = true;
    uint32_t r   = 0;

    if (s->parallel != NULL)
        LK_TRY(lki_stored_for_all(s->parallel, &all));
    while (!lki_comm_is_fresh(comm, r))
        r++;
    return all ? LK_OK
               : lki_comm_dissolve(comm, lk_comm_world_rank(comm, r), "hosts that were lost before "
                                   "the first step have no part of the model, and nobody can enter "
                                   "after that");
}

lk_status lki_check_entrants(const lki_session *s, lk_comm *comm)
{
    char    who[LKI_WHO_BYTES], why[LKI_WHY_BYTES];
    odd_one odd;

    if (lk_comm_entered(comm) == 0)
        return LK_OK;
    LK_TRY(check_parts(s, comm));
    LK_TRY(find_odd(s, comm, &odd));
    if (odd.rank == lk_comm_size(comm))
        return LK_OK;
    lki_comm_who(comm, odd.rank, who);
    if (odd.field != NULL)
        (void)snprintf(why, sizeof why, "%s has another value of --%s than the run, and is not let "
                       "in", who, odd.field->name);
    else
        (void)snprintf(why, sizeof why, "%s has other data than the run, and is not let in", who);
    lk_status status = lki_comm_dissolve(comm, lk_comm_world_rank(comm, odd.rank), why);
    if (!odd.mine)
        return status;
    return odd.field != NULL
               ? lk_fail(LK_EMISMATCH, "`%s` has another value than in the run, which continues "
                                       "without this worker", odd.field->path)
               : lk_fail(LK_EMISMATCH, "the data in '%s' are not those of the run, which "
                                       "continues without this worker", s->config->data.source);
}

/* Enters the communicator and takes over its state, except state that depends on this rank's
 * virtual workers. */
static lk_status go_in(lki_session *s, lki_position *at, lk_train_result *result)
{
    const lk_train_config *c = s->config;
    lk_parallel_standing   standing;
    lk_comm               *comm;

    LK_TRY(c->calls.enter(c->calls.enter_context, &comm));
    lki_take_group(s, comm);
    s->begun = lki_seconds();
    LK_TRY(lk_comm_take_arenas(comm, NULL));
    LK_TRY(lki_check_entrants(s, comm));
    LK_TRY(lki_base_hand_over(s, comm));
    LK_TRY(LKI_NEW(&s->survival, 1, "minutes"));
    lk_arena *arena = lki_comm_arena_named(comm, "minutes");
    if (lki_comm_host_is_fresh(comm, lk_comm_host(comm, s->rank)))
        LK_TRY(lki_comm_own_arena(&arena, comm, "minutes", sizeof(lki_minutes)));
    if (arena == NULL)
        return lk_fail(LK_EINVAL, "the others have no minutes: they cannot be entered");
    s->survival->minutes = lk_arena_data(arena);
    LK_TRY(lki_read_minutes(s, comm));
    LK_TRY(lki_parallel_over(s, &s->parallel, comm, &standing));
    LK_TRY(lki_welcome(s, comm));
    lki_find_end(s);
    lki_catch_up(s, &standing, at, result);
    lk_comm_note(comm, at->done + 1, "entering");
    return LK_OK;
}

/* Does all slow work of an entering process before the other ranks have to wait for it. */
lk_status lki_session_enter(lki_session *s, lki_position *at, lk_train_result *result)
{
    lk_dataset_options options = lki_dataset_options(s->config);

    LK_TRY(lk_dataset_open(&s->dataset, s->config->data.source, &options));
    lki_exactness_id(s->config, lk_dataset_describe(s->dataset), s->exactness_id);
    LK_TRY(lki_saves_open(s));
    LK_TRY(lki_session_model(s));
    LK_TRY(lki_delays_open(&s->delays, s->config, s->dataset));
    LK_TRY(go_in(s, at, result));
    LK_TRY(lki_pace_open(s));
    LK_TRY(lki_session_turns(s));
    LK_TRY(lki_share_packs(s));
    LK_TRY(lki_base_enter(s));
    LK_TRY(lki_session_deal(s, at->done));
    lki_observe_loader(s);
    s->outside = false;
    return LK_OK;
}
