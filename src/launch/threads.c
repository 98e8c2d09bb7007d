/* threads.c -- threads mode, in which the ranks of a group are threads of one process.
 *
 * Used for embedding, for tests and with the thread sanitizer.  A rank that fails informs the other
 * ranks at once (lk_comm_abort), so no rank waits for it.  The LK_EPEER that the other ranks then
 * return is a consequence.  LK_EPEER is never reported as the cause, even if it is returned first.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "lockstep/launch.h"

typedef struct crew crew;

typedef struct {
    crew     *crew;
    lk_comm  *comm;
    pthread_t thread;
    bool      started;
} member;

struct crew {
    lk_status (*main)(lk_comm *comm, void *context);
    void           *context;
    pthread_mutex_t lock;
    lk_error        first;     /* the first failure of the highest weight(); LK_OK: none */
    char            where[64]; /* copy of first.where, because the original belongs to a thread that
                                * may have ended */
};

/* Returns how important a status is: causes weigh more than consequences, and failures more than a
 * requested stop. */
static int weight(lk_status status)
{
    switch ((int)status) {
    case LK_OK: return 0;
    case LK_ESTOPPED: return 1;
    case LK_EPEER: return 2;
    default: return 3;
    }
}

/* Records the end of a rank.  Runs on the rank's thread, whose last error belongs to `status`. */
static void note_end(const member *self, lk_status status)
{
    if (status == LK_OK)
        return;
    if (lk_error_last()->status != status) /* the callback has set no error */
        (void)lk_fail(status, "rank %u returned %s (%s)", lk_comm_rank(self->comm),
                      lk_status_name(status), lk_status_text(status));
    (void)pthread_mutex_lock(&self->crew->lock);
    if (weight(status) > weight(self->crew->first.status)) {
        self->crew->first = *lk_error_last();
        (void)snprintf(self->crew->where, sizeof self->crew->where, "%s", self->crew->first.where);
        self->crew->first.where = self->crew->where;
    }
    (void)pthread_mutex_unlock(&self->crew->lock);
    if (status != LK_ESTOPPED)
        lk_comm_abort(self->comm);
}

static void *run_member(void *argument)
{
    member *self = argument;

    note_end(self, self->crew->main(self->comm, self->crew->context));
    lk_comm_free(self->comm); /* ends the waits of other ranks for this rank */
    return NULL;
}

/* Starts the thread of `rank`.  If the thread cannot be started, marks the rank as failed, because
 * the other ranks wait for this rank. */
static void start_member(member *self, uint32_t rank)
{
    int error = pthread_create(&self->thread, NULL, run_member, self);

    self->started = error == 0;
    if (self->started)
        return;
    note_end(self, lk_fail(LK_ENOMEM, "cannot start the thread of rank %u: %s", rank,
                           strerror(error)));
    lk_comm_free(self->comm);
}

/* Opens the group, and runs it to its end. */
static lk_status run_crew(crew *all, member *members, lk_comm **comms, uint32_t workers,
                          const lk_comm_options *options)
{
    LK_TRY(lk_comm_open_threads(comms, workers, options));
    for (uint32_t i = 0; i < workers; i++) {
        members[i] = (member){.crew = all, .comm = comms[i]};
        start_member(&members[i], i);
    }
    for (uint32_t i = 0; i < workers; i++)
        if (members[i].started)
            (void)pthread_join(members[i].thread, NULL);
    return all->first.status == LK_OK ? LK_OK : lki_fail_again(&all->first);
}

lk_status lk_launch_threads(uint32_t workers, const lk_comm_options *options,
                            lk_status (*main)(lk_comm *comm, void *context), void *context)
{
    crew all = {.main = main, .context = context, .lock = PTHREAD_MUTEX_INITIALIZER};
    member   *members = NULL;
    lk_comm **comms   = NULL;

    if (workers == 0)
        return lk_fail(LK_EINVAL, "a group needs at least one worker");
    lk_status st = LKI_NEW(&members, workers, "the threads of a group");
    if (st == LK_OK)
        st = LKI_NEW(&comms, workers, "the ranks of a group");
    if (st == LK_OK)
        st = run_crew(&all, members, comms, workers, options);
    lki_free(comms);
    lki_free(members);
    return st;
}
