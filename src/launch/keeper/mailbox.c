/* mailbox.c -- passes messages between a coordinator and the launchers of other nodes.
 *
 * The keeper owns the connections to other hosts, because the workers of this host are lost if the
 * connections break.  The keeper puts received messages into a ring that outlives coordinators.
 * The journal records how far the ring was handled, so the next coordinator continues there.  If a
 * coordinator died before it could record a message, the next one sends the message again, and the
 * keeper drops it.  The keeper recognises repeated messages because in each epoch a node announces
 * its workers, the group's failure, its request for a new group and its survivors only once.
 */
#include <string.h>
#include <unistd.h>

#include "launch/keeper/keeper.h"
#include "launch/job/nodes.h"

/* ---- The keeper -------------------------------------------------------------------------- */

bool lki_mailbox_has_room(const lki_keeper *keeper)
{
    const lki_shared *shared = keeper->shared;
    return !keeper->over &&
           atomic_load(&shared->posted) - atomic_load(&shared->heard) < keeper->event_places;
}

static void put(const lki_job *job, const lki_event *event)
{
    lki_keeper *keeper = lki_keeper_of(job);
    uint64_t    posted = atomic_load(&keeper->shared->posted), one = 1;

    for (uint32_t i = 0; event->kind == LKI_EVENT_KNOWN && i < job->roster.world; i++)
        keeper->known[i] = *lki_rendezvous_introduction(job->rendezvous, i);
    keeper->events[posted % keeper->event_places] = *event;
    keeper->over = event->kind == LKI_EVENT_OVER;
    atomic_store(&keeper->shared->posted, posted + 1);
    (void)!write(keeper->bell, &one, sizeof one);
}

/* Receives events while the ring has room.  If the ring is full, the keeper reads nothing from the
 * other hosts until a coordinator has handled an event. */
lk_status lki_mailbox_collect(lki_job *job)
{
    lki_event event = {.kind = LKI_EVENT_MET};

    while (event.kind != LKI_EVENT_NONE && lki_mailbox_has_room(lki_keeper_of(job))) {
        LK_TRY(lki_rendezvous_next(job->rendezvous, &event));
        atomic_store(&lki_keeper_of(job)->shared->lost, lki_rendezvous_lost(job->rendezvous));
        if (event.kind != LKI_EVENT_NONE)
            put(job, &event);
    }
    lki_nodes_note_refused(job, false);
    return LK_OK;
}

void lki_mailbox_pass_on(const lki_job *job, const lki_saying *what)
{
    uint64_t *said  = &lki_keeper_of(job)->said[what->kind];
    bool      often = what->kind == LKI_SAY_ENDED || what->kind == LKI_SAY_STOP;

    if (!often && *said == 1 + what->epoch)
        return;
    *said = 1 + what->epoch;
    lki_nodes_speak(job, what);
}

/* ---- Receiving events -------------------------------------------------------------------- */

lk_status lki_mailbox_next(lki_job *job, lki_event *out)
{
    const lki_keeper *keeper = lki_keeper_of(job);
    uint64_t          rings;

    *out = (lki_event){.kind = LKI_EVENT_NONE};
    if (job->heard < atomic_load(&keeper->shared->posted))
        *out = keeper->events[job->heard % keeper->event_places];
    else if (!keeper->inside)
        return lki_direct_executor.next_event(job, out);
    else if (read(keeper->bell, &rings, sizeof rings) > 0) /* clears the bell first */
        return lki_mailbox_next(job, out);
    return LK_OK;
}

/* Ignores LKI_EVENT_NONE.  The keeper may have posted an event since lki_mailbox_next() found none,
 * and that event is still to be handled. */
void lki_mailbox_heard(lki_job *job, const lki_event *event)
{
    const lki_keeper *keeper = lki_keeper_of(job);

    if (event->kind == LKI_EVENT_NONE || job->heard == atomic_load(&keeper->shared->posted))
        return;
    job->heard++;
    if (keeper->inside)
        lki_commit(job);
}

int lki_mailbox_fd(const lki_job *job)
{
    return lki_keeper_of(job)->bell;
}

bool lki_mailbox_lost(const lki_job *job)
{
    return atomic_load(&lki_keeper_of(job)->shared->lost);
}

const lki_introduction *lki_mailbox_introduction(const lki_job *job, uint32_t rank)
{
    return &lki_keeper_of(job)->known[rank];
}

/* ---- The coordinator --------------------------------------------------------------------- */

/* Asks the keeper to send a message.  A letter cannot hold all workers, so the table of workers is
 * in shared memory.  The table is not overwritten before the keeper has sent it, because a new
 * group must form before the next introduction. */
void lki_mailbox_say(const lki_job *job, const lki_saying *what)
{
    lki_keeper_letter letter = {.kind = LKI_KEEPER_SAYING, .saying = *what};

    if (what->kind == LKI_SAY_INTRODUCE) {
        memcpy(lki_keeper_of(job)->introduced, what->workers, job->count * sizeof *what->workers);
        letter.saying.workers = lki_keeper_of(job)->introduced;
    }
    lki_keeper_write(lki_keeper_of(job), &letter);
}
