/* store_test.c -- tests that offloaded data is read back unchanged, by io_uring and by threads, and
 * that failures have reasons.
 *
 * Method: transfers in all slots at a time.  Buffers end at inaccessible memory, so a transfer is
 *         cut short there and fails when it is continued.  To simulate a kernel that forbids
 *         io_uring, io_uring_queue_init() is wrapped (store_test.wrap).
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/store.h"

enum { PIECE = 4 * LKI_STORE_ALIGN, PIECES = 3 * LKI_STORE_SLOTS };

static bool forbidden;

/* Weak, because a build without liburing does not define this function. */
int __real_io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
    __attribute__((weak));
int __wrap_io_uring_queue_init(unsigned entries, void *ring, unsigned flags);

int __wrap_io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
    return forbidden ? -EPERM : __real_io_uring_queue_init(entries, ring, flags);
}

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lockstep-store-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

/* Removes the folder, which is empty because files have no names. */
static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static lki_store *store_of(bool ring)
{
    lki_store *store = NULL;
    forbidden        = !ring;
    assert_int_equal(lki_store_open(&store, folder, (uint64_t)PIECES * PIECE), LK_OK);
    if (!ring)
        assert_int_equal(strncmp(lki_store_how(store), "threads", 7), 0);
    return store;
}

/* ---- Transfers that succeed ----------------------------------------------------------------- */

static uint8_t byte_of(uint32_t piece, size_t i)
{
    return (uint8_t)(i / 7 + piece * 31);
}

static void fill(uint8_t *bytes, uint32_t piece)
{
    for (size_t i = 0; i < PIECE; i++)
        bytes[i] = byte_of(piece, i);
}

static bool holds(const uint8_t *bytes, uint32_t piece)
{
    size_t i = 0;
    while (i < PIECE && bytes[i] == byte_of(piece, i))
        i++;
    return i == PIECE;
}

static void check_round_trip(bool ring)
{
    lki_store *store  = store_of(ring);
    uint8_t   *memory = NULL;
    assert_int_equal(posix_memalign((void **)&memory, LKI_STORE_ALIGN, LKI_STORE_SLOTS * PIECE), 0);
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t p = 0; p < PIECES + LKI_STORE_SLOTS; p++) {
            uint32_t slot   = p % LKI_STORE_SLOTS;
            uint8_t *buffer = memory + slot * PIECE;
            while (p % 3 == 0 && !lki_store_test(store, slot))
                (void)sched_yield(); /* polling also completes the transfer */
            assert_int_equal(lki_store_wait(store, slot), LK_OK);
            if (pass == 1 && p >= LKI_STORE_SLOTS)
                assert_true(holds(buffer, p - LKI_STORE_SLOTS));
            if (p >= PIECES)
                continue;
            if (pass == 0)
                fill(buffer, p);
            lki_store_start(store, slot, pass == 0, buffer, PIECE, (uint64_t)p * PIECE);
        }
    }
    lki_store_start(store, 0, false, memory, PIECE, 0); /* freeing waits for this transfer */
    lki_store_free(store);
    free(memory);
}

static void io_uring_reads_data_back_unchanged(void **state)
{
    (void)state;
    check_round_trip(true);
}

static void threads_read_data_back_unchanged(void **state)
{
    (void)state;
    check_round_trip(false);
}

/* ---- Transfers that fail -------------------------------------------------------------------- */

/* Starts transfers, one with a buffer that ends too early.  Checks that this transfer fails at the
 * end of its buffer, and that the other transfers succeed. */
static void a_failed_transfer_reports_its_reason(void **state)
{
    (void)state;
    uint8_t *memory = mmap(NULL, 2 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                           0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(mprotect(memory + PIECE, PIECE, PROT_NONE), 0);
    for (int i = 0; i < 4; i++) {
        bool        write = i % 2 == 0;
        lki_store  *store = store_of(i < 2);
        const char *says  = write ? "cannot write the file in '" : "cannot read the file in '";
        lki_store_start(store, 3, true, memory, PIECE, 2 * PIECE);
        assert_int_equal(lki_store_wait(store, 3), LK_OK);
        lki_store_start(store, 3, write, memory + PIECE - LKI_STORE_ALIGN, PIECE, PIECE);
        lki_store_start(store, 4, false, memory, PIECE, 2 * PIECE);
        assert_int_equal(lki_store_wait(store, 3), LK_EIO);
        const char *message = lk_error_last()->message;
        if (strstr(message, says) == NULL || strstr(message, folder) == NULL ||
            strstr(message, "Bad address") == NULL)
            fail_msg("%s", message);
        assert_int_equal(lki_store_wait(store, 4), LK_OK);
        assert_int_equal(lki_store_wait(store, 3), LK_OK); /* the failure was reported once */
        lki_store_free(store);
    }
    assert_int_equal(munmap(memory, 2 * PIECE), 0);
}

static void a_missing_directory_is_refused(void **state)
{
    (void)state;
    lki_store *store;
    char       path[512];
    assert_int_equal(lki_store_open(&store, "/nowhere", PIECE), LK_EIO);
    assert_null(store);
    assert_non_null(strstr(lk_error_last()->message, "'/nowhere': No such file or directory"));
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = '\0';
    assert_int_equal(lki_store_open(&store, path, PIECE), LK_EINVAL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(io_uring_reads_data_back_unchanged),
        CASE(threads_read_data_back_unchanged),
        CASE(a_failed_transfer_reports_its_reason),
        CASE(a_missing_directory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
