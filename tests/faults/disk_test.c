/* disk_test.c -- tests disks that are full, read-only or damaged.  Expects a clear error, and no
 * loss of earlier checkpoints.
 *
 * Goal:   if a file or directory is refused, the command names it and exits by itself with a status
 *         other than 0.  Earlier checkpoints are complete and can be resumed.
 * Method: a tmpfs of 64 KiB and a read-only mount in a mount namespace (skipped if the kernel does
 *         not permit one), /dev/full, ulimit -f, and bits that the test flips.
 */
#include "faults/job.h"

#define FAILS(r) assert_int_equal((r).status, 1)

/* Runs a line of shell as root of a separate user and mount namespace. */
static void run_unshared(command_result *r, const char *folder, const char *line)
{
    static char whole[3000];
    (void)run_shell(r, folder, "mkdir -p mnt && unshare -rm mount -t tmpfs none mnt");
    if (r->status != 0) {
        print_message("skipped: no mounts here: %s\n", r->err);
        skip();
    }
    (void)snprintf(whole, sizeof whole, "unshare -rm sh -c '%s'", line);
    (void)run_shell(r, folder, whole);
}

/* Fills the disk in a run with the options `how`.  `says` is the message about the refused
 * checkpoint. */
static void fill_disk(const char *folder, const char *how, const char *says)
{
    static command_result r;
    static char           line[2500];
    char                  wanted[65], digits[65];
    undisturbed(folder, MLP, STEPS, wanted);
    (void)snprintf(
        line, sizeof line,
        "cd mnt && mount -t tmpfs -o size=64k none . && cd . && cd $PWD && " LK_TEST_COMMAND " " MLP
        "--checkpoint ck --checkpoint-every 2 --keep 100 --quiet "
        "%s --workers 2 --steps 60; test $? = 1 || exit 9; "
        "ls -A ck | grep -v -e ^step- -e ^command.json$; "
        LK_TEST_COMMAND " inspect ck >/dev/null || exit 8; mount -o remount,size=8m . && "
        LK_TEST_COMMAND " " MLP
        "--checkpoint ck --resume --workers 3 --steps 60", how);
    run_unshared(&r, folder, line);
    if (r.status != 0)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_says(r.err, says);
    assert_says(r.err, "No space left on device");
    assert_says(r.err, "resuming from ck/step-000000");
    assert_int_equal(strlen(r.out), 73); /* ls found nothing half-written */
    read_weights(&r, digits);
    assert_string_equal(digits, wanted);
}

static void a_full_disk_keeps_older_checkpoints(void **state)
{
    fill_disk(*state, "", "in writing a checkpoint: cannot ");
}

/* Fills a disk shared by hosts.  Any host's writer may be the first to find no space.  Expects a
 * message that names this writer. */
static void a_full_shared_disk_keeps_older_checkpoints(void **state)
{
    fill_disk(*state, "--hosts 2 --strategy zero3",
              "has not written its part of the checkpoint: cannot ");
}

/* Fills the disk by a statement.  Expects that no part of it is left, and that it is written as
 * soon as there is room. */
static void a_full_disk_has_no_half_statement(void **state)
{
    static command_result r;
    run_unshared(&r, *state,
                 "rm -rf ck log; " LK_TEST_COMMAND " " MLP "--checkpoint ck --log log --quiet "
                 "--workers 1 --steps 60 >/dev/null && cd mnt && "
                 "mount -t tmpfs -o size=4k none . && cd . && cd $PWD && "
                 "{ " LK_TEST_COMMAND " attest ../ck --out a; test $? = 1; } && ls -A && "
                 "mount -o remount,size=1m . && " LK_TEST_COMMAND " attest ../ck --out a "
                 ">/dev/null && ls -A");
    if (r.status != 0)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_says(r.err, "No space left on device");
    assert_string_equal(r.out, "a\n");
}

static void an_unwritable_directory_is_reported_first(void **state)
{
    static command_result r;
    run_unshared(&r, *state,
                 "mount --bind mnt mnt && mount -o remount,ro,bind mnt && " LK_TEST_COMMAND " " MLP
                 "--checkpoint mnt --workers 2 --steps 60; test $? = 2 && " LK_TEST_COMMAND " " MLP
                 "--checkpoint mnt/ck --log mnt/log --workers 2 --steps 60; test $? = 2");
    if (r.status != 0)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_says(r.err, "--checkpoint mnt: cannot be written: Read-only file system; give another");
    assert_says(r.err, "--checkpoint mnt/ck: cannot write in 'mnt': Read-only file system; give ");
    assert_says(r.err, "--log mnt/log: cannot write in 'mnt': Read-only file system; give another");
    assert_says_not(r.err, "step 1/"); /* the run ended before the first step */
}

static void a_path_that_is_no_directory_is_reported_first(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "echo > file");
    run_command(&r, *state, MLP "--steps 5 --checkpoint file");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--checkpoint file: is a file, not a directory");
    run_command(&r, *state, MLP "--steps 5 --checkpoint file/ck");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--checkpoint file/ck: Not a directory");
    run_command(&r, *state, MLP "--steps 5 --checkpoint nowhere/ck --log nowhere/log");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--checkpoint nowhere/ck: there is no directory 'nowhere'");
    assert_says(r.err, "--log nowhere/log: there is no directory 'nowhere'");
}

static void a_full_device_fails_log_and_output(void **state)
{
    static const char *const modes[] = { "processes", "threads" };
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        char line[512];
        (void)snprintf(line, sizeof line,
                       MLP "--steps 5 --workers 3 --quiet --log /dev/full --worker-mode %s",
                       modes[i]);
        run_command(&r, *state, line);
        FAILS(r);
        assert_string_equal(r.out, "");
        assert_says(r.err, "cannot write the log '/dev/full': No space left on device");
        (void)snprintf(line, sizeof line,
                       MLP "--steps 5 --workers 3 --quiet --worker-mode %s >/dev/full", modes[i]);
        run_command(&r, *state, line);
        FAILS(r);
        assert_says(r.err, "writing to standard output: No space left on device");
        if (i == 0)
            assert_says(r.err, "at step 5 in reporting the result: the result could not be");
    }
}

/* Closes the pipe of standard output and standard error before the run begins. */
static void a_run_whose_output_nobody_reads_goes_on(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "{ until test -e closed; do sleep 0.1; done; " LK_TEST_COMMAND " "
                    MLP "--steps 5 --workers 2 --checkpoint ck --log log; echo $? >status; } "
                    "2>&1 | { exec <&-; touch closed; }; cat status; ls ck; "
                    "grep -c '\"weights\"' log");
    assert_string_equal(r.out, "1\ncommand.json\nstep-00000005\n1\n");
}

/* Sets ulimit -f, which raises SIGXFSZ.  The signal must not end the process. */
static void a_file_size_limit_is_an_error(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "ulimit -f 1; " LK_TEST_COMMAND " " MLP "--workers 2 --steps 5");
    FAILS(r);
    assert_says(r.err, "File too large; ulimit -f");
    (void)run_shell(&r, *state,
                    "ulimit -f 3000; " LK_TEST_COMMAND " " MLP
                    "--workers 2 --quiet --steps 100000000 --log log");
    FAILS(r);
    assert_says(r.err, "cannot write the log 'log': File too large");
    (void)run_shell(&r, *state,
                    "ulimit -f 16; " LK_TEST_COMMAND " " MLP "--workers 2 --quiet "
                    "--steps 2 --hidden 512 --worker-mode threads --checkpoint big");
    FAILS(r);
    assert_says(r.err, "File too large");
    (void)run_shell(&r, *state, "ls -A big | grep -v ^command.json");
    assert_string_equal(r.out, "");
}

/* ---- Damage ------------------------------------------------------------------------------- */

/* Creates "ck" with steps 10 and 20 of a run of 60 steps. */
static void make_two(const char *folder)
{
    static command_result r;
    forget(folder);
    run_command(&r, folder, MLP "--steps 20 --checkpoint ck --checkpoint-every 10 --workers 2");
    assert_int_equal(r.status, 0);
}

static void damaged_checkpoints_are_skipped_with_the_reason(void **state)
{
    static const struct {
        const char *how, *reason;
    } damages[] = {
        { "printf '\\125' | dd of=ck/step-00000020/model.safetensors bs=1 seek=700 conv=notrunc",
          "differs from its hash" },
        { "printf '\\125' | dd of=ck/step-00000020/optimizer.safetensors bs=1 seek=700 "
          "conv=notrunc",
          "differs from its hash" },
        { "printf '\\125' | dd of=ck/step-00000020/manifest.json bs=1 seek=300 conv=notrunc",
          "manifest.json" },
        { "truncate -s 500 ck/step-00000020/model.safetensors", "has 500 bytes" },
        { "rm ck/step-00000020/manifest.json", "No such file" },
    };
    static command_result r;
    char                  wanted[65], digits[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        make_two(*state);
        (void)run_shell(&r, *state, damages[i].how);
        assert_int_equal(r.status, 0);
        run_command(&r, *state, MLP "--steps 60 --checkpoint ck --resume=20 --workers 3 --quiet");
        FAILS(r);
        assert_says(r.err, damages[i].reason);
        run_command(&r, *state,
                    MLP "--steps 60 --checkpoint ck --checkpoint-every 10 --resume --workers 3");
        if (r.status != 0)
            fail_msg("%s: status %d: %s", damages[i].how, r.status, r.err);
        assert_says(r.err, "skipped step-00000020: ");
        assert_says(r.err, damages[i].reason);
        assert_says(r.err, "resuming from ck/step-00000010");
        read_weights(&r, digits);
        assert_string_equal(digits, wanted);
        (void)run_shell(&r, *state, "ls ck"); /* the damaged checkpoint is still there */
        assert_says(r.out, "damaged-step-00000020-");
    }
    forget(*state);
}

static void an_equal_checkpoint_is_not_rewritten(void **state)
{
    static command_result r;
    char                  wanted[65], digits[65];
    undisturbed(*state, MLP, STEPS, wanted);
    make_two(*state);
    run_command(&r, *state,
                MLP "--steps 60 --checkpoint ck --checkpoint-every 10 --resume=10 --workers 3");
    if (r.status != 0)
        fail_msg("status %d: %s", r.status, r.err);
    read_weights(&r, digits);
    assert_string_equal(digits, wanted);
    forget(*state);
}

static void a_resume_without_intact_checkpoints_is_refused(void **state)
{
    static command_result r;
    make_two(*state);
    (void)run_shell(&r, *state, "for f in ck/*/model.safetensors; do truncate -s 9 $f; done");
    run_command(&r, *state, MLP "--steps 60 --checkpoint ck --resume --workers 2");
    FAILS(r);
    assert_says(r.err, "none of the 2 checkpoints in 'ck' verifies; the newest: ck/step-00000020/");
    assert_string_equal(r.out, "");
    forget(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_full_disk_keeps_older_checkpoints, begin_afresh),
        cmocka_unit_test_setup(a_full_shared_disk_keeps_older_checkpoints, begin_afresh),
        cmocka_unit_test_setup(a_full_disk_has_no_half_statement, begin_afresh),
        cmocka_unit_test_setup(an_unwritable_directory_is_reported_first, begin_afresh),
        cmocka_unit_test_setup(a_path_that_is_no_directory_is_reported_first, begin_afresh),
        cmocka_unit_test_setup(a_full_device_fails_log_and_output, begin_afresh),
        cmocka_unit_test_setup(a_run_whose_output_nobody_reads_goes_on, begin_afresh),
        cmocka_unit_test_setup(a_file_size_limit_is_an_error, begin_afresh),
        cmocka_unit_test_setup(damaged_checkpoints_are_skipped_with_the_reason, begin_afresh),
        cmocka_unit_test_setup(an_equal_checkpoint_is_not_rewritten, begin_afresh),
        cmocka_unit_test_setup(a_resume_without_intact_checkpoints_is_refused, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
