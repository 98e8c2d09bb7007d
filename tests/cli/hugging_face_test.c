/* hugging_face_test.c -- tests `export`, and `train --init` with the folders that it writes.
 *
 * Goal:   a folder of which nothing is trained comes back byte for byte, in both types and as
 *         shards.  The options of a run come from the folder, and a resumed run does not need it,
 *         nor takes another one.
 *         Damaged folders and options that contradict are refused by name before a run starts.
 * Method: the command with small models.  tests/parity/hugging_face.py compares with transformers.
 */
#include "damage.h"

#include "lockstep/checkpoint.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define OF(name) LK_TEST_SOURCE "/tests/tokenizers/" name ".json"
#define DATA                                                                                     \
    "--data text:text --context 8 --global-batch 2 --workers 1 --worker-mode threads --quiet "
#define FROZEN "--steps 1 --param-group '*:lr=0' "
#define SIZES "--layers 2 --width 16 --heads 2 --positions 32 "

static void nothing_trained_comes_back_as_it_was(void **state)
{
    static command_result result;
    shell(&result, state,
        "seq 3000 >text; " LOCKSTEP "train llama " SIZES DATA "--steps 1 --kv-heads 1 "
        "--rope-factor 8 --rope-original 64 --qk-norm --head-size 6 --checkpoint run; "
        LOCKSTEP "export run --out qwen3 --shard-size 0.004 --dtype bf16", 0);
    assert_non_null(strstr(result.out, "qwen3: qwen3, "));
    assert_non_null(strstr(result.out, " parameters in bf16, step 1\n"));
    shell(&result, state, "ls qwen3/*.safetensors | grep -c model-0000; " LOCKSTEP "train llama "
        DATA FROZEN "--init qwen3 --checkpoint again; " LOCKSTEP "export again --out back "
        "--shard-size 0.004; diff -r qwen3 back", 0);
    shell(&result, state, LOCKSTEP "train gpt " SIZES DATA FROZEN "--checkpoint run2; " LOCKSTEP
        "export run2 --out gpt2; " LOCKSTEP "train gpt " DATA FROZEN
        "--init gpt2 --checkpoint again2; " LOCKSTEP "export again2 --out back2; "
        "diff -r gpt2 back2", 0);
    /* a configuration without a type, and with a number of many digits */
    shell(&result, state, "sed -i '/torch_dtype/d' gpt2/config.json; " LOCKSTEP "train " DATA
        FROZEN "--init gpt2 --checkpoint again5; " LOCKSTEP "export again5 --out back5; "
        "diff -r gpt2 back5 && sed -i 's/\"vocab_size\"/\"odd\": 0.1234567890123,&/' "
        "gpt2/config.json && " LOCKSTEP "train " DATA FROZEN "--init gpt2 --checkpoint again6; "
        LOCKSTEP "export again6 --out back6 --dtype bf16; "
        "grep -q '\"odd\": 0.1234567890123,' back6/config.json", 0);
    shell(&result, state, LOCKSTEP "export run2 --out half --dtype f16; " LOCKSTEP "train " DATA
        FROZEN "--init half --checkpoint again4; " LOCKSTEP "export again4 --out back3; "
        "diff -r half back3", 0);
    assert_non_null(strstr(result.out, " parameters in f16, step 1\n"));
    shell(&result, state, LOCKSTEP "train gpt " SIZES DATA "--steps 1 --lr 1e6 --checkpoint run5; "
        LOCKSTEP "export run5 --out half2 --dtype f16", 2);
    assert_non_null(strstr(result.err, ", too large for f16"));
    shell(&result, state, LOCKSTEP "export run2 --out gpt2", 2);
    assert_non_null(strstr(result.err, "'gpt2' is there already"));
    shell(&result, state, "ls | grep -c tmp-", 1);
    shell(&result, state, LOCKSTEP "train gpt " SIZES DATA FROZEN "--tokenizer " OF("gpt2")
        " --checkpoint run3; " LOCKSTEP "export run3 --out words; cmp words/tokenizer.json "
        OF("gpt2") "; cat words/config.json words/tokenizer_config.json", 0);
    assert_non_null(strstr(result.out, "\"eos_token_id\": 0,"));
    assert_non_null(strstr(result.out, "\"n_ctx\": 32,"));
    assert_non_null(strstr(result.out, "\"vocab_size\": 560\n"));
    assert_non_null(strstr(result.out, "\"eos_token\": \"<|endoftext|>\""));
    assert_non_null(strstr(result.out, "\"tokenizer_class\": \"PreTrainedTokenizerFast\""));
}

/* Exports folders, which needs no run. */
static void a_folder_is_written_again(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "export qwen3 --out whole && test -f whole/model.safetensors && "
        LOCKSTEP "export whole --out many --shard-size 0.004 && diff -r qwen3 many && " LOCKSTEP
        "export whole --out wide --dtype f32 && " LOCKSTEP "export wide --out narrow "
        "--dtype bf16 && diff -r whole narrow && ! cmp wide/model.safetensors "
        "whole/model.safetensors", 0);
    assert_non_null(strstr(result.out, " parameters in bf16\nmany: qwen3, "));
    assert_null(strstr(result.out, "step"));
    /* another program's manifest makes no checkpoint of it */
    shell(&result, state, "touch wide/manifest.json; " LOCKSTEP "eval wide --data text && " LOCKSTEP
        "train --init wide " DATA "--steps 1", 0);
    shell(&result, state, LOCKSTEP "export whole --out none --weights ema", 2);
    assert_non_null(strstr(result.err, "'whole' is no run: it has no moving means"));
    shell(&result, state, "cp -r whole bad && printf '\\377\\177' | dd of=bad/model.safetensors "
        "bs=1 conv=notrunc seek=$(($(stat -c %s bad/model.safetensors) - 2)) 2>dd; ! " LOCKSTEP
        "export bad --out none && rm bad/config.json; " LOCKSTEP "export bad --out none", 2);
    assert_non_null(strstr(result.err, "weights must be finite"));
    assert_non_null(strstr(result.err, "the folder 'bad' has no config.json, which says"));
    shell(&result, state, "rm -r bad; ls | grep 'none\\|tmp-'", 1);
}

/* Makes of the folder `whole`, which has BF16, the folder `mixed`, whose final norm is FP32 with
 * numbers that BF16 does not have.  As Hugging Face's library does, the wider type comes first. */
static void mix_types(const char *folder)
{
    char            from[64], to[64];
    float           norm[16];
    lk_tensor       tensors[64];
    lk_safetensors *file = NULL;
    (void)snprintf(from, sizeof from, "%s/whole/model.safetensors", folder);
    (void)snprintf(to, sizeof to, "%s/mixed/model.safetensors", folder);
    assert_int_equal(lk_safetensors_open(&file, from), LK_OK);
    const lk_tensor *found = lk_safetensors_find(file, "model.norm.weight");
    size_t           count = lk_safetensors_count(file), used = 0;
    assert_true(found != NULL && lk_shape_count(found->shape) == 16 && count <= 64);
    for (int i = 0; i < 16; i++)
        norm[i] = 1 + (float)i / 4096;
    tensors[used++] = (lk_tensor){ found->name, LK_F32, found->shape, norm };
    for (size_t i = 0; i < count; i++)
        if (lk_safetensors_at(file, i) != found)
            tensors[used++] = *lk_safetensors_at(file, i);
    assert_int_equal(lk_safetensors_write(to, tensors, used), LK_OK);
    lk_safetensors_free(file);
}

/* Exports folders whose config.json names another type than their tensors have. */
static void each_tensor_keeps_its_type(void **state)
{
    static command_result result;
    shell(&result, state, "cp -r whole mixed; mkdir mixed3; echo '{\"model.norm.weight\": "
        "\"BF16\"}' >mixed3/weight_types.json", 0); /* as a run leaves it that did not get far */
    mix_types(*state);
    shell(&result, state, LOCKSTEP "export mixed --out mixed2 && diff -r mixed mixed2 && " LOCKSTEP
        "train --init mixed " DATA FROZEN "--checkpoint mixed3 && " LOCKSTEP
        "export mixed3 --out mixed4 && diff -r mixed mixed4 && " LOCKSTEP
        "export mixed --out mixed5 --dtype f32 && " LOCKSTEP "export mixed5 --out mixed6 "
        "--dtype bf16 && " LOCKSTEP "export mixed --out mixed7 --dtype bf16 && "
        "diff -r mixed6 mixed7 && ! cmp -s mixed/model.safetensors mixed7/model.safetensors && "
        LOCKSTEP "export mixed --out mixed8 --shard-size 0.004 && " LOCKSTEP
        "export mixed8 --out mixed9 && diff -r mixed mixed9", 0);
    assert_says(result.out, "mixed2: qwen3, ");
    assert_says(result.out, " parameters in several types\n");
    /* FP32 in a folder that says bfloat16, and BF16 in one that says nothing */
    shell(&result, state, "cp whole/config.json mixed5 && " LOCKSTEP "export mixed5 --out wide5 && "
        "diff -r mixed5 wide5 && cp -r whole silent && sed -i '/torch_dtype/d' silent/config.json "
        "&& " LOCKSTEP "export silent --out silent2 && diff -r silent silent2", 0);
    assert_says(result.out, "wide5: qwen3, ");
    assert_says(result.out, " parameters in f32\n");
    assert_says(result.out, " parameters in bf16\n");
    shell(&result, state, "sed -i 's/F32/I64/' mixed3/weight_types.json; " LOCKSTEP
        "export mixed3 --out none", 1);
    assert_says(result.err, "'mixed3': tensor 'model.norm.weight' is I64, not F32, BF16 or F16; "
                            "give the type of the weights as --dtype");
}

/* Adds to the weights in `twice`, a copy of gpt2, the embedding by the name with a prefix, and
 * changes an element of it. */
static void double_embedding(const char *folder, float change)
{
    char            from[64], to[64];
    static float    values[256 * 16];
    lk_tensor       tensors[64];
    lk_safetensors *file = NULL;
    size_t          used = 0;
    (void)snprintf(from, sizeof from, "%s/gpt2/model.safetensors", folder);
    (void)snprintf(to, sizeof to, "%s/twice/model.safetensors", folder);
    assert_int_equal(lk_safetensors_open(&file, from), LK_OK);
    for (const lk_tensor *t; (t = lk_safetensors_at(file, used)) != NULL; used++)
        tensors[used] = *t;
    const lk_tensor *table = lk_safetensors_find(file, "transformer.wte.weight");
    assert_true(used < 64 && table != NULL && lk_shape_count(table->shape) == 256 * 16);
    memcpy(values, table->data, sizeof values);
    values[7] += change;
    tensors[used++] = (lk_tensor){ "wte.weight", LK_F32, table->shape, values };
    assert_int_equal(lk_safetensors_write(to, tensors, used), LK_OK);
    lk_safetensors_free(file);
}

static void a_weight_under_two_names_has_one_value(void **state)
{
    static command_result result;
    shell(&result, state, "cp -r gpt2 twice", 0);
    double_embedding(*state, 0);
    shell(&result, state, LOCKSTEP "export twice --out once && cmp gpt2/model.safetensors "
        "once/model.safetensors", 0);
    double_embedding(*state, 0.5F);
    shell(&result, state, LOCKSTEP "export twice --out none", 1);
    assert_says(result.err, "'twice' has one weight under two names, 'wte.weight' and "
                            "'transformer.wte.weight', with other values: remove one of them");
}

static void a_run_takes_its_options_from_the_folder(void **state)
{
    static command_result result;
    shell(&result, state,
        "grep -c '\"qk-norm\": \"true\"\\|\"head-size\": \"6\"\\|\"positions\": \"32\"' "
        "again/command.json; mv qwen3 away; " LOCKSTEP "resume again --steps 2 && "
        LOCKSTEP "verify again --step 2 && ! " LOCKSTEP "verify again --step 1 && "
        LOCKSTEP "verify again --step 1 --init away && mv away qwen3", 0);
    assert_says(result.err, "/qwen3', the weights that the run begins with: No such file");
    assert_non_null(strstr(result.err, "if they have moved, give their new path as --init"));
    assert_memory_equal(result.out, "3\n", 2);
    /* the message has the whole path, wherever verify is */
    shell(&result, state, LOCKSTEP "train " DATA "--init qwen3 --steps 1 --checkpoint fresh && "
        "mv qwen3 away && mkdir deep && (cd deep && ! " LOCKSTEP "verify ../fresh --step 1) && "
        "mv away qwen3", 0);
    assert_says(result.err, "/qwen3', the weights that the run begins with: No such file");
    assert_says_not(result.err, "/deep/qwen3");
    shell(&result, state, LOCKSTEP "train " DATA "--steps 1 --init=gpt2; " LOCKSTEP "train " DATA
        "--steps 1 --init none", 2);
    assert_non_null(strstr(result.out, "weights "));
    assert_non_null(strstr(result.err, "--init none: No such file"));
    shell(&result, state, LOCKSTEP "plan --init gpt2 --context 8 && " LOCKSTEP "plan gpt "
        "--vocabulary 77 && " LOCKSTEP "plan gpt --width 4 --heads 1 && " LOCKSTEP
        "bench step --init gpt2 "
        "--context 8 --steps 1 --workers 1", 0);
    assert_non_null(strstr(result.out, "so as with synthetic:tokens=1000000,vocab=256\n"));
    assert_non_null(strstr(result.out, "so as with synthetic:tokens=1000000,vocab=77\n"));
    assert_non_null(strstr(result.out, "so as with synthetic:tokens=1000000,vocab=50257\n"));
    shell(&result, state, "mkdir odd; echo '{\"model_type\": \"bert\"}' >odd/config.json; " LOCKSTEP
        "train " DATA "--init odd", 2);
    assert_non_null(strstr(result.err, "`model_type` is \"bert\""));
    assert_null(strstr(result.err, "--context needs MODEL"));
    shell(&result, state, LOCKSTEP "train llama " DATA "--steps 1 --init qwen3 --checkpoint again3 "
        "--resume=auto; test -f again3/config.json", 0);
}

/* Resumes runs whose folder has moved, and gives them other folders. */
static void a_run_goes_on_from_how_it_began(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "train " DATA "--init words --steps 1 --checkpoint full; "
        LOCKSTEP "train " DATA "--init words --lora-rank 2 --lora-targets all-linear --steps 1 "
        "--checkpoint lora; cp -r words others; cp full/command.json before; " LOCKSTEP
        "resume full --steps 2 --init others", 2);
    assert_non_null(strstr(result.err, "the run in '"));
    assert_non_null(strstr(result.err, "leave --init out"));
    shell(&result, state, LOCKSTEP "resume full --steps 2 --init ./nosuch", 2);
    assert_non_null(strstr(result.err, "nosuch: No such file or directory; correct the path"));
    shell(&result, state, LOCKSTEP "resume lora --steps 2 --init ./nosuch", 2);
    assert_non_null(strstr(result.err, "nosuch: No such file or directory; correct the path"));
    shell(&result, state, LOCKSTEP "train gpt " SIZES "--tokenizer " OF("gpt2") " " DATA
        "--steps 2 --checkpoint run3 --resume --init words", 2);
    assert_non_null(strstr(result.err, "began with no --init and goes on"));
    shell(&result, state, "cmp before full/command.json && " LOCKSTEP "resume full --steps 2 "
        "--init ./words && " LOCKSTEP "verify full --step 1 && mv words away && " LOCKSTEP
        "resume full --steps 3 --init words && " LOCKSTEP "resume lora --steps 2 --init away && "
        LOCKSTEP "verify lora --step 1 && mv away words", 0);
}

/* Gives runs and new runs paths that are of another kind or of another model. */
static void other_paths_are_named_for_what_they_are(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        { "resume lora --steps 3 --init qwen3", "is not the one with which the run in '" },
        { "verify full --step 1 --init qwen3", "/qwen3' is not the one with which the run in '" },
        { "verify again --step 1 --init gpt2", "it has other options; give the folder of that" },
        { "plan --init run3/step-00000001", "is a checkpoint of a run; to continue the run, use" },
        { "plan gpt --init run3/step-00000001", "is a checkpoint of a run; to continue the run" },
        { "verify --init run3/step-00000001 --data text --step 1", "is a checkpoint of a run; to" },
        { "verify --init again --data text --step 1", "is the directory of a run; to continue" },
        { "train words --data text", "MODEL words: is the folder of a model; to start with its "
          "weights, write --init words" },
        { "train run3 --data text", "is the directory of a run; to continue it, use lockstep "
          "resume run3" },
    };
    static command_result result;
    char                  line[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(line, sizeof line, LOCKSTEP "%s", cases[i].line);
        shell(&result, state, line, 2);
        assert_says(result.err, cases[i].says);
        assert_says_not(result.err, "copy it from where");
    }
}

/* The message of a run that was copied names the files of the copy, and no option. */
static void a_copied_run_is_compared_with_its_own_tokenizer(void **state)
{
    static command_result result;
    shell(&result, state, "cp -r full copy && " LOCKSTEP "resume copy --steps 4 && " LOCKSTEP
        "resume copy --steps 5 && sed 's/:{/: {/' words/tokenizer.json >copy/tokenizer.json; "
        LOCKSTEP "resume copy --steps 6", 2);
    assert_says(result.err, "/copy/tokenizer.json");
    assert_says(result.err, "a run goes on with the");
    assert_says_not(result.err, "--tokenizer");
    shell(&result, state, "cp -r run3 copy3; sed 's/:{/: {/' " OF("gpt2") " >copy3/tokenizer.json; "
        LOCKSTEP "resume copy3 --steps 2", 2);
    assert_says(result.err, "/copy3/tokenizer.json', which the run keeps; a run goes on with the");
    assert_says_not(result.err, "--tokenizer");
    shell(&result, state, "cp " OF("qwen2") " copy3/tokenizer.json; sed -i 's|\"tokenizer\": .*|"
        "\"tokenizer\": \"'$PWD'/run3/tokenizer.json\",|' copy3/command.json; " LOCKSTEP
        "resume copy3 --steps 2", 2);
    assert_says(result.err, "/copy3/tokenizer.json' has 566 tokens, and the model of '");
    assert_says_not(result.err, "/run3/tokenizer.json");
}

/* Gives commands another tokenizer than that of the model. */
static void other_tokenizers_are_refused(void **state)
{
    static const char *const lines[] = {
        "train --init words --data text:text --context 8 --steps 1", "eval words --data text:text",
        "sample words", "eval run3 --data text:text", "sample run3",
    };
    static command_result result;
    char                  line[256];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)snprintf(line, sizeof line, LOCKSTEP "%s --tokenizer other.json", lines[i]);
        shell(&result, state, line, 2);
        assert_says(result.err, "other.json' differs from '");
        assert_says(result.err, "/tokenizer.json', the tokenizer of the model; leave it out");
    }
}

/* Evaluates and samples folders, and the runs that began with them and have trained nothing. */
static void a_folder_is_used_without_a_run(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "eval again --data text >one && " LOCKSTEP "eval --init qwen3 "
        "--data text:text --context 8 >two && diff one two && " LOCKSTEP "sample again --tokens 9 "
        "--prompt a >one && " LOCKSTEP "sample qwen3 --tokens 9 --prompt a >two && diff one two && "
        LOCKSTEP "sample again --tokens 9 --precision bf16 >one && " LOCKSTEP "sample --init qwen3 "
        "--tokens 9 --precision bf16 >two && diff one two", 0);
    shell(&result, state, LOCKSTEP "tokenize text --tokenizer words/tokenizer.json --out t.bin && "
        LOCKSTEP "eval run3 --data text:text && " LOCKSTEP "eval words --data text:text "
        "--context 8 >one && " LOCKSTEP "eval words --data 'tokens:t.bin?vocab=560' --context 8 "
        ">two && diff one two && grep 'bits per byte' one && " LOCKSTEP "sample words "
        "--tokens 3 && cp words/tokenizer.json same.json && " LOCKSTEP "sample words --tokens 3 "
        "--tokenizer same.json && sed 's/:{/: {/' same.json >other.json", 0);
    other_tokenizers_are_refused(state);
    shell(&result, state, "mv words/tokenizer.json kept.json", 0);
    for (size_t i = 0; i < 2; i++) {
        shell(&result, state, i == 0 ? LOCKSTEP "eval words --data text:text"
                                     : LOCKSTEP "sample words", 2);
        assert_non_null(strstr(result.err, "no tokenizer.json lies"));
    }
    /* the original context of scaled frequencies is that of the model unless it is given */
    shell(&result, state, "for f in 32 8192 none; do cp -r qwen3 of$f; sed -i "
        "\"/\\\"original_max/s/64/$f/; /: none/d\" of$f/config.json; " LOCKSTEP "eval of$f "
        "--data text:text --context 32 >$f.eval || exit 1; done; diff 32.eval none.eval && "
        "! cmp -s 32.eval 8192.eval", 0);
    shell(&result, state, LOCKSTEP "eval words --data text --tokenizer kept.json --context 64", 2);
    assert_non_null(strstr(result.err, "--context is 64, but the model of 'words' has only 32"));
    shell(&result, state, LOCKSTEP "eval again --data text --context 4", 2);
    assert_non_null(strstr(result.err, "'again' has that of its run"));
    shell(&result, state, LOCKSTEP "eval again --init qwen3 --data text", 2);
    assert_non_null(strstr(result.err, "one takes the place of the other"));
    shell(&result, state, LOCKSTEP "sample qwen3 --weights ema", 2);
    assert_non_null(strstr(result.err, "it has no moving means"));
    shell(&result, state, "cp -r qwen3 bad; rm bad/model-00001-*; " LOCKSTEP "sample bad", 1);
    assert_non_null(strstr(result.err, "a shard is missing"));
}

/* `eval` says what is wrong with a folder, and advises nothing that it does not have. */
static void damage_is_named_without_options_of_train(void **state)
{
    static const struct {
        const char *damage, *says;
    } cases[] = {
        { "sed -i '/\"n_positions\"/s/32/16/' bad/config.json",
          "but this model's is 16 x 16; config.json and the weights of the folder are of two" },
        { "sed -i '/\"n_layer\"/s/2/1/' bad/config.json", "are of two models; copy both from one" },
        { "rm bad/config.json", "the folder 'bad' has no config.json, which says what its model" },
        { "mv bad/model.safetensors bad/pytorch_model.bin",
          "it has its weights in pytorch_model.bin, but only safetensors is read" },
    };
    static command_result result;
    char                  line[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(line, sizeof line, "rm -rf bad; cp -r gpt2 bad; %s; ! " LOCKSTEP
                       "eval bad --data text:text && ! " LOCKSTEP "sample bad --tokens 1",
                       cases[i].damage);
        shell(&result, state, line, 0);
        const char *first = strstr(result.err, cases[i].says);
        if (first == NULL || strstr(first + 1, cases[i].says) == NULL)
            fail_msg("%s: %s", cases[i].damage, result.err);
        assert_says_not(result.err, "set the model's options");
    }
}

/* The bytes of a text are no tokens of a model with others, wherever they are from. */
static void bytes_are_not_trained_as_other_tokens(void **state)
{
    static const char *const lines[] = { "train --data text:text", "train --data docs:text",
                                         "plan --data docs:lines.jsonl", "train --data lines.jsonl",
                                         "plan --data text" };
    static command_result result;
    char                  line[256];
    shell(&result, state, "cp -r words ids && mv kept.json words/tokenizer.json; "
        "for i in $(seq 99); do echo '{\"text\": \"some words\"}'; done >lines.jsonl", 0);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)snprintf(line, sizeof line, LOCKSTEP "%s --init ids --context 8 --steps 1", lines[i]);
        shell(&result, state, line, 2);
        assert_says(result.err, "'ids' has 560 tokens, not the 256 of text without a tokenizer; "
                                "give --tokenizer FILE");
    }
    shell(&result, state, LOCKSTEP "train --data stream:text --init words --context 8 --steps 1",
        2);
    assert_says(result.err, "and 'stream:text' is read as bytes, which are 256: write token ids");
    shell(&result, state, LOCKSTEP "tokenize text --tokenizer words/tokenizer.json --out t.bin && "
        LOCKSTEP "train --data 'tokens:t.bin?vocab=560' --init ids --context 8 --steps 1 "
        "--quiet && tail -c +1025 t.bin | " LOCKSTEP "train --data 'stream:-?width=16&vocab=560' "
        "--init ids --context 8 --steps 1 --quiet", 0);
}

/* Runs commands with the folder `bad`, and data that need no tokenizer. */
static void try_folder(void **state, int status, const char *says)
{
    static const char *const lines[] = {
        "train --init bad --data 'tokens:i.u16?vocab=256' --context 8 --steps 1",
        "plan --init bad --data 'tokens:i.u16?vocab=256' --context 8",
        "eval bad --data 'tokens:i.u16?vocab=256'", "export bad --out $(mktemp -u o-XXXX)",
    };
    static command_result result;
    char                  line[256];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)snprintf(line, sizeof line, LOCKSTEP "%s", lines[i]);
        shell(&result, state, line, status);
        if (says != NULL)
            assert_says(result.err, says);
    }
}

/* The tokenizer of a folder is checked with any data, and that of a run before it is exported.  One
 * of another kind does no harm if the data have ids. */
static void tokenizers_are_checked_before_they_are_used(void **state)
{
    static command_result result;
    shell(&result, state, "rm -rf bad; cp -r gpt2 bad; head -c 800 /dev/zero >i.u16; "
        "cp " OF("gpt2") " bad/tokenizer.json", 0);
    try_folder(state, 2, "'bad/tokenizer.json' has 560 tokens, and the model of 'bad' only 256");
    shell(&result, state, "head -c 999 " OF("gpt2") " >bad/tokenizer.json", 0);
    try_folder(state, 1, "'bad/tokenizer.json' is no tokenizer.json");
    shell(&result, state, "sed 's/\"BPE\"/\"Unigram\"/' " OF("gpt2") " >bad/tokenizer.json", 0);
    try_folder(state, 0, NULL);
    shell(&result, state, LOCKSTEP "eval bad --data text", 1);
    assert_says(result.err, "model Unigram is not supported");
    shell(&result, state, LOCKSTEP "train gpt " SIZES DATA "--steps 1 --tokenizer " OF("qwen2")
        " --checkpoint run6 && cp " OF("gpt2") " run6/tokenizer.json; " LOCKSTEP "eval run6 "
        "--data text; test $? = 2 && ! " LOCKSTEP "sample run6 && " LOCKSTEP "export run6 "
        "--out none", 2);
    const char *says = "'run6/tokenizer.json' has 560 tokens, and the model of 'run6' was trained "
                       "with 566";
    for (const char *at = result.err, *i = "123"; *i != '\0'; i++, at++) {
        assert_says(at, says);
        at = strstr(at, says);
    }
    shell(&result, state, "rm -r bad; test ! -e none && ! ls | grep tmp-", 0);
}

#define EDIT(key, from, to) "sed -i '/\"" key "\"/s/" from "/" to "/' bad/config.json"
#define ROPE(values) "sed -i 's/^{/{\"rope_parameters\": {" values "},/' bad/config.json"
#define INDEX(program) "sed -i '" program "' bad/*.index.json"

static const damage_case refused[] = {
    { "true", "llama --layers 3", "--layers is 3, but bad/config.json has num_hidden_layers 2" },
    { "true", "llama --rope-theta 5",
      "--rope-theta is 5, but bad/config.json has rope_theta 10000" },
    { "true", "llama --tie", "--tie is set, but the model of bad/config.json is made without" },
    { "true", "llama --no-qk-norm", "leave out --no-tie, --no-qkv-bias and --no-qk-norm" },
    { "true", "llama --qkv-bias", "--qkv-bias is set" },
    { "true", "gpt", "bad/config.json is for a llama, not for a gpt: `model_type` is qwen3" },
    { "true", "llama --context 64", "the model has only 32 --positions; give a --context" },
    { "true", "llama --tokenizer " OF("gpt2"), "560 tokens, and the model of 'bad' only 256" },
    { "cp " OF("llama3") " bad/tokenizer.json", "llama --tokenizer " OF("gpt2"),
      "differs from 'bad/tokenizer.json'" },
    { "cp " OF("gpt2") " bad/tokenizer.json", "llama", "560 tokens, and the model" },
    { "rm bad/config.json", "llama", "the folder 'bad' has no config.json" },
    { "echo '{' >bad/config.json", "llama", "bad/config.json: line 2" },
    { "truncate -s 2M bad/config.json", "llama", "more than 1048576 bytes" },
    { "sed -i s/Qwen3For/MambaFor/ bad/config.json", "llama",
      "`architectures` is [\"MambaForCausalLM\"]" },
    { EDIT("model_type", "qwen3", "mamba"), "llama", "`model_type` is \"mamba\", and only" },
    { EDIT("rope_type", "llama3", "yarn"), "llama", "`rope_type` is \"yarn\", and only" },
    { ROPE("\"rope_type\": \"default\""), "llama", "`rope_parameters` says otherwise" },
    { ROPE("\"sliding\": {\"type\": 9}"), "llama", "9}, but `rope_parameters` has neither a" },
    { "sed -i 's/^{/{\"is_causal\": false,/' bad/config.json", "llama", "`is_causal` is false" },
    { "rm -r bad; cp -r gpt2 bad; " EDIT("n_positions", "32", "16"), "gpt",
      "'wpe.weight' is 32 x 16, but this model's is 16 x 16" },
    { EDIT("hidden_size", "16", "18"), "llama", "is 256 x 16, but this model's" },
    { EDIT("hidden_size", "16", "99999999999"), "llama",
      "`hidden_size` is 99999999999, and must be a whole number" },
    { EDIT("head_dim", "6", "2147483646"), "llama", "a head of 2147483646 values" },
    { EDIT("num_hidden_layers", "2", "2000000"), "llama",
      "bad/config.json: llama: 'num_hidden_layers' 2000000; at most 1000" },
    { EDIT("num_key_value_heads", "1", "3"), "llama",
      "bad/config.json: llama: 'num_attention_heads' 2 cannot share 'num_key_value_heads' 3" },
    { EDIT("num_hidden_layers", "2", "1"), "llama", "for which this model has no" },
    { EDIT("num_hidden_layers", "num", "n"), "llama", "it has no `num_hidden_layers`" },
    { EDIT("vocab_size", "256", "300"), "llama", "has 300 tokens, not the 256" },
    { EDIT("tie_word_embeddings", "false", "true"), "llama",
      "'lm_head.weight' is not equal to the embedding" },
    { EDIT("attention_bias", "false", "true"), "llama", "`attention_bias` is true" },
    { "rm bad/model-00001-*", "llama", "a shard is missing" },
    { "rm bad/*.index.json", "llama", "has shards of weights, but not model.safetensors.index" },
    { "rm bad/*.safetensors bad/*.index.json", "llama",
      "neither model.safetensors nor model.safetensors.index" },
    { "rm -r bad; cp -r gpt2 bad; cp lfs bad/model.safetensors", "gpt",
      "run `git lfs pull` where" },
    { "truncate -s 60 bad/model-00001-*", "llama", "truncated" },
    { INDEX("s|model-00001|../model-00001|"), "llama",
      "is not the name of a safetensors file in the folder" },
    { INDEX("/lm_head/d"), "llama", "so its head is the embedding" },
    { INDEX("/0.input_layernorm/d"), "llama", "does not list" },
    { INDEX("s/lm_head.weight/lm_tail.weight/"), "llama", "does not list" },
    { "cp bad/model-00002-* bad/x; for f in bad/model-0*; do cp bad/x $f; done", "llama",
      "does not list" },
};

static void damage_and_contradictions_are_refused(void **state)
{
    static command_result result;
    shell(&result, state, "printf 'version https://git-lfs.github.com/spec/v1\n' >lfs", 0);
    refuse_damage(state, "qwen3", "--init bad " DATA "--steps 1", refused,
                  sizeof refused / sizeof refused[0], 1);
}

/* transformers 5 takes the class of a tokenizer by the type qwen2, and not as the folder says. */
static void rules_that_transformers_overrides_are_noted(void **state)
{
    static const char *const rules[] = { "gpt2", "llama3", "qwen2" };
    static command_result    result;
    char                     line[512];
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        (void)snprintf(line, sizeof line,
                       LOCKSTEP "train llama " SIZES DATA "--steps 1 --qkv-bias --tokenizer "
                       OF("%s") " --checkpoint biased%s; " LOCKSTEP
                       "export biased%s --out biased-%s", rules[i], rules[i], rules[i], rules[i]);
        shell(&result, state, line, 0);
        assert_says(result.out, ": qwen2, ");
        (void)snprintf(line, sizeof line, "others (%s, no NFC): load it by "
                       "PreTrainedTokenizerFast.from_pretrained(\"biased-%s\")", rules[i],
                       rules[i]);
        if (i < 2)
            assert_says(result.err, line);
        else
            assert_says_not(result.err, "PreTrainedTokenizerFast");
    }
}

/* Gives commands what is no folder or file of theirs. */
static void what_is_no_model_is_named(void **state)
{
    static const struct {
        const char *line, *says;
        int         status;
    } cases[] = {
        { "eval https://host/a --data text", "hf download NAME --local-dir DIR", 2 },
        { "sample https://host/a", "hf download NAME --local-dir DIR", 2 },
        { "export https://host/a --out none", "hf download NAME --local-dir DIR", 2 },
        { "export org/name --out none", "hf download org/name --local-dir org/name", 1 },
        { "sample org/name", "hf download org/name --local-dir org/name", 1 },
        { "train gpt --data text --tokenizer https://host/t.json", "nothing is downloaded", 1 },
        { "train gpt --data text --tokenizer lfs", "'lfs' is a pointer of git-lfs", 1 },
        { "train --init odd --data text", "`model_type` is \"bert\"", 2 },
        { "eval odd --data text", "`model_type` is \"bert\"", 2 },
        { "sample odd", "`model_type` is \"bert\"", 2 },
        { "export odd --out none", "`model_type` is \"bert\"", 2 },
        { "eval gpt2 --heads 2 --data text", "'gpt2' has a configuration; leave it out", 2 },
        { "sample run2 --heads 2", "'run2' has a configuration; leave it out", 2 },
        { "eval --init gpt2 --init gpt2 --data text", "--init stands twice: give one, --init", 2 },
        { "train --init gpt2 --init gpt2 --data text", "--init stands twice: give one", 2 },
        { "sample gpt2 --tokenizer a --tokenizer b", "--tokenizer stands twice: give one", 2 },
        { "export gpt2 --out none --out none", "--out stands twice: give one, --out DIR", 2 },
        { "eval early --data text", "there is no checkpoint in 'early'", 1 },
        { "sample early", "there is no checkpoint in 'early'", 1 },
        { "export early --out none", "there is no checkpoint in 'early'", 1 },
    };
    static command_result result;
    char                  line[256];
    shell(&result, state, LOCKSTEP "train " DATA "--init gpt2 --steps 1 --checkpoint early && "
        "rm -r early/step-*", 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(line, sizeof line, LOCKSTEP "%s", cases[i].line);
        shell(&result, state, line, cases[i].status);
        assert_says(result.err, cases[i].says);
    }
}

static void models_that_transformers_lacks_are_not_exported(void **state)
{
    static command_result result;
    shell(&result, state, LOCKSTEP "train mlp --data synthetic:samples=64,features=8,classes=2 "
        "--global-batch 8 --workers 1 --worker-mode threads --quiet --steps 1 --checkpoint run4; "
        LOCKSTEP "export run4 --out none", 1);
    assert_non_null(strstr(result.err, "a mlp is no model of transformers"));
    shell(&result, state, "sed -i 's/\"hidden_size\": 16/\"hidden_size\": 18/' again/config.json; "
        LOCKSTEP "export again --out none", 2);
    assert_non_null(strstr(result.err, "--width is 16, but again/config.json has hidden_size 18"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_trained_comes_back_as_it_was),
        cmocka_unit_test(a_folder_is_written_again),
        cmocka_unit_test(each_tensor_keeps_its_type),
        cmocka_unit_test(a_weight_under_two_names_has_one_value),
        cmocka_unit_test(a_run_takes_its_options_from_the_folder),
        cmocka_unit_test(a_run_goes_on_from_how_it_began),
        cmocka_unit_test(other_paths_are_named_for_what_they_are),
        cmocka_unit_test(a_copied_run_is_compared_with_its_own_tokenizer),
        cmocka_unit_test(a_folder_is_used_without_a_run),
        cmocka_unit_test(bytes_are_not_trained_as_other_tokens),
        cmocka_unit_test(tokenizers_are_checked_before_they_are_used),
        cmocka_unit_test(damage_is_named_without_options_of_train),
        cmocka_unit_test(damage_and_contradictions_are_refused),
        cmocka_unit_test(what_is_no_model_is_named),
        cmocka_unit_test(rules_that_transformers_overrides_are_noted),
        cmocka_unit_test(models_that_transformers_lacks_are_not_exported),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
