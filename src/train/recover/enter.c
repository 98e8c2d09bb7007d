/* enter.c -- a new process in place of one that was lost.
 *
 * It opens data and model by itself, and then waits.  When the others let it in, between two steps
 * (change.c), it has their arenas, and with them the parameters and all that follows a step
 * (survive.c); the group goes on with it as with one rank less.  What is in no arena each of the
 * others has made by itself, step for step: rank 0 tells it.
 *
 * Until it is in it fails alone: whatever it is, the others go on without it.
 */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/control.h"
#include "train/observe/pace.h"
#include "train/recover/succession.h"

/* What ranks have made of the steps so far, the same on all. */
typedef struct {
    char      data[33]; /* their hash */
    char      loss_chain[65];
    bool      judged_best;
    uint64_t  start, chained, judged, audited;
    lki_watch watch;
    uint32_t  lost, left, entered;
    double    seconds;
} news;

static news news_of(const lki_session *s)
{
    const lki_survival *self = s->survival;
    news                n    = { .start       = s->start,
                                 .chained     = s->chained,
                                 .judged      = s->judged,
                                 .audited     = s->audited,
                                 .judged_best = s->judged_best,
                                 .watch       = s->watch,
                                 .lost        = self->lost,
                                 .left        = self->left,
                                 .entered     = self->entered,
                                 .seconds     = self->seconds };
    memcpy(n.data, lk_dataset_describe(s->dataset)->content_hash, sizeof n.data);
    memcpy(n.loss_chain, s->loss_chain, sizeof n.loss_chain);
    return n;
}

static lk_status believe(lki_session *s, const news *n, uint32_t entered)
{
    lki_survival *self = s->survival;

    if (memcmp(n->data, lk_dataset_describe(s->dataset)->content_hash, sizeof n->data) != 0)
        return lk_fail(LK_EMISMATCH, "the data in '%s' have changed since the run began: a worker "
                       "that was lost cannot be replaced", s->config->data);
    s->start       = n->start;
    s->chained     = n->chained;
    s->judged      = n->judged;
    s->audited     = n->audited;
    s->judged_best = n->judged_best;
    s->watch       = n->watch;
    self->lost     = n->lost;
    self->left     = n->left;
    self->entered  = n->entered + entered;
    self->seconds  = n->seconds;
    memcpy(s->loss_chain, n->loss_chain, sizeof s->loss_chain);
    return LK_OK;
}

lk_status lki_welcome(lki_session *s, lk_comm *comm)
{
    uint32_t entered = lki_comm_entered(comm);
    news     n;

    if (entered == 0)
        return LK_OK;
    n = news_of(s);
    LK_TRY(lk_broadcast(comm, &n, sizeof n, 0));
    return lki_comm_is_fresh(comm, lk_comm_rank(comm)) ? believe(s, &n, entered) : LK_OK;
}

/* What is the group's becomes this session's, save what follows from its share. */
static lk_status go_in(lki_session *s, lki_position *at, lk_train_result *result)
{
    const lk_train_config *c = s->config;
    lk_parallel_standing   standing;
    lk_comm               *comm;

    LK_TRY(c->enter(c->enter_context, &comm));
    lki_take_group(s, comm);
    s->begun = lki_seconds();
    LK_TRY(lki_comm_receive_arenas(comm));
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
    return LK_OK;
}

/* All that takes long is there before the others are held up. */
lk_status lki_session_enter(lki_session *s, lki_position *at, lk_train_result *result)
{
    lk_dataset_options options = lki_dataset_options(s->config);

    LK_TRY(lk_dataset_open(&s->dataset, s->config->data, &options));
    lki_exactness_id(s->config, lk_dataset_describe(s->dataset), s->exactness_id);
    LK_TRY(lki_session_model(s));
    LK_TRY(go_in(s, at, result));
    LK_TRY(lki_pace_open(s));
    LK_TRY(lki_session_turns(s));
    LK_TRY(lki_keep_packs(s));
    LK_TRY(lki_session_deal(s, at->done));
    s->outside = false;
    return LK_OK;
}
