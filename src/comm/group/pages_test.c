/* pages_test.c -- after lk_comm_arena() returns, all pages of the arena are allocated on every
 * rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/mman.h>

#include "comm/world_testing.h"

enum { PAGE = 4096, HUGE_PAGE = 1 << 21 };

/* Sizes of arenas: less than a page per rank, odd sizes, and parts that end at huge pages or inside
 * them.  In the largest one several threads allocate a rank's part. */
static const size_t sizes[] = {
    1, PAGE, 7 * PAGE + 1, 3 * HUGE_PAGE, 7 * HUGE_PAGE + 3 * PAGE + 1, (size_t)48 << 20,
};

static bool pages_are_there(lk_comm *comm, void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t         count = (sizes[i] + PAGE - 1) / PAGE, there = 0;
        unsigned char *in    = malloc(count);
        lk_arena      *arena;
        CHECK(in != NULL && lk_comm_arena(&arena, comm, "pages", sizes[i]) == LK_OK);
        CHECK(mincore(lk_arena_data(arena), sizes[i], in) == 0);
        for (size_t p = 0; p < count; p++)
            there += in[p] & 1;
        free(in);
        CHECK(there == count);
        CHECK(lk_barrier(comm) == LK_OK); /* before this barrier no rank uses the arena */
    }
    return true;
}

static void all_pages_of_an_arena_are_allocated(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 3; size++)
        for (int threads = 0; threads <= 1; threads++)
            assert_true(world_all(size, threads, pages_are_there, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(all_pages_of_an_arena_are_allocated) };
    return cmocka_run_group_tests_name("comm.group.pages", tests, NULL, NULL);
}
