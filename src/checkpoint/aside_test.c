/* aside_test.c -- tests a crash at every change of a directory whose later steps are set aside.
 *
 * Goal:   after a crash the directory lists all steps or those that stay, never some of the others.
 *         It says that a run goes back from when steps are left out until the command is recorded.
 *         The next run completes what was begun, and removes the drafts.  The same holds while
 *         steps are moved back.
 * Method: crash_testing.h.  A forked child crashes at its k-th call of the functions in
 *         aside_test.wrap.  k increases until the child ends without reaching its crash.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/crash_testing.h"
#include "checkpoint/directory.h"
#include "lockstep/checkpoint.h"

enum { STEPS = 5, LAST = 2, FAILED = 1 };

/* Makes a directory of empty steps 1 to STEPS. */
static void make_steps(char dir[32])
{
    char path[LKI_PATH_BYTES], name[LKI_STEP_NAME_BYTES];
    (void)snprintf(dir, 32, "/tmp/lockstep-aside-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (uint64_t step = 1; step <= STEPS; step++) {
        lki_step_name(name, step);
        assert_int_equal(lki_directory_join(path, dir, name), LK_OK);
        assert_int_equal(mkdir(path, 0777), 0);
    }
}

static void remove_all(const char *dir)
{
    char line[64];
    (void)snprintf(line, sizeof line, "rm -rf %s", dir);
    assert_int_equal(system(line), 0);
}

static size_t listed(const char *dir)
{
    uint64_t *steps;
    size_t    count;
    assert_int_equal(lki_steps_list(&steps, &count, dir), LK_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(steps[i], count - i);
    lki_free(steps);
    return count;
}

static bool exists(const char *dir, const char *name)
{
    char path[LKI_PATH_BYTES];
    return lki_directory_join(path, dir, name) == LK_OK && access(path, F_OK) == 0;
}

/* Records the command of the run, as `lockstep train` does before it ends setting aside. */
static bool record(const char *dir)
{
    char path[LKI_PATH_BYTES];
    return lki_directory_join(path, dir, LK_RUN_COMMAND) == LK_OK &&
           lki_file_replace(path, "{}", 2) == LK_OK;
}

/* Sets steps aside, and records the command or, with `back`, moves them back.  Crashes at the k-th
 * call.  Returns the child's exit status. */
static int crash(const char *dir, bool back, long k)
{
    pid_t child = fork();
    int   status;
    assert_true(child >= 0);
    if (child == 0) {
        char   name[LKI_STEP_NAME_BYTES];
        size_t count;
        calls_left      = back ? 0 : k;
        bool good = lki_steps_set_aside(name, &count, dir, LAST) == LK_OK && count == STEPS - LAST;
        calls_left      = back ? k : calls_left;
        good      = good && (back ? lki_steps_put_back(dir, name)
                                  : record(dir) && lki_steps_are_aside(dir) == LK_OK);
        _exit(good ? 0 : FAILED);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Returns true if the directory, or one in it, has drafts. */
static bool has_drafts(const char *dir)
{
    char line[64];
    (void)snprintf(line, sizeof line, "find %s -name '*.new' | grep -q .", dir);
    return system(line) == 0;
}

/* Expects that the directory says that a run goes back while steps are left out, and that run has
 * not recorded its command. */
static void check_going_back(const char *dir, bool left_out)
{
    char     name[32];
    uint64_t step;
    const bool back = lk_checkpoint_goes_back(dir, &step, name);
    if (back)
        assert_true(step == LAST && strcmp(name, "set-aside-1") == 0);
    assert_true(back || !left_out || exists(dir, LK_RUN_COMMAND));
}

/* Begins the next run.  Returns the number of steps that it has set aside. */
static size_t complete(const char *dir)
{
    char   name[LKI_STEP_NAME_BYTES];
    size_t count;
    assert_int_equal(lki_steps_set_aside(name, &count, dir, UINT64_MAX), LK_OK);
    assert_int_equal(lki_steps_are_aside(dir), LK_OK);
    assert_false(exists(dir, LKI_GOING_BACK));
    return count;
}

/* Expects that a run which goes back uses the first directory, which a crash may have left
 * empty. */
static void goes_back_anew(const char *dir)
{
    char   name[LKI_STEP_NAME_BYTES];
    size_t count;
    assert_int_equal(lki_steps_set_aside(name, &count, dir, LAST), LK_OK);
    assert_int_equal(count, STEPS - LAST);
    assert_string_equal(name, "set-aside-1");
}

static void crash_everywhere(bool back)
{
    int    status = CRASHED;
    size_t seen[STEPS + 1] = { 0 }, drafts = 0;
    for (long k = 1; status == CRASHED; k++) {
        char dir[32];
        make_steps(dir);
        status             = crash(dir, back, k);
        const size_t count = listed(dir);
        check_going_back(dir, count == LAST);
        drafts += has_drafts(dir);
        const size_t aside = complete(dir);
        assert_false(has_drafts(dir));
        assert_true(count == STEPS || count == LAST);
        assert_int_equal(listed(dir), count);
        assert_int_equal(aside, status == CRASHED && count == LAST ? STEPS - LAST : 0);
        seen[count]++;
        if (count == STEPS)
            goes_back_anew(dir);
        remove_all(dir);
    }
    assert_int_equal(status, 0);
    assert_true(seen[LAST] > STEPS - LAST && seen[STEPS] > 0);
    assert_true(back || drafts == 2); /* of the file that says so, and of the command */
}

static void a_crash_while_steps_are_set_aside(void **state)
{
    (void)state;
    crash_everywhere(false);
}

/* Puts files with names like those of drafts into the directory.  Expects that only those of
 * processes that are gone are removed. */
static void drafts_of_others_stay(void **state)
{
    char dir[32], line[512];
    (void)state;
    make_steps(dir);
    (void)snprintf(line, sizeof line, "cd %s; touch .going-back.%ld.new command.json.%ld.new "
                   ".going-back.x.new command.json.1.new .going-back.new command.json.1.new.new "
                   "my.%ld.new log.jsonl.%ld.new; sh -c 'touch .going-back.$$.new'", dir,
                   (long)getpid(), (long)getpid(), (long)getpid(), (long)getpid());
    assert_int_equal(system(line), 0);
    assert_int_equal(complete(dir), 0);
    (void)snprintf(line, sizeof line, "cd %s; [ $(ls -A | grep -c new) = 6 ]", dir);
    assert_int_equal(system(line), 0);
    remove_all(dir);
}

static void a_crash_while_steps_are_moved_back(void **state)
{
    (void)state;
    crash_everywhere(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_while_steps_are_set_aside),
        cmocka_unit_test(a_crash_while_steps_are_moved_back),
        cmocka_unit_test(drafts_of_others_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
