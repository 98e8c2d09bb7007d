/* kept_test.c -- checks that a run keeps to the data of the run that it continues, and leaves the
 * files of other runs.
 *
 * Method: the command itself, and checksums of the files.
 */
#include "cli/command.h"

#define DATA "--data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 4 "
#define MLP "train mlp " DATA "--hidden 8 --global-batch 8 --micro-batch 2 --lr 0.1 "

/* Changes the data of a run.  Expects that a resume names them and does not go on, unless it is
 * told to, and that the run then has the new data. */
static void a_resume_refuses_other_data(void **state)
{
    static command_result r;
    static const char     start[] = "train gpt --layers 1 --heads 1 --width 8 --context 4 --data "
                                    "moved.txt --global-batch 8 --steps 2 --checkpoint moved";
    (void)run_shell(&r, *state, "seq 200 >moved.txt; cp moved.txt same.txt");
    run_command(&r, *state, start);
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "seq 201 >moved.txt");
    run_command(&r, *state, "resume moved --steps 4");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "lockstep resume: --data text:moved.txt is not the data of the checkpoint");
    assert_says(r.err, "or say --changed-data");
    run_command(&r, *state, "resume moved --steps 4 --data same.txt"); /* a name is no content */
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "resume moved --steps 5 --data moved.txt --changed-data");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "the data, the precision or the kernels have changed");
    run_command(&r, *state, "resume moved --steps 6 --data same.txt");
    assert_int_equal(r.status, 2);
}

/* Changes the weights of a run's samples.  Expects that a resume refuses them as other data. */
static void a_resume_refuses_other_weights(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "seq 64 >weights");
    run_command(&r, *state, MLP "--steps 2 --loss-weights weights --checkpoint weighed");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "seq 2 65 >weights");
    run_command(&r, *state, "resume weighed --steps 3");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "(of data and weights), but the checkpoint was made with");
}

/* Resumes from a directory that is not there, as if its name were mistyped, and from an empty
 * one. */
static void a_resume_names_a_missing_directory(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 2 --resume --checkpoint mistyped");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "there is no directory 'mistyped' to resume from: correct the path, or "
                       "begin the run by its first command and --resume=auto\n");
    (void)run_shell(&r, *state, "test ! -e mistyped && mkdir empty");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, MLP "--steps 2 --resume --checkpoint empty");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "there is no checkpoint in 'empty' to resume from");
}

/* Names files that are not a run's as its outputs.  Expects that they keep their contents, and that
 * the refused runs leave no file. */
static void outputs_overwrite_no_other_file(void **state)
{
    static const struct {
        const char *options, *text;
    } bad[] = {
        { "--log poem.txt", "--log poem.txt is a file that the run reads" },
        { "--log ./link", "--log ./link is a file that the run reads" },
        { "--metrics poem.txt", "--metrics poem.txt is a file that the run reads" },
        { "--trace poem.txt", "--trace poem.txt is a file that the run reads" },
        { "--log other.txt", "--log other.txt is a file of another kind" },
        { "--metrics other.txt", "--metrics other.txt is a file of another kind" },
        { "--metrics ../pipe", "--metrics ../pipe is no file" },
        { "--metrics ../link", "--metrics ../link is no file" },
        { "--trace ../pipe", "--trace ../pipe is no file" },
        { "--log object.json", "--log object.json is a file of another kind" },
        { "--log trainer.jsonl", "--log trainer.jsonl is a file of another kind" },
        { "--log begun.jsonl", "--log begun.jsonl is a file of another kind" },
        { "--log pointer", "--log pointer is a file of another kind" },
        { "--resume=auto --log trainer.jsonl --checkpoint cx", "--log trainer.jsonl is a file of" },
        { "--metrics script", "--metrics script is a file of another kind" },
        { "--trace object.json", "--trace object.json is a file of another kind" },
        { "--log same --metrics same", "--log and --metrics are the same file same" },
        { "--log same --metrics ./same", "--log and --metrics are the same file ./same" },
        { "--trace /proc/none --checkpoint cx", "cannot write the trace '/proc/none'" },
        { "--tensorboard events --metrics other.txt", "--metrics other.txt is a file of" },
        { "--checkpoint cx --tensorboard /proc/none", "'/proc/none': No such file" },
        { "--log same --trace same", "--log and --trace are the same file same" },
        { "--tensorboard other.txt", "--tensorboard other.txt: is a file, not a directory" },
    };
    static command_result before, after;
    (void)run_shell(&before, *state,
                    "mkfifo pipe && ln -s new link && mkdir refused && cd refused && "
                    "seq 200 >poem.txt && seq 9 >other.txt && "
                    "ln -s poem.txt link && echo '{\"name\": 1}' >object.json && "
                    "echo '#!/bin/sh' >script && "
                    "echo '{\"step\": 1, \"loss\": 2.5}' >trainer.jsonl && "
                    "printf '{\"step\": 1' >begun.jsonl && "
                    "echo 'version https://git-lfs.github.com/spec/v1' >pointer && cksum *");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[512];
        (void)snprintf(line, sizeof line, "cd refused && " LK_TEST_COMMAND " train gpt --layers 1 "
                       "--heads 1 --width 8 --context 4 --data poem.txt --steps 1 %s",
                       bad[i].options);
        (void)run_shell(&after, *state, line);
        if (after.status == 0)
            fail_msg("%s was not refused: %s", bad[i].options, after.err);
        assert_says(after.err, bad[i].text);
    }
    (void)run_shell(&after, *state, "cd refused && cksum * .[!.]* 2>&1 | grep -v '\\[!'");
    assert_string_equal(after.out, before.out);
}

/* Puts files of the user beside the outputs of a run, one of which has the name of a draft.
 * Expects that they keep their contents, and that other files may have any name. */
static void drafts_replace_no_other_file(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    "mkdir beside && cd beside && echo mine >m.new && ln -s mine t.tmp && "
                    LK_TEST_COMMAND " " MLP "--steps 2 --metrics m --trace t && cat m.new && "
                    "readlink t.tmp && ls");
    assert_non_null(strstr(r.out, "mine\nmine\nm\nm.new\nt\nt.tmp\n"));
    (void)run_shell(&r, *state,
                    "mkdir taken && cd taken && sh -c 'echo mine >m.$$.new; exec " LK_TEST_COMMAND
                    " " MLP "--worker-mode threads --steps 2 --quiet --metrics m'; cat m.*.new");
    assert_non_null(strstr(r.out, "mine\n"));
    assert_says(r.err, "cannot write the metrics 'm' as");
}

/* Logs to a pipe whose reader comes after the timeout of a rank, a little later, or never. */
static void a_pipe_without_a_reader_is_named(void **state)
{
    static const char *const modes[] = { "processes", "threads" };
    static command_result    r;
    (void)run_shell(&r, *state, "mkfifo unread");
    for (size_t i = 0; i < 2; i++) {
        char line[1000];
        (void)snprintf(line, sizeof line, LK_TEST_COMMAND " " MLP "--steps 2 --workers 2 --quiet "
                       "--timeout 1 --worker-mode %s --log unread 2>said & "
                       "until grep -q waiting said; do kill -0 $! || exit 9; sleep 0.1; done; "
                       "sleep 2; timeout 100 cat unread >read; wait $!; s=$?; cat said >&2; "
                       "grep -c loss_bits read; exit $s", modes[i]);
        (void)run_shell(&r, *state, line);
        assert_int_equal(r.status, 0);
        assert_says(r.err, "note: the log 'unread' is a pipe that nobody reads; waiting for a "
                           "reader");
        assert_non_null(strstr(r.out, "\n2\n"));
    }
    (void)run_shell(&r, *state, "(sleep 0.3; cat unread >read) & " LK_TEST_COMMAND " " MLP
                                "--steps 2 --workers 2 --quiet --log unread; wait; "
                                "grep -c loss_bits read");
    assert_non_null(strstr(r.out, "\n2\n"));
    assert_string_equal(r.err, "");
    (void)run_shell(&r, *state, LK_TEST_COMMAND " " MLP "--steps 2 --workers 2 --quiet --log "
                                "unread 2>said & until grep -q waiting said; do sleep 0.1; done; "
                                "kill -TERM $!; wait $!; s=$?; cat said >&2; exit $s");
    assert_int_equal(r.status, 128 + SIGTERM);
}

/* Continues a run whose data have a name that JSON cannot hold. */
static void data_that_the_run_does_not_keep_are_named(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "seq 2000 >$(printf 'bad\\377.txt'); " LK_TEST_COMMAND " train "
                                "gpt --layers 1 --width 8 --heads 1 --context 8 --steps 2 "
                                "--workers 1 --global-batch 2 --checkpoint bad --data "
                                "$(printf 'bad\\377.txt')");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "resume bad --steps 3");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "lockstep resume: note: the --data of the run '");
    assert_says(r.err, "bad' is not UTF-8, so the run does not keep it: give it again");
    (void)run_shell(&r, *state, LK_TEST_COMMAND " resume bad --steps 3 --data text:$(printf "
                                "'bad\\377.txt')");
    assert_int_equal(r.status, 0);
    assert_says_not(r.err, "give it again");
}

/* Starts a second run with the log, and with the event files, of a first one.  Expects that it is
 * refused, and that a log without steps is not kept. */
static void the_outputs_of_another_run_are_kept(void **state)
{
    static command_result before, r;
    static const char     first[] = MLP "--steps 2 --log first.log --tensorboard first";
    run_command(&r, *state, first);
    assert_int_equal(r.status, 0);
    (void)run_shell(&before, *state, "cksum first.log first/*");
    run_command(&r, *state, first);
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--log first.log has the log of another run, and would be overwritten: give "
                       "another one, or remove it");
    run_command(&r, *state, MLP "--steps 2 --tensorboard first");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--tensorboard first has the event files of another run");
    (void)run_shell(&r, *state, "cksum first.log first/*");
    assert_string_equal(r.out, before.out);
    (void)run_shell(&r, *state, "head -n 1 first.log >begun.log");
    run_command(&r, *state, MLP "--steps 2 --log begun.log");
    assert_int_equal(r.status, 0);
}

/* Resumes a run with the log, and the event files, of a run with another seed, and with a log that
 * has another loss.  Expects that each is refused and nothing is changed. */
static void a_resume_keeps_the_log_of_another_run(void **state)
{
    static command_result before, r;
    static const char     sums[] = "cksum t*.jsonl two/events* changed.jsonl one.jsonl "
                                   "one/command.json; ls one";
    run_command(&r, *state, MLP "--steps 4 --seed 1 --log one.jsonl --checkpoint one");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, MLP "--steps 6 --seed 2 --log two.jsonl --tensorboard two");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "sed '/\"step\": 3,/s/\"loss_bits\": \"3f/\"loss_bits\": \"40/' "
                                "one.jsonl >changed.jsonl; ! cmp -s one.jsonl changed.jsonl");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, MLP "--steps 6 --seed 1 --log three.jsonl");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, MLP "--steps 4 --seed 1 --log t-same.jsonl");
    assert_int_equal(r.status, 0);
    (void)run_shell(&before, *state, sums);
    run_command(&r, *state, "resume one --steps 6 --log three.jsonl"); /* has the same losses */
    assert_int_equal(r.status, 2);
    assert_says(r.err, "three.jsonl has steps after 4, which would be cut, and the log of this run "
                       "is ");
    run_command(&r, *state, "resume one --steps 6 --log t-same.jsonl"); /* has ended at its step */
    assert_int_equal(r.status, 2);
    assert_says(r.err, "t-same.jsonl has the end of a run, which would be cut, and the log of this "
                       "run is ");
    assert_says(r.err, "one.jsonl: leave --log out, or give a new one");
    run_command(&r, *state, "resume one --steps 6 --log two.jsonl");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "two.jsonl has the log of another run, and would be cut and continued: "
                       "--seed is 2 there, and 1 here; give the log of this run, or a new one");
    run_command(&r, *state, MLP "--steps 6 --seed 1 --checkpoint one --resume --log two.jsonl");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "two.jsonl has the log of another run");
    run_command(&r, *state, MLP "--steps 6 --seed 1 --checkpoint no --resume=auto --log two.jsonl");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "two.jsonl has the log of another run");
    run_command(&r, *state, "resume one --steps 6 --log changed.jsonl");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "its losses up to step 4 are not those of the checkpoint");
    run_command(&r, *state, "resume one --steps 6 --tensorboard two");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "two has the event files of another run");
    (void)run_shell(&r, *state, sums);
    assert_string_equal(r.out, before.out);
}

/* Moves a run together with its log, beside it and in it, copies it, and gives it a new log.
 * Expects that each log goes on. */
static void a_log_goes_with_its_run(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 2 --log own.jsonl --checkpoint own");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "mkdir away && mv own own.jsonl away && " LK_TEST_COMMAND
                                " resume away/own --steps 4 && grep -c loss_bits away/own.jsonl");
    assert_string_equal(strrchr(r.out, '\n') - 1, "4\n");
    (void)run_shell(&r, *state, "test ! -e own.jsonl && mv away gone && " LK_TEST_COMMAND
                                " resume gone/own --steps 5 && grep -c loss_bits gone/own.jsonl");
    assert_string_equal(strrchr(r.out, '\n') - 1, "5\n");
    run_command(&r, *state, "resume gone/own --steps 6 --log new.jsonl");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "new.jsonl' lacks steps 1 to 5 of this run");
    run_command(&r, *state, "resume gone/own --steps 7");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "grep -c loss_bits new.jsonl");
    assert_string_equal(r.out, "2\n");
}

/* Keeps all files of a run in the directory of its checkpoints, which is not there before. */
static void outputs_may_be_in_the_directory(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 2 --checkpoint in --log in/log.jsonl --metrics ./in/m "
                                "--trace in/trace.json --tensorboard in/events");
    if (r.status != 0)
        fail_msg("%s", r.err);
    (void)run_shell(&r, *state, "cksum in/log.jsonl; cp -r in copy; " LK_TEST_COMMAND " resume "
                                "copy --steps 3 && grep -c loss_bits copy/log.jsonl && "
                                "cksum in/log.jsonl");
    assert_int_equal(r.status, 0);
    assert_says_not(r.err, "is a copy of");
    assert_says(r.out, "\n3\n");
    const char *last = strstr(r.out, "\n3\n") + 3;
    assert_memory_equal(r.out, last, strlen(last));
    (void)run_shell(&r, *state, "mv in there && " LK_TEST_COMMAND " resume there --steps 4 && "
                                "grep -c loss_bits there/log.jsonl && test ! -e in");
    if (r.status != 0)
        fail_msg("%s%s", r.out, r.err);
    assert_says(r.out, "\n4\n");
}

/* Goes back to an earlier checkpoint.  Expects that the later ones are moved, with the lines that
 * the log loses, and that the run goes on from its own.  If they are moved back without these
 * lines, it names the steps that the log lacks. */
static void later_checkpoints_are_set_aside(void **state)
{
    static command_result r, whole;
    run_command(&r, *state, MLP "--steps 6 --checkpoint back --checkpoint-every 2 "
                                "--log back.jsonl");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "resume back --resume=2 --steps 3");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "note: 2 checkpoints of later steps are moved to '");
    assert_says(r.err, "/back/set-aside-1', since the run goes on from step 2 without them");
    (void)run_shell(&r, *state, "ls back back/set-aside-1 | grep step-");
    assert_string_equal(r.out, "step-00000002\nstep-00000003\nstep-00000004\nstep-00000006\n");
    (void)run_shell(&r, *state, "cp -r back own && " LK_TEST_COMMAND " resume own --resume=2 "
                                "--steps 2 --log own.jsonl && ls own/set-aside-2");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "step-00000003\n");
    run_command(&whole, *state, MLP "--steps 7");
    assert_int_equal(whole.status, 0);
    (void)run_shell(&r, *state, "cp -r back on && " LK_TEST_COMMAND " resume on --steps 7 "
                                "--log on.jsonl && test ! -e on/set-aside-2");
    assert_string_equal(r.out, whole.out);
    (void)run_shell(&r, *state, "cp -r back again && mv again/set-aside-1/step-* again && (sed "
                                "'/\"step\": 3,/,$d' back.jsonl; cat again/set-aside-1/log.jsonl) >"
                                "again.jsonl && " LK_TEST_COMMAND " resume again --steps 7 --log "
                                "again.jsonl && grep -c loss_bits again.jsonl");
    assert_int_equal(r.status, 0);
    assert_says_not(r.err, "lacks");
    assert_says(r.out, "\n7\n");
    (void)run_shell(&r, *state, "mv back/set-aside-1/step-* back && " LK_TEST_COMMAND
                                " resume back --steps 7");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "back.jsonl' lacks steps 4 to 6 of this run");
    (void)run_shell(&r, *state, "sed -i '/\"step\": 2,/d' back.jsonl; " LK_TEST_COMMAND
                                " resume back --steps 8");
    assert_says(r.err, "back.jsonl' lacks steps 2, 4 to 6 of this run");
}

/* Makes a run that was killed when it went back to step 2, between two moves of checkpoints. */
static void make_cut(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "rm -rf cut cut.jsonl");
    run_command(&r, *state, MLP "--steps 6 --checkpoint cut --checkpoint-every 2 --log cut.jsonl");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "mkdir cut/set-aside-1 && mv cut/step-00000004 cut/set-aside-1 && "
                                "echo 2 set-aside-1 >cut/.going-back");
}

/* Goes back again after a run that was killed between two moves of checkpoints. */
static void setting_aside_is_completed(void **state)
{
    static command_result r, whole;
    make_cut(state);
    run_command(&r, *state, "resume cut --resume=6");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "there is no checkpoint of step 6 in ");
    run_command(&r, *state, "resume cut --resume=2 --steps 5");
    run_command(&whole, *state, MLP "--steps 5");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, whole.out);
    assert_says(r.err, "resuming from ");
    assert_says(r.err, "note: 2 checkpoints of later steps are moved to '");
    (void)run_shell(&r, *state, "cd cut && ls -A && ls set-aside-1 && grep -c loss_bits "
                                "set-aside-1/log.jsonl");
    assert_says(r.out, "step-00000002\nstep-00000004\nstep-00000005\nlog.jsonl\n"
                       "step-00000004\nstep-00000006\n4\n");
    assert_says_not(r.out, "going-back");
}

/* Resumes a run that was killed when it went back, without the options of the one that was to
 * follow.  Expects that it is refused, with what was begun and both ways out, and changes nothing;
 * and that each way out works. */
static void a_resume_says_that_a_run_went_back(void **state)
{
    static const char *const refused[] = { "resume cut", "resume cut --steps 5",
                                           "resume cut --resume --restart",
                                           "resume cut --resume=auto" };
    static command_result    before, r, whole;
    static const char        sums[] = "cksum cut.jsonl cut/command.json; ls -A cut cut/*";
    make_cut(state);
    (void)run_shell(&before, *state, sums);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        run_command(&r, *state, refused[i]);
        assert_int_equal(r.status, 2);
        assert_says(r.err, "a run that goes back to step 2 of 'cut' has not begun its first step");
        assert_says(r.err, "give its whole command again, with --resume=2");
        assert_says(r.err, "move the checkpoints in 'cut/set-aside-1' back to 'cut'");
    }
    run_command(&r, *state, "inspect cut");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "step-00000002");
    (void)run_shell(&r, *state, sums);
    assert_string_equal(r.out, before.out);
    run_command(&r, *state, MLP "--precision bf16 --steps 6 --checkpoint cut --log cut.jsonl "
                            "--resume=2");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "grep precision cut/command.json; ls -A cut");
    assert_says(r.out, "bf16");
    assert_says_not(r.out, "going-back");
    run_command(&whole, *state, MLP "--steps 7");
    assert_int_equal(whole.status, 0);
    make_cut(state);
    run_command(&r, *state, MLP "--steps 7 --checkpoint cut --log cut.jsonl --resume --restart");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, whole.out);
    assert_says(r.err, "note: 2 checkpoints of later steps are moved to '");
    make_cut(state);
    (void)run_shell(&r, *state, "mv cut/set-aside-1/step-* cut && rm cut/.going-back && "
                                LK_TEST_COMMAND " resume cut --steps 7");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, whole.out);
    assert_says_not(r.err, "lacks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resume_refuses_other_data),
        cmocka_unit_test(a_resume_refuses_other_weights),
        cmocka_unit_test(a_resume_names_a_missing_directory),
        cmocka_unit_test(outputs_overwrite_no_other_file),
        cmocka_unit_test(drafts_replace_no_other_file),
        cmocka_unit_test(a_pipe_without_a_reader_is_named),
        cmocka_unit_test(data_that_the_run_does_not_keep_are_named),
        cmocka_unit_test(the_outputs_of_another_run_are_kept),
        cmocka_unit_test(a_resume_keeps_the_log_of_another_run),
        cmocka_unit_test(a_log_goes_with_its_run),
        cmocka_unit_test(outputs_may_be_in_the_directory),
        cmocka_unit_test(later_checkpoints_are_set_aside),
        cmocka_unit_test(setting_aside_is_completed),
        cmocka_unit_test(a_resume_says_that_a_run_went_back),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
