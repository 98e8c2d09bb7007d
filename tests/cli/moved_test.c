/* moved_test.c -- runs whose directory was moved, with their log and their data.
 *
 * Method: the command itself, in the folder of the test.  A run is made in `old`, whose files move
 *         to `new`, and all commands that read a run find its files there.
 */
#include "cli/command.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define TRAIN                                                                                      \
    LOCKSTEP "train gpt --layers 1 --heads 1 --width 8 --context 8 --global-batch 8 "              \
             "--virtual-workers 2 --lr 0.01 --workers 1 --quiet --data book.txt --steps 4 "        \
             "--checkpoint-every 2 --checkpoint run --log run.jsonl"

static int make(void **state)
{
    static command_result r;
    int                   failed = make_folder(state);
    run_shell(&r, *state, "mkdir old && cd old && seq 300 >book.txt && " TRAIN " && " LOCKSTEP
                          "attest run && cd .. && mv old new && cp -r new kept");
    return failed != 0 || r.status != 0;
}

/* All files of the run are in the new place. */
static void files_are_found_beside_the_run(void **state)
{
    static command_result r;
    shell(&r, state, LOCKSTEP "verify new/run --step 3", 0);
    assert_says(r.out, "\nlog: equal losses of steps 3-3\n");
    assert_says_not(r.err, "is not there");
    shell(&r, state, LOCKSTEP "verify new/run.attest.json --segments all", 0);
    assert_says(r.out, "data: equal\ncheckpoints: 2 of 2 equal");
    shell(&r, state, LOCKSTEP "attest new/run --out again.json && " LOCKSTEP
          "verify again.json", 0);
    assert_says(r.out, "data: equal\n");
    shell(&r, state, LOCKSTEP "top new/run --once", 0);
    assert_says(r.out, "new/run.jsonl");
    shell(&r, state, LOCKSTEP "report new/run >page.html", 0);
    shell(&r, state, "sed '/\"step\": 3,/s/\"loss_bits\": \"4/\"loss_bits\": \"3/' new/run.jsonl "
          ">x && mv x kept/run.jsonl", 0);
    shell(&r, state, LOCKSTEP "diff new/run kept/run", 1);
    assert_says(r.out, "log, step 3: loss");
    shell(&r, state, LOCKSTEP "resume new/run --steps 6 --workers 2 && test ! -e run.jsonl && "
          "grep -c '\"loss_bits\"' new/run.jsonl", 0);
    assert_says(r.out, "\n6\n");
}

/* The run is still where the statement says, but its data are beside the statement only. */
static void each_file_is_looked_for_by_itself(void **state)
{
    static command_result r;
    shell(&r, state, "mkdir old && cp -r kept/run old && " LOCKSTEP
          "verify kept/run.attest.json --segments all; s=$?; rm -r old; exit $s", 0);
    assert_says(r.out, "data: equal\n");
}

/* The weights with which a run began are nowhere, so an option must say where they are. */
static void lost_weights_are_given(void **state)
{
    static command_result r;
    shell(&r, state, "mkdir began && cp kept/run/step-00000004/model.safetensors kept/book.txt "
          "began && cd began && " TRAIN " --init model.safetensors && " LOCKSTEP "attest run && mv "
          "model.safetensors ../weights.safetensors && " LOCKSTEP "verify run.attest.json "
          "--segments all", 1);
    assert_says(r.out, "\nnot verified: 1 of the segments could not be replayed\n");
    assert_says(r.err, "--init");
    shell(&r, state, LOCKSTEP "verify began/run.attest.json --segments all --init "
          "weights.safetensors", 0);
}

/* The data are nowhere, so an option must say where they are. */
static void lost_data_are_named(void **state)
{
    static command_result r;
    shell(&r, state, "cp -r kept lost && mv lost/book.txt elsewhere", 0);
    shell(&r, state, LOCKSTEP "verify lost/run --step 3", 2);
    assert_says(r.err, "cannot find the data 'text:book.txt' of the run 'lost/run', neither where "
                       "they were nor beside the run; say where they are: --data text:PATH");
    shell(&r, state, LOCKSTEP "resume lost/run --steps 6", 2);
    assert_says(r.err, "say where they are: --data text:PATH");
    shell(&r, state, LOCKSTEP "verify lost/run.attest.json", 1);
    assert_says(r.out, "\nnot verified: the data could not be read\n");
    shell(&r, state, LOCKSTEP "verify lost/run.attest.json --data elsewhere && " LOCKSTEP
          "verify lost/run --step 2 --data elsewhere", 0);
}

/* The name of a text has the characters that end a path in other kinds of data. */
static void texts_have_any_name(void **state)
{
    static command_result r;
    shell(&r, state, "mkdir any && cd any && seq 300 >'a,b?c.txt' && " LOCKSTEP "train gpt "
          "--layers 1 --heads 1 --width 8 --context 8 --global-batch 8 --virtual-workers 2 --lr "
          "0.01 --workers 1 --quiet --data 'a,b?c.txt' --steps 4 --checkpoint run --log run.jsonl "
          "&& " LOCKSTEP "attest run", 0);
    shell(&r, state, LOCKSTEP "resume any/run --steps 6", 0);
    shell(&r, state, LOCKSTEP "resume any/run --steps 7 --data 'text:any/a,b?c.txt'", 0);
    shell(&r, state, LOCKSTEP "verify any/run --step 7", 0);
    shell(&r, state, LOCKSTEP "verify any/run.attest.json --segments all", 0);
    assert_says(r.out, "data: equal\n");
    shell(&r, state, LOCKSTEP "verify any/run.attest.json --data 'any/a,b?c.txt'", 0);
    assert_says(r.out, "data: equal\n");
    shell(&r, state, LOCKSTEP "train gpt --data 'any/a,b?c.txt' --log 'any/a,b?c.txt'", 2);
    assert_says(r.err, "is a file that the run reads");
}

/* A record is JSON, so it cannot have a path that is not UTF-8. */
static void paths_that_are_not_recorded_are_named(void **state)
{
    static command_result r;
    shell(&r, state, "b=$(printf 'bad\\377'); mkdir \"$b\"; seq 300 >\"$b\"/book.txt; " LOCKSTEP
          "train gpt --layers 1 --heads 1 --width 8 --context 8 --workers 1 --quiet --steps 2 "
          "--data \"$b\"/book.txt --log \"$b\"/log --checkpoint named && cd \"$b\" && " LOCKSTEP
          "train gpt --layers 1 --heads 1 --width 8 --context 8 --workers 1 --quiet --steps 2 "
          "--data book.txt --checkpoint ../inside", 0);
    assert_says(r.err, "note: --data text:bad\377/book.txt is not UTF-8, so the run keeps its");
    assert_says(r.err, "note: --log bad\377/log is not UTF-8, so the run keeps its options");
    assert_says(r.err, "cannot write '../inside/command.json': the path of the run, or of the "
                       "current directory, is not UTF-8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_file_is_looked_for_by_itself),
        cmocka_unit_test(lost_weights_are_given),
        cmocka_unit_test(lost_data_are_named),
        cmocka_unit_test(files_are_found_beside_the_run),
        cmocka_unit_test(texts_have_any_name),
        cmocka_unit_test(paths_that_are_not_recorded_are_named),
    };
    return cmocka_run_group_tests(tests, make, remove_folder);
}
