/* link_test.c -- streams over a fake module: two ranks in one process.
 *
 * Each poll of the fake module completes one request, namely the last one that was posted.  MPI may
 * behave in the same way: chunks of a stream are matched in order, but may complete in any order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "link/mpi/link.h"

enum { SLOTS_MAX = 32, CHUNK_BYTES = 1 << 20, BLOCK = 12800000 };

typedef enum { FREE, SENDING, RECEIVING } request_kind;

typedef struct {
    request_kind   kind;
    bool           matched;
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
    uint64_t        orders;
    bool            failing; /* requests complete with an error */
    lki_link       *links[2];
};

static request *first_unmatched(lki_mpi_world *world, request_kind kind)
{
    request *first = NULL;

    for (uint32_t i = 0; i < SLOTS_MAX; i++) {
        request *r = &world->requests[i];
        if (r->kind == kind && !r->matched && (first == NULL || r->order < first->order))
            first = r;
    }
    return first;
}

static void match(fake *all)
{
    for (int to = 0; to < 2; to++)
        for (;;) {
            request *send = first_unmatched(&all->ranks[!to], SENDING);
            request *recv = first_unmatched(&all->ranks[to], RECEIVING);
            if (send == NULL || recv == NULL)
                break;
            assert_true(send->bytes <= recv->bytes);
            if (send->bytes > 0)
                memcpy(recv->to, send->from, send->bytes);
            recv->bytes   = send->bytes;
            send->matched = recv->matched = true;
        }
}

static const char *post(lki_mpi_world *world, uint32_t slot, request made)
{
    fake *all = world->all;

    (void)pthread_mutex_lock(&all->lock);
    assert_true(slot < SLOTS_MAX && world->requests[slot].kind == FREE);
    made.order            = ++all->orders;
    world->requests[slot] = made;
    match(all);
    (void)pthread_mutex_unlock(&all->lock);
    return NULL;
}

static const char *fake_reserve(lki_mpi_world *world, uint32_t slots)
{
    (void)world;
    assert_true(slots <= SLOTS_MAX);
    return NULL;
}

static const char *fake_send(lki_mpi_world *world, uint32_t slot, uint32_t peer, uint32_t tag,
                             const void *data, size_t bytes)
{
    (void)peer;
    (void)tag;
    return post(world, slot, (request){ .kind = SENDING, .from = data, .bytes = bytes });
}

static const char *fake_receive(lki_mpi_world *world, uint32_t slot, uint32_t peer, uint32_t tag,
                                void *data, size_t bytes)
{
    (void)peer;
    (void)tag;
    return post(world, slot, (request){ .kind = RECEIVING, .to = data, .bytes = bytes });
}

static const char *fake_poll(lki_mpi_world *world, const lki_mpi_done **done, uint32_t *count)
{
    request *last = NULL;

    (void)pthread_mutex_lock(&world->all->lock);
    for (uint32_t i = 0; i < SLOTS_MAX; i++) {
        request *r = &world->requests[i];
        if (r->kind != FREE && r->matched && (last == NULL || r->order > last->order))
            last = r;
    }
    *count = last != NULL;
    *done  = &world->done;
    if (last != NULL) {
        world->done = (lki_mpi_done){ (uint32_t)(last - world->requests), last->bytes,
                                      world->all->failing ? "the network is down" : NULL };
        last->kind    = FREE;
        last->matched = false;
    }
    (void)pthread_mutex_unlock(&world->all->lock);
    return NULL;
}

static void fake_close(lki_mpi_world *world, bool stopping)
{
    (void)stopping;
    for (uint32_t i = 0; i < SLOTS_MAX; i++)
        assert_int_equal(world->requests[i].kind, FREE);
    world->closed = true;
}

static void fake_name(char out[LKI_MPI_NAME_BYTES])
{
    (void)snprintf(out, LKI_MPI_NAME_BYTES, "fake 1.2");
}

static const lki_mpi_module module = { .revision = LKI_MPI_REVISION,
                                       .name     = fake_name,
                                       .reserve  = fake_reserve,
                                       .send     = fake_send,
                                       .receive  = fake_receive,
                                       .poll     = fake_poll,
                                       .close    = fake_close };

static void begin(fake *all)
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

static void *close_in_thread(void *link)
{
    ((lki_link *)link)->ops->close(link);
    return NULL;
}

static void end(fake *all)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, close_in_thread, all->links[0]), 0);
    (void)close_in_thread(all->links[1]);
    (void)pthread_join(thread, NULL);
    assert_true(all->ranks[0].closed && all->ranks[1].closed);
    (void)pthread_mutex_destroy(&all->lock);
}

/* ---- Helpers ----------------------------------------------------------------------------- */

static unsigned char block[BLOCK], got[BLOCK];

static size_t put(fake *all, uint32_t from, size_t at, size_t bytes)
{
    struct iovec parts[2] = { { block + at, bytes / 3 }, { block + at + bytes / 3,
                                                           bytes - bytes / 3 } };
    size_t       moved;

    assert_int_equal(all->links[from]->ops->write(all->links[from], !from, 0, parts, 2, &moved),
                     LK_OK);
    return moved;
}

static lki_ready wait_for_event(fake *all, uint32_t rank, int64_t ms)
{
    lki_ready ready = { 0 };
    uint32_t  count;

    assert_int_equal(all->links[rank]->ops->wait(all->links[rank], ms, &ready, 1, &count), LK_OK);
    return count > 0 ? ready : (lki_ready){ 0 };
}

/* Reads up to the end of the stream.  Returns the number of bytes. */
static size_t read_all(fake *all, uint32_t rank, size_t piece)
{
    size_t    total = 0, moved;
    lk_status st    = LK_OK;

    for (int i = 0; i < 100000 && st == LK_OK; i++) {
        (void)wait_for_event(all, rank, 1);
        st = all->links[rank]->ops->read(all->links[rank], !rank, 0, got + total,
                                         lki_min(piece, BLOCK - total), &moved);
        total += moved;
        if (total == BLOCK)
            break;
    }
    return total;
}

static void prepare(void)
{
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = (unsigned char)(i * 7 + i / 251);
    memset(got, 0, sizeof got);
}

/* Waits until all receives of this rank are matched, without polling them. */
static void wait_for_matches(fake *all, uint32_t rank)
{
    for (bool open = true; open;) {
        (void)pthread_mutex_lock(&all->lock);
        open = first_unmatched(&all->ranks[rank], RECEIVING) != NULL;
        (void)pthread_mutex_unlock(&all->lock);
        (void)usleep(100);
    }
}

/* ---- Tests ------------------------------------------------------------------------------- */

/* Writes while the reader does not read.  Expects that the stream accepts a bounded number of
 * bytes, and more after the reader has read. */
static void a_slow_reader_stops_the_writer(void **state)
{
    fake   all;
    size_t written = 0, moved, at = 0;

    (void)state;
    prepare();
    begin(&all);
    all.links[1]->ops->watch(all.links[1], 0, 0, false, false);
    for (int i = 0; i < 100; i++) {
        written += put(&all, 0, written, lki_min(BLOCK - written, 1600000));
        (void)wait_for_event(&all, 0, 0);
        assert_false(wait_for_event(&all, 1, 0).readable);
    }
    assert_in_range(written, CHUNK_BYTES, BLOCK - 1);
    all.links[0]->ops->watch(all.links[0], 1, 0, true, true);
    assert_false(wait_for_event(&all, 0, 5).writable);
    all.links[1]->ops->watch(all.links[1], 0, 0, true, false);
    assert_true(wait_for_event(&all, 1, 1000).readable);
    for (int i = 0; i < 100000 && at < BLOCK; i++) {
        assert_int_equal(all.links[1]->ops->read(all.links[1], 0, 0, got + at, BLOCK - at, &moved),
                         LK_OK);
        at += moved;
        (void)wait_for_event(&all, 1, 0);
        (void)wait_for_event(&all, 0, 0);
        if (written < BLOCK)
            written += put(&all, 0, written, BLOCK - written);
    }
    assert_int_equal(at, BLOCK);
    assert_memory_equal(got, block, BLOCK);
    end(&all);
}

/* Completes the empty message that ends a stream before the messages with earlier bytes.  Expects
 * that no bytes are lost. */
static void written_bytes_arrive_after_close(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes < 3 * CHUNK_BYTES; bytes = bytes * 5 + 3) {
        fake      all;
        pthread_t thread;
        size_t    moved = 0;
        prepare();
        begin(&all);
        assert_int_equal(put(&all, 1, 0, 1), 1); /* a stream exists only after its first write */
        while (moved < bytes)
            moved += put(&all, 0, moved, bytes - moved);
        assert_int_equal(pthread_create(&thread, NULL, close_in_thread, all.links[0]), 0);
        wait_for_matches(&all, 1);
        assert_int_equal(read_all(&all, 1, 7777), bytes);
        assert_memory_equal(got, block, bytes);
        assert_true(wait_for_event(&all, 1, 1000).readable); /* the end is reported again */
        assert_int_equal(all.links[1]->ops->write(all.links[1], 0, 0,
                                                  &(struct iovec){ block, 1 }, 1, &moved),
                         LK_EPEER);
        assert_non_null(strstr(lk_error_last()->message, "closed at the other end"));
        all.links[1]->ops->watch(all.links[1], 0, 0, false, false);
        assert_false(wait_for_event(&all, 1, 1).readable);
        (void)close_in_thread(all.links[1]);
        (void)pthread_join(thread, NULL);
        assert_true(all.ranks[0].closed && all.ranks[1].closed);
    }
}

/* Closes links with unread bytes and with an unused stream.  Expects that neither delays the
 * close. */
static void unread_bytes_are_dropped(void **state)
{
    fake all;

    (void)state;
    prepare();
    begin(&all);
    assert_true(put(&all, 0, 0, BLOCK) > CHUNK_BYTES);
    end(&all);
    begin(&all);
    end(&all);
}

/* Closes links after errors of MPI.  One rank cannot close in order: it gives up, and leaves its
 * open requests to MPI. */
static void errors_break_their_stream(void **state)
{
    static fake all;
    size_t      moved;
    pthread_t   thread;

    (void)state;
    prepare();
    begin(&all);
    assert_int_equal(put(&all, 0, 0, 10), 10);
    all.failing = true;
    assert_true(wait_for_event(&all, 1, 1000).readable);
    assert_int_equal(all.links[1]->ops->read(all.links[1], 0, 0, got, 10, &moved), LK_EPEER);
    assert_int_equal(moved, 0);
    assert_non_null(strstr(lk_error_last()->message, "the network is down"));
    all.failing         = false;
    all.links[0]->hurry = true;
    assert_int_equal(pthread_create(&thread, NULL, close_in_thread, all.links[0]), 0);
    (void)close_in_thread(all.links[1]);
    (void)pthread_join(thread, NULL);
    assert_false(all.ranks[0].closed);
    assert_true(all.ranks[1].closed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_reader_stops_the_writer),
        cmocka_unit_test(written_bytes_arrive_after_close),
        cmocka_unit_test(unread_bytes_are_dropped),
        cmocka_unit_test(errors_break_their_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
