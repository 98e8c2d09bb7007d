/* flight_test.c -- flight recorder files: writing, reading, and findings.
 *
 * Goal:   the reader returns operations of all kinds with their groups, fates and arrivals.  It
 *         reports truncated and changed files, and returns their undamaged entries.  It names the
 *         ranks that are missing, dead or late, or that disagree.
 * Method: threads record operations of several groups.  Other tests damage small recorded files
 *         byte by byte.  Tests of times construct their files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "comm/world_testing.h"
#include "flight/flight.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lockstep-flight-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    char command[96];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* ---- Recording --------------------------------------------------------------------------- */

typedef bool (*recorded_main)(lk_comm *comm, void *context);

static void run_recorded(uint32_t size, recorded_main main, void *context)
{
    lk_comm        *comms[WORLD_MAX];
    world_thread    ranks[WORLD_MAX];
    pthread_t       threads[WORLD_MAX];
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms = WORLD_PATIENCE_MS, .flight = folder };

    assert_int_equal(lk_comm_open_threads(comms, size, &options), LK_OK);
    for (uint32_t rank = 0; rank < size; rank++) {
        ranks[rank] = (world_thread){ comms[rank], main, context, false };
        assert_int_equal(pthread_create(&threads[rank], NULL, world_thread_main, &ranks[rank]), 0);
    }
    for (uint32_t rank = 0; rank < size; rank++)
        (void)pthread_join(threads[rank], NULL);
    for (uint32_t rank = 0; rank < size; rank++)
        assert_true(ranks[rank].satisfied);
}

static lk_flight *open_flight(void)
{
    lk_flight *flight;
    if (lk_flight_open(&flight, folder) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return flight;
}

static const lk_flight_operation *operation_named(const lk_flight *flight, const char *name)
{
    const lk_flight_operation *op;
    for (size_t i = 0; (op = lk_flight_operation_at(flight, i)) != NULL; i++)
        if (strcmp(op->operation, name) == 0)
            return op;
    for (size_t i = 0; (op = lk_flight_operation_at(flight, i)) != NULL; i++)
        print_message("%s\n", op->operation);
    fail_msg("there is no operation %s", name);
    return NULL;
}

/* Returns the finding of this kind whose text contains all of `words`. */
static const lk_flight_finding *finding_with(const lk_flight *flight, lk_flight_finding_kind kind,
                                             const char *words)
{
    const lk_flight_finding *found;
    for (size_t i = 0; (found = lk_flight_finding_at(flight, i)) != NULL; i++)
        if (found->kind == kind && strstr(found->text, words) != NULL)
            return found;
    for (size_t i = 0; (found = lk_flight_finding_at(flight, i)) != NULL; i++)
        print_message("%s: %s\n", lk_flight_finding_name(found->kind), found->text);
    fail_msg("no %s with '%s'", lk_flight_finding_name(kind), words);
    return NULL;
}

static bool all_kinds(lk_comm *comm, void *context)
{
    uint32_t    rank      = lk_comm_rank(comm);
    float       data[200] = { 0 };
    char        word[8]   = "", all[3 * 8];
    lk_comm    *pair;
    lk_request *request;

    (void)context;
    lk_comm_note(comm, 7, "forward");
    CHECK(lk_barrier(comm) == LK_OK);
    CHECK(lk_all_reduce(comm, data, data, 3, LK_F32, LK_SUM) == LK_OK);
    CHECK(lk_all_reduce(comm, data, data, 200, LK_F32, LK_MAX) == LK_OK);
    lk_comm_note(comm, 8, NULL);
    CHECK(lk_all_gather(comm, word, all, 8) == LK_OK);
    CHECK(lk_comm_split(&pair, comm, rank == 0 ? LK_NO_COLOR : 5, 0) == LK_OK);
    if (rank == 1)
        CHECK(lk_send(pair, word, 8, 1) == LK_OK);
    if (rank == 2)
        CHECK(lk_recv(pair, word, 8, 0) == LK_OK);
    if (pair != NULL)
        CHECK(lk_broadcast(pair, word, 8, 1) == LK_OK);
    lk_comm_free(pair);
    CHECK(lk_barrier_start(&request, comm) == LK_OK);
    if (rank != 1) /* rank 1 leaves without waiting, because no rank needs it any more */
        CHECK(lk_request_wait(request) == LK_OK);
    lk_request_free(request);
    return true;
}

static void records_all_kinds(void **state)
{
    (void)state;
    run_recorded(3, all_kinds, NULL);
    lk_flight                 *flight = open_flight();
    const lk_flight_operation *op = operation_named(flight, "all_reduce #1 (F32 sum, 3 elements)");
    assert_int_equal(op->bytes, 12);
    assert_int_equal(op->visit_count, 3);
    assert_int_equal(op->absent_count + op->unknown_count, 0);
    assert_true(op->first_ns > 0 && op->last_ns >= op->first_ns && op->ended_ns >= op->last_ns);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(op->visits[i].rank, i);
        assert_int_equal(op->visits[i].fate, LK_FLIGHT_COMPLETE);
        assert_int_equal(op->visits[i].step, 7);
        assert_true(op->visits[i].met_ns >= op->last_ns);
        assert_true(op->visits[i].ended_ns >= op->visits[i].met_ns);
    }
    op = operation_named(flight, "all_gather #3 (8 bytes)");
    assert_int_equal(op->visits[2].step, 8);
    op = operation_named(flight, "send #0 (8 bytes from rank 1 to rank 2)");
    assert_int_equal(op->visit_count, 2);
    assert_int_equal(op->visits[0].rank, 1);
    assert_int_equal(op->visits[1].rank, 2);
    assert_int_equal(op->visits[1].fate, LK_FLIGHT_COMPLETE);
    op = operation_named(flight, "broadcast #0 (8 bytes from rank 1) in a group of 2 with rank 1");
    assert_int_equal(op->visit_count, 2);
    assert_int_equal(op->group_size, 2);
    assert_int_equal(op->absent_count + op->unknown_count, 0);
    lk_flight_free(flight);
}

static void the_final_state_of_ranks_is_recorded(void **state)
{
    (void)state;
    run_recorded(3, all_kinds, NULL);
    lk_flight *flight = open_flight();
    for (uint32_t i = 0; i < 3; i++) {
        const lk_flight_rank *rank = lk_flight_rank_at(flight, i);
        assert_int_equal(rank->state, LK_FLIGHT_LEFT);
        assert_string_equal(rank->problem, "");
        assert_true(rank->noted && rank->step == 8 && rank->phase[0] == '\0');
        assert_int_equal(rank->pid, getpid());
        assert_int_equal(rank->lost, 0);
    }
    assert_null(lk_flight_rank_at(flight, 3));
    const lk_flight_place *place;
    uint32_t               groups = 0;
    for (size_t i = 0; (place = lk_flight_place_at(flight, i)) != NULL; i++) {
        assert_int_equal(place->open_count, 0);
        assert_int_equal(place->group_size, i < 3 ? 3 : 2);
        groups++;
    }
    assert_int_equal(groups, 5);
    assert_null(lk_flight_finding_at(flight, 0));
    lk_flight_free(flight);
}

static bool many(lk_comm *comm, void *context)
{
    (void)context;
    for (int i = 0; i < LKI_FLIGHT_ENTRIES + 100; i++)
        CHECK(lk_barrier(comm) == LK_OK);
    return true;
}

static void the_oldest_entries_are_overwritten(void **state)
{
    (void)state;
    run_recorded(2, many, NULL);
    lk_flight *flight = open_flight();
    assert_int_equal(lk_flight_rank_at(flight, 0)->entries, LKI_FLIGHT_ENTRIES);
    assert_int_equal(lk_flight_rank_at(flight, 1)->lost, 100);
    assert_int_equal(lk_flight_operation_count(flight), LKI_FLIGHT_ENTRIES);
    assert_string_equal(lk_flight_operation_at(flight, 0)->operation, "barrier #100");
    lk_flight_free(flight);
}

static bool disagree(lk_comm *comm, void *context)
{
    float x = 0;
    (void)context;
    CHECK(lk_barrier(comm) == LK_OK);
    lk_status st = lk_comm_rank(comm) == 1 ? lk_barrier(comm)
                                           : lk_all_reduce(comm, &x, &x, 1, LK_F32, LK_SUM);
    CHECK(st == LK_EMISMATCH);
    return true;
}

static void disagreeing_ranks_are_named(void **state)
{
    (void)state;
    run_recorded(3, disagree, NULL);
    lk_flight *flight = open_flight();
    (void)finding_with(flight, LK_FLIGHT_MISMATCH,
                       "rank 1 is in barrier #1; rank 0 is in all_reduce #1 (F32 sum, 1 elements)");
    (void)finding_with(flight, LK_FLIGHT_FAILURE, "ranks 0 to 2 failed: rank ");
    assert_int_equal(lk_flight_rank_at(flight, 0)->state, LK_FLIGHT_FAILED);
    lk_flight_free(flight);
}

static bool gives_up(lk_comm *comm, void *context)
{
    lk_request *request;
    float       data[1000] = { 0 };
    (void)context;
    if (lk_comm_rank(comm) == 0) {
        CHECK(lk_all_reduce_start(&request, comm, data, data, 1000, LK_F32, LK_SUM) == LK_OK);
        lk_request_free(request);
        return true;
    }
    CHECK(lk_all_reduce(comm, data, data, 1000, LK_F32, LK_SUM) == LK_EPEER);
    return true;
}

static void freed_requests_are_reported(void **state)
{
    (void)state;
    run_recorded(2, gives_up, NULL);
    lk_flight                 *flight = open_flight();
    const lk_flight_operation *op     = operation_named(flight,
                                                        "all_reduce #0 (F32 sum, 1000 elements)");
    assert_int_equal(op->visits[0].fate, LK_FLIGHT_FREED);
    (void)finding_with(flight, LK_FLIGHT_FAILURE, "rank 0 freed its request of all_reduce #0");
    lk_flight_free(flight);
}

/* Checks that files of a previous job in the directory are removed. */
static void clears_the_directory(void **state)
{
    (void)state;
    run_recorded(3, all_kinds, NULL);
    run_recorded(2, many, NULL);
    lk_flight *flight = open_flight();
    assert_non_null(lk_flight_rank_at(flight, 1));
    assert_null(lk_flight_rank_at(flight, 2));
    lk_flight_free(flight);
}

static void a_path_that_is_no_directory_is_refused(void **state)
{
    lk_comm        *comms[2];
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options), .flight = "/proc/version" };
    lk_flight      *flight;
    (void)state;
    assert_int_equal(lk_comm_open_threads(comms, 2, &options), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "/proc/version"));
    assert_int_equal(lk_flight_open(&flight, "/nowhere"), LK_EIO);
    assert_int_equal(lk_flight_open(&flight, "/proc/self"), LK_EFORMAT);
    assert_null(flight);
}

/* ---- Damage ------------------------------------------------------------------------------ */

enum { FEW = 8, IMAGE_MAX = 1 << 20 };

typedef struct {
    unsigned char data[IMAGE_MAX];
    size_t        bytes;
} image;

static image made;

static lki_flight_entry *entry_at(image *i, uint32_t place)
{
    size_t at = lki_flight_bytes(LKI_FLIGHT_GROUPS, 0) + place * sizeof(lki_flight_entry);
    return (lki_flight_entry *)(void *)(i->data + at);
}

/* Writes the file of a rank with `notes` notes in a ring of FEW entries. */
static void record(uint32_t notes)
{
    lki_flight *flight;
    char        path[96];
    assert_int_equal(lki_flight_open(&flight, folder, 0, 1, FEW), LK_OK);
    for (uint32_t i = 0; i < notes; i++)
        lki_flight_write_note(flight, i, "phase");
    lki_flight_failed(flight, LK_EPEER, "a reason");
    lki_flight_close(flight);
    (void)snprintf(path, sizeof path, "%s/rank-0.flight", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    made.bytes = fread(made.data, 1, sizeof made.data, file);
    (void)fclose(file);
    assert_int_equal(made.bytes, lki_flight_bytes(LKI_FLIGHT_GROUPS, FEW));
}

static lki_flight_file parse(size_t bytes)
{
    lki_flight_file file;
    void           *copy = malloc(bytes + 1); /* exact size, so that a sanitizer detects reads
                                               * beyond it */
    assert_non_null(copy);
    memcpy(copy, made.data, bytes);
    assert_int_equal(lki_flight_parse(&file, "rank-0.flight", copy, bytes), LK_OK);
    free(copy);
    return file;
}

static void intact_files_are_read(void **state)
{
    (void)state;
    for (uint32_t notes = 0; notes < 3 * FEW; notes++) {
        record(notes);
        lki_flight_file file = parse(made.bytes);
        assert_true(file.readable);
        assert_string_equal(file.problem, "");
        assert_int_equal(file.entry_count, notes < FEW ? notes : FEW);
        assert_int_equal(file.lost, notes < FEW ? 0 : notes - FEW);
        assert_string_equal(file.header.failure.text, "a reason");
        if (notes > 0)
            assert_int_equal(file.place.step, notes - 1);
        lki_flight_file_deinit(&file);
    }
}

/* Checks that an incomplete entry is accepted at the writer's position, but not at another
 * position. */
static void an_unfinished_entry_is_no_damage(void **state)
{
    (void)state;
    for (uint32_t notes = 1; notes < 2 * FEW; notes++)
        for (uint32_t place = 0; place < FEW; place++) {
            record(notes);
            entry_at(&made, place)->seal = 0;
            entry_at(&made, place)->kind = LKI_FLIGHT_NOTE;
            entry_at(&made, place)->at   = 1;
            lki_flight_file file         = parse(made.bytes);
            assert_int_equal(file.problem[0] == '\0',
                             place == notes % FEW || place == (notes - 1) % FEW);
            if (file.problem[0] != '\0')
                assert_non_null(strstr(file.problem, "1 of its entries are damaged"));
            lki_flight_file_deinit(&file);
        }
}

static void truncated_files_are_reported(void **state)
{
    (void)state;
    record(FEW + 3);
    for (size_t bytes = 0; bytes < made.bytes; bytes += bytes % 7 + 1) {
        lki_flight_file file = parse(bytes);
        assert_string_not_equal(file.problem, "");
        assert_int_equal(file.readable, bytes >= sizeof(lki_flight_header));
        lki_flight_file_deinit(&file);
    }
}

/* Returns true if a change of the byte at `at` need not be reported.  Such a byte has no seal, or
 * belongs to an entry that may be incomplete. */
static bool may_differ(size_t at)
{
    size_t entries = lki_flight_bytes(LKI_FLIGHT_GROUPS, 0),
           left    = offsetof(lki_flight_header, left);
    size_t place   = (at - entries) / sizeof(lki_flight_entry);
    size_t byte    = (at - entries) % sizeof(lki_flight_entry);
    if (at < entries)
        return (at >= left && at < left + 8) ||
               (at >= offsetof(lki_flight_header, places) && at < sizeof(lki_flight_header));
    return byte >= offsetof(lki_flight_entry, met) || place == 0 || place == FEW - 1;
}

static void changed_bytes_are_reported(void **state)
{
    (void)state;
    record(FEW);
    for (size_t at = 0; at < made.bytes; at++) {
        made.data[at] ^= 0x40;
        lki_flight_file file = parse(made.bytes);
        if (file.problem[0] == '\0' && !may_differ(at) &&
            (at < sizeof(lki_flight_header) || at >= lki_flight_bytes(LKI_FLIGHT_GROUPS, 0)))
            fail_msg("byte %zu was changed, and nobody has noticed", at);
        lki_flight_file_deinit(&file);
        made.data[at] ^= 0x40;
    }
}

/* ---- Findings ---------------------------------------------------------------------------- */

/* Returns a time for constructed files: `ms` after 1000 s. */
static int64_t at_ms(int64_t ms)
{
    return (1000000 + ms) * 1000000;
}

static lki_flight_file *begin_files(uint32_t size)
{
    lki_flight_file *files = NULL;
    assert_int_equal(LKI_NEW(&files, size, "files"), LK_OK);
    for (uint32_t rank = 0; rank < size; rank++) {
        lki_flight_file *f = &files[rank];
        (void)snprintf(f->name, sizeof f->name, "rank-%u.flight", rank);
        f->readable      = true;
        f->header.rank   = rank;
        f->header.world  = size;
        f->header.pid    = 100 + (int32_t)rank;
        f->header.opened = at_ms(0);
        f->here          = true;
        f->process       = 'S';
        f->group_count   = 1;
        assert_int_equal(LKI_NEW(&f->groups, 1, "groups"), LK_OK);
        f->groups[0]            = (lki_flight_group){ .id = 9, .size = size, .rank = rank };
        f->groups[0].members[0] = (UINT64_C(1) << size) - 1;
        assert_int_equal(LKI_NEW(&f->entries, 1000, "entries"), LK_OK);
    }
    return files;
}

static void enter(lki_flight_file *f, uint64_t seq, int64_t began, int64_t ended)
{
    lki_flight_entry *e = &f->entries[f->entry_count++];
    *e                  = (lki_flight_entry){ .number = f->entry_count + f->lost,
                                              .kind   = LKI_FLIGHT_OPERATION,
                                              .rank   = f->header.rank,
                                              .at     = at_ms(began) };
    e->op.what          = LKI_OP_BARRIER | (uint64_t)LK_U8 << 8;
    e->op.group         = 9;
    e->op.seq           = seq;
    if (ended >= 0) {
        e->met = e->ended = at_ms(ended);
        e->fate           = LK_FLIGHT_COMPLETE;
    }
}

static lk_flight *merge(lki_flight_file *files, uint32_t count, int64_t now)
{
    lk_flight *flight;
    if (lki_flight_merge(&flight, files, count, at_ms(now)) != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    return flight;
}

static void the_rank_that_all_wait_for_is_named(void **state)
{
    (void)state;
    lki_flight_file *files = begin_files(4);
    for (uint32_t rank = 0; rank < 4; rank++) {
        enter(&files[rank], 0, 1, 2);
        if (rank != 2)
            enter(&files[rank], 1, 5 + rank, -1);
    }
    files[2].process = 'T';
    files[2].place =
        (lki_flight_place){ .number = 1, .at = at_ms(3), .step = 17, .phase = "backward" };
    lk_flight               *flight = merge(files, 4, 2505);
    const lk_flight_finding *found  = finding_with(
         flight, LK_FLIGHT_WAITING,
         "barrier #1: ranks 0, 1, 3 have waited 2.5 s for rank 2 (stopped, at step 17 in backward, "
          "last completed barrier #0)");
    assert_int_equal(found->rank, 2);
    const lk_flight_operation *op = operation_named(flight, "barrier #1");
    assert_int_equal(op->absent_count, 1);
    assert_int_equal(op->absent[0], 2);
    assert_int_equal(op->last_ns - op->first_ns, 3000000);
    assert_int_equal(op->ended_ns, 0);
    lk_flight_free(flight);
}

static void dead_ranks_are_named(void **state)
{
    (void)state;
    lki_flight_file *files = begin_files(3);
    for (uint32_t rank = 0; rank < 3; rank++)
        enter(&files[rank], 0, 1, 2);
    enter(&files[0], 1, 5, -1);
    enter(&files[2], 1, 5, -1);
    files[1].process = 0;
    for (uint32_t rank = 0; rank < 3; rank += 2) {
        files[rank].header.failure = (lki_flight_failure){
            .seal = 1, .at = at_ms(30), .status = LK_EPEER, .text = "rank 1 died"
        };
        files[rank].header.left = at_ms(40);
    }
    lk_flight *flight = merge(files, 3, 90000);
    assert_int_equal(finding_with(flight, LK_FLIGHT_DEATH, "rank 1 (pid 101")->rank, 1);
    (void)finding_with(flight, LK_FLIGHT_FAILURE, "ranks 0, 2 failed: rank 1 died");
    (void)finding_with(flight, LK_FLIGHT_WAITING,
                       "ranks 0, 2 have waited 25.0 ms for rank 1 (gone");
    lk_flight_free(flight);
}

/* Overwrites 5 of the 9 entries of rank 1, which has not arrived at operation 9.  Expects that the
 * arrival of rank 1 is unknown for the overwritten operations.  Rank 1 must be absent only from
 * operation 9. */
static void overwritten_entries_do_not_mean_absence(void **state)
{
    (void)state;
    lki_flight_file *files = begin_files(2);
    for (uint64_t seq = 0; seq < 10; seq++)
        enter(&files[0], seq, (int64_t)seq, seq < 9 ? (int64_t)seq + 1 : -1);
    files[1].lost = 5;
    for (uint64_t seq = 5; seq < 9; seq++)
        enter(&files[1], seq, (int64_t)seq, (int64_t)seq + 1);
    lk_flight *flight = merge(files, 2, 100);
    for (size_t i = 0; i < 10; i++) {
        const lk_flight_operation *op = lk_flight_operation_at(flight, i);
        assert_int_equal(op->absent_count, i == 9);
        assert_int_equal(op->unknown_count, i < 5);
    }
    lk_flight_free(flight);
}

static void names_stragglers(void **state)
{
    (void)state;
    lki_flight_file *files = begin_files(3);
    for (uint64_t seq = 0; seq < 64; seq++)
        for (uint32_t rank = 0; rank < 3; rank++) {
            int64_t base = 100 * (int64_t)seq,
                    late = rank == 1 && seq % 8 != 0 ? 50 : (int64_t)rank;
            enter(&files[rank], seq, base + late, base + 60);
        }
    lk_flight *flight = merge(files, 3, 100000);
    assert_int_equal(finding_with(flight, LK_FLIGHT_STRAGGLER, "came last in 56 of 64")->rank, 1);
    assert_int_equal(lk_flight_rank_at(flight, 1)->late_ns, INT64_C(56) * 48000000);
    assert_int_equal(lk_flight_rank_at(flight, 2)->last, 8);
    lk_flight_free(flight);
}

static void missing_files_are_reported(void **state)
{
    (void)state;
    lki_flight_file *files = begin_files(3);
    for (uint32_t rank = 0; rank < 3; rank++)
        enter(&files[rank], 0, 1, rank == 0 ? -1 : 2);
    files[1].header.world = 5; /* the file is from a previous job */
    files[1].header.opened -= 1000000000;
    (void)snprintf(files[2].problem, sizeof files[2].problem, "it is damaged");
    files[2].readable = false;
    lk_flight *flight = merge(files, 3, 100);
    assert_int_equal(lk_flight_rank_at(flight, 1)->state, LK_FLIGHT_MISSING);
    (void)finding_with(flight, LK_FLIGHT_DAMAGE, "rank-1.flight: it is of another job, of 5 ranks");
    (void)finding_with(flight, LK_FLIGHT_DAMAGE, "rank-2.flight: it is damaged");
    assert_int_equal(operation_named(flight, "barrier #0")->unknown_count, 2);
    lk_flight_free(flight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_all_kinds),
        cmocka_unit_test(the_final_state_of_ranks_is_recorded),
        cmocka_unit_test(the_oldest_entries_are_overwritten),
        cmocka_unit_test(disagreeing_ranks_are_named),
        cmocka_unit_test(freed_requests_are_reported),
        cmocka_unit_test(clears_the_directory),
        cmocka_unit_test(a_path_that_is_no_directory_is_refused),
        cmocka_unit_test(intact_files_are_read),
        cmocka_unit_test(an_unfinished_entry_is_no_damage),
        cmocka_unit_test(truncated_files_are_reported),
        cmocka_unit_test(changed_bytes_are_reported),
        cmocka_unit_test(the_rank_that_all_wait_for_is_named),
        cmocka_unit_test(dead_ranks_are_named),
        cmocka_unit_test(overwritten_entries_do_not_mean_absence),
        cmocka_unit_test(names_stragglers),
        cmocka_unit_test(missing_files_are_reported),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
