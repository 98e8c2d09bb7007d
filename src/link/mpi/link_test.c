/* link_test.c -- streams over a fake module. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <unistd.h>

#include "base/memory.h"
#include "link/mpi/fake_testing.h"

enum { CHUNK_BYTES = 1 << 16, BLOCK = 12800000 };

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
        open = first_unmatched(&all->ranks[rank], RECEIVING, 0) != NULL;
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
