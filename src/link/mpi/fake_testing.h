/* fake_testing.h -- for tests: a module without MPI, for two ranks in one process.
 *
 * Each poll of the fake module completes one request, namely the last one that was posted.  MPI may
 * behave in the same way: messages with one tag are matched in order but complete in any order.
 */
#ifndef LKI_LINK_MPI_FAKE_TESTING_H
#define LKI_LINK_MPI_FAKE_TESTING_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "link/mpi/link.h"

enum { SLOTS_MAX = 64 };

typedef enum { FREE, SENDING, RECEIVING } request_kind;

typedef struct {
    request_kind   kind;
    uint32_t       tag;
    bool           matched, cancelled;
    uint64_t       order;
    unsigned char *to;
    const void    *from;
    size_t         bytes;
} request;

typedef struct fake fake;

struct lki_mpi_world {
    fake        *all;
    request      requests[SLOTS_MAX];
    lki_mpi_done done;
    bool         closed;
};

struct fake {
    pthread_mutex_t lock;
    lki_mpi_world   ranks[2];
    uint64_t        orders, calls;
    bool            failing; /* requests complete with an error */
    bool            damaging; /* messages with tag 1 arrive with a wrong byte */
    bool            holding;  /* messages with tag 1 do not complete */
    size_t          posted;   /* number of bytes received with tag 1 */
    lki_link       *links[2];
};

static inline request *first_unmatched(lki_mpi_world *world, request_kind kind, uint32_t tag)
{
    request *first = NULL;

    for (uint32_t i = 0; i < SLOTS_MAX; i++) {
        request *r = &world->requests[i];
        if (r->kind == kind && r->tag == tag && !r->matched
            && (first == NULL || r->order < first->order))
            first = r;
    }
    return first;
}

static inline void transfer(fake *all, request *send, request *recv)
{
    assert_true(send->bytes <= recv->bytes);
    if (send->bytes > 0)
        memcpy(recv->to, send->from, send->bytes);
    if (send->tag == 1)
        recv->to[send->bytes / 2] ^= all->damaging;
    all->posted  += send->tag == 1 ? send->bytes : 0;
    recv->bytes   = send->bytes;
    send->matched = recv->matched = true;
}

static inline void match(fake *all)
{
    for (uint32_t i = 0; i < 4; i++)
        for (;;) {
            request *send = first_unmatched(&all->ranks[i / 2 == 0], SENDING, i % 2);
            request *recv = first_unmatched(&all->ranks[i / 2], RECEIVING, i % 2);
            if (send == NULL || recv == NULL)
                break;
            transfer(all, send, recv);
        }
}

static inline const char *post(lki_mpi_world *world, uint32_t slot, request made)
{
    fake *all = world->all;

    (void)pthread_mutex_lock(&all->lock);
    assert_true(slot < SLOTS_MAX && world->requests[slot].kind == FREE);
    all->calls++;
    made.order            = ++all->orders;
    world->requests[slot] = made;
    match(all);
    (void)pthread_mutex_unlock(&all->lock);
    return NULL;
}

static inline const char *fake_reserve(lki_mpi_world *world, uint32_t slots)
{
    (void)world;
    assert_true(slots <= SLOTS_MAX);
    return NULL;
}

static inline const char *fake_send(lki_mpi_world *world, uint32_t slot, uint32_t peer,
                                    uint32_t tag, const void *data, size_t bytes)
{
    (void)peer;
    return post(world, slot,
                (request){ .kind = SENDING, .tag = tag, .from = data, .bytes = bytes });
}

static inline const char *fake_receive(lki_mpi_world *world, uint32_t slot, uint32_t peer,
                                       uint32_t tag, void *data, size_t bytes)
{
    (void)peer;
    return post(world, slot,
                (request){ .kind = RECEIVING, .tag = tag, .to = data, .bytes = bytes });
}

static inline const char *fake_cancel(lki_mpi_world *world, uint32_t slot)
{
    request *r = &world->requests[slot];

    (void)pthread_mutex_lock(&world->all->lock);
    world->all->calls++;
    assert_int_equal(r->kind, RECEIVING);
    if (!r->matched)
        r->matched = r->cancelled = true;
    (void)pthread_mutex_unlock(&world->all->lock);
    return NULL;
}

static inline const char *fake_poll(lki_mpi_world *world, const lki_mpi_done **done,
                                    uint32_t *count)
{
    request *last = NULL;

    (void)pthread_mutex_lock(&world->all->lock);
    world->all->calls++;
    for (uint32_t i = 0; i < SLOTS_MAX; i++) {
        request *r = &world->requests[i];
        if (r->kind != FREE && r->matched && !(r->tag == 1 && world->all->holding)
            && (last == NULL || r->order > last->order))
            last = r;
    }
    *count = last != NULL;
    *done  = &world->done;
    if (last != NULL) {
        world->done = (lki_mpi_done){ (uint32_t)(last - world->requests), last->bytes,
                                      last->cancelled,
                                      world->all->failing ? "the network is down" : NULL };
        *last = (request){ .kind = FREE };
    }
    (void)pthread_mutex_unlock(&world->all->lock);
    return NULL;
}

static inline void fake_close(lki_mpi_world *world, bool stopping)
{
    (void)stopping;
    for (uint32_t i = 0; i < SLOTS_MAX; i++)
        assert_int_equal(world->requests[i].kind, FREE);
    world->closed = true;
}

static inline void fake_name(char out[LKI_MPI_NAME_BYTES])
{
    (void)snprintf(out, LKI_MPI_NAME_BYTES, "fake 1.2");
}

static const lki_mpi_module module = { .revision = LKI_MPI_REVISION,
                                       .name     = fake_name,
                                       .reserve  = fake_reserve,
                                       .send     = fake_send,
                                       .receive  = fake_receive,
                                       .cancel   = fake_cancel,
                                       .poll     = fake_poll,
                                       .close    = fake_close };

static inline void begin(fake *all)
{
    *all = (fake){ .orders = 0 };
    (void)pthread_mutex_init(&all->lock, NULL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        lki_mpi_world *world = &all->ranks[rank];
        world->all           = all;
        assert_int_equal(lki_mpi_link_new(&all->links[rank], &module, world, rank, 2), LK_OK);
    }
    for (uint32_t rank = 0; rank < 2; rank++)
        lki_mpi_link_start(all->links[rank]);
}

static inline void *close_in_thread(void *link)
{
    ((lki_link *)link)->ops->close(link);
    return NULL;
}

static inline void end(fake *all)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, close_in_thread, all->links[0]), 0);
    (void)close_in_thread(all->links[1]);
    (void)pthread_join(thread, NULL);
    assert_true(all->ranks[0].closed && all->ranks[1].closed);
    (void)pthread_mutex_destroy(&all->lock);
}

#endif
