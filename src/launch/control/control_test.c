/* control_test.c -- tests arenas, the launcher's view of ranks, and the launcher's requests to
 * ranks.
 *
 * Goal:   arenas are zeroed, shared, created on all ranks or on none, and survive a refusal; the
 *         launcher's view of a rank is the state that the rank has recorded; a stop request
 *         arrives; invalid bytes on a socket are refused.
 * Method: ranks are threads or processes; in tests of the launcher's side one process plays both
 *         sides.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "launch/control/inside.h"
#include "comm/world_testing.h"

enum { SIZE = 3 };

/* ---- Arenas ------------------------------------------------------------------------------ */

static bool shares_memory(lk_comm *comm, void *context)
{
    uint32_t rank = lk_comm_rank(comm), size = lk_comm_size(comm);

    (void)context;
    for (uint32_t k = 1; k <= 5; k++) {
        size_t    words = k * 1001;
        lk_arena *arena;
        CHECK(lk_comm_arena(&arena, comm, "shared", words * 4) == LK_OK);
        CHECK(lk_arena_bytes(arena) == words * 4 && (uintptr_t)lk_arena_data(arena) % 64 == 0);
        uint32_t *data = lk_arena_data(arena);
        for (size_t i = 0; i < words; i++)
            CHECK(data[i] == 0);
        CHECK(lk_barrier(comm) == LK_OK);
        for (size_t i = rank; i < words; i += size)
            data[i] = (uint32_t)i + k;
        CHECK(lk_barrier(comm) == LK_OK);
        for (size_t i = 0; i < words; i++)
            CHECK(data[i] == i + k);
    }
    return true;
}

static bool survives_a_refusal(lk_comm *comm, void *context)
{
    lk_arena *arena;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "huge", (size_t)1 << 50) == LK_ENOMEM);
    CHECK(arena == NULL && strstr(lk_error_last()->message, "arena huge: ") != NULL);
    CHECK(strstr(lk_error_last()->message, "rank 0: ") != NULL);
    CHECK(lk_comm_arena(&arena, comm, "none", 0) == LK_EINVAL);
    return shares_memory(comm, NULL);
}

static bool compares_arenas(lk_comm *comm, void *context)
{
    lk_arena   *arena;
    const char *name  = lk_comm_rank(comm) == 1 ? "theirs" : "mine";
    size_t      bytes = *(bool *)context && lk_comm_rank(comm) == 1 ? 1000 : 2000;

    CHECK(lk_comm_arena(&arena, comm, *(bool *)context ? "same" : name, bytes) == LK_EMISMATCH);
    return arena == NULL;
}

static void arenas_are_shared(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= SIZE; size++)
        for (int threads = 0; threads < 2; threads++) {
            assert_true(world_all(size, threads == 1, shares_memory, NULL));
            assert_true(world_all(size, threads == 1, survives_a_refusal, NULL));
        }
}

static void ranks_must_agree_on_an_arena(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        bool other_size = k / 2 == 1;
        assert_true(world_all(SIZE, k % 2 == 1, compares_arenas, &other_size));
    }
}

/* ---- The launcher's side ----------------------------------------------------------------- */

static void the_view_shows_the_recorded_state(void **state)
{
    lki_control  *control;
    lki_rank_view view;
    lk_comm      *comm;

    (void)state;
    assert_int_equal(lki_control_create(&control, lki_roster_alone(1)), LK_OK);
    lki_control_view(control, 0, &view);
    assert_int_equal(view.state, LKI_RANK_ABSENT);
    assert_int_equal(lki_comm_open_shm(&comm, lki_control_fd(control), 0, -1, NULL), LK_OK);
    lk_comm_note(comm, 41, "a phase with a name that is far longer than the sixty-three bytes "
                           "that there are");
    assert_int_equal(lk_barrier(comm), LK_OK);
    lki_control_view(control, 0, &view);
    assert_int_equal(view.state, LKI_RANK_RUNNING);
    assert_int_equal(view.pid, getpid());
    assert_int_equal(view.step, 41);
    assert_int_equal(strlen(view.phase), LKI_PHASE_BYTES - 1);
    assert_string_equal(view.operation, "barrier #0");
    assert_null(lki_control_failure(control));

    assert_false(lki_comm_stop_requested(comm));
    lki_control_request_stop(control);
    assert_true(lki_comm_stop_requested(comm));

    assert_int_equal(lk_fail(LK_EIO, "the disk is full"), LK_EIO);
    lk_comm_abort(comm);
    const lki_failure *f = lki_control_failure(control);
    assert_non_null(f);
    assert_int_equal(f->culprit, 0);
    assert_int_equal(f->verdict, LK_EPEER);
    assert_non_null(strstr(f->text, "gave up at step 41 in "));
    assert_non_null(strstr(f->text, ": the disk is full"));
    lki_control_view(control, 0, &view);
    assert_int_equal(view.state, LKI_RANK_FAILED);
    assert_int_equal(view.status, LK_EIO);
    assert_string_equal(view.message, "the disk is full");
    lk_comm_free(comm);
    lki_control_free(control);
}

/* Checks that a launcher can read the whole text of a rank's error.  Other ranks report a shortened
 * text, because their text also names the rank that gave up. */
static void a_long_error_is_not_cut(void **state)
{
    lki_control  *control;
    lki_rank_view view;
    lk_comm      *comm;
    char          text[LKI_MESSAGE_BYTES];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(lki_control_create(&control, lki_roster_alone(1)), LK_OK);
    assert_int_equal(lki_comm_open_shm(&comm, lki_control_fd(control), 0, -1, NULL), LK_OK);
    assert_int_equal(lk_fail(LK_EIO, "%s", text), LK_EIO);
    lk_comm_abort(comm);
    lki_control_view(control, 0, &view);
    assert_string_equal(view.message, text);
    assert_int_equal(lk_barrier(comm), LK_EPEER);
    assert_non_null(strstr(lk_error_last()->message, "gave up before its first step: xxx"));
    assert_int_equal(strlen(lk_error_last()->message), LKI_MESSAGE_BYTES - 1);
    lk_comm_free(comm);
    lki_control_free(control);
}

static void the_first_failure_is_kept(void **state)
{
    lki_control  *control;
    lki_rank_view view;

    (void)state;
    assert_int_equal(lki_control_create(&control, lki_roster_alone(SIZE)), LK_OK);
    lki_control_started(control, 2, 77);
    assert_false(lki_control_ended(control, 0, 0, 0));
    assert_null(lki_control_failure(control));
    assert_true(lki_control_ended(control, 2, 0, SIGSEGV));
    assert_true(lki_control_ended(control, 1, 3, 0));
    const lki_failure *f = lki_control_failure(control);
    assert_non_null(f);
    assert_int_equal(f->culprit, 2);
    assert_int_equal(f->verdict, LK_EPEER);
    assert_string_equal(f->text, "rank 2 (pid 77) was killed by SIGSEGV before its first step");
    lki_control_view(control, 1, &view);
    assert_int_equal(view.state, LKI_RANK_DEAD);
    assert_int_equal(view.exit_code, 3);
    lki_control_free(control);
}

static void strangers_are_refused(void **state)
{
    lki_control *control;
    lk_comm     *comm;
    int          worker, launcher;
    bool         open;

    (void)state;
    assert_int_equal(lki_control_create(&control, lki_roster_alone(0)), LK_EINVAL);
    assert_int_equal(lki_control_create(&control, lki_roster_alone(SIZE)), LK_OK);
    assert_int_equal(lki_comm_open_shm(&comm, lki_control_fd(control), SIZE, -1, NULL), LK_EINVAL);
    assert_int_equal(lki_control_socket(control, 0, &worker, &launcher), LK_OK);
    assert_int_equal(lki_control_serve(control, 0, &open), LK_OK); /* nothing has arrived */
    assert_true(open);
    assert_int_equal(send(worker, "hello", 5, 0), 5);
    assert_int_equal(lki_control_serve(control, 0, &open), LK_EFORMAT);
    (void)close(worker);
    assert_int_equal(lki_control_serve(control, 0, &open), LK_OK);
    assert_false(open);
    lki_control_free(control);

    int other = memfd_create("other", MFD_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(lki_comm_open_shm(&comm, other, 0, -1, NULL), LK_EFORMAT);
    assert_int_equal(ftruncate(other, 1 << 20), 0);
    assert_int_equal(lki_comm_open_shm(&comm, other, 0, -1, NULL), LK_EFORMAT);
    assert_null(comm);
    (void)close(other);
}

/* Joins as one of two ranks, while the other rank never joins.  Expects that the deadline ends the
 * wait. */
static void joining_alone_times_out(void **state)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 100 };
    lki_control    *control;
    lk_comm        *comm;

    (void)state;
    assert_int_equal(lki_control_create(&control, lki_roster_alone(2)), LK_OK);
    assert_int_equal(lki_comm_open_shm(&comm, lki_control_fd(control), 0, -1, &options),
                     LK_ETIMEOUT);
    assert_non_null(strstr(lk_error_last()->message, "rank 1 (pid 0, never joined"));
    assert_null(comm);
    lki_control_free(control);
}

/* Joins as a worker of host b, which has ranks 1 and 2 of four.  This process is rank 1.  A child
 * process joins as rank 2 and waits. */
static void joins_from_host_b(lki_control *control, int socket)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = WORLD_PATIENCE_MS };
    lk_comm        *comm;
    bool            good = lki_comm_open_shm(&comm, lki_control_fd(control), 2, socket, &options)
                == LK_OK && lki_comm_introduce(comm, "10.0.0.2:22") == LK_OK;

    for (uint32_t rank = 0; rank < 4 && good; rank++) {
        static const char *const wanted[] = { "10.0.0.1:11", "10.0.0.2:12", "10.0.0.2:22",
                                              "10.0.0.3:33" };
        good = strcmp(lki_comm_address(comm, rank), wanted[rank]) == 0;
    }
    good = good && lk_barrier(comm) == LK_EPEER;
    if (strcmp(lk_error_last()->message, "rank 3 (host c, pid 303) is gone") == 0)
        _exit(!good);
    fprintf(stderr, "%s\n", lk_error_last()->message);
    _exit(1);
}

static void serve_nudges(lki_control *control, uint32_t rank)
{
    bool open = true;
    assert_int_equal(lki_control_serve(control, rank, &open), LK_OK);
    assert_true(open);
}

static void both_sides_get_their_hosts(const lki_board *board)
{
    char text[LKI_MESSAGE_BYTES] = "rank 0 is in barrier #4; rank 3 is in gather #4 (to rank 2)";
    char full[LKI_MESSAGE_BYTES] = "rank 0 is in ";

    for (int i = 0; i < 2; i++) { /* the addresses are available only at the second try */
        lki_board_name_hosts(text, board);
        assert_string_equal(text, "rank 0 (host a, pid 101) is in barrier #4; "
                                  "rank 3 (host c, pid 303) is in gather #4 (to rank 2)");
    }
    memset(full + strlen(full), 'x', sizeof full - 1 - strlen(full));
    lki_board_name_hosts(full, board);
    assert_int_equal(strncmp(full, "rank 0 is in xxx", 16), 0);
    assert_int_equal(strlen(full), sizeof full - 1);
    (void)snprintf(text, sizeof text, "%s", "split #4: rank 3 sends 1 bytes to rank 0");
    lki_board_name_hosts(text, board);
    assert_string_equal(text, "split #4: rank 3 (host c, pid 303) sends 1 bytes to rank 0");
}

static void ranks_of_other_hosts_are_introduced(void **state)
{
    const struct timespec moment  = { .tv_nsec = 1000000 };
    lk_comm_options       options = { .struct_size = sizeof(lk_comm_options),
                                      .timeout_ms  = WORLD_PATIENCE_MS };
    lki_control          *control;
    lki_rank_view         view;
    lk_comm              *comm;
    char                  address[LKI_ADDRESS_BYTES], who[LKI_WHO_BYTES];
    int                   ends[2][2], status = 1;

    (void)state;
    assert_int_equal(lki_control_create(&control, (lki_roster){ 4, 1, 2 }), LK_OK);
    lki_control_name_host(control, 0, 0, 1, "a");
    lki_control_name_host(control, 1, 1, 2, "b");
    lki_control_name_host(control, 2, 3, 1, "c");
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(lki_control_socket(control, 1 + i, &ends[i][0], &ends[i][1]), LK_OK);
    pid_t child = fork();
    if (child == 0)
        joins_from_host_b(control, ends[1][0]);
    (void)close(ends[1][0]);
    assert_int_equal(lki_comm_open_shm(&comm, lki_control_fd(control), 1, ends[0][0], &options),
                     LK_OK);
    lki_control_introduce(control, 0, 101, "10.0.0.1:11");
    lki_control_introduce(control, 3, 303, "10.0.0.3:33");
    lki_control_who(control, 3, who);
    assert_string_equal(who, "rank 3 (host c, pid 303)");
    while (!lki_control_address(control, 2, address)) /* rank 2 publishes its address before it
                                                       * waits */
        (void)nanosleep(&moment, NULL);
    assert_string_equal(address, "10.0.0.2:22");
    assert_false(lki_control_address(control, 1, address));
    both_sides_get_their_hosts(comm->board);
    assert_int_equal(lki_comm_introduce(comm, "10.0.0.2:12"), LK_OK);
    serve_nudges(control, 1);
    serve_nudges(control, 2);

    lki_control_ended_there(control, 0, 0, 0);
    lki_control_view(control, 0, &view);
    assert_int_equal(view.state, LKI_RANK_LEFT);
    assert_int_equal(view.pid, 101);
    do { /* until rank 2 knows all addresses and has continued */
        (void)nanosleep(&moment, NULL);
        lki_control_view(control, 2, &view);
    } while (strcmp(view.operation, "barrier #0") != 0);
    lki_control_condemn(control, 3, LK_EPEER, "rank 3 (host c, pid 303) is gone");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(lk_barrier(comm), LK_EPEER);
    assert_string_equal(lk_error_last()->message, "rank 3 (host c, pid 303) is gone");
    serve_nudges(control, 1);
    lk_comm_free(comm);
    lki_control_free(control);
}

/* Rebuilds the group for the next epoch with `members`, a bit mask of ranks. */
static void make_anew(lki_control *control, uint64_t members)
{
    const lki_members bits = { { members } };
    assert_int_equal(lki_control_rebuild(control, &bits), LK_OK);
}

/* Checks that rank `rank` has the loss text `how`, set in epoch `epoch`. */
static void assert_lost(const lki_control *control, uint32_t rank, uint64_t epoch, const char *how)
{
    const lki_rank *record = &control->board->ranks[rank];
    char            loss[LKI_LOSS_BYTES];

    assert_int_equal(atomic_load(&record->lost), 1 + epoch);
    assert_string_equal(record->loss, how);
    lki_control_loss(control, rank, loss);
    assert_string_equal(loss, epoch == lki_control_epoch(control) ? how : "");
}

/* Checks that a loss text remains until the rank is lost again, even after a new process has
 * replaced the lost one.  Checks that a rank outside the group gets no loss text. */
static void the_text_of_a_loss_is_kept(void **state)
{
    lki_control *control;

    (void)state;
    assert_int_equal(lki_control_create(&control, lki_roster_alone(3)), LK_OK);
    lki_control_lose(control, 1, "rank 1 (pid 5) was killed");
    lki_control_lose(control, 1, "rank 1 (pid 5) is gone");
    (void)lki_control_ended(control, 1, 0, SIGKILL);
    lki_control_lose(control, 2, "rank 2 (pid 6) was killed, though others count on it");
    make_anew(control, 1 << 0 | 1 << 2);
    lki_control_revive(control, 1);
    lki_control_lose(control, 1, "rank 1 (pid 7) never was in it");
    assert_lost(control, 1, 0, "rank 1 (pid 5) was killed");
    assert_lost(control, 2, 1, "rank 2 (pid 6) was killed, though others count on it");
    make_anew(control, 1 << 0 | 1 << 1);
    assert_lost(control, 1, 0, "rank 1 (pid 5) was killed");
    assert_lost(control, 2, 1, "rank 2 (pid 6) was killed, though others count on it");
    lki_control_lose(control, 1, "rank 1 (pid 7) was killed");
    assert_lost(control, 1, 2, "rank 1 (pid 7) was killed");
    lki_control_free(control);
}

/* Introduces all ranks except 0 and 2.  Expects that these two ranks are named. */
static void unreachable_ranks_are_named(void **state)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 100 };
    lki_control    *control;
    lk_comm        *comm;

    (void)state;
    assert_int_equal(lki_control_create(&control, (lki_roster){ 3, 1, 1 }), LK_OK);
    lki_control_name_host(control, 0, 0, 3, "far");
    assert_int_equal(lki_comm_open_shm(&comm, lki_control_fd(control), 1, -1, &options), LK_OK);
    assert_int_equal(lki_comm_introduce(comm, "10.0.0.2:12"), LK_ETIMEOUT);
    assert_non_null(strstr(lk_error_last()->message, "to learn where rank 0 (host far) and 1 other "
                                                     "can be reached"));
    lk_comm_free(comm);
    lki_control_free(control);
}

/* Opens arenas as under MPI, where no launcher passes descriptors on.  Checks that a word written
 * by the other rank is visible, in the group and in a split group whose rank 0 is a different
 * process. */
static bool shares_without_a_launcher(lki_control *control, uint32_t rank)
{
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = WORLD_PATIENCE_MS };
    lk_comm        *groups[2]; /* the second group has the ranks in reverse order */
    lk_arena       *arena;
    bool            good = true;

    if (lki_comm_open_shm(&groups[0], lki_control_fd(control), rank, -1, &options) != LK_OK ||
        lk_comm_split(&groups[1], groups[0], 0, 1 - rank) != LK_OK)
        return false;
    for (int i = 0; i < 2 && good; i++) {
        if (lk_comm_arena(&arena, groups[i], "words", 4096) != LK_OK)
            return false;
        uint32_t *words = lk_arena_data(arena);
        words[rank]     = rank + 7;
        good = lk_barrier(groups[i]) == LK_OK && words[0] == 7 && words[1] == 8;
    }
    lk_comm_free(groups[1]);
    lk_comm_free(groups[0]);
    return good;
}

static void arenas_work_without_a_launcher(void **state)
{
    lki_control *control;
    pid_t        children[2];

    (void)state;
    assert_int_equal(lki_control_create(&control, lki_roster_alone(2)), LK_OK);
    for (uint32_t rank = 0; rank < 2; rank++) {
        children[rank] = fork();
        if (children[rank] != 0)
            continue;
        bool good = shares_without_a_launcher(control, rank);
        if (!good)
            fprintf(stderr, "rank %u: %s\n", rank, lk_error_last()->message);
        _exit(!good);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        int status = 1;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        assert_int_equal(status, 0);
    }
    lki_control_free(control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas_are_shared),
        cmocka_unit_test(ranks_must_agree_on_an_arena),
        cmocka_unit_test(the_view_shows_the_recorded_state),
        cmocka_unit_test(a_long_error_is_not_cut),
        cmocka_unit_test(the_first_failure_is_kept),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(joining_alone_times_out),
        cmocka_unit_test(ranks_of_other_hosts_are_introduced),
        cmocka_unit_test(the_text_of_a_loss_is_kept),
        cmocka_unit_test(unreachable_ranks_are_named),
        cmocka_unit_test(arenas_work_without_a_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
