/* join_copy_test.c -- a host that joins receives the other hosts' state, even if pieces are
 * damaged.
 *
 * Goal:   the new host receives every byte of parameters, optimizer state and running state, from
 *         all hosts.  A piece that arrives damaged, or that differs on another host, is detected
 *         and received from a third host, and its sender is named.  Lasting damage fails on all
 *         ranks.
 * Method: hosts are simulated, and the last has lost its state.  The receive function is wrapped
 *         and may change a byte.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "comm/hosted_testing.h"
#include "parallel/recover/join_copy.h"
#include "parallel/state.h"

enum { LARGE = 700000, SMALL = 9, WIDTH = 33, PIECE = 1000 };

static const lk_param params[] = {
    { .name = "a", .shape = { 1, { LARGE } }, .init = LK_INIT_NORMAL, .scale = 0.5 },
    { .name = "b", .shape = { 1, { SMALL } }, .init = LK_INIT_NORMAL, .scale = 0.5 },
};
static const lk_parallel_state states[] = { { "mean", WIDTH, 0, 0.1F } };

typedef struct {
    int         damaged;  /* number of large messages whose receive changes a byte */
    bool        odd;      /* one byte of host 0 differs from the other hosts' byte */
    lk_status   status;   /* returned on all ranks */
    const char *told;     /* words of the note that names a rank; NULL: there is no note */
} plot;

/* State of the current plot; ranks are threads. */
static _Atomic int damages, notes;
static char        last_note[LKI_MESSAGE_BYTES];
static bool        silent;

lk_status __real_lk_recv(lk_comm *comm, void *recv, size_t bytes, uint32_t from);
lk_status __wrap_lk_recv(lk_comm *comm, void *recv, size_t bytes, uint32_t from);

lk_status __wrap_lk_recv(lk_comm *comm, void *recv, size_t bytes, uint32_t from)
{
    lk_status status = __real_lk_recv(comm, recv, bytes, from);
    if (bytes > PIECE && atomic_fetch_sub(&damages, 1) > 0)
        ((unsigned char *)recv)[bytes / 2] ^= 4;
    return status;
}

void __wrap_lki_launcher_note(int socket, const char *text);

void __wrap_lki_launcher_note(int socket, const char *text)
{
    (void)socket;
    atomic_fetch_add(&notes, 1);
    if (!silent)
        (void)snprintf(last_note, sizeof last_note, "%s", text);
}

static void fill(lk_parallel *parallel, bool forget)
{
    const uint32_t count = lk_optimizer_state_count(&parallel->optimizer);
    const size_t   all   = lki_stored_elements(parallel);
    for (uint32_t s = 0; s < count; s++)
        for (size_t i = 0; i < all; i++)
            parallel->optimizer_state[s][i] = forget ? 0 : (float)(i % 1013 + s);
    for (size_t i = 0; i < WIDTH; i++)
        parallel->running.values[i] = forget ? 7 : (float)i;
    for (size_t i = 0; i < all && forget; i++)
        parallel->params[i] = -1;
    for (size_t i = 0; i < parallel->layout->span_count && forget; i++)
        parallel->owned.hashes[i] = i;
}

static uint64_t hash_of(const lk_parallel *parallel)
{
    const size_t all       = lki_stored_elements(parallel) * sizeof(float);
    const size_t spans     = parallel->layout->span_count * sizeof(uint64_t);
    uint64_t     hashes[4] = { lki_xxh3(parallel->params, all),
                               lki_xxh3(parallel->running.values, WIDTH * sizeof(float)),
                               lki_xxh3(parallel->owned.hashes, spans) };
    for (uint32_t s = 0; s < lk_optimizer_state_count(&parallel->optimizer); s++)
        hashes[3] = 31 * hashes[3] + lki_xxh3(parallel->optimizer_state[s], all);
    return lki_xxh3(hashes, sizeof hashes);
}

/* Returns true if all ranks have equal state, except host 0's ranks if `odd` is set. */
static bool all_alike(const lk_parallel *parallel, const plot *p)
{
    uint64_t mine = hash_of(parallel), all[HOSTED_MAX];
    bool     alike = lk_all_gather(parallel->comm, &mine, all, sizeof mine) == LK_OK;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        alike = alike && ((p->odd && parallel->world.host_of[r] == 0)
                          || all[r] == all[parallel->ranks - 1]);
    return alike;
}

static bool restore_last_host(lk_comm *comm, void *context)
{
    const plot               *p       = context;
    const lk_parallel_options options = { .struct_size = sizeof(lk_parallel_options),
                                          .strategy = "ddp", .virtual_workers = 8, .seed = 3,
                                          .micro_count = 1, .optimizer = { .kind = LK_ADAMW,
                                          .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 },
                                          .states = states, .state_count = 1,
                                          .unused = LK_UNUSED_ZERO, .survives = true };
    bool         fresh[HOSTED_MAX] = { false };
    lk_parallel *parallel;

    if (lk_parallel_open(&parallel, comm, params, 2, &options) != LK_OK)
        return false;
    uint32_t last = parallel->world.hosts - 1, host = parallel->world.host_of[parallel->rank];
    fresh[last]   = true;
    if (parallel->local == 0)
        fill(parallel, host == last);
    if (parallel->local == 0 && host == 0 && p->odd)
        parallel->params[0] += 1;
    lk_status status = lki_join_copy(parallel, fresh);
    bool      good   = status == p->status && (status != LK_OK || all_alike(parallel, p));
    if (!good)
        print_message("rank %u: %s\n", parallel->rank, lk_error_last()->message);
    lk_parallel_free(parallel);
    return good;
}

static void all_is_copied(plot p, hosted h)
{
    atomic_store(&damages, p.damaged);
    atomic_store(&notes, 0);
    last_note[0] = '\0';
    silent       = p.damaged > 1; /* several ranks may report at the same time */
    assert_true(hosted_all(h, restore_last_host, &p));
    if (p.told == NULL)
        assert_int_equal(atomic_load(&notes), 0);
    else if (!silent && strstr(last_note, p.told) == NULL)
        fail_msg("'%s' is without '%s'", last_note, p.told);
    assert_int_equal(atomic_load(&notes) > 0, p.told != NULL);
}

static void a_joining_host_receives_every_byte(void **state)
{
    (void)state;
    all_is_copied((plot){ .status = LK_OK }, (hosted){ .hosts = 2, .each = 1 });
    all_is_copied((plot){ .status = LK_OK }, (hosted){ .hosts = 2, .each = 3, .fewer = 1 });
    all_is_copied((plot){ .status = LK_OK }, (hosted){ .hosts = 3, .each = 2, .fewer_first = 1 });
}

static void a_damaged_piece_is_received_from_another_host(void **state)
{
    (void)state;
    all_is_copied((plot){ .damaged = 1,
                          .told    = "got a damaged piece of the parameters (bytes 0 "
                                     "to 1048575) from rank 0" },
                  (hosted){ .hosts = 3, .each = 1 });
    all_is_copied((plot){ .damaged = 2, .told = "" }, (hosted){ .hosts = 3, .each = 2 });
}

static void a_host_with_other_bytes_is_detected(void **state)
{
    (void)state;
    all_is_copied((plot){ .odd = true, .told = "another host has other bytes" },
                  (hosted){ .hosts = 4, .each = 1 });
}

static void lasting_damage_fails(void **state)
{
    (void)state;
    all_is_copied((plot){ .damaged = 1000, .status = LK_ECORRUPT, .told = "" },
                  (hosted){ .hosts = 3, .each = 1 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_joining_host_receives_every_byte),
        cmocka_unit_test(a_damaged_piece_is_received_from_another_host),
        cmocka_unit_test(a_host_with_other_bytes_is_detected),
        cmocka_unit_test(lasting_damage_fails),
    };
    return cmocka_run_group_tests_name("parallel.recover.join_copy", tests, NULL, NULL);
}
