/* ahead.c -- a thread that reads the next batch from a stream while the current one is used.
 *
 * At any time one batch is ready or being filled.  The thread fills it and waits until the consumer
 * has taken it.  The consumer waits until the batch is full.  The stream alone determines the
 * contents of each batch; the thread affects only the time at which a batch is ready.  A failure is
 * delivered like a batch.  After a failure, or after the last batch, the thread ends.  The thread
 * may wait for a pipe without a time limit, so an eventfd can wake the thread.  The thread blocks
 * all signals, so that only the program's own threads receive them.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "data/source.h"
#include "data/stream.h"

struct lki_ahead {
    lki_stream *stream;
    uint64_t    most;
    size_t      x_bytes, y_bytes; /* per sample */
    void       *x;
    int32_t    *y;
    int         wake;
    pthread_t   thread;
    bool        running; /* the thread, the lock and the condition variable exist */

    pthread_mutex_t lock; /* guards the fields below; the thread owns the batch until it is full */
    pthread_cond_t  changed;
    bool            full, stop, last;
    uint64_t        got;
    lk_error        error; /* .status is LK_OK if no failure has occurred */
};

/* Waits until the batch may be filled.  Returns false if the thread must stop. */
static bool wait_for_room(lki_ahead *ahead)
{
    pthread_mutex_lock(&ahead->lock);
    while (ahead->full && !ahead->stop)
        pthread_cond_wait(&ahead->changed, &ahead->lock);
    bool more = !ahead->stop;
    pthread_mutex_unlock(&ahead->lock);
    return more;
}

static void *run(void *context)
{
    lki_ahead *ahead = context;
    bool       last  = false;
    while (!last && wait_for_room(ahead)) {
        uint64_t  got   = 0;
        lk_error  error = { .status = LK_OK };
        lk_status status = lki_stream_take(ahead->stream, ahead->wake, ahead->most, ahead->x,
                                           ahead->y, &got, &last);
        if (status != LK_OK)
            error = *lk_error_last();
        last = last || status != LK_OK;
        pthread_mutex_lock(&ahead->lock);
        ahead->full  = true;
        ahead->last  = last;
        ahead->got   = got;
        ahead->error = error;
        pthread_cond_broadcast(&ahead->changed);
        pthread_mutex_unlock(&ahead->lock);
    }
    return NULL;
}

static lk_status start(lki_ahead *ahead)
{
    sigset_t all, before;
    ahead->wake = eventfd(0, EFD_CLOEXEC);
    if (ahead->wake < 0)
        return lk_fail(LK_ENOMEM, "cannot make an eventfd for a stream's thread");
    pthread_condattr_t monotonic;
    pthread_mutex_init(&ahead->lock, NULL); /* none of these calls can fail on Linux */
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ahead->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&ahead->thread, NULL, run, ahead);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ahead->running = error == 0;
    if (error == 0)
        return LK_OK;
    pthread_cond_destroy(&ahead->changed);
    pthread_mutex_destroy(&ahead->lock);
    return lk_fail(LK_ENOMEM, "cannot start a stream's thread: %s", strerror(error));
}

lk_status lki_ahead_open(lki_ahead **out, const lk_dataset *dataset, uint64_t skip, uint64_t most)
{
    bool       tokens = dataset->info.tokens;
    lki_ahead *ahead  = NULL;
    *out = NULL;
    LK_TRY(LKI_NEW(&ahead, 1, "a stream's thread"));
    ahead->most      = most;
    ahead->wake      = -1;
    ahead->x_bytes   = dataset->elements * (tokens ? sizeof(int32_t) : sizeof(float));
    ahead->y_bytes   = dataset->info.targets * sizeof(int32_t);
    lk_status status = lki_stream_open(&ahead->stream, dataset, skip, most);
    if (status == LK_OK)
        status = lki_alloc_array(&ahead->x, most, ahead->x_bytes, "a batch of a stream");
    if (status == LK_OK)
        status = lki_alloc_array((void **)&ahead->y, most, ahead->y_bytes, "a batch of a stream");
    if (status == LK_OK)
        status = start(ahead);
    if (status != LK_OK) {
        lki_ahead_close(ahead);
        return status;
    }
    *out = ahead;
    return LK_OK;
}

static void stop(lki_ahead *ahead)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&ahead->lock);
    ahead->stop = true;
    pthread_cond_broadcast(&ahead->changed);
    pthread_mutex_unlock(&ahead->lock);
    ssize_t wrote = write(ahead->wake, &one, sizeof one);
    LK_ASSERT(wrote == (ssize_t)sizeof one);
    pthread_join(ahead->thread, NULL);
    pthread_cond_destroy(&ahead->changed);
    pthread_mutex_destroy(&ahead->lock);
}

void lki_ahead_close(lki_ahead *ahead)
{
    if (ahead == NULL)
        return;
    if (ahead->running)
        stop(ahead);
    if (ahead->wake >= 0)
        (void)close(ahead->wake);
    lki_stream_close(ahead->stream);
    lki_free(ahead->x);
    lki_free(ahead->y);
    lki_free(ahead);
}

bool lki_ahead_ready(lki_ahead *ahead, uint32_t most_ms)
{
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += (long)(most_ms % 1000) * 1000000;
    end.tv_sec += most_ms / 1000 + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&ahead->lock);
    while (!ahead->full && pthread_cond_timedwait(&ahead->changed, &ahead->lock, &end) == 0) {}
    bool ready = ahead->full;
    pthread_mutex_unlock(&ahead->lock);
    return ready;
}

lk_status lki_ahead_take(lki_ahead *ahead, void *x, int32_t *y, uint64_t *got, bool *last)
{
    pthread_mutex_lock(&ahead->lock);
    while (!ahead->full)
        pthread_cond_wait(&ahead->changed, &ahead->lock);
    lk_error error = ahead->error;
    *got           = ahead->got;
    *last          = ahead->last;
    memcpy(x, ahead->x, ahead->got * ahead->x_bytes);
    memcpy(y, ahead->y, ahead->got * ahead->y_bytes);
    ahead->full = ahead->last; /* the last batch stays full */
    pthread_cond_broadcast(&ahead->changed);
    pthread_mutex_unlock(&ahead->lock);
    return error.status == LK_OK ? LK_OK : lki_fail_again(&error);
}
