/* shared_vector_test.c -- a worker that dies in the middle of a push to a shared vector.
 *
 * Goal:    the other worker, which then waits for a span that nobody returns, fails and does not
 *          wait forever.  The recording is complete up to the death: replays with one and with two
 *          workers have the same bits, and the dead worker's push is in the spans that it had begun
 *          to change.
 * Method:  this program is the worker, too.  Worker 1 kills itself when it has recorded the third
 *          span of a push, and has taken the span.
 * Control: the replays have the tasks of the recording, and not all tasks.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "launch/self_testing.h"
#include "lockstep/launch.h"
#include "parallel/shared/log.h"

enum { SPAN = 16, SPANS = 6, COUNT = SPAN * SPANS, TASKS = 1 << 20, ENTRIES = 9, DIES_AT = 40,
       SAID = 1000 };

static char     self[SELF_BYTES];
static uint32_t appended; /* in a worker: number of entries that it has recorded */
static bool     dies;

void __real_lki_log_append(lki_shared_log *log, lki_log_kind kind, uint64_t value, uint64_t second);
void __wrap_lki_log_append(lki_shared_log *log, lki_log_kind kind, uint64_t value, uint64_t second);

void __wrap_lki_log_append(lki_shared_log *log, lki_log_kind kind, uint64_t value, uint64_t second)
{
    __real_lki_log_append(log, kind, value, second);
    if (dies && ++appended == DIES_AT * ENTRIES + 4)
        (void)raise(SIGKILL);
}

/* ---- The worker -------------------------------------------------------------------------- */

static lk_status compute(lk_shared_vector *v, uint64_t task)
{
    float values[COUNT];
    LK_TRY(lk_shared_vector_pull(v, 0, COUNT, values));
    for (size_t i = 0; i < COUNT; i++)
        values[i] = 1 / (1 + values[i] * values[i]) - (float)((task + i) % 5) / 10;
    return lk_shared_vector_push(v, 0, COUNT, values, 0.1f);
}

static lk_status work(lk_comm *comm, lk_shared_vector **out, const char *how, const char *path)
{
    lk_shared_vector_options options = { .struct_size = sizeof options, .span = SPAN };
    uint64_t                 task;
    bool                     more = true;
    if (strcmp(how, "record") == 0)
        options.record = path;
    else
        options.replay = path;
    dies = options.record != NULL && lk_comm_rank(comm) == 1;
    LK_TRY(lk_shared_vector_open(out, comm, COUNT, &options));
    LK_TRY(lk_shared_vector_begin(*out, TASKS));
    for (;;) {
        LK_TRY(lk_shared_vector_next(*out, &more, &task));
        if (!more)
            return lk_shared_vector_finish(*out);
        LK_TRY(compute(*out, task));
    }
}

static int be_worker(const char *how, const char *path)
{
    lk_comm          *comm   = NULL;
    lk_shared_vector *v      = NULL;
    lk_status         status = lk_join(&comm);
    if (status == LK_OK)
        status = work(comm, &v, how, path);
    if (status == LK_OK && lk_comm_rank(comm) == 0)
        printf("tasks %llu  bits %016llx\n", (unsigned long long)lk_shared_vector_tasks(v),
               (unsigned long long)lki_xxh3(lk_shared_vector_data(v), COUNT * sizeof(float)));
    if (status == LK_OK)
        status = lk_barrier(comm);
    if (status != LK_OK) {
        fprintf(stderr, "worker fails: %s\n", lk_error_last()->message);
        lk_comm_abort(comm);
    }
    lk_shared_vector_free(v);
    lk_comm_free(comm);
    return status != LK_OK;
}

/* ---- The test ---------------------------------------------------------------------------- */

/* Runs workers, and returns the exit status of the command. */
static int run(uint32_t workers, const char *how, const char *path, char said[SAID])
{
    char command[2 * SELF_BYTES];
    (void)snprintf(command, sizeof command, "%s run -n %u --no-prefix %s worker %s %s 2>&1",
                   LK_TEST_COMMAND, workers, self, how, path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    said[fread(said, 1, SAID - 1, pipe)] = '\0';
    return pclose(pipe);
}

static void a_death_is_reported_and_the_rest_replayed(void **state)
{
    char               path[] = "/tmp/lk-death-XXXXXX", said[SAID], first[SAID];
    unsigned long long tasks = 0, bits = 0;
    (void)state;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_not_equal(run(2, "record", path, said), 0);
    assert_non_null(strstr(said, "rank 1"));
    if (run(1, "replay", path, first) != 0)
        fail_msg("%s", first);
    assert_int_equal(sscanf(first, "tasks %llu bits %llx", &tasks, &bits), 2);
    assert_true(tasks > DIES_AT && tasks < TASKS);
    for (int times = 0; times < 3; times++) {
        assert_int_equal(run(2, "replay", path, said), 0);
        assert_string_equal(said, first);
    }
    (void)unlink(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_reported_and_the_rest_replayed),
    };
    if (self_is_worker(self, argc, argv))
        return argc == 4 ? be_worker(argv[2], argv[3]) : 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
