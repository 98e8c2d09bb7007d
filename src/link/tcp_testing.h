/* link/tcp_testing.h -- for tests: a few ranks in one process, each with a tcp link, and
 * connections from outside their job.
 *
 * One thread steps all links in turn; no link ever blocks.
 */
#ifndef LKI_LINK_TCP_TESTING_H
#define LKI_LINK_TCP_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "link/tcp.h"
#include "link/hello.h"

enum { WORLD_MAX = 4, PATIENCE_MS = 60000 };

static const unsigned char KEY[LKI_KEY_BYTES] = { 7, 7, 7 };
static const unsigned char JOB[LKI_JOB_BYTES] = { 0xab, 0xcd, 1 };

typedef struct {
    uint32_t              ranks;
    lki_link             *links[WORLD_MAX];
    _Atomic(const char *) published[WORLD_MAX];
    char                  refused[400]; /* the last text about refused connections */
    unsigned              told;         /* number of these texts */
} world;

static inline const char *world_address(void *context, uint32_t rank)
{
    world *w = context;
    return atomic_load(&w->published[rank]);
}

static inline void world_refused(void *context, lki_refusal why, const char *text)
{
    world *w = context;
    assert_true(why > LKI_WELCOME && why < LKI_REFUSALS);
    assert_non_null(strstr(text, lki_refusal_text(why)));
    snprintf(w->refused, sizeof w->refused, "%s", text);
    w->told++;
}

static inline lki_tcp_options world_options(world *w, bool secure, uint32_t rank)
{
    lki_tcp_options options = { .rank       = rank,
                                .ranks      = w->ranks,
                                .epoch      = 5,
                                .key        = secure ? KEY : NULL,
                                .host       = "127.0.0.1",
                                .address_of = world_address,
                                .refused    = world_refused,
                                .context    = w };
    memcpy(options.job, JOB, sizeof JOB);
    return options;
}

static inline void world_add(world *w, const lki_tcp_options *options)
{
    uint32_t rank = options->rank;
    if (lki_tcp_open(&w->links[rank], options) != LK_OK)
        fail_msg("rank %u: %s", rank, lk_error_last()->message);
    atomic_store(&w->published[rank], lki_tcp_address(w->links[rank]));
}

static inline void world_open(world *w, bool secure, uint32_t ranks, uint32_t streams)
{
    *w = (world){ .ranks = ranks };
    for (uint32_t rank = 0; rank < ranks; rank++) {
        lki_tcp_options options = world_options(w, secure, rank);
        options.streams         = streams;
        world_add(w, &options);
    }
}

static inline void world_leave(world *w, uint32_t rank)
{
    if (w->links[rank] != NULL)
        w->links[rank]->ops->close(w->links[rank]);
    w->links[rank] = NULL;
}

static inline void world_close(world *w)
{
    for (uint32_t rank = 0; rank < w->ranks; rank++)
        world_leave(w, rank);
}

/* Lets a rank wait once, for at most `ms`.  Returns the events of the stream with `peer`. */
static inline lki_ready wait_once(const world *w, uint32_t rank, uint32_t peer, uint32_t stream,
                                  int64_t ms)
{
    lki_ready ready[16], found = { .peer = peer, .stream = stream };
    uint32_t  count = 0;
    lki_link *link  = w->links[rank];
    if (link->ops->wait(link, ms, ready, 16, &count) != LK_OK)
        fail_msg("rank %u: wait: %s", rank, lk_error_last()->message);
    for (uint32_t i = 0; i < count; i++)
        if (ready[i].peer == peer && ready[i].stream == stream) {
            found.readable = found.readable || ready[i].readable;
            found.writable = found.writable || ready[i].writable;
        }
    return found;
}

/* Steps all links.  The last link waits for 1 ms, so that the kernel can deliver. */
static inline void world_step(const world *w)
{
    uint32_t last = w->ranks - 1;
    while (last > 0 && w->links[last] == NULL)
        last--;
    for (uint32_t rank = 0; rank <= last; rank++)
        if (w->links[rank] != NULL)
            (void)wait_once(w, rank, 0, 0, rank == last ? 1 : 0);
}

static inline lk_status put(const world *w, uint32_t from, uint32_t to, uint32_t stream,
                            const void *data, size_t bytes, size_t *moved)
{
    /* iovec has no const pointer; the data is only read. */
    struct iovec part = { (void *)(uintptr_t)data, bytes };
    return w->links[from]->ops->write(w->links[from], to, stream, &part, 1, moved);
}

static inline lk_status get(const world *w, uint32_t at, uint32_t from, uint32_t stream, void *data,
                            size_t bytes, size_t *moved)
{
    return w->links[at]->ops->read(w->links[at], from, stream, data, bytes, moved);
}

/* Returns the time at which a waiting test gives up. */
static inline int64_t patience(const world *w)
{
    for (uint32_t rank = 0; rank < w->ranks; rank++)
        if (w->links[rank] != NULL)
            return w->links[rank]->ops->now_ms(w->links[rank]) + PATIENCE_MS;
    return 0;
}

#define STEP_UNTIL(w, condition)                                                                   \
    do {                                                                                           \
        int64_t until_ = patience(w);                                                              \
        while (!(condition)) {                                                                     \
            world_step(w);                                                                         \
            if (patience(w) - PATIENCE_MS > until_)                                                \
                fail_msg("%s has not come true", #condition);                                      \
        }                                                                                          \
    } while (0)

static inline bool put_all(const world *w, uint32_t from, uint32_t to, uint32_t stream,
                           const void *data, size_t bytes)
{
    size_t moved = 0;
    STEP_UNTIL(w, put(w, from, to, stream, data, bytes, &moved) != LK_OK || moved > 0);
    return moved == bytes;
}

/* Sends a word between two ranks and checks that it arrives. */
static inline void exchange(const world *w, uint32_t from, uint32_t to, uint32_t stream,
                            const char *word)
{
    char   got[32] = "";
    size_t moved   = 0;
    assert_true(put_all(w, from, to, stream, word, strlen(word)));
    STEP_UNTIL(w, get(w, to, from, stream, got, sizeof got, &moved) != LK_OK || moved > 0);
    assert_int_equal(moved, strlen(word));
    assert_memory_equal(got, word, moved);
}

static inline void fails_with(lk_status status, const char *text)
{
    assert_int_equal(status, LK_EPEER);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("\"%s\" should say \"%s\"", lk_error_last()->message, text);
}

/* ---- Strangers --------------------------------------------------------------------------- */

/* Opens a connection to a rank's listener from outside the job. */
static inline int stranger_at(const char *where)
{
    lki_address address;
    assert_int_equal(lki_address_parse(&address, where), LK_OK);
    int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address.storage, address.bytes), 0);
    return fd;
}

static inline int stranger(const world *w, uint32_t rank)
{
    return stranger_at(lki_tcp_address(w->links[rank]));
}

static inline void say(int fd, const void *data, size_t bytes)
{
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

/* ---- Leaks ------------------------------------------------------------------------------- */

static inline int descriptors(void)
{
    int  count = 0;
    DIR *dir   = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static inline int count_before(void **state)
{
    static int before;
    before = descriptors();
    *state = &before;
    return 0;
}

static inline int count_after(void **state)
{
    const int *before = *state;
    if (descriptors() == *before)
        return 0;
    print_message("%d descriptors before, %d after\n", *before, descriptors());
    return 1;
}

#define LINK_TEST(name) cmocka_unit_test_setup_teardown(name, count_before, count_after)

#endif
