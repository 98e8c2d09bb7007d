/* journal.c -- the journal: two pages of shared memory, one of which is always complete. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "launch/job/faults.h"
#include "launch/keeper/keeper.h"

enum { ALIGNMENT = 64 };

/* Number of events that may arrive while no coordinator runs: enough for the ends of all ranks in a
 * few groups. */
enum { EVENTS_PER_RANK = 4, EVENTS_MORE = 256 };

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The offsets of a page's parts. */
typedef struct {
    size_t workers, control, blows, standing, end;
} layout;

/* Returns the size of the table of group members.  Only a host outside the group has this table. */
static size_t standing_bytes(const lki_job *job)
{
    return job->standing.since != NULL ? job->roster.world * sizeof *job->standing.since : 0;
}

static layout layout_of(const lki_job *job)
{
    layout at;

    at.workers  = aligned(sizeof *job);
    at.control  = at.workers + aligned(job->count * sizeof *job->workers);
    at.blows    = at.control + aligned(lki_control_saved_bytes(job->control));
    at.standing = at.blows + aligned(lki_faults_bytes(job));
    at.end      = at.standing + aligned(standing_bytes(job));
    return at;
}

/* Returns the next `bytes` bytes of the shared memory, for one of its parts.  If the memory is not
 * mapped yet, only adds up the sizes. */
static void *part(lki_keeper *self, size_t bytes)
{
    unsigned char *memory = (void *)self->shared;
    size_t         at     = self->bytes;

    self->bytes += aligned(bytes);
    return memory != NULL ? memory + at : NULL;
}

static void divide(lki_keeper *self, const lki_job *job)
{
    size_t world = job->rendezvous != NULL ? job->roster.world : 0;

    self->bytes        = 0;
    self->event_places = world > 0 ? EVENTS_PER_RANK * world + EVENTS_MORE : 0;
    self->page_bytes   = layout_of(job).end;
    (void)part(self, sizeof *self->shared);
    self->births     = part(self, job->count * sizeof *self->births);
    self->events     = part(self, self->event_places * sizeof *self->events);
    self->known      = part(self, world * sizeof *self->known);
    self->introduced = part(self, job->count * sizeof *self->introduced);
    self->pages[0]   = part(self, self->page_bytes);
    self->pages[1]   = part(self, self->page_bytes);
}

lk_status lki_keeper_open(lki_keeper **out, const lki_job *job)
{
    lki_keeper *self;

    *out = NULL;
    LK_TRY(LKI_NEW(&self, 1, "the launcher's journal"));
    self->channel = self->board = self->bell = self->signals[0] = self->signals[1] = -1;
    self->pid     = getpid();
    divide(self, job);
    void *memory = mmap(NULL, self->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                        0);
    if (memory == MAP_FAILED) {
        lki_free(self);
        return lk_fail(LK_ENOMEM, "memory for the launcher's journal: %s", strerror(errno));
    }
    self->shared = memory;
    divide(self, job);
    *out = self;
    return LK_OK;
}

void lki_keeper_free(lki_keeper *self)
{
    (void)munmap(self->shared, self->bytes);
    lki_free(self);
}

/* ---- Writing ----------------------------------------------------------------------------- */

void lki_commit(lki_job *job)
{
    lki_keeper    *keeper = lki_keeper_of(job);
    const layout   at     = layout_of(job);
    uint64_t       next   = atomic_load(&keeper->shared->newest) + 1;
    unsigned char *page   = keeper->pages[next % 2];

    memcpy(page, job, sizeof *job);
    memcpy(page + at.workers, job->workers, job->count * sizeof *job->workers);
    lki_control_save(job->control, page + at.control);
    lki_faults_save(job, page + at.blows);
    if (job->standing.since != NULL)
        memcpy(page + at.standing, job->standing.since, standing_bytes(job));
    atomic_store(&keeper->shared->newest, next);
    atomic_store(&keeper->shared->heard, job->heard);
}

void lki_turned(lki_job *job)
{
    lki_commit(job);
    lki_keeper_of(job)->eager = false;
    (void)atomic_fetch_add(&lki_keeper_of(job)->shared->turns, 1);
}

/* ---- Reading ----------------------------------------------------------------------------- */

static const unsigned char *newest_page(const lki_keeper *keeper)
{
    return keeper->pages[atomic_load(&keeper->shared->newest) % 2];
}

uint64_t lki_keeper_epoch(const lki_job *job)
{
    const lki_keeper *keeper = lki_keeper_of(job);

    return atomic_load(&keeper->shared->newest) == 0
               ? lki_control_epoch(job->control)
               : lki_control_saved_epoch(newest_page(keeper) + layout_of(job).control);
}

/* Restores the newest page.  Pointers in the page are valid here, because they refer to memory
 * allocated before any coordinator was forked.  The workers' sockets are inherited from the
 * keeper. */
void lki_keeper_restore(lki_job *job)
{
    const unsigned char *page = newest_page(lki_keeper_of(job));
    const layout         at   = layout_of(job);

    for (uint32_t i = 0; i < job->count; i++) {
        const lki_worker *saved = (const lki_worker *)(const void *)(page + at.workers) + i;
        int               socket = saved->socket >= 0 ? job->workers[i].socket : -1;
        memcpy(&job->workers[i], saved, sizeof *saved);
        job->workers[i].socket = socket;
        job->workers[i].pidfd  = -1;
    }
    memcpy(job, page, sizeof *job);
    lki_faults_restore(job, page + at.blows);
    if (job->standing.since != NULL)
        memcpy(job->standing.since, page + at.standing, standing_bytes(job));
    lki_control_restore(job->control, page + at.control);
}

/* Restores the newest page when all workers have ended.  The sockets of the workers no longer
 * matter. */
void lki_keeper_learn(lki_job *job)
{
    const lki_job        own  = *job;
    const unsigned char *page = newest_page(lki_keeper_of(job));
    const layout         at   = layout_of(job);

    if (atomic_load(&lki_keeper_of(job)->shared->newest) == 0)
        return;
    memcpy(job, page, sizeof *job);
    job->executor   = own.executor;
    job->signals    = own.signals;
    job->refused    = own.refused;
    job->refused_at = own.refused_at;
    memcpy(job->sinks, own.sinks, sizeof job->sinks);
    for (uint32_t i = 0; i < job->count; i++) {
        const lki_worker *saved  = (const lki_worker *)(const void *)(page + at.workers) + i;
        lki_worker       *worker = &job->workers[i];
        lki_worker        before = *worker;
        *worker                  = *saved;
        worker->pidfd            = -1;
        worker->socket           = -1;
        memcpy(worker->streams, before.streams, sizeof worker->streams);
        lki_control_adopt(job->control, lki_rank_of_worker(job, i), -1);
    }
    lki_faults_restore(job, page + at.blows);
}
