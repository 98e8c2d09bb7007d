/* enter.c -- a new process in place of one that was lost.
 *
 * It opens data and model by itself, and then waits.  When the others let it in, between two steps
 * (change.c), it has their arenas, and with them the parameters and all that follows a step
 * (survive.c); the group goes on with it as with one rank less.  What is in no arena each of the
 * others has made by itself, step for step: rank 0 tells it.
 *
 * Until it is in it fails alone: whatever it is, the others go on without it.  Whether it has the
 * data of the run all see before it gets anything; where it has others they end the group together,
 * and make one without it.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/control.h"
#include "parallel/kept.h"
#include "train/observe/pace.h"
#include "train/recover/succession.h"

/* What ranks have made of the steps so far, the same on all. */
typedef struct {
    char      loss_chain[65];
    bool      judged_best, inexact;
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
                                 .inexact     = s->inexact,
                                 .watch       = s->watch,
                                 .lost        = self->lost,
                                 .left        = self->left,
                                 .entered     = self->entered,
                                 .seconds     = self->seconds };
    memcpy(n.loss_chain, s->loss_chain, sizeof n.loss_chain);
    return n;
}

static void believe(lki_session *s, const news *n, uint32_t entered)
{
    lki_survival *self = s->survival;

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
    if (n->inexact)
        lki_go_on_inexact(s);
}

lk_status lki_welcome(lki_session *s, lk_comm *comm)
{
    uint32_t entered = lki_comm_entered(comm);
    news     n;

    if (entered == 0)
        return LK_OK;
    n = news_of(s);
    LK_TRY(lk_broadcast(comm, &n, sizeof n, 0));
    if (lki_comm_is_fresh(comm, lk_comm_rank(comm)))
        believe(s, &n, entered);
    return LK_OK;
}

/* The first whose data have another hash than rank 0's, or as many as there are if none has; and
 * whether this rank has. */
static lk_status find_odd_data(const lki_session *s, lk_comm *comm, uint32_t *odd, bool *mine)
{
    enum { HASH_BYTES = sizeof((lk_dataset_info *)NULL)->content_hash };
    const char *hash = lk_dataset_describe(s->dataset)->content_hash;
    char (*all)[HASH_BYTES];

    LK_TRY(LKI_NEW(&all, lk_comm_size(comm), "hashes of data"));
    lk_status status = lk_all_gather(comm, hash, all, HASH_BYTES);
    *odd             = 0;
    *mine            = memcmp(hash, all[0], HASH_BYTES) != 0;
    while (*odd < lk_comm_size(comm) && memcmp(all[*odd], all[0], HASH_BYTES) == 0)
        ++*odd;
    lki_free(all);
    return status;
}

/* Those who were there before know it; who enters hears it. */
static lk_status check_parts(const lki_session *s, lk_comm *comm)
{
    bool     all = true;
    uint32_t r   = 0;

    if (s->parallel != NULL)
        LK_TRY(lki_kept_for_all(s->parallel, &all));
    while (!lki_comm_is_fresh(comm, r))
        r++;
    return all ? LK_OK
               : lki_comm_dissolve(comm, lk_comm_world_rank(comm, r), "hosts that were lost before "
                                   "the first step have no part of the model, and nobody can enter "
                                   "after that");
}

lk_status lki_check_entrants(const lki_session *s, lk_comm *comm)
{
    char     who[LKI_WHO_BYTES], why[LKI_WHY_BYTES];
    uint32_t odd;
    bool     mine;

    if (lki_comm_entered(comm) == 0)
        return LK_OK;
    LK_TRY(check_parts(s, comm));
    LK_TRY(find_odd_data(s, comm, &odd, &mine));
    if (odd == lk_comm_size(comm))
        return LK_OK;
    lki_comm_who(comm, odd, who);
    (void)snprintf(why, sizeof why, "%s has other data than the run, and is not let in", who);
    lk_status status = lki_comm_dissolve(comm, lk_comm_world_rank(comm, odd), why);
    return !mine ? status
                 : lk_fail(LK_EMISMATCH, "the data in '%s' are not those of the run, which goes on "
                           "without this worker", s->config->data);
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
    LK_TRY(lki_check_entrants(s, comm));
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
