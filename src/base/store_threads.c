/* store_threads.c -- performs a store's transfers by threads that block in system calls. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/store_engine.h"

enum { THREADS = 2 }; /* so that a read and a write can proceed at the same time */

typedef struct {
    int             fd;
    lki_transfer   *transfers;
    pthread_t       threads[THREADS];
    uint32_t        thread_count;
    pthread_mutex_t lock; /* protects the fields below, and `complete` */
    pthread_cond_t  work, done;
    uint32_t        queue[LKI_STORE_SLOTS], first, count;
    bool            over;
} engine;

static void move(int fd, lki_transfer *t)
{
    while (t->done < t->bytes) {
        uint8_t *at     = t->buffer + t->done;
        size_t   left   = t->bytes - t->done;
        off_t    offset = (off_t)(t->offset + t->done);
        ssize_t  moved  = t->write ? pwrite(fd, at, left, offset) : pread(fd, at, left, offset);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0) {
            t->error = moved < 0 ? errno : 0;
            return;
        }
        t->done += (size_t)moved;
    }
}

static void *serve(void *argument)
{
    engine *e = argument;
    (void)pthread_mutex_lock(&e->lock);
    for (;;) {
        while (e->count == 0 && !e->over)
            (void)pthread_cond_wait(&e->work, &e->lock);
        if (e->count == 0)
            break;
        lki_transfer *t = &e->transfers[e->queue[e->first]];
        e->first        = (e->first + 1) % LKI_STORE_SLOTS;
        e->count--;
        (void)pthread_mutex_unlock(&e->lock);
        move(e->fd, t);
        (void)pthread_mutex_lock(&e->lock);
        t->complete = true;
        (void)pthread_cond_broadcast(&e->done);
    }
    (void)pthread_mutex_unlock(&e->lock);
    return NULL;
}

static void threads_close(void *self)
{
    engine *e = self;
    if (e == NULL)
        return;
    (void)pthread_mutex_lock(&e->lock);
    e->over = true;
    (void)pthread_cond_broadcast(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < e->thread_count; i++)
        (void)pthread_join(e->threads[i], NULL);
    (void)pthread_cond_destroy(&e->work);
    (void)pthread_cond_destroy(&e->done);
    (void)pthread_mutex_destroy(&e->lock);
    lki_free(e);
}

static lk_status threads_open(void **out, int fd, lki_transfer *transfers)
{
    engine *e = NULL;
    *out      = NULL;
    LK_TRY(LKI_NEW(&e, 1, "threads that read and write"));
    e->fd        = fd;
    e->transfers = transfers;
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->work, NULL);
    (void)pthread_cond_init(&e->done, NULL);
    for (int error = 0; e->thread_count < THREADS; e->thread_count++) {
        error = pthread_create(&e->threads[e->thread_count], NULL, serve, e);
        if (error == 0)
            continue;
        threads_close(e);
        return lk_fail(LK_ENOMEM, "cannot start a thread that reads and writes: %s",
                       strerror(error));
    }
    *out = e;
    return LK_OK;
}

static void threads_start(void *self, uint32_t slot)
{
    engine *e = self;
    (void)pthread_mutex_lock(&e->lock);
    e->queue[(e->first + e->count) % LKI_STORE_SLOTS] = slot;
    e->count++;
    (void)pthread_cond_signal(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
}

static bool threads_test(void *self, uint32_t slot)
{
    engine *e = self;
    (void)pthread_mutex_lock(&e->lock);
    bool complete = e->transfers[slot].complete;
    (void)pthread_mutex_unlock(&e->lock);
    return complete;
}

static void threads_wait(void *self, uint32_t slot)
{
    engine *e = self;
    (void)pthread_mutex_lock(&e->lock);
    while (!e->transfers[slot].complete)
        (void)pthread_cond_wait(&e->done, &e->lock);
    (void)pthread_mutex_unlock(&e->lock);
}

const lki_store_engine lki_store_threads = { "threads",    threads_open, threads_start,
                                             threads_test, threads_wait, threads_close };
