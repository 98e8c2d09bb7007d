/* replay_test.c -- recordings and replays of a shared vector.
 *
 * Goal:    a recorded run is replayed with the same bits by any number of ranks.  Each change of a
 *          recording, of the data or of the program is noticed, and a recording that was cut off
 *          anywhere is replayed up to there.
 * Method:  tasks pull and push by a seed, with many ranks on few spans.  The first tasks of all
 *          ranks pull before any of them pushes, so the recording has stale reads however fast the
 *          ranks are.
 * Control: the recording has stale reads, and a run without staleness has another hash.
 */
#include "parallel/crew_testing.h"
#include "parallel/shared/replay.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

enum {
    COUNT  = 5 * 64 + 9, /* elements, in six spans */
    SPAN   = 64,
    ROUNDS = 2,
    TASKS  = 60, /* of a round */
    MANY_TASKS = 3000,
    FEW    = 9,  /* indices of a task */
    RANKS  = 4,
    PATH_BYTES = 64
};

/* A run, which its ranks share. */
typedef struct {
    uint32_t         ranks, tasks;
    const char      *record, *replay;
    uint32_t         other_task; /* 1 + the task that pushes another value; 0: none */
    uint32_t         other_span; /* 1 + the task that pushes elsewhere; 0: none */
    _Atomic uint32_t met;        /* number of ranks that have pulled in their first task */
    _Atomic uint64_t done;       /* number of tasks */
} run;

typedef struct {
    run      *of;
    lk_comm  *comm;
    lk_status status;
    lk_error  failure;
    char      hash[65];
} member;

static char path[PATH_BYTES];

static uint32_t draw(uint64_t task, uint32_t what)
{
    return lki_philox(3, LKI_RNG_DATA, (uint32_t)task, what, 0, 0).word[0];
}

/* Fills in ascending indices. */
static void choose(uint64_t task, uint32_t indices[FEW])
{
    for (uint32_t i = 0; i < FEW; i++)
        indices[i] = i * (COUNT / FEW) + draw(task, i) % (COUNT / FEW);
}

/* Waits until each rank has pulled in its first task. */
static void meet(member *m, bool *met)
{
    if (*met || m->of->replay != NULL)
        return;
    *met = true;
    atomic_fetch_add(&m->of->met, 1);
    while (atomic_load(&m->of->met) < m->of->ranks)
        (void)sched_yield();
}

/* Pulls a range and some indices, and pushes functions of what it has pulled. */
static lk_status do_task(member *m, lk_shared_vector *v, uint64_t task, bool *met)
{
    float          range[SPAN + 5], few[FEW], change[SPAN + 5];
    uint32_t       indices[FEW];
    const run     *r     = m->of;
    const size_t   first = draw(task, 100) % (COUNT - SPAN - 5);
    const uint32_t count = task % 4 == 0 ? 0 : SPAN + 5;
    choose(task, indices);
    LK_TRY(lk_shared_vector_pull(v, first, count, range));
    LK_TRY(lk_shared_vector_pull_at(v, indices, FEW, few));
    meet(m, met);
    if (draw(task, 101) % 2 == 0)
        (void)sched_yield();
    for (size_t i = 0; i < count; i++)
        change[i] = 0.1f * range[i] + few[i % FEW] + (float)(task % 7);
    for (size_t i = 0; i < FEW; i++)
        few[i] = 1 / (1 + few[i] * few[i]);
    if (task % 5 == 4)
        return LK_OK; /* a task without pushes */
    if (task + 1 == r->other_task)
        few[FEW - 1] += 1;
    if (task + 1 == r->other_span)
        indices[FEW - 1] = COUNT - 1;
    LK_TRY(lk_shared_vector_push_at(v, indices, FEW, few, -0.3f));
    return lk_shared_vector_push(v, first, count, change, 0.01f);
}

static lk_status do_round(member *m, lk_shared_vector *v)
{
    uint64_t task;
    bool     more, met = false;
    LK_TRY(lk_shared_vector_begin(v, m->of->tasks));
    for (;;) {
        LK_TRY(lk_shared_vector_next(v, &more, &task));
        if (!more)
            return lk_shared_vector_finish(v);
        LK_TRY(do_task(m, v, task, &met));
        atomic_fetch_add(&m->of->done, 1);
    }
}

static lk_status take_part(member *m, lk_shared_vector **v)
{
    const lk_shared_vector_options options = { .struct_size = sizeof options,
                                               .span        = SPAN,
                                               .record      = m->of->record,
                                               .replay      = m->of->replay };
    lki_sha256 hash;
    LK_TRY(lk_shared_vector_open(v, m->comm, COUNT, &options));
    if (lk_comm_rank(m->comm) == 0)
        for (size_t i = 0; i < COUNT; i++)
            lk_shared_vector_data(*v)[i] = (float)(draw(i, 200) % 100);
    LK_TRY(do_round(m, *v));
    atomic_store(&m->of->met, m->of->ranks); /* ranks meet in the first round only */
    for (uint32_t i = 1; i < ROUNDS; i++)
        LK_TRY(do_round(m, *v));
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, lk_shared_vector_data(*v), COUNT * sizeof(float));
    lki_sha256_end(&hash, m->hash);
    return lk_barrier(m->comm);
}

static void *main_of(void *argument)
{
    member           *m = argument;
    lk_shared_vector *v = NULL;
    m->status           = take_part(m, &v);
    if (m->status != LK_OK) {
        m->failure = *lk_error_last();
        lk_comm_abort(m->comm);
    }
    lk_shared_vector_free(v);
    return NULL;
}

static void start(run *r, member *members)
{
    lk_comm        *comms[RANKS] = { NULL };
    lk_comm_options options      = { .struct_size = sizeof(lk_comm_options),
                                     .timeout_ms  = WORLD_PATIENCE_MS };
    assert_int_equal(lk_comm_open_threads(comms, r->ranks, &options), LK_OK);
    for (uint32_t i = 0; i < r->ranks; i++)
        members[i] = (member){ .of = r, .comm = comms[i] };
    lkt_run_ranks(main_of, members, sizeof *members, r->ranks);
    for (uint32_t i = 0; i < r->ranks; i++)
        lk_comm_free(comms[i]);
}

static void must_run(run *r, char hash[65])
{
    member members[RANKS];
    start(r, members);
    for (uint32_t i = 0; i < r->ranks; i++) {
        if (members[i].status != LK_OK)
            print_message("%s\n", members[i].failure.message);
        assert_int_equal(members[i].status, LK_OK);
        assert_string_equal(members[i].hash, members[0].hash);
    }
    memcpy(hash, members[0].hash, 65);
}

static void record(uint32_t ranks, char hash[65])
{
    run r = { .ranks = ranks, .tasks = TASKS, .record = path };
    must_run(&r, hash);
    assert_int_equal(atomic_load(&r.done), TASKS * ROUNDS);
}

/* Replays with one rank.  Returns the failure. */
static lk_error replay_changed(run r)
{
    member members[RANKS];
    r.ranks = 1;
    r.tasks = TASKS;
    r.replay = path;
    start(&r, members);
    return members[0].status == LK_OK ? (lk_error){ LK_OK, "", "" } : members[0].failure;
}

/* ---- Entries of a recording -------------------------------------------------------------- */

typedef struct {
    lki_log_entry entry;
    uint64_t      at, end; /* bytes of the file */
    uint64_t      task;
    bool          stale; /* a WRITE of a version after that which the task has read */
} place;

enum { PLACES = 1 << 14 };
static place places[PLACES];

/* Lists all entries.  Returns their number. */
static size_t list_places(void)
{
    lki_log_file file;
    size_t       count = 0;
    uint64_t     task = 0, seen[COUNT] = { 0 };
    assert_int_equal(lki_log_map(&file, path), LK_OK);
    for (uint32_t rank = 0; rank < file.header.ranks; rank++) {
        lki_log_cursor cursor = lki_log_begin(&file, rank);
        place          p      = { .at = cursor.at };
        for (; lki_log_read(&file, &cursor, &p.entry); p.at = cursor.at) {
            task = p.entry.kind == LKI_LOG_TASK ? p.entry.value : task;
            if (p.entry.kind == LKI_LOG_READ)
                seen[p.entry.value] = p.entry.second;
            p.task  = task;
            p.end   = cursor.at;
            p.stale = p.entry.kind == LKI_LOG_WRITE && p.entry.second > seen[p.entry.value];
            assert_true(count < PLACES);
            places[count++] = p;
        }
    }
    lki_log_unmap(&file);
    return count;
}

/* Exchanges two entries of equal length, in the file.  Returns false if they are equal. */
static bool swap_places(const place *a, const place *b)
{
    unsigned char  x[LKI_LOG_ENTRY_MAX], y[LKI_LOG_ENTRY_MAX];
    const size_t   bytes = a->end - a->at;
    const int      fd    = open(path, O_RDWR);
    assert_true(fd >= 0 && bytes <= sizeof x && bytes == b->end - b->at);
    assert_int_equal(pread(fd, x, bytes, (off_t)a->at), bytes);
    assert_int_equal(pread(fd, y, bytes, (off_t)b->at), bytes);
    assert_int_equal(pwrite(fd, y, bytes, (off_t)a->at), bytes);
    assert_int_equal(pwrite(fd, x, bytes, (off_t)b->at), bytes);
    (void)close(fd);
    return memcmp(x, y, bytes) != 0;
}

/* ---- Replays ----------------------------------------------------------------------------- */

static void replays_have_the_same_bits(void **state)
{
    char want[65], got[65];
    (void)state;
    for (uint32_t recorded = 1; recorded <= RANKS; recorded += recorded < 2 ? 1 : 2) {
        record(recorded, want);
        for (uint32_t ranks = 1; ranks <= 3; ranks++)
            for (int times = 0; times < 3; times++) {
                run r = { .ranks = ranks, .tasks = TASKS, .replay = path };
                must_run(&r, got);
                assert_string_equal(got, want);
                assert_int_equal(atomic_load(&r.done), TASKS * ROUNDS);
            }
    }
}

/* Ranks map several blocks of the file at once. */
static void recordings_of_many_blocks_are_replayed(void **state)
{
    char         want[65], got[65];
    lki_log_file file;
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        run live = { .ranks = ranks, .tasks = MANY_TASKS, .record = path };
        must_run(&live, want);
        assert_int_equal(lki_log_map(&file, path), LK_OK);
        uint32_t used = 0;
        for (uint32_t block = file.first[0]; block != 0; block = file.next[block])
            used++;
        lki_log_unmap(&file);
        assert_true(used > 3 || ranks > 1); /* more than the first two times */
        run again = { .ranks = 3 - ranks, .tasks = MANY_TASKS, .replay = path };
        must_run(&again, got);
        assert_string_equal(got, want);
        assert_int_equal(atomic_load(&again.done), MANY_TASKS * ROUNDS);
    }
}

static void recordings_have_stale_reads(void **state)
{
    char   stale[65], fresh[65];
    size_t count, found = 0;
    (void)state;
    record(RANKS, stale);
    count = list_places();
    for (size_t i = 0; i < count; i++)
        found += places[i].stale;
    assert_true(found > 0);
    run r = { .ranks = 1, .tasks = TASKS };
    must_run(&r, fresh);
    assert_string_not_equal(fresh, stale);
}

/* ---- Changes ----------------------------------------------------------------------------- */

static void changed_values_are_named(void **state)
{
    char     hash[65];
    lk_error error;
    (void)state;
    record(RANKS, hash);
    error = replay_changed((run){ .other_task = 1 + 71 });
    assert_int_equal(error.status, LK_EMISMATCH);
    assert_non_null(strstr(error.message, "task 71 of the replay pushes values that differ"));
    error = replay_changed((run){ .other_span = 1 + 8 });
    assert_int_equal(error.status, LK_EMISMATCH);
    assert_non_null(strstr(error.message, "task 8 of the replay"));
    assert_non_null(strstr(error.message, "unlike the recorded task, to span 5"));
    assert_int_equal(replay_changed((run){ 0 }).status, LK_OK);
}

/* The second round begins earlier than in the recorded run, so the last task of the first round, or
 * the first one of the second round, is another one. */
static void other_rounds_are_named(void **state)
{
    char hash[65];
    (void)state;
    record(RANKS, hash);
    for (uint32_t tasks = TASKS - 3; tasks <= TASKS + 3; tasks += tasks == TASKS - 1 ? 2 : 1) {
        run    r = { .ranks = 2, .tasks = tasks, .replay = path };
        member members[RANKS];
        start(&r, members);
        for (uint32_t i = 0; i < 2; i++)
            assert_true(members[i].status == LK_OK || members[i].status == LK_EMISMATCH ||
                        members[i].status == LK_EPEER);
    }
}

/* Exchanges pairs of entries of one kind, of different tasks, one pair at a time. */
static size_t swap_all(lki_log_kind kind, size_t count, size_t most)
{
    size_t swaps = 0;
    for (size_t i = 0; i < count && swaps < most; i += 7)
        for (size_t k = i + 1; k < count && swaps < most; k++) {
            const place *a = &places[i], *b = &places[k];
            if (a->entry.kind != kind || b->entry.kind != kind || a->task == b->task ||
                a->end - a->at != b->end - b->at || !swap_places(a, b))
                continue;
            const lk_error error = replay_changed((run){ 0 });
            assert_true(error.status == LK_EMISMATCH || error.status == LK_EFORMAT);
            assert_non_null(strstr(error.message, "task "));
            (void)swap_places(a, b);
            swaps++;
            break;
        }
    return swaps;
}

static void swapped_entries_are_noticed(void **state)
{
    char   hash[65];
    size_t count;
    (void)state;
    record(RANKS, hash);
    count = list_places();
    assert_true(swap_all(LKI_LOG_TASK, count, 20) > 5);
    assert_true(swap_all(LKI_LOG_READ, count, 30) > 10);
    assert_true(swap_all(LKI_LOG_WRITE, count, 30) > 10);
    assert_true(swap_all(LKI_LOG_HASH, count, 10) > 5);
    assert_int_equal(replay_changed((run){ 0 }).status, LK_OK);
}

/* ---- Recordings that were cut off -------------------------------------------------------- */

static void zero_from(uint64_t at, const unsigned char *whole, size_t bytes)
{
    static const unsigned char zeros[4096];
    const uint64_t end = (at / LKI_LOG_BLOCK + 1) * LKI_LOG_BLOCK;
    const int      fd  = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, whole, bytes, 0), bytes);
    for (uint64_t i = at; i < end; i += sizeof zeros)
        assert_true(pwrite(fd, zeros, lki_min(sizeof zeros, end - i), (off_t)i) > 0);
    (void)close(fd);
}

/* Cuts a recording of one rank off after each of its last bytes.  The tasks whose pushes are in the
 * rest are computed. */
static void what_is_left_is_replayed(void **state)
{
    enum { CUTS = 150 };
    char     hash[65];
    lki_map  map;
    (void)state;
    record(1, hash);
    const size_t   count = list_places();
    const uint64_t end   = places[count - 1].end;
    assert_int_equal(lki_map_open(&map, path), LK_OK);
    unsigned char *whole = malloc(map.bytes);
    const size_t   bytes = map.bytes;
    assert_non_null(whole);
    memcpy(whole, map.data, bytes);
    lki_map_close(&map);
    for (uint64_t at = end - CUTS; at < end; at++) {
        uint64_t tasks = 0;
        bool     idle  = true;
        for (size_t i = 0; i < count; i++) {
            /* nothing tells whether a hash is complete, and it is not used if nothing follows */
            if (places[i].entry.kind == LKI_LOG_HASH ? places[i].at >= at : places[i].end > at)
                break;
            tasks += places[i].entry.kind == LKI_LOG_TASK;
            idle   = places[i].entry.kind == LKI_LOG_TASK ||
                   (idle && places[i].entry.kind == LKI_LOG_READ);
        }
        zero_from(at, whole, bytes);
        run r = { .ranks = 1 + (uint32_t)(at % 2), .tasks = TASKS, .replay = path };
        must_run(&r, hash);
        assert_int_equal(atomic_load(&r.done), tasks - idle);
    }
    free(whole);
}

static void damage_is_named(void **state)
{
    char hash[65];
    (void)state;
    record(1, hash);
    const size_t count = list_places();
    for (size_t i = count / 4; i < count; i += count / 5) {
        const unsigned char zero = 0;
        unsigned char       was;
        const int           fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &was, 1, (off_t)places[i].at), 1);
        assert_int_equal(pwrite(fd, &zero, 1, (off_t)places[i].at), 1);
        const lk_error error = replay_changed((run){ 0 });
        assert_int_equal(error.status, LK_EFORMAT);
        assert_non_null(strstr(error.message, "is damaged after the beginning of task "));
        assert_int_equal(pwrite(fd, &was, 1, (off_t)places[i].at), 1);
        (void)close(fd);
    }
}

/* ---- Failures ---------------------------------------------------------------------------- */

static void *hold_a_span(void *argument)
{
    const float       one = 1;
    member           *m   = argument;
    lk_shared_vector *v   = NULL;
    uint64_t          version;
    bool              more;
    assert_int_equal(lk_shared_vector_open(&v, m->comm, COUNT, NULL), LK_OK);
    assert_int_equal(lk_shared_vector_begin(v, 1), LK_OK);
    if (lk_comm_rank(m->comm) == 1)
        assert_int_equal(lki_span_take(v, 0, &version), LK_OK);
    assert_int_equal(lk_barrier(m->comm), LK_OK);
    if (lk_comm_rank(m->comm) == 0) {
        assert_int_equal(lk_shared_vector_next(v, &more, &version), LK_OK);
        m->status  = lk_shared_vector_push(v, 3, 1, &one, 1);
        m->failure = *lk_error_last();
    }
    lk_shared_vector_free(v);
    return NULL;
}

static void a_span_that_is_held_is_named(void **state)
{
    lk_comm        *comms[2] = { NULL };
    lk_comm_options options  = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 150 };
    member          members[2];
    (void)state;
    assert_int_equal(lk_comm_open_threads(comms, 2, &options), LK_OK);
    for (uint32_t i = 0; i < 2; i++)
        members[i] = (member){ .comm = comms[i] };
    lkt_run_ranks(hold_a_span, members, sizeof *members, 2);
    assert_int_equal(members[0].status, LK_ETIMEOUT);
    assert_non_null(strstr(members[0].failure.message, "rank 1 has held span 0"));
    for (uint32_t i = 0; i < 2; i++)
        lk_comm_free(comms[i]);
}

static void refuse_open(lk_comm *comm, size_t count, lk_shared_vector_options options,
                        lk_status status, const char *text)
{
    lk_shared_vector *v;
    options.struct_size = sizeof options;
    assert_int_equal(lk_shared_vector_open(&v, comm, count, &options), status);
    assert_null(v);
    assert_non_null(strstr(lk_error_last()->message, text));
}

static void wrong_arguments_are_refused(void **state)
{
    const uint32_t    twice[] = { 3, 3 }, far[] = { 1, COUNT };
    float             x[2] = { 0 };
    lk_comm          *comm = NULL;
    lk_shared_vector *v    = NULL;
    uint64_t          task;
    bool              more;
    char              hash[65];
    (void)state;
    record(1, hash);
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    refuse_open(comm, 0, (lk_shared_vector_options){ 0 }, LK_EINVAL, "1 to 2^32");
    refuse_open(comm, 9, (lk_shared_vector_options){ .span = 48 }, LK_EINVAL, "power of two");
    refuse_open(comm, 9, (lk_shared_vector_options){ .record = "a", .replay = "b" }, LK_EINVAL,
                "not both");
    refuse_open(comm, 9, (lk_shared_vector_options){ .record = "/dev/null/a" }, LK_EIO,
                "cannot write '/dev/null/a'");
    refuse_open(comm, 9, (lk_shared_vector_options){ .replay = "/dev/null/a" }, LK_EIO, "/a");
    refuse_open(comm, 9, (lk_shared_vector_options){ .replay = path }, LK_EINVAL, "has 9 in spans");
    refuse_open(comm, 9, (lk_shared_vector_options){ .replay = LK_TEST_COMMAND }, LK_EFORMAT,
                "is not a recording");
    assert_int_equal(lk_shared_vector_open(&v, comm, COUNT, NULL), LK_OK);
    assert_int_equal(lk_shared_vector_next(v, &more, &task), LK_EINVAL);
    assert_int_equal(lk_shared_vector_begin(v, 1), LK_OK);
    assert_int_equal(lk_shared_vector_begin(v, 1), LK_EINVAL);
    assert_int_equal(lk_shared_vector_pull(v, 0, 2, x), LK_EINVAL);
    assert_int_equal(lk_shared_vector_next(v, &more, &task), LK_OK);
    assert_int_equal(lk_shared_vector_pull(v, COUNT - 1, 2, x), LK_EINVAL);
    assert_int_equal(lk_shared_vector_pull_at(v, twice, 2, x), LK_EINVAL);
    assert_int_equal(lk_shared_vector_push_at(v, far, 2, x, 1), LK_EINVAL);
    assert_int_equal(lk_shared_vector_push(v, 0, 2, x, 1), LK_OK);
    assert_int_equal(lk_shared_vector_pull(v, 0, 2, x), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "task 0 pulls after it has pushed"));
    lk_shared_vector_free(v);
    lk_comm_free(comm);
}

static int make_path(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/lk-shared-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_have_the_same_bits),
        cmocka_unit_test(recordings_of_many_blocks_are_replayed),
        cmocka_unit_test(recordings_have_stale_reads),
        cmocka_unit_test(changed_values_are_named),
        cmocka_unit_test(other_rounds_are_named),
        cmocka_unit_test(swapped_entries_are_noticed),
        cmocka_unit_test(what_is_left_is_replayed),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(a_span_that_is_held_is_named),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
