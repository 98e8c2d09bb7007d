/* huge_test.c -- counts beyond 2^31: a size inside a collective must not be an int.
 *
 * Goal:   more than INT_MAX elements arrive completely and in the right places, with every method
 *         (staged, direct, messages between hosts).
 * Method: two ranks as threads, elements of one byte.  Every byte depends on its position and its
 *         rank, and all bytes are checked.  Each case states the memory it needs.  A case is
 *         skipped if the machine, or a sanitizer, has less.
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/sanitized_testing.h"
#include "comm/hosted_testing.h"

static const size_t many = (size_t)INT_MAX + 100;

/* ---- Memory ------------------------------------------------------------------------------ */

/* Returns the available memory that /proc/meminfo reports, in GiB. */
static double available(void)
{
    char               line[128];
    unsigned long long kib  = 0;
    FILE              *file = fopen("/proc/meminfo", "re");

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (file != NULL)
        (void)fclose(file);
    return (double)kib / (1 << 20);
}

/* Skips a case unless LK_HUGE=1 is set.  Also skips it under sanitizers, or if it would leave less
 * than a third of the available memory to other processes. */
static void needs(const char *name, double gib)
{
    if (getenv("LK_HUGE") == NULL)
        print_message("skipped: %s: takes a minute; run ./dev check thorough, or set LK_HUGE=1\n",
                      name);
    else if (LKI_SANITIZED)
        print_message("skipped: %s: sanitizers need several times the memory\n", name);
    else if (available() < 1.5 * gib)
        print_message("skipped: %s: it needs %.1f GiB of memory with room to spare, and %.1f are "
                      "available\n", name, gib, available());
    else
        return;
    skip();
}

static unsigned char *map_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void give_back(unsigned char *memory, size_t bytes)
{
    (void)munmap(memory, bytes);
}

enum { BLOCK = 4096 };

/* Returns a value that depends on the rank and on the block of byte `i`.  The test adds it to byte
 * `i`. */
static unsigned char added(size_t i, uint32_t rank)
{
    return (unsigned char)((i / BLOCK) * 13 + (i >> 31) * 5 + rank * 3 + 1);
}

static unsigned char byte_at(size_t i, uint32_t rank)
{
    return (unsigned char)(i % BLOCK * 7 + added(i, rank));
}

static void fill(unsigned char *data, size_t n, uint32_t rank)
{
    for (size_t at = 0; at < n; at += BLOCK)
        for (size_t i = 0, end = lki_min(BLOCK, n - at), more = added(at, rank); i < end; i++)
            data[at + i] = (unsigned char)(i * 7 + more);
}

/* Checks bytes [first, first + n) of a vector.  Returns true if they are the bytes of `rank` or,
 * with `sum`, the sums of both ranks' bytes. */
static bool holds(const unsigned char *data, size_t first, size_t n, uint32_t rank, bool sum)
{
    unsigned char wrong = 0;
    for (size_t at = 0; at < n; at++) {
        size_t i = first + at;
        if (i % BLOCK != 0 || n - at < BLOCK) {
            wrong |= data[at] ^ (unsigned char)(byte_at(i, rank) + (sum ? byte_at(i, 1) : 0));
            continue;
        }
        unsigned char more  = (unsigned char)(added(i, rank) + (sum ? added(i, 1) : 0));
        unsigned char times = sum ? 14 : 7;
        for (size_t k = 0; k < BLOCK; k++)
            wrong |= data[at + k] ^ (unsigned char)(k * times + more);
        at += BLOCK - 1;
    }
    return wrong == 0;
}

/* ---- Cases ------------------------------------------------------------------------------- */

static bool all_reduce(lk_comm *comm, unsigned char *data, lk_dtype dtype)
{
    fill(data, many, lk_comm_rank(comm));
    CHECK(lk_all_reduce(comm, data, data, many, dtype, LK_SUM) == LK_OK);
    CHECK(holds(data, 0, many, 0, true));
    return true;
}

static bool broadcast(lk_comm *comm, unsigned char *data)
{
    if (lk_comm_rank(comm) == 1)
        fill(data, many, 1);
    CHECK(lk_broadcast(comm, data, many, 1) == LK_OK);
    CHECK(holds(data, 0, many, 1, false));
    return true;
}

static bool message(lk_comm *comm, unsigned char *data)
{
    uint32_t me = lk_comm_rank(comm);

    if (me == 0)
        fill(data, many, 0);
    if (me == 0)
        CHECK(lk_send(comm, data, many, 1) == LK_OK);
    else
        CHECK(lk_recv(comm, data, many, 0) == LK_OK);
    CHECK(holds(data, 0, many, 0, false));
    return true;
}

/* Divides into parts of very different sizes: 2 GiB for rank 0 and a few bytes for rank 1. */
static bool divide_unevenly(lk_comm *comm, unsigned char *all)
{
    size_t   sizes[2] = { many, 7 };
    uint32_t me       = lk_comm_rank(comm);

    fill(all, many + 7, me);
    CHECK(lk_reduce_scatter_v(comm, all, all + me * many, sizes, LK_I8, LK_SUM) == LK_OK);
    CHECK(holds(all + me * many, me * many, sizes[me], 0, true));
    CHECK(lk_all_gather_v(comm, all + me * many, all, sizes) == LK_OK);
    CHECK(holds(all, 0, many + 7, 0, true));
    return true;
}

static bool one_vector(lk_comm *comm, void *context)
{
    unsigned char *data = map_memory(many + 7);

    (void)context;
    CHECK(all_reduce(comm, data, LK_U8));
    CHECK(message(comm, data));
    if (comm->span == NULL)
        CHECK(broadcast(comm, data) && divide_unevenly(comm, data));
    give_back(data, many + 7);
    return true;
}

static bool in_an_arena(lk_comm *comm, void *context)
{
    lk_arena *arena;
    size_t    each = lki_round_up(many, LKI_LINE);

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "huge", 2 * each) == LK_OK);
    unsigned char *data = (unsigned char *)lk_arena_data(arena) + lk_comm_rank(comm) * each;
    CHECK(all_reduce(comm, data, LK_I8));
    CHECK(message(comm, data));
    return true;
}

static bool two_vectors(lk_comm *comm, void *context)
{
    uint32_t       me   = lk_comm_rank(comm);
    unsigned char *all  = map_memory(2 * many), *mine = all + me * many;

    (void)context;
    fill(all, 2 * many, me);
    CHECK(lk_reduce_scatter(comm, all, mine, many, LK_U8, LK_SUM) == LK_OK);
    CHECK(holds(mine, me * many, many, 0, true));
    CHECK(lk_all_gather(comm, mine, all, many) == LK_OK);
    CHECK(holds(all, 0, 2 * many, 0, true));
    give_back(all, 2 * many);
    return true;
}

static bool two_threads(world_main main)
{
    world w = { .size = 2, .threads = true, .timeout_ms = 120000, .victim = NOBODY };
    return world_run(w, main, NULL) == 3;
}

/* ---- The tests --------------------------------------------------------------------------- */

static void staging_moves_2_31_elements(void **state)
{
    (void)state;
    needs("2^31 elements in ordinary memory", 4.1);
    assert_true(two_threads(one_vector));
}

static void arenas_move_2_31_elements(void **state)
{
    (void)state;
    needs("2^31 elements in an arena", 4.1);
    assert_true(two_threads(in_an_arena));
}

static void each_rank_gathers_2_31_elements(void **state)
{
    (void)state;
    needs("2^31 elements for each rank", 8.1);
    assert_true(two_threads(two_vectors));
}

static void messages_move_2_31_elements(void **state)
{
    hosted h = { .hosts = 2, .each = 1, .timeout_ms = 120000 };
    (void)state;
    needs("2^31 elements between hosts", 4.4);
    assert_int_equal(hosted_run(h, one_vector, NULL), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(staging_moves_2_31_elements),
        cmocka_unit_test(arenas_move_2_31_elements),
        cmocka_unit_test(each_rank_gathers_2_31_elements),
        cmocka_unit_test(messages_move_2_31_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
