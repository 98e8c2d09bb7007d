/* attest_test.c -- statements of `lockstep attest`, and what `lockstep verify` finds.
 *
 * Method: the command itself.  One run, of which are forged in turn: an option, a field of the
 *         statement, a loss, a sample, each value of its log.  Each forgery is found, and the
 *         message names it.
 */
#include "cli/command.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define TRAIN                                                                                      \
    LOCKSTEP "train gpt --layers 1 --heads 1 --width 8 --context 8 --global-batch 8 "              \
             "--virtual-workers 2 --validation 0.2 --eval-every 1 --lr 0.01 --steps 4 "            \
             "--checkpoint-every 2 --workers 1 --quiet "
#define EDIT(file, program)                                                                        \
    "python3 -c \"import json; d = json.load(open('" file "')); " program                          \
    "; json.dump(d, open('" file "', 'w'))\"; "
#define CHANGED(program)                                                                           \
    "cp good.json bad.json; " EDIT("bad.json", program) LOCKSTEP "verify bad.json"

/* Invents a loss of step 3, and makes the link after it anew. */
#define FORGE_LOSS                                                                                 \
    "import hashlib; l = d['losses']; c = d['checkpoints']; l[2] = '3' + l[2][1:]; "               \
    "t = [c[0]['link'], '3 ' + l[2], '4 ' + l[3], c[1]['weights'], c[1]['manifest'], '']; "        \
    "c[1]['link'] = hashlib.sha256('\\n'.join(t).encode()).hexdigest()"

static const char *folder;

static int make(void **state)
{
    static command_result r;
    int                   failed = make_folder(state);
    folder                       = *state;
    run_shell(&r, folder, "seq 300 >data.txt && seq 900 999 >other.txt && " TRAIN
                          "--data data.txt --checkpoint run "
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

/* The command computes the run's options for a single worker, which loses nobody. */
static void a_run_with_groups_and_buddies_has_a_statement(void **state)
{
    (void)state;
    static command_result r;
    run_shell(&r, folder, TRAIN "--data data.txt --checkpoint buddies --log buddies.jsonl "
              "--optimizer adamw --compress topk --workers 2 --hosts 2 --strategy zero1 "
              "--on-failure continue --shard-replicas 2 && " LOCKSTEP "attest buddies --out "
              "b.json");
    if (r.status != 0)
        fail_msg("status %d: %s", r.status, r.err);
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

/* Options that a run may change when it is resumed, before it has written a checkpoint since. */
static void options_that_a_resume_may_change_are_compared(void **state)
{
    (void)state;
    find("cp -r run changed; " EDIT("changed/command.json", "d['options']['precision'] = 'bf16'")
         LOCKSTEP "attest changed --out changed.json",
         "--precision is \"bf16\", but the checkpoint was made with \"fp32\"; restore what was "
         "changed or, if a resume has changed it, resume the run until it writes a checkpoint");
    find(EDIT("changed/command.json", "d['options'].pop('precision'); "
              "d['options']['grad-comm-dtype'] = 'bf16'") LOCKSTEP "attest changed",
         "--grad-comm-dtype is \"bf16\", but the checkpoint was made with \"fp32\"; restore");
    find(EDIT("changed/command.json", "d['options'].pop('grad-comm-dtype'); "
              "d['options']['backup-workers'] = '1'") LOCKSTEP "attest changed",
         "has the options of a run that is timed (backup-workers 1), so nobody could replay it");
    find(EDIT("changed/command.json", "d['options'].pop('backup-workers'); "
              "d['options']['kernels'] = 'onednn'") LOCKSTEP "attest changed",
         "has the options of a run that is timed (kernels onednn), so nobody could replay it");
    find(EDIT("changed/command.json", "d['options'].pop('kernels'); "
              "d['options']['warmup'] = '3'") LOCKSTEP "attest changed",
         "was made with the default (0; one-cycle: 0.3 of the steps); restore");
    find("cp -r run labelled; sed '/\"step\": 3,/s/}$/, \"label\": \"timed\"}/' run.jsonl "
         ">labelled/log.jsonl; " LOCKSTEP "attest labelled --out changed.json",
         "labelled/log.jsonl' is of a run that is labelled timed, so nobody could replay it");
    find("test -e changed.json", "");
}

/* A resumed run that makes no step records no options and no data. */
static void a_resume_without_steps_changes_no_record(void **state)
{
    static command_result r;
    (void)state;
    run_shell(&r, folder, TRAIN "--data data.txt --checkpoint still --log still.jsonl && "
                          "cp still/command.json before && " LOCKSTEP "resume still --precision "
                          "bf16 && " LOCKSTEP "resume still --data other.txt --changed-data && "
                          "cmp before still/command.json && " LOCKSTEP "resume still && " LOCKSTEP
                          "attest still && " LOCKSTEP "verify still.attest.json --segments all");
    if (r.status != 0)
        fail_msg("%s%s", r.out, r.err);
}

/* A run that went back to a checkpoint and ended earlier than before, and one whose options were
 * changed so. */
static void checkpoints_past_the_end_of_a_run_are_named(void **state)
{
    static command_result r;
    (void)state;
    run_shell(&r, folder, TRAIN "--data data.txt --keep 9 --checkpoint back --log back.jsonl && "
                          LOCKSTEP "resume back --resume=2 --steps 3 && " LOCKSTEP "attest back");
    if (r.status != 0)
        fail_msg("%s%s", r.out, r.err);
    find("sed -i 's/\"steps\": \"3\"/\"steps\": \"2\"/' back/command.json && " LOCKSTEP
         "attest back", "back/command.json' has --steps 2, and there are checkpoints of later "
         "steps: restore --steps, or move these checkpoints away");
    find("sed -i 's/\"steps\": \"2\"/\"steps\": \"9\"/' back/command.json && " LOCKSTEP
         "attest back", "the options of the run have 9 steps, but its log '");
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
    find("cp good.json forged.json; " EDIT("forged.json", FORGE_LOSS) LOCKSTEP
         "verify forged.json --segments all | tee found; grep -q '^checkpoint of step 4: not "
         "equal: the checkpoint of step 4 is not of the run with these losses' found && exit 1",
         "not equal: step 3 is the first with another loss");
    find("sed '/\"step\": 3,/s/\"loss_bits\": \"4/\"loss_bits\": \"3/' run.jsonl >bits.jsonl; "
         "cp -r run bits && cp bits.jsonl bits/log.jsonl; " LOCKSTEP "attest bits --out x.json",
         "the checkpoint of step 4 is not of the run with these losses: its hash of the losses of "
         "steps 1-4 is ");
    find("sed -i s/150/159/ data.txt; " LOCKSTEP "verify good.json", "the data '");
    find(LOCKSTEP "attest run --out other.json", "--data text:data.txt is not the data of the");
    find("test -e other.json", "");
}

/* A checkpoint of another run is found when a statement is made, and without a replay. */
static void checkpoints_of_other_runs_are_found(void **state)
{
    (void)state;
    find(TRAIN "--data data.txt --lr 0.02 --checkpoint faster && cp -r run swapped && rm -r "
         "swapped/step-00000002 && cp -r faster/step-00000002 swapped && cp run.jsonl "
         "swapped/log.jsonl && " LOCKSTEP "attest swapped --out swapped.json",
         "the checkpoint of step 2 is not of the run with these losses");
    find("test -e swapped.json", "");
    find("sed '/\"weights\"/s/weights\": \"./weights\": \"x/' run.jsonl >swapped/log.jsonl; rm -r "
         "swapped/step-00000002; cp -r run/step-00000002 swapped; " LOCKSTEP "attest swapped",
         "the last line of the log '");
}

/* Replays steps, and compares them with the run: a loss in its log and a hash in its checkpoint are
 * forged in turn. */
static void steps_are_compared_with_the_run(void **state)
{
    (void)state;
    static command_result r;
    run_command(&r, folder, "verify run --step 4 --virtual-worker 1");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "\nlog: equal configuration and data\nlog: equal losses of steps 3-4\n"
                       "log: 2 equal evaluations\nlog: equal loss of this virtual worker\n"
                       "log: equal hashes at its end\ncheckpoint of step 4: equal weights\n"
                       "equal\n");
    find("cp -r run damaged; " EDIT("damaged/step-00000004/manifest.json", "d['seed'] = 9")
         LOCKSTEP "verify damaged --step 4",
         "\nnot equal: the checkpoint of step 4 cannot be read: ");
    find(TRAIN "--data data.txt --lr 0.02 --checkpoint fast && cp -r run forged && rm -r "
         "forged/step-00000004 && mv fast/step-00000004 forged && " LOCKSTEP
         "verify forged --step 4",
         "\nnot equal: weights after step 4: the checkpoint has");
    find("cp -r run mixed && rm -r mixed/step-00000002 && mv fast/step-00000002 mixed && " LOCKSTEP
         "verify mixed --step 3 2>said; test $? = 2 && cat said && exit 1",
         "--lr is 0.01, but the checkpoint was made with 0.02: either the checkpoint is not of "
         "this run, or give the option that the run had then");
    find("cp -r run two && cp run.jsonl two/a.jsonl && cp run.jsonl two/b.jsonl; "
         EDIT("two/command.json", "d['options'].pop('log')") LOCKSTEP "verify two --step 3",
         "two' has 2 files *.jsonl, and its command.json names none of them; --log says which\n");
    find("cp -r run short && rm -r short/step-00000004 && sed '/\"step\": 4,/d' run.jsonl "
         ">short/log.jsonl; " LOCKSTEP "verify short --step 4 | tee said; grep -q '^log: equal "
         "losses of steps 3-3$' said && exit 1",
         "\nnot compared: the log of the run has no loss of step 4\n");
    find("cp -r short/. run.jsonl.d; cp -r run/step-00000004 run.jsonl.d; " LOCKSTEP "verify "
         "run.jsonl.d --step 4", "\nnot compared: the log of the run has no loss of step 4\n");
    find(":>empty.jsonl; " LOCKSTEP "verify run --step 4 --log empty.jsonl",
         "\nnot compared: the log of the run has no loss of step 4\n");
}

/* Programs of sed that change or remove each kind of value in the log, and what is then said of a
 * step. */
static const struct {
    const char *forge;
    int         step;
    const char *says;
} cases[] = {
    { "/\"step\": 3,/s/\"loss_bits\": \"4/\"loss_bits\": \"3/", 4,
      "\nnot equal: step 3: the log has the loss_bits 3" },
    { "/\"step\": 3,/s/\"loss\": [0-9.]*/\"loss\": 1.5/", 4,
      "\nnot equal: step 3: the log has the loss 1.5, the replay " },
    { "/\"step\": 3,/s/\"loss_bits\": \"4/\"loss_bits\": \"z/", 3,
      "\nnot equal: step 3: the log has the loss_bits z" },
    { "/\"step\": 3,/s/\"loss_bits\": \"[^\"]*\"/\"loss_bits\": 3/", 3,
      "\nnot equal: step 3: the log has the loss_bits 3, the replay " },
    { "/\"step\": 3,/s/\"virtual_losses\": \"4/\"virtual_losses\": \"3/", 3,
      "\nnot equal: virtual worker 0 of step 3: the log has the loss " },
    { "/\"step\": 2,/s/\"lr\": 0.01/\"lr\": 0.02/", 2,
      "\nnot equal: step 2: the log has the lr 0.02, the replay 0.01 (line " },
    { "/\"step\": 2,/s/\"grad_norm\": ./&1/", 2,
      "\nnot equal: step 2: the log has the grad_norm " },
    { "/\"step\": 3,/s/\"val_loss\": [0-9.]*/\"val_loss\": 1.5/", 4,
      "\nnot equal: step 3: the log has the val_loss 1.5, the replay " },
    { "/\"step\": 4,/s/\"val_loss_bits\": \"4/\"val_loss_bits\": \"3/", 4,
      "\nnot equal: step 4: the log has the val_loss_bits 3" },
    { "/\"step\": 4,/s/\"val_accuracy\": 0/\"val_accuracy\": 1/", 4,
      "\nnot equal: step 4: the log has the val_accuracy 1" },
    { "/\"step\": 4,/s/\"val_perplexity\": ./&9/", 4,
      "\nnot equal: step 4: the log has the val_perplexity " },
    { "s/\"weights\": \"...../\"weights\": \"aaaaa/", 4,
      "\nnot equal: step 4: the log has the weights aaaaa" },
    { "s/\"run\": \"...../\"run\": \"aaaaa/", 4,
      "\nnot equal: step 4: the log has the run aaaaa" },
    { "1s/\"seed\": 0/\"seed\": 7/", 1,
      "\nnot equal: the configuration in line 1 of the log: --seed is recorded as 7, and not "
      "as 0, which the replay has\n" },
    { "1s/\"lr\": 0.01[0-9]*/\"lr\": 0.5/", 3, "of the log: --lr is recorded as 0.5" },
    { "1s/\"precision\": \"fp32/\"precision\": \"bf16/", 3,
      "of the log: --precision is recorded as \"bf16\"" },
    { "1s/\"data\": \"...../\"data\": \"aaaaa/", 3,
      "\nnot equal: step 0: the log has the data aaaaa" },
    { "1s/\"exactness_id\": \"...../\"exactness_id\": \"aaaaa/", 4,
      "\nnot equal: step 0: the log has the exactness_id aaaaa" },
    { "1s/\"data\": \"[^\"]*\", //", 3,
      "\nnot equal: line 1 of the log, of step 0, has no data\n" },
    { "1s/\"exactness_id\": \"[^\"]*\", //", 4, "of step 0, has no exactness_id\n" },
    { "1s/, \"config\": .*, \"time\"/, \"time\"/", 4, "of step 0, has no config\n" },
    { "1d", 2, "\nnot equal: the log has no first line, with the configuration, before step 1\n" },
    { "/\"step\": 3,/s/\"lr\": [^,]*, //", 4, "of the log, of step 3, has no lr\n" },
    { "/\"step\": 3,/s/\"grad_norm\": [^,]*, //", 3, "of step 3, has no grad_norm\n" },
    { "/\"step\": 3,/s/\"loss_bits\": [^,]*, //", 3, "of step 3, has no loss_bits\n" },
    { "/\"step\": 3,/s/\"loss\": .*\"lr/\"lr/", 3, "of step 3, has no loss\n" },
    { "/\"step\": 3,/s/, \"virtual_losses\": \"[^\"]*\"//", 3, "has no virtual_losses\n" },
    { "/\"step\": 3,/s/\"val_loss\": [^,]*, //", 3, "of step 3, has no val_loss\n" },
    { "/\"step\": 3,/s/\"val_loss\": .*\"val_a/\"val_a/", 3, "has no val_loss_bits\n" },
    { "s/\"weights\": [^,]*, //", 4, "of step 4, has no weights\n" },
    { "s/, \"run\": \"[^\"]*\"//", 4, "of step 4, has no run\n" },
    { "s/\"weights\": .*\"time\"/\"time\"/", 4, "of step 4, has no weights\n" },
    { "/\"step\": 2, .*\"loss\"/d", 2,
      "\nnot equal: the log has no line with the loss of step 2\n" },
    { "/\"step\": 3, .*\"loss\"/p", 4, ": step 3 stands twice\n" },
    { "/\"step\": 3, .*\"loss\"/{h;d};/\"step\": 4, .*\"loss\"/G", 4,
      "step 3 stands after step 4\n" },
    { "1s/\"parameters\": ./&9/", 4, "\nnot equal: step 0: the log has the parameters " },
    { "5s/^/x/", 4, "\nnot equal: the log cannot be read: line 5 of '" },
};

static void each_value_of_a_log_is_compared(void **state)
{
    char line[512];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(line, sizeof line, "sed '%s' run.jsonl >forged.jsonl; cmp -s run.jsonl "
                       "forged.jsonl && exit 3; " LOCKSTEP "verify run --step %d --log "
                       "forged.jsonl",
                       cases[i].forge, cases[i].step);
        find(line, cases[i].says);
    }
    find(LOCKSTEP "verify run --step 4 --log none.jsonl",
         "/none.jsonl': No such file or directory; give another --log");
}

/* Makes a run of 4 steps that is resumed after step 2, with other options, and verifies step 1. */
static void resume_and_verify(const char *name, const char *first, const char *then,
                              const char *verify, int status, const char *says)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, TRAIN "--data data.txt --checkpoint %s --log %s.jsonl "
                   "--keep 9 --steps 2 %s && " LOCKSTEP "resume %s --steps 4 %s >%s.out && "
                   LOCKSTEP "verify %s %s", name, name, first, name, then, name, name, verify);
    run_shell(&r, folder, line);
    if (r.status != status || strstr(status == 2 ? r.err : r.out, says) == NULL)
        fail_msg("status %d, not '%s': %s%s", r.status, says, r.out, r.err);
}

/* Each step is compared as far as the options are those that it was made with. */
static void resumed_runs_are_compared_with_their_first_options(void **state)
{
    static command_result r;
    (void)state;
    resume_and_verify("ra", "--local-steps 1 --groups 2", "--grad-algorithm linear", "--step 1", 0,
                      "\nequal\n");
    resume_and_verify("rb", "--ema 0.5", "--eval-weights model", "--step 1", 0,
                      "\nlog: not compared: 4 values of evaluations or of the noise scale");
    resume_and_verify("rc", "--noise-scale 0.5", "--noise-scale 0.9", "--step 1", 0,
                      "\nlog: not compared: 3 values of evaluations or of the noise scale");
    run_command(&r, folder, "verify rb --step 4");
    assert_says(r.out, "\nlog: 2 equal evaluations\n");
    assert_string_equal(r.err, ""); /* no notes of a run that writes */
    resume_and_verify("rd", "", "--grad-comm-dtype int8", "--step 1", 1,
                      "\nnot compared: steps after line 1 of the log: --grad-comm-dtype is "
                      "recorded as \"fp32\", and not as \"int8\"");
    run_command(&r, folder, "verify rd --step 1 --grad-comm-dtype fp32");
    assert_int_equal(r.status, 0);
    run_shell(&r, folder, "rm -r rd/step-00000002; " LOCKSTEP "verify rd --step 4");
    assert_int_equal(r.status, 1); /* the replay begins before the option has changed */
    assert_says(r.out, "\nnot compared: the run has changed since in what decides its bits\n");
    resume_and_verify("re", "", "--changed-data --data other.txt", "--step 1", 2,
                      "is not the data of step 1: it has the hash ");
    run_command(&r, folder, "verify re --step 1 --data data.txt");
    assert_int_equal(r.status, 0);
    run_command(&r, folder, "verify re --step 4");
    assert_int_equal(r.status, 0);
}

/* Reasons why something cannot be compared are no differences. */
static void own_problems_are_no_differences(void **state)
{
    static command_result r;
    (void)state;
    find(LOCKSTEP "verify good.json --data none", "\nnot verified: the data could not be read\n");
    find("TMPDIR=/none " LOCKSTEP "verify good.json",
         "\nnot verified: 1 of the segments could not be replayed\n");
    find("TMPDIR=/none " LOCKSTEP "verify good.json", "cannot make a temporary folder in '/none'");
    find(LOCKSTEP "verify good.json --workers 3",
         "\nnot verified: 1 of the segments could not be replayed\n");
    find(LOCKSTEP "verify good.json --checkpoint none", "give another --checkpoint");
    find(LOCKSTEP "verify good.json --signers none --identity me",
         "cannot read the signers 'none': No such file or directory; give a file with a line");
    find("mkfifo pipe; " LOCKSTEP "attest run --key pipe --out b.json",
         "cannot read the key 'pipe': it is a pipe or a device, and is read more than once");
    run_shell(&r, folder, "mv data.txt moved.txt; " LOCKSTEP "verify good.json; s=$?; " LOCKSTEP
                          "verify good.json --data moved.txt >given; t=$?; mv moved.txt data.txt; "
                          "cat given; exit $((10 * s + t))");
    assert_int_equal(r.status, 10);
    assert_says(r.out, "data: not compared: cannot find '");
    assert_says(r.out, "data.txt'; --data says where they are\n");
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

/* Expects that a statement is replaced by one of the same run alone, also if the run has made more
 * steps since. */
static void a_statement_of_another_run_is_kept(void **state)
{
    static command_result before, r;
    static const char     sums[] = "cksum st.json";
    (void)state;
    run_shell(&r, folder, TRAIN "--data data.txt --seed 3 --checkpoint later --log later.jsonl && "
                          LOCKSTEP "attest later --out st.json");
    if (r.status != 0)
        fail_msg("%s", r.err);
    run_shell(&before, folder, sums);
    find(LOCKSTEP "attest run --out st.json", "'st.json' is the statement of another run, of '");
    run_shell(&r, folder, sums);
    assert_string_equal(r.out, before.out);
    run_shell(&r, folder, LOCKSTEP "resume later --steps 6 && " LOCKSTEP
                          "attest later --out st.json && grep -c '\"step\": 6' st.json");
    if (r.status != 0)
        fail_msg("%s", r.err);
}

/* The best checkpoint is part of the configuration, so replays keep theirs. */
static void a_run_that_keeps_its_best_is_equal(void **state)
{
    static command_result r;
    (void)state;
    run_shell(&r, folder, TRAIN "--data data.txt --keep-best 1 --checkpoint best "
                          "--log best.jsonl && " LOCKSTEP "attest best && "
                          LOCKSTEP "verify best.attest.json");
    if (r.status != 0)
        fail_msg("%s%s", r.out, r.err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_true_statement_is_equal),
        cmocka_unit_test(a_run_with_groups_and_buddies_has_a_statement),
        cmocka_unit_test(a_run_that_keeps_its_best_is_equal),
        cmocka_unit_test(options_that_contradict_the_run_are_refused),
        cmocka_unit_test(options_that_a_resume_may_change_are_compared),
        cmocka_unit_test(a_resume_without_steps_changes_no_record),
        cmocka_unit_test(checkpoints_past_the_end_of_a_run_are_named),
        cmocka_unit_test(a_changed_field_is_named),
        cmocka_unit_test(a_failed_signature_keeps_the_old_one),
        cmocka_unit_test(a_statement_of_another_run_is_kept),
        cmocka_unit_test(steps_are_compared_with_the_run),
        cmocka_unit_test(each_value_of_a_log_is_compared),
        cmocka_unit_test(resumed_runs_are_compared_with_their_first_options),
        cmocka_unit_test(checkpoints_of_other_runs_are_found),
        cmocka_unit_test(own_problems_are_no_differences),
        cmocka_unit_test(forgeries_are_found),
    };
    return cmocka_run_group_tests(tests, make, remove_folder);
}
