/* sample_test.c -- tests `sample` and `eval` of trained models.
 *
 * Goal:   a trained llama generates text: all of its options come from the checkpoint.  The text is
 *         the same with and without the cache, also when the window is full, for gpt and llama in
 *         fp32 and bf16, and with any number of threads.  `eval` has the bits of the evaluation in
 *         the run, with any number of workers.  What does not fit the model is refused by name.
 * Method: the command, with small models that have learned to repeat seven letters.
 */
#include "command.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define SMALL                                                                                    \
    " --layers 1 --heads 2 --width 32 --context 16 --global-batch 8 --optimizer adamw --lr 1e-2 " \
    "--steps 60 --workers 1 --worker-mode threads --quiet --log log "
#define TRAIN_LLAMA                                                                                \
    "train llama --data text:text --validation 0.2" SMALL "--kv-heads 1 --head-size 24 "           \
    "--qk-norm --tie --qkv-bias --rope-theta 500 --rope-factor 2 --rope-original 16 "

static void a_trained_llama_generates_text(void **state)
{
    static command_result result;
    shell(&result, state, "yes abcdefg | tr -d '\\n' | head -c 6000 > text; " LOCKSTEP TRAIN_LLAMA
        "--checkpoint llama", 0);
    shell(&result, state, LOCKSTEP "sample llama --prompt ab --tokens 40 --temperature 0", 0);
    assert_string_equal(result.out, "abcdefgabcdefgabcdefgabcdefgabcdefgabcdefg\n");
    shell(&result, state, "printf ab | " LOCKSTEP "generate llama --prompt - --tokens 5 "
        "--temperature 5 --top-p 0.01 --count 2", 0);
    assert_string_equal(result.out, "abcdefg\nabcdefg\n");
    shell(&result, state, LOCKSTEP "sample llama/step-00000060/model.safetensors", 2);
    assert_non_null(strstr(result.err, "has a llama, but not its options"));
    shell(&result, state, LOCKSTEP "sample llama --prompt -", 2);
    assert_non_null(strstr(result.err, "the prompt is empty"));
    shell(&result, state, "yes | " LOCKSTEP "sample llama --prompt -", 2);
    assert_non_null(strstr(result.err, "has more than 64 MiB; give the end of it"));
    shell(&result, state, LOCKSTEP "sample llama --prompt - </dev/zero", 2);
    assert_non_null(strstr(result.err, "has a zero byte; give text"));
    shell(&result, state, LOCKSTEP "sample llama --prompt - <.", 2);
    assert_non_null(strstr(result.err, "on standard input: Is a directory"));
}

/* The text is longer than the window of 16 tokens, and random, so that all logits matter.  The gpt
 * has logits for more tokens than its data. */
static void the_cache_does_not_change_the_text(void **state)
{
    static const char *const ways[] = { "llama", "llama --precision bf16", "gpt",
                                        "gpt --precision bf16" };
    static command_result    cached, whole;
    shell(&cached, state, "rm -f log; " LOCKSTEP "train gpt --data text:text --vocabulary 300" SMALL
        "--checkpoint gpt", 0);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char line[512];
        for (uint32_t k = 0; k < 2; k++) {
            (void)snprintf(line, sizeof line,
                           LOCKSTEP "sample %s --prompt abcd --tokens 60 --count 2 --temperature 3 "
                                    "--top-k 200 --top-p 0.99 --seed 5 --raw --threads %u%s",
                           ways[i], k + 1, k == 0 ? "" : " --no-cache");
            shell(k == 0 ? &cached : &whole, state, line, 0);
        }
        assert_memory_equal(cached.out, whole.out, 130);
        assert_int_not_equal(memcmp(cached.out, cached.out + 65, 64), 0); /* texts differ */
    }
}

/* Checks that a pipe gets UTF-8, with U+FFFD for other bytes, and all bytes with --raw. */
static void a_pipe_gets_valid_text(void **state)
{
    static command_result result;
    shell(&result, state,
        "sample() { " LOCKSTEP "sample gpt --prompt ab --tokens 200 --temperature 9 $1; }; "
        "sample >text-out; sample --raw >raw-out; python3 -c \"raw = open('raw-out', 'rb').read();"
        " text = open('text-out', 'rb').read(); "
        "assert text == raw.decode(errors='replace').encode() != raw\"", 0);
}

/* Copies the bits of a loss from a line of a log or of eval. */
static const char *bits_of(const char *line, const char *key, char out[17])
{
    const char *at = strstr(line, key);
    assert_non_null(at);
    (void)snprintf(out, 17, "%.16s", at + strlen(key));
    return out;
}

static void eval_has_the_bits_of_the_run(void **state)
{
    static command_result result;
    char                  trained[17], evaluated[17], line[256];
    shell(&result, state, "rm -f log; " LOCKSTEP "train resnet --data "
        "synthetic:images=90,h=8,w=8,c=3,classes=4 --validation 0.3 --global-batch 16 "
        "--micro-batch 4 --steps 2 --ema 0.5 --precision bf16 --worker-mode threads --quiet "
        "--log log --checkpoint resnet; grep -h val_loss log", 0);
    (void)bits_of(result.out, "\"val_loss_bits\": \"", trained);
    for (uint32_t workers = 1; workers <= 3; workers++) {
        (void)snprintf(line, sizeof line, LOCKSTEP "eval resnet --json --workers %u", workers);
        shell(&result, state, line, 0);
        assert_string_equal(bits_of(result.out, "\"loss_bits\": \"", evaluated), trained);
    }
    shell(&result, state, "rm -rf log llama; " LOCKSTEP TRAIN_LLAMA "--checkpoint llama; "
        "grep -h val_loss log | tail -1", 0);
    (void)bits_of(result.out, "\"val_loss_bits\": \"", trained);
    shell(&result, state, LOCKSTEP "eval llama/step-00000060 --json", 0);
    assert_string_equal(bits_of(result.out, "\"loss_bits\": \"", evaluated), trained);
    assert_non_null(strstr(result.out, "\"samples\": 74, \"count\": 1184"));
    shell(&result, state, LOCKSTEP "eval llama --data text", 0);
    assert_non_null(strstr(result.out, "(a mean over 5984 targets of 374 samples)\nperplexity "));
    shell(&result, state, LOCKSTEP "eval resnet --data text:text", 2);
    assert_non_null(strstr(result.err, "have another shape than those on which the resnet of"));
    shell(&result, state, LOCKSTEP "eval gpt", 2);
    assert_non_null(strstr(result.err, "had no validation part"));
    shell(&result, state, LOCKSTEP "eval llama --data 'synthetic:tokens=99,vocab=300'", 2);
    assert_non_null(strstr(result.err, "has 300 tokens, but the model of llama only 256"));
}

/* The model has a context of 16: a text of 17 tokens has one window, and one of 33 tokens two. */
static void eval_refuses_streams(void **state)
{
    static command_result result;
    shell(&result, state, "cat text | " LOCKSTEP "eval llama --data -", 2);
    assert_says(result.err, "'stream:-' is a stream, which only training reads; write it to a");
    shell(&result, state, LOCKSTEP "eval llama --data /dev/null", 2);
    assert_says(result.err, "write stream:PATH, which only training reads");
}

static void eval_takes_short_texts(void **state)
{
    static const struct {
        int         bytes;
        const char *says;
    } cases[] = { { 17, "16 targets of 1 samples" }, { 32, "16 targets of 1 samples" },
                  { 33, "32 targets of 2 samples" } };
    static command_result result;
    char                  line[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(line, sizeof line, "head -c %d text >short; " LOCKSTEP "eval llama --data "
                       "text:short", cases[i].bytes);
        shell(&result, state, line, 0);
        assert_says(result.out, cases[i].says);
    }
    shell(&result, state, "head -c 16 text >short; " LOCKSTEP "eval llama --data text:short", 1);
    assert_says(result.err, "'text:short' has 16 tokens, but one sample of 16 tokens and the token "
                            "after it need 17; give more data\n");
    shell(&result, state, LOCKSTEP "export gpt --out folder "
        "&& head -c 32 /dev/zero >short.u16 && " LOCKSTEP "eval folder --data tokens:short.u16", 1);
    assert_says(result.err, "need 17; give more data, lower --context to at most 15\n");
    shell(&result, state, LOCKSTEP "eval folder --data tokens:short.u16 --context 15", 0);
    assert_says(result.out, "15 targets of 1 samples");
}

#define TRAIN_TABLE                                                                              \
    "rm -f log; " LOCKSTEP "train mlp --data table.csv --validation 0.2 --hidden 9 --steps 3 "    \
    "--global-batch 12 --micro-batch 2 --optimizer sgd --lr 1e-2 --worker-mode threads --quiet "  \
    "--log log --metrics metrics "

/* Copies the value of a key in a line of JSON. */
static const char *value_of(const char *line, const char *key, char out[32])
{
    char        quoted[32];
    (void)snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    const char *at = strstr(line, quoted);
    assert_non_null(at);
    at += strlen(quoted);
    (void)snprintf(out, 32, "%.*s", (int)strcspn(at, ",}"), at);
    return out;
}

/* Two columns of numbers, one of text, and three of targets. */
static void eval_reports_the_errors_of_tables(void **state)
{
    static const char *const in_log[]  = { "val_loss_bits", "val_rmse", "val_mae" };
    static const char *const in_json[] = { "loss_bits", "rmse", "mae" };
    static command_result    result;
    char                     trained[3][32], evaluated[32];
    shell(&result, state, "(echo u,city,price,label,class; for i in $(seq 50); do "
        "echo $((i * i)),c$((i % 7)),$((i % 9)).5,$((i % 2)),k$((i % 4)); done) > table.csv; "
        TRAIN_TABLE "--target price,u --checkpoint prices; grep val_loss log", 0);
    for (size_t i = 0; i < 3; i++)
        (void)value_of(result.out, in_log[i], trained[i]);
    shell(&result, state, "grep -c '^lockstep_validation_[rm]' metrics", 0);
    assert_string_equal(result.out, "2\n");
    shell(&result, state, LOCKSTEP "eval prices --json --workers 3", 0);
    assert_non_null(strstr(result.out, "{\"samples\": 10, \"count\": 20, "));
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(value_of(result.out, in_json[i], evaluated), trained[i]);
    shell(&result, state, LOCKSTEP "eval prices", 0);
    assert_true(strstr(result.out, "\nRMSE  ") != NULL && strstr(result.out, "\nMAE  ") != NULL);
    shell(&result, state, LOCKSTEP "eval prices --data table.csv --json", 0);
    assert_non_null(strstr(result.out, "{\"samples\": 50, \"count\": 100, "));
    shell(&result, state, TRAIN_TABLE "--target class --checkpoint classes", 0);
    shell(&result, state, LOCKSTEP "eval classes", 0);
    assert_true(strstr(result.out, "\naccuracy ") != NULL && strstr(result.out, "RMSE") == NULL);
    shell(&result, state, LOCKSTEP "inspect classes --json | tr -d ' \\n' | "
        "grep '\"class_names\":\\[\"k0\",\"k1\"'", 0);
    shell(&result, state, TRAIN_TABLE "--target label --loss bce --checkpoint labels; " LOCKSTEP
        "eval labels", 0);
    assert_non_null(strstr(result.out, "\naccuracy "));
    shell(&result, state, "sed s/k3/k9/ table.csv > other.csv; " LOCKSTEP
        "eval classes --data other.csv", 2);
    assert_non_null(strstr(result.err, "the table of the training has no class 'k9'"));
    shell(&result, state, LOCKSTEP "eval classes --data 'synthetic:samples=9'", 2);
    assert_non_null(strstr(result.err, "is no table, and the model of classes was trained on one"));
}

#define OTHER_DATA "is not the data of /"

/* The data of a run change after it, or between two of its checkpoints.  Weights of samples do not
 * matter, as all samples of the validation part count. */
static void eval_refuses_changed_data(void **state)
{
    static command_result result;
    shell(&result, state, "rm -f log; seq 1 9999 >own; tr 1 2 <own >new; " LOCKSTEP "train gpt "
        "--data text:own --validation 0.2" SMALL "--checkpoint changed --steps 1 && "
        LOCKSTEP "eval changed && cp new own && " LOCKSTEP "eval changed --data own", 0);
    shell(&result, state, LOCKSTEP "eval changed", 2);
    assert_says(result.err, OTHER_DATA);
    assert_says(result.err, "or give --data to evaluate other data");
    shell(&result, state, "rm log; " LOCKSTEP "train gpt --data text:own --validation 0.2" SMALL
        "--checkpoint changed --steps 2 --resume --changed-data && " LOCKSTEP "eval changed && ! "
        LOCKSTEP "eval changed/step-00000001", 0);
    assert_says(result.err, OTHER_DATA);
    shell(&result, state, "seq 50 >weights; " TRAIN_TABLE "--target class --sample-weights weights "
        "--checkpoint drawn && rm weights && " LOCKSTEP "eval drawn && "
        "sed -i s/c1/c2/ table.csv && ! " LOCKSTEP "eval drawn", 0);
    assert_says(result.err, OTHER_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trained_llama_generates_text),
        cmocka_unit_test(the_cache_does_not_change_the_text),
        cmocka_unit_test(a_pipe_gets_valid_text),
        cmocka_unit_test(eval_has_the_bits_of_the_run),
        cmocka_unit_test(eval_refuses_streams),
        cmocka_unit_test(eval_takes_short_texts),
        cmocka_unit_test(eval_reports_the_errors_of_tables),
        cmocka_unit_test(eval_refuses_changed_data),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
