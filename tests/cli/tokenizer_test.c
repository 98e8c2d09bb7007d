/* tokenizer_test.c -- tests `tokenize`, and `train` and `sample` with a tokenizer.
 *
 * Goal:   a run on text with a tokenizer is the run on the token file that `tokenize` makes of it.
 *         `sample` finds the tokenizer beside the checkpoint, and writes valid UTF-8.  So do `eval`
 *         and `export`, by any path of the checkpoint, and `eval` takes no bytes for tokens.  A run
 *         does not continue with another tokenizer, and other commands refuse it.  A note counts
 *         the bytes that a tokenizer leaves out.  Uses that have no meaning are refused.
 * Method: the command, with the tokenizers of tests/tokenizers and a small model.
 */
#include "command.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define OF(name) LK_TEST_SOURCE "/tests/tokenizers/" name ".json"
#define SMALL                                                                                    \
    "gpt --layers 1 --width 16 --heads 2 --context 8 --global-batch 2 --micro-batch 2 "          \
    "--virtual-workers 1 --steps 2 --worker-mode threads --workers 1 "

/* Returns the line of the output that begins with a word. */
static const char *line_of(const command_result *result, const char *word, char out[256])
{
    const char *at = strstr(result->out, word);
    assert_non_null(at);
    (void)snprintf(out, 256, "%.*s", (int)strcspn(at, "\n"), at);
    return out;
}

static void text_and_tokens_train_the_same_model(void **state)
{
    static command_result result;
    char                  text[256], tokens[256];
    shell(&result, state,
        "head -c 20000 " OF("cases") " > text; " LOCKSTEP "tokenize text --tokenizer " OF("gpt2")
        " --out tokens.bin", 0);
    assert_non_null(strstr(result.out, "tokens.bin?vocab=560"));
    shell(&result, state, LOCKSTEP "train " SMALL "--data text:text --tokenizer " OF("gpt2")
        " --checkpoint run", 0);
    (void)line_of(&result, "weights ", text);
    shell(&result, state, LOCKSTEP "train " SMALL "--data 'tokens:tokens.bin?vocab=560'", 0);
    assert_string_equal(text, line_of(&result, "weights ", tokens));
    shell(&result, state, LOCKSTEP "train " SMALL "--data docs:text --tokenizer " OF("llama3"), 0);
}

static void samples_are_utf8(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "sample run --prompt \xc3\xa9 --tokens 300 --temperature 9 "
        "--ignore-end | iconv -f utf8 -t utf8 >text2; cat text2", 0);
    assert_memory_equal(result.out, "\xc3\xa9", 2);
    assert_true(strlen(result.out) > 300);
    shell(&result, state, LOCKSTEP "sample run/step-*2 --tokens 1", 0);
    shell(&result, state, LOCKSTEP "sample run --tokenizer " OF("qwen2"), 2);
    assert_non_null(strstr(result.err, "differs from 'run/tokenizer.json', the tokenizer of the"));
    shell(&result, state, "mv run/tokenizer.json away; " LOCKSTEP "sample run", 2);
    assert_non_null(strstr(result.err, "give --tokenizer FILE"));
    shell(&result, state, LOCKSTEP "sample run --tokenizer " OF("qwen2"), 2);
    assert_non_null(strstr(result.err, "has 566 tokens, and the model of 'run' only 560"));
    shell(&result, state, "mv away run/tokenizer.json", 0);
}

/* Names the checkpoint by links and by dots, from which the directory of the run does not follow
 * without the file system. */
static void the_tokenizer_of_a_run_is_found(void **state)
{
    static command_result result;
    shell(&result, state, "ln -s run/step-00000002 link; " LOCKSTEP "eval run --data text >one && "
        LOCKSTEP "eval link --data text >two && diff one two && (cd link/ && " LOCKSTEP "eval . "
        "--data $OLDPWD/text) >two && diff one two && grep 'bits per byte' one && " LOCKSTEP
        "eval link/model.safetensors --heads 2 --data text && " LOCKSTEP "sample link --tokens 1",
        0);
    shell(&result, state, LOCKSTEP "export run --out whole && " LOCKSTEP "export link --out linked "
        "&& (cd run/step-*2 && " LOCKSTEP "export . --out ../../dot) && diff -r whole linked && "
        "diff -r whole dot && test -f dot/tokenizer.json", 0);
    shell(&result, state, "mv run/tokenizer.json away; " LOCKSTEP "export run --out none", 2);
    assert_says(result.err, "the model of 'run' was trained with a tokenizer, and there is no '");
    assert_says(result.err, "run/tokenizer.json'; put it back");
    shell(&result, state, "mv away run/tokenizer.json; test ! -e none", 0);
}

/* Puts another tokenizer of the same size in the place of the run's. */
static void another_tokenizer_is_refused(void **state)
{
    static const char *const lines[] = { "sample run", "eval run --data text", "eval run",
                                         "export run --out none", "eval solo --data text "
                                         "--tokenizer " OF("smollm"),
                                         "train " SMALL "--data text:text --checkpoint run "
                                         "--resume --tokenizer " OF("smollm") };
    static command_result result;
    shell(&result, state, "cp -r run/step-00000002 solo; mv run/tokenizer.json away; cp "
        OF("smollm") " run/tokenizer.json", 0);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char line[1024];
        (void)snprintf(line, sizeof line, LOCKSTEP "%s", lines[i]);
        shell(&result, state, line, 2);
        assert_says(result.err, "json' is not the one with which the model of '");
    }
    shell(&result, state, "rm -r solo; mv away run/tokenizer.json; test ! -e none", 0);
}

/* A note says how many bytes of a text the tokenizer leaves out. */
static void bytes_without_a_token_are_reported(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "tokenize text --tokenizer " OF("smollm") " --out few.bin", 0);
    assert_says(result.err, "note: bytes without a token are left out of the text, as Hugging ");
    shell(&result, state, LOCKSTEP "train " SMALL "--data text:text --tokenizer " OF("smollm")
        " --checkpoint few", 0);
    assert_says(result.err, "note: bytes without a token are left out of the text, as Hugging ");
    shell(&result, state, LOCKSTEP "eval few --data text", 0);
    assert_says(result.err, "are left out of the data, and not counted in bits per byte: ");
    shell(&result, state, LOCKSTEP "sample few --prompt 'the Q'", 2);
    assert_says(result.err, "the tokenizer has no token for 1 of the prompt's bytes");
}

/* Gives a new run directories in which a model's files lie, and expects that they stay. */
static void files_of_a_model_are_kept(void **state)
{
    static command_result result;
    shell(&result, state, "mkdir mine theirs && cp " OF("gpt2") " mine/tokenizer.json && "
        "echo '{}' >theirs/config.json; cksum mine/* theirs/* >sums", 0);
    shell(&result, state, LOCKSTEP "train " SMALL "--data text:text --tokenizer " OF("qwen2")
        " --checkpoint mine", 2);
    assert_says(result.err, "--checkpoint mine has a file that is not a run's, and might be "
                            "overwritten: tokenizer.json; give another directory");
    shell(&result, state, LOCKSTEP "train " SMALL "--data text:text --tokenizer " OF("qwen2")
        " --checkpoint theirs", 2);
    shell(&result, state, "cksum mine/* theirs/* | diff sums -", 0);
}

/* Ids need no tokenizer, whichever lies beside the run; a text with its own end needs one. */
static void documents_of_ids_need_no_tokenizer(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "eval run --data 'docs:tokens.bin?end=0' && " LOCKSTEP
        "eval run --data 'docs:text?end=0'", 0);
    shell(&result, state, LOCKSTEP "eval run --data 'docs:tokens.bin?end=0' "
        "--tokenizer " OF("gpt2"), 2);
    assert_says(result.err, "holds token ids, and --tokenizer is for text");
}

/* A file beside a checkpoint that was copied is nothing to a model of bytes. */
static void a_model_of_bytes_needs_no_tokenizer(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "train " SMALL "--data text:text --checkpoint bytes && "
        "mkdir near && cp -r bytes/step-00000002 near/ && cp " OF("gpt2") " near/tokenizer.json "
        "&& " LOCKSTEP "sample near/step-00000002 --tokens 1", 0);
    shell(&result, state, LOCKSTEP "eval bytes --data text >one && " LOCKSTEP
        "eval near/step-00000002 --data text >two && diff one two && " LOCKSTEP
        "export bytes --out plain && " LOCKSTEP "export near/step-00000002 --out copied && "
        "diff -r plain copied && test ! -e copied/tokenizer.json", 0);
}

static void bytes_are_not_evaluated_as_other_tokens(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        { "eval solo --data text", "'solo' was trained with a tokenizer, and no tokenizer.json" },
        { "eval run --data text", "'run' was trained with a tokenizer, and no tokenizer.json" },
        { "eval run --data docs:text", "beside it; give --tokenizer FILE" },
        { "eval ids --data text", "has 560 tokens, not the 256 of text without a tokenizer, and" },
        { "eval ids/step-*2/model.safetensors --heads 2 --data text", "has 560 tokens, not the" },
    };
    static command_result result;
    shell(&result, state, "cp -r run/step-00000002 solo; mv run/tokenizer.json away; " LOCKSTEP
        "train " SMALL "--data 'tokens:tokens.bin?vocab=560' --checkpoint ids && " LOCKSTEP
        "train " SMALL "--data text:text --vocabulary 300 --checkpoint wide && " LOCKSTEP
        "eval wide --data text && " LOCKSTEP "eval ids --data text --tokenizer away && "
        LOCKSTEP "eval run --data 'tokens:tokens.bin?vocab=560'", 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[256];
        (void)snprintf(line, sizeof line, LOCKSTEP "%s", cases[i].line);
        shell(&result, state, line, 2);
        assert_says(result.err, cases[i].says);
    }
    shell(&result, state, "mv away run/tokenizer.json", 0);
}

/* Gives tokenize texts of which it can make no token file. */
static void texts_without_tokens_are_refused(void **state)
{
    static const char     tokenize[] = LK_TEST_COMMAND " tokenize --tokenizer " LK_TEST_SOURCE
                                       "/tests/tokenizers/gpt2.json --out none ";
    static command_result r;
    char                  line[512];
    (void)snprintf(line, sizeof line, "mkdir -p texts; %s texts", tokenize);
    shell(&r, state, line, 2);
    assert_says(r.err, "'texts' is a folder: give its files, such as FOLDER/*.txt");
    (void)snprintf(line, sizeof line, ": >empty; %s empty", tokenize);
    shell(&r, state, line, 2);
    assert_says(r.err, "the texts are empty, and no token file was written");
    (void)snprintf(line, sizeof line, "%s --out none empty", tokenize);
    shell(&r, state, line, 2);
    assert_says(r.err, "--out stands twice: give one, --out FILE");
    shell(&r, state, "ls none*", 2);
}

static void other_tokenizers_are_refused(void **state)
{
    static command_result result;
    shell(&result, state, "sed 's/:{/: {/' " OF("gpt2") " >other; " LOCKSTEP "train " SMALL
        "--data text:text --tokenizer other --checkpoint run --resume --steps 3", 2);
    assert_says(result.err, "'other' differs from 'run/tokenizer.json', which the run keeps; a");
    shell(&result, state, LOCKSTEP "train " SMALL "--data text:text --checkpoint run --resume", 2);
    shell(&result, state,
          LOCKSTEP "train " SMALL "--data tokens:tokens.bin --tokenizer " OF("gpt2"),
        2);
    assert_non_null(strstr(result.err, "is for text: and docs:"));
    shell(&result, state, LOCKSTEP "tokenize none --tokenizer " OF("gpt2") " --out new.bin", 1);
    assert_non_null(strstr(result.err, "cannot open 'none'"));
    shell(&result, state, LOCKSTEP "tokenize text --tokenizer " OF("gpt2") " --out ./text", 2);
    assert_non_null(strstr(result.err, "is one of the texts, and would be overwritten"));
    shell(&result, state, "echo mine >note; " LOCKSTEP "tokenize text --tokenizer " OF("gpt2")
        " --out note", 2);
    assert_non_null(strstr(result.err, "--out note is a file of another kind"));
    shell(&result, state, "test $(cat note) = mine; " LOCKSTEP "tokenize text --tokenizer "
        OF("gpt2") " --out tokens.bin", 0);
    shell(&result, state, "! ls | grep new", 0);
}

/* Names two files before, between and after the options, in the order in which they are joined. */
static void options_stand_anywhere(void **state)
{
    static const char *const lines[] = {
        "--tokenizer " OF("gpt2") " --out t --documents text ./--documents",
        "text ./--documents --tokenizer " OF("gpt2") " --out=t --documents",
        "--out t text --tokenizer " OF("gpt2") " ./--documents --documents",
        "text --documents --out t --tokenizer " OF("gpt2") " -- --documents",
    };
    static command_result result;
    char                  line[1000];
    shell(&result, state, "echo two >./--documents", 0);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)snprintf(line, sizeof line, "rm -f t; " LOCKSTEP "tokenize %s && { [ -e first ] || "
                       "cp t first; } && cmp t first", lines[i]);
        shell(&result, state, line, 0);
    }
}

/* Puts files of the user beside a token file, one of which has the name of a draft. */
static void drafts_replace_no_other_file(void **state)
{
    static command_result result;
    shell(&result, state, "mkdir beside && ln -s other beside/t.bin.tmp; " LOCKSTEP "tokenize text "
        "--tokenizer " OF("gpt2") " --out beside/t.bin && ls beside", 0);
    assert_non_null(strstr(result.out, "t.bin\nt.bin.tmp\n"));
    shell(&result, state, "test -L beside/t.bin.tmp && test ! -L beside/t.bin", 0);
    shell(&result, state, "sh -c 'echo mine >beside/u.$$.new; exec " LOCKSTEP "tokenize text "
        "--tokenizer " OF("gpt2") " --out beside/u'", 1);
    assert_says(result.err, "cannot write 'beside/u': File exists");
    shell(&result, state, "test $(cat beside/u.*.new) = mine && mkfifo beside/pipe", 0);
    shell(&result, state, LOCKSTEP "tokenize text --tokenizer " OF("gpt2") " --out beside/pipe", 2);
    assert_says(result.err, "--out beside/pipe is a file of another kind");
    shell(&result, state, LOCKSTEP "tokenize beside/pipe --tokenizer " OF("gpt2") " --out x", 2);
    assert_says(result.err, "'beside/pipe' is no regular file, such as a pipe");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_tokens_train_the_same_model),
        cmocka_unit_test(samples_are_utf8),
        cmocka_unit_test(texts_without_tokens_are_refused),
        cmocka_unit_test(the_tokenizer_of_a_run_is_found),
        cmocka_unit_test(a_model_of_bytes_needs_no_tokenizer),
        cmocka_unit_test(another_tokenizer_is_refused),
        cmocka_unit_test(bytes_without_a_token_are_reported),
        cmocka_unit_test(files_of_a_model_are_kept),
        cmocka_unit_test(documents_of_ids_need_no_tokenizer),
        cmocka_unit_test(bytes_are_not_evaluated_as_other_tokens),
        cmocka_unit_test(other_tokenizers_are_refused),
        cmocka_unit_test(drafts_replace_no_other_file),
        cmocka_unit_test(options_stand_anywhere),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
