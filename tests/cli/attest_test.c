/* attest_test.c -- statements of `lockstep attest`, and what `lockstep verify` finds.
 *
 * Method: the command itself.  One run, of which are forged in turn: an option, a field of the
 *         statement, a loss, a sample.  Each forgery is found, and the message names it.
 */
#include "cli/command.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define TRAIN                                                                                      \
    LOCKSTEP "train gpt --layers 1 --heads 1 --width 8 --context 8 --global-batch 8 "              \
             "--virtual-workers 2 --lr 0.01 --steps 4 --checkpoint-every 2 --workers 1 --quiet "
#define EDIT(file, program)                                                                        \
    "python3 -c \"import json; d = json.load(open('" file "')); " program                          \
    "; json.dump(d, open('" file "', 'w'))\"; "
#define CHANGED(program)                                                                           \
    "cp good.json bad.json; " EDIT("bad.json", program) LOCKSTEP "verify bad.json"

static const char *folder;

static int make(void **state)
{
    static command_result r;
    int                   failed = make_folder(state);
    folder                       = *state;
    run_shell(&r, folder, "seq 300 >data.txt && " TRAIN "--data data.txt --checkpoint run "
                          "--log run.jsonl && " LOCKSTEP "attest run --out good.json");
    return failed != 0 || r.status != 0;
}

/* Runs a line of shell.  Expects a failure, with a text on stdout or stderr. */
static void find(const char *line, const char *text)
{
    static command_result r;
    run_shell(&r, folder, line);
    if (r.status != 1 || (strstr(r.err, text) == NULL && strstr(r.out, text) == NULL))
        fail_msg("status %d, not '%s': %s%s", r.status, text, r.out, r.err);
}

static void a_true_statement_is_equal(void **state)
{
    (void)state;
    static command_result r;
    run_command(&r, folder, "verify good.json --segments all");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "segment 1 of 2, steps 1-2:\n  equal\nsegment 2 of 2, steps 3-4:\n  equal");
}

static void options_that_contradict_the_run_are_refused(void **state)
{
    (void)state;
    find("cp -r run other; " EDIT("other/command.json", "d['options']['lr'] = '0.02'")
         LOCKSTEP "attest other --out other.json",
         "'other/command.json' contradicts the run: --lr is 0.02, but the checkpoint was made with "
         "0.01; restore");
    find("test -e other.json", "");
    find(LOCKSTEP "attest nowhere", "cannot find 'nowhere'");
    find(LOCKSTEP "attest run --out nowhere/a.json",
         "cannot write 'nowhere/a.json': No such file or directory; give another --out");
    find("mkdir begun; cp run/command.json begun; " LOCKSTEP "attest begun",
         "the run in 'begun' has no checkpoint yet, so there is nothing to attest");
}

static void a_changed_field_is_named(void **state)
{
    (void)state;
    find(CHANGED("d['seed'] = '7'"), "its 'seed' is not what was stated");
    find(CHANGED("d['options']['lr'] = '7'"), "its 'options.lr' is not what was stated");
    find(CHANGED("d['options']['new'] = '7'"), "its 'options.new' is not what was stated");
    find(CHANGED("d['losses'][2] = d['losses'][1]"), "a loss of steps 3-4 or a hash of that");
    find(CHANGED("d['checkpoints'][0]['weights'] = 64 * '0'"), "a loss of steps 1-2 or a hash");
}

/* Makes a statement from a log in which a loss was invented, and changes the data of a true one. */
static void forgeries_are_found(void **state)
{
    (void)state;
    find("cp run.jsonl kept.jsonl; sed -i '/\"step\": 3,/s/\"loss_bits\": \"4/&0/;"
         "/\"step\": 3,/s/\\(\"loss_bits\": \"[0-9a-f]\\{16\\}\\)[0-9a-f]/\\1/' run.jsonl; "
         LOCKSTEP "attest run --out forged.json; mv kept.jsonl run.jsonl; " LOCKSTEP
         "verify forged.json --segments all",
         "not equal: step 3 is the first with another loss");
    find("sed -i s/150/159/ data.txt; " LOCKSTEP "verify good.json", "the data '");
    find(LOCKSTEP "attest run --out other.json", "--data text:data.txt is not the data of the");
    find("test -e other.json", "");
}

/* Replays steps, and compares them with the run: a loss in its log and a hash in its checkpoint are
 * forged in turn. */
static void steps_are_compared_with_the_run(void **state)
{
    (void)state;
    static command_result r;
    run_command(&r, folder, "verify run --step 4 --virtual-worker 1");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "\nlog: equal losses of steps 3-4\nlog: equal loss of this virtual worker\n"
                       "checkpoint of step 4: equal weights\nequal\n");
    find("cp run.jsonl kept.jsonl; "
         "sed -i '/\"step\": 3,/s/\"loss_bits\": \"4/\"loss_bits\": \"3/' run.jsonl; "
         LOCKSTEP "verify run --step 4",
         "\nnot equal: step 3: the log has the loss ");
    find("sed '/\"step\": 3,/s/\"virtual_losses\": \"4/\"virtual_losses\": \"3/' kept.jsonl "
         ">run.jsonl; " LOCKSTEP "verify run --step 3; s=$?; mv kept.jsonl run.jsonl; exit $s",
         "\nnot equal: virtual worker 0 of step 3: the log has the loss ");
    find("cp -r run forged; " EDIT("forged/step-00000004/manifest.json", "d['seed'] = 9")
         LOCKSTEP "verify forged --step 4",
         "\nnot equal: the checkpoint of step 4 cannot be read: ");
    find(TRAIN "--data data.txt --lr 0.02 --checkpoint faster && rm -r forged/step-00000004 && "
         "mv faster/step-00000004 forged && " LOCKSTEP "verify forged --step 4",
         "\nnot equal: weights after step 4: the checkpoint has");
    run_shell(&r, folder, "mv run/step-00000004 run.jsonl .. && sed '/\"step\": 4,/d' ../run.jsonl "
                          ">run.jsonl; " LOCKSTEP "verify run --step 4; mv ../run.jsonl . && "
                          "mv ../step-00000004 run");
    assert_says(r.out, "\nlog: equal losses of steps 3-3\nnot compared: the run has no log with a "
                       "loss of step 4, and no checkpoint of it\n");
}

/* Signs, and fails to sign in three ways.  Expects that a good statement and its signature are
 * kept, and that nothing else is left. */
static void a_failed_signature_keeps_the_old_one(void **state)
{
    (void)state;
    static command_result before, r;
    static const char     sums[] = "cksum signed.json*; ls *.new* 2>/dev/null";
    if (system("command -v ssh-keygen >/dev/null") != 0)
        skip();
    run_shell(&r, folder, "ssh-keygen -q -t ed25519 -N '' -f key && echo broken >bad && "
                          "chmod 600 bad && " LOCKSTEP "attest run --key key --out signed.json && "
                          LOCKSTEP "verify signed.json --segments 1");
    if (r.status != 0)
        fail_msg("%s%s", r.out, r.err);
    assert_says(r.out, "signature: good");
    run_shell(&before, folder, sums);
    find(LOCKSTEP "attest run --key bad --out signed.json",
         "could not sign 'signed.json' with the key 'bad'");
    run_shell(&r, folder, sums);
    assert_string_equal(r.out, before.out);
    find(LOCKSTEP "attest run --out signed.json",
         "'signed.json.sig' is the signature of an earlier statement");
    find("mkdir -p empty; PATH=empty " LOCKSTEP "attest run --key key --out signed.json",
         "cannot start ssh-keygen");
    find(LOCKSTEP "attest run --key key --out data.txt", "'data.txt' is a file of another kind");
    run_shell(&r, folder, sums);
    assert_string_equal(r.out, before.out);
    run_shell(&r, folder, LOCKSTEP "attest run --key key --out signed.json");
    assert_int_equal(r.status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_true_statement_is_equal),
        cmocka_unit_test(options_that_contradict_the_run_are_refused),
        cmocka_unit_test(a_changed_field_is_named),
        cmocka_unit_test(a_failed_signature_keeps_the_old_one),
        cmocka_unit_test(steps_are_compared_with_the_run),
        cmocka_unit_test(forgeries_are_found),
    };
    return cmocka_run_group_tests(tests, make, remove_folder);
}
