/* background_test.c -- tests checkpoints that a thread writes while the run continues.
 *
 * Goal:   the files equal those of a run that waits for its checkpoints, although the run completes
 *         further steps before the first byte is written.  No file is missing.  A disk that refuses
 *         a checkpoint does not end the run, unless the checkpoint was the last one.  If a process
 *         dies while writing a checkpoint, at any call, a resumed run still computes the
 *         undisturbed run's bits.
 * Method: the linker replaces C library functions by the functions below (background_test.wrap).  A
 *         call from any thread except the run's own is a call of the writer.  The functions delay
 *         the writer until the run has reached some step, fail the call, or end the process.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "lockstep/checkpoint.h"
#include "lockstep/launch.h"
#include "lockstep/plan.h"
#include "lockstep/train.h"

enum { STEPS = 9, CRASHED = 99, PATIENCE_S = 300 };

/* The state of one run, used by the wrapped calls. */
static _Thread_local bool own; /* true in the run's and the test's threads */

static struct {
    atomic_uint steps;     /* number of steps that the run has made */
    uint32_t    hold;      /* the writer waits until the run has made this number of steps; 0: no
                            * wait */
    uint32_t    most;      /* number of steps made when the writer stopped waiting */
    bool        impatient; /* `hold` steps were not made in time */
    uint32_t    stop;      /* the run is asked to stop after this number of steps; 0: never */
    long        calls, fatal; /* number of calls of the writer so far; the process dies at call
                               * `fatal`, 0: never */
    uint32_t    refused;   /* number of calls to fail next, for lack of space */
} now;

int     __real_rename(const char *from, const char *to);
int     __real_mkdir(const char *path, mode_t mode);
ssize_t __real_write(int fd, const void *data, size_t bytes);

int     __wrap_rename(const char *from, const char *to);
int     __wrap_mkdir(const char *path, mode_t mode);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
int     __wrap_fsync(int fd);

static void hold_writer(void)
{
    double since = lki_seconds();
    if (now.hold == 0)
        return;
    while (atomic_load(&now.steps) < now.hold && !now.impatient) {
        now.impatient = lki_seconds() - since > PATIENCE_S;
        (void)usleep(1000);
    }
    (void)usleep(20000); /* time for a step that must not happen */
    now.most = atomic_load(&now.steps);
    now.hold = 0;
}

/* Delays the writer, and returns true if the writer's call is to fail.  Does not affect the run's
 * own calls. */
static bool strikes(void)
{
    if (own)
        return false;
    hold_writer();
    if (++now.calls == now.fatal)
        _exit(CRASHED);
    errno = ENOSPC;
    return now.refused > 0 && now.refused-- > 0;
}

int __wrap_rename(const char *from, const char *to)
{
    return strikes() ? -1 : __real_rename(from, to);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return strikes() ? -1 : __real_mkdir(path, mode);
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    return strikes() ? -1 : __real_write(fd, data, bytes);
}

int __wrap_fsync(int fd)
{
    (void)fd;
    return strikes() ? -1 : 0;
}

/* ---- Runs -------------------------------------------------------------------------------- */

static bool count_step(void *context)
{
    (void)context;
    uint32_t steps = atomic_fetch_add(&now.steps, 1) + 1;
    return steps == now.stop;
}

static lk_train_result result;

static lk_status run_training(lk_comm *comm, void *context)
{
    own = true;
    return lk_train_run(comm, context, &result);
}

static lk_train_config config_of(const char *dir, uint64_t every)
{
    return (lk_train_config){ .struct_size            = sizeof(lk_train_config),
                              .model                  = "mlp",
                              .data.source            = "synthetic:images=32,h=4,w=4,c=1,classes=3",
                              .global_batch           = 4,
                              .steps                  = STEPS,
                              .optimizer              = { .kind = LK_ADAMW },
                              .schedule               = { .lr = 0.01 },
                              .workers                = 1,
                              .checkpoint.folder      = dir,
                              .checkpoint.every       = every,
                              .checkpoint.async       = true,
                              .checkpoint.keep        = STEPS,
                              .checkpoint.resume      = true,
                              .checkpoint.resume_step = -1,
                              .log                    = "log",
                              .calls.stop             = count_step,
                              .quiet                  = true };
}

static lk_status train(lk_train_config config)
{
    atomic_store(&now.steps, 0);
    lk_status status = lk_train_check(&config);
    return status == LK_OK ? lk_launch_threads(1, 0, run_training, &config) : status;
}

static lk_status train_in(const char *dir)
{
    return train(config_of(dir, 2));
}

static bool is_there(const char *dir, uint64_t step)
{
    lk_checkpoint *checkpoint;
    lk_status      status = lk_checkpoint_open_step(&checkpoint, dir, step);
    lk_checkpoint_free(checkpoint);
    return status == LK_OK;
}

static bool has_line(const char *path, const char *text)
{
    lki_map map;
    assert_int_equal(lki_map_open(&map, path), LK_OK);
    bool has = memmem(map.data, map.bytes, text, strlen(text)) != NULL;
    lki_map_close(&map);
    return has;
}

/* ---- Tests ------------------------------------------------------------------------------- */

static void later_steps_do_not_change_a_pending_checkpoint(void **state)
{
    lk_train_config waits = config_of("waits", 3), goes_on = config_of("goes-on", 3);
    lk_train_cost   cost;
    uint64_t        stored = 0;
    (void)state;
    waits.checkpoint.async = false;
    waits.model = goes_on.model = "resnet"; /* resnet has running state */
    waits.model_options.depth = goes_on.model_options.depth = 20;
    assert_int_equal(train(waits), LK_OK);
    now.hold = 5;
    assert_int_equal(train(goes_on), LK_OK);
    assert_false(now.impatient);
    assert_true(now.most >= 5);
    assert_int_equal(result.checkpoints.written, 3);
    assert_true(has_line("log", "\"checkpoint\": 3, \"stall_ms\": "));
    assert_int_equal(system("for f in 3 6 9; do for m in model optimizer state; do"
                            " cmp waits/step-0000000$f/$m.safetensors"
                            " goes-on/step-0000000$f/$m.safetensors || exit 1; done;"
                            " cmp waits/step-0000000$f/manifest.json"
                            " goes-on/step-0000000$f/manifest.json || exit 1; done"), 0);

    lk_checkpoint   *c;
    const lk_tensor *tensor;
    assert_int_equal(lk_checkpoint_open(&c, "waits", NULL, 0), LK_OK);
    for (size_t i = 0; (tensor = lk_checkpoint_tensor(c, i)) != NULL; i++)
        stored += lki_round_up((size_t)lk_shape_count(tensor->shape) * sizeof(float), 64);
    lk_checkpoint_free(c);
    assert_int_equal(lk_train_estimate(&goes_on, 1, &cost), LK_OK);
    assert_int_equal(cost.snapshot, stored);
    assert_int_equal(lk_train_estimate(&waits, 1, &cost), LK_OK);
    assert_int_equal(cost.snapshot, 0);
}

static void newer_checkpoints_and_the_end_wait_for_the_writer(void **state)
{
    (void)state;
    now.hold = 4;
    now.stop = 5;
    assert_int_equal(train_in("waits"), LK_ESTOPPED);
    assert_int_equal(now.most, 4);
    assert_true(is_there("waits", 2) && is_there("waits", 4) && is_there("waits", 5));
    assert_int_equal(result.checkpoints.written, 3);
    assert_int_equal(system("test -z \"$(ls -d waits/.tmp* 2>/dev/null)\""), 0);
}

static void a_full_disk_ends_the_run_only_at_the_last_checkpoint(void **state)
{
    lk_train_config config = config_of("full", 4);
    (void)state;
    now.refused = 1;
    assert_int_equal(train(config), LK_OK);
    assert_int_equal(result.checkpoints.failed, 1);
    assert_int_equal(result.checkpoints.written, 2);
    assert_true(!is_there("full", 4) && is_there("full", 8) && is_there("full", STEPS));
    assert_true(has_line("log", "No space left on device\", \"time\": "));
    assert_int_equal(system("test -z \"$(ls -d full/.tmp* 2>/dev/null)\""), 0);
}

/* Runs with evaluations that improve each time.  The writer has no space for the checkpoint of step
 * 6, and the run is asked to stop after step 6.  Then step 3 must still be the best, and on the
 * disk. */
static void a_failed_checkpoint_is_not_the_best(void **state)
{
    lk_train_config config = config_of("full", 0);
    (void)state;
    config.data.validation      = 0.25;
    config.eval_every           = 3;
    config.checkpoint.keep      = 1;
    config.checkpoint.keep_best = 1;
    config.checkpoint.best_by   = LK_BEST_BY_LOSS;
    now.stop                    = 4;
    assert_int_equal(train(config), LK_ESTOPPED);
    assert_true(is_there("full", 3) && is_there("full", 4));
    now.refused = 1;
    assert_int_equal(train(config), LK_ESTOPPED);
    assert_int_equal(result.checkpoints.failed, 1);
    assert_true(is_there("full", 3) && !is_there("full", 6));
}

/* Runs in a separate process, which dies at the writer's call number `fatal`. */
static int run_until(long fatal)
{
    int   status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        now.calls = 0;
        now.fatal = fatal;
        _exit(train_in("dies") == LK_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_death_at_any_call_leaves_a_resumable_run(void **state)
{
    char want[65];
    long fatal = 1;
    (void)state;
    assert_int_equal(train_in("undisturbed"), LK_OK);
    memcpy(want, result.run, sizeof want);
    for (; run_until(fatal) == CRASHED; fatal += 7) {
        lk_checkpoint *newest;
        lk_status      status = lk_checkpoint_open(&newest, "dies", NULL, 0);
        assert_true(status == LK_OK || fatal < 20);
        lk_checkpoint_free(newest);
        assert_int_equal(train_in("dies"), LK_OK);
        assert_string_equal(result.run, want);
        assert_int_equal(system("rm -rf dies log"), 0);
    }
    assert_true(fatal > 30);
}

static char folder[] = "/tmp/lockstep-background-XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : chdir(folder);
}

static int leave_folder(void **state)
{
    (void)state;
    return chdir("/") == 0 ? rmdir(folder) : -1;
}

static int begin_test(void **state)
{
    (void)state;
    memset(&now, 0, sizeof now);
    own = true;
    return 0;
}

static int clear_folder(void **state)
{
    (void)state;
    return system("rm -rf waits goes-on full dies undisturbed log");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_test, clear_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(later_steps_do_not_change_a_pending_checkpoint),
        TEST(newer_checkpoints_and_the_end_wait_for_the_writer),
        TEST(a_full_disk_ends_the_run_only_at_the_last_checkpoint),
        TEST(a_failed_checkpoint_is_not_the_best),
        TEST(a_death_at_any_call_leaves_a_resumable_run),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
