/* going_back_test.c -- tests a crash at every change that a run makes which goes back to an earlier
 * checkpoint with another precision.
 *
 * Goal:   nothing of the former branch is lost, neither checkpoints nor lines of the log.  If its
 *         checkpoints are moved, and the new command is not recorded, the directory says so.  The
 *         same command completes what was begun, also after one that failed.
 * Method: crash_testing.h, and truncate() likewise.  A forked child crashes at its k-th call of the
 *         functions in going_back_test.wrap.  k increases until the child ends without reaching its
 *         crash.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "checkpoint/crash_testing.h"
#include "comm/hosted_testing.h"
#include "lockstep/checkpoint.h"
#include "lockstep/train.h"

enum { FAILED = 1 };

int __real_truncate(const char *path, off_t bytes);
int __wrap_truncate(const char *path, off_t bytes);

int __wrap_truncate(const char *path, off_t bytes)
{
    count_call();
    return __real_truncate(path, bytes);
}

/* ---- Runs -------------------------------------------------------------------------------- */

/* Records the command, as `lockstep train` does. */
static void record(void *context)
{
    if (lki_file_replace("run/" LK_RUN_COMMAND, context, strlen(context)) != LK_OK)
        _exit(FAILED);
}

static bool train(lk_comm *comm, void *context)
{
    lk_train_result result;
    return lk_train_run(comm, context, &result) == LK_OK;
}

static const hosted alone = { .hosts = 1, .each = 1 };

/* Makes the configuration of a run of 4 steps, each with a checkpoint.  It goes back to the step
 * `from` if that is positive. */
static lk_train_config config_of(const char *command, int64_t from)
{
    return (lk_train_config){
        .struct_size     = sizeof(lk_train_config),
        .model           = "mlp",
        .data.source     = "synthetic:images=60,h=6,w=6,c=1,classes=5",
        .model_options   = { .hidden = { 9 }, .hidden_count = 1 },
        .global_batch    = 8,
        .micro_batch     = 1,
        .virtual_workers = 8,
        .workers         = 1,
        .steps           = 4,
        .optimizer       = { .kind = LK_SGD },
        .schedule        = { .lr = 0.05 },
        .precision       = from > 0 ? LK_BF16 : LK_F32,
        .checkpoint      = { .folder      = "run",
                             .every       = 1,
                             .keep        = 9,
                             .resume      = from > 0,
                             .resume_step = from > 0 ? from : -1 },
        .log             = "run/log.jsonl",
        .calls = { .begun = record, .begun_context = (void *)(uintptr_t)command },
        .quiet = true,
    };
}

/* Trains in a child that crashes at the k-th call.  Returns the child's exit status. */
static int run_child(const char *command, int64_t from, const char *metrics, long k)
{
    lk_train_config c = config_of(command, from);
    int             status;
    (void)fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)!freopen("/dev/null", "w", stderr); /* notes */
        calls_left        = k;
        const bool usable = lk_train_check(&c) == LK_OK;
        c.outputs.metrics = metrics; /* the check would refuse it */
        _exit(usable && hosted_all(alone, train, &c) ? 0 : FAILED);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- What is there ----------------------------------------------------------------------- */

static bool shell(const char *line)
{
    return system(line) == 0;
}

/* Expects that the checkpoints of the former branch, and all lines of its log, are somewhere. */
static void nothing_is_lost(void)
{
    assert_true(shell("for s in former/step-*; do for d in run run/set-aside-*; do "
                      "cmp -s $s/manifest.json $d/${s#*/}/manifest.json && echo $s; done; done | "
                      "sort -u >found; [ $(wc -l <found) = 4 ]"));
    assert_true(shell("cat run/log.jsonl run/set-aside-*/log.jsonl 2>/dev/null | sort >lines; "
                      "[ -z \"$(sort former/log.jsonl | comm -23 - lines)\" ]"));
}

static bool is_recorded(void)
{
    return shell("grep -q other run/" LK_RUN_COMMAND);
}

/* Crashes at every call, lets a run fail, and gives the same command again, from the step
 * `from`. */
static void crash_everywhere(int64_t from)
{
    char     aside[32];
    uint64_t step;
    int      status     = CRASHED;
    size_t   unrecorded = 0;
    for (long k = 1; status == CRASHED; k++) {
        assert_true(shell("rm -rf run; cp -r former run"));
        status = run_child("other", 2, NULL, k);
        nothing_is_lost();
        const bool back = lk_checkpoint_goes_back("run", &step, aside);
        if (back)
            assert_true(step == 2 && strcmp(aside, "set-aside-1") == 0);
        if (!is_recorded() && shell("ls run/set-aside-1/step-* >/dev/null 2>&1"))
            assert_true(back);
        unrecorded += back && !is_recorded();
        assert_false(is_recorded() && back && status == 0);
        assert_int_equal(run_child("other", from, "nowhere/metrics", 0), FAILED);
        nothing_is_lost();
        assert_true(!back || lk_checkpoint_goes_back("run", &step, aside));
        assert_int_equal(run_child("other", from, NULL, 0), 0);
        nothing_is_lost();
        assert_false(lk_checkpoint_goes_back("run", &step, aside));
        assert_true(is_recorded());
        assert_true(shell("! find run -name '*.new' | grep ."));
    }
    assert_int_equal(status, 0);
    assert_true(unrecorded >= 5); /* two moves, the lines, the log, the command */
}

static void a_crash_loses_nothing(void **state)
{
    (void)state;
    crash_everywhere(2);
}

static void a_run_may_go_back_further_after_a_crash(void **state)
{
    (void)state;
    crash_everywhere(1);
}

static int make_former(void **state)
{
    static char folder[] = "/tmp/lockstep-back-XXXXXX";
    *state = folder;
    return mkdtemp(folder) != NULL && chdir(folder) == 0 && run_child("former", 0, NULL, 0) == 0 &&
                   shell("mv run former") ? 0 : -1;
}

static int remove_folder(void **state)
{
    char line[64];
    (void)snprintf(line, sizeof line, "rm -rf %s", (const char *)*state);
    return chdir("/") == 0 && shell(line) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_loses_nothing),
        cmocka_unit_test(a_run_may_go_back_further_after_a_crash),
    };
    return cmocka_run_group_tests(tests, make_former, remove_folder);
}
