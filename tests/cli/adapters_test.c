/* adapters_test.c -- tests low-rank adapters: `train --lora-rank`, and folders of PEFT's.
 *
 * Goal:   the result does not depend on workers, strategy, interruptions or activation
 *         checkpointing.  Checkpoints have the adapters only.  Exported adapters come back as they
 *         were.  Damaged folders and another base are refused by name.
 * Method: the command with small models.  tests/parity/adapters.py compares with PEFT.
 */
#include "base/thorough_testing.h"
#include "damage.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define DATA "--data text:text --context 8 --global-batch 6 --micro-batch 1 --seed 3 --quiet "
#define SIZES "--layers 2 --width 16 --heads 2 --steps 1 --workers 1 --worker-mode threads "
#define LORA "--init base --lora-rank 3 --lora-targets c_attn,mlp.c_proj,c_fc --lr 0.1 "
#define LLAMA "--init llama_base --lora-rank 2 --lora-alpha 5 --lora-targets all-linear --lr 0.1 "

/* Runs the command, and returns the hash of the weights. */
static const char *hash_of(command_result *out, void **state, const char *line)
{
    shell(out, state, line, 0);
    char *hash = strstr(out->out, "weights ");
    if (hash == NULL) {
        fail_msg("%s: no hash\n%s%s", line, out->out, out->err);
        return "";
    }
    hash[strlen("weights ") + 64] = '\0';
    return hash;
}

static int make_bases(void **state)
{
    static command_result result;
    if (make_folder(state) != 0)
        return 1;
    shell(&result, state, "seq 3000 >text; " LOCKSTEP "train gpt " SIZES DATA "--checkpoint g; "
        LOCKSTEP "export g --out base; " LOCKSTEP "train llama " SIZES DATA "--kv-heads 1 "
        "--checkpoint l; " LOCKSTEP "export l --out llama_base --dtype bf16; " LOCKSTEP "train gpt "
        SIZES "--width 8 " DATA "--checkpoint w; " LOCKSTEP "export w --out wide_base", 0);
    return 0;
}

/* The ways to run the same steps. */
static const char *const ways[] = {
    "train gpt " LORA DATA "--steps 4 --workers 1 --checkpoint run --checkpoint-every 2 --keep 2",
    "train gpt " LORA DATA "--steps 4 --workers 2 --activation-checkpointing",
    "train gpt " LORA DATA "--steps 4 --workers 3 --strategy zero3",
    "train gpt " LORA DATA "--steps 4 --workers 3 --threads 2 --strategy zero1",
    "train gpt " LORA DATA "--steps 4 --workers 2 --checkpoint run --resume=2",
};

static const char *const llama_ways[] = {
    "train llama " LLAMA DATA "--steps 2 --workers 1 --precision bf16 --checkpoint lrun",
    "train llama " LLAMA DATA "--steps 2 --workers 3 --precision bf16 --strategy zero2",
};

static void compare_ways(void **state, const char *const *list, size_t count)
{
    static command_result result;
    char                  first[128] = "", line[1024];
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(line, sizeof line, LOCKSTEP "%s --worker-mode threads", list[i]);
        const char *hash = hash_of(&result, state, line);
        if (i == 0)
            (void)snprintf(first, sizeof first, "%s", hash);
        else if (strcmp(first, hash) != 0)
            fail_msg("%s:\n%s, not %s", line, hash, first);
    }
    (void)snprintf(line, sizeof line, LOCKSTEP "%s --worker-mode threads "
                   "--label-smoothing 0.1", list[1]);
    if (strcmp(first, hash_of(&result, state, line)) == 0)
        fail_msg("another loss has the same hash");
}

static void the_bits_are_the_same_for_all_workers(void **state)
{
    compare_ways(state, ways, sizeof ways / sizeof ways[0]);
    compare_ways(state, llama_ways, sizeof llama_ways / sizeof llama_ways[0]);
}

static void checkpoints_have_the_adapters_only(void **state)
{
    static command_result result;
    shell(&result, state, "! grep -aq 'wte\\|bias' run/step-00000004/*.safetensors && "
        "grep -aq 'h.1.mlp.c_fc.lora_B.weight' run/step-00000004/model.safetensors", 0);
    shell(&result, state, LOCKSTEP "plan gpt " LORA "--data text:text --context 8 "
        "--global-batch 6", 0);
    assert_non_null(strstr(result.out, "gpt, 1344 parameters"));
    assert_non_null(strstr(result.out, "frozen parameters, MiB a host: 0.0"));
}

static void base_and_adapters_are_used_together(void **state)
{
    static command_result result, again;
    shell(&result, state, "mkdir away; (cd away && " LOCKSTEP "resume ../run --data text:../text "
        "--steps 5) && " LOCKSTEP "verify run --step 4 && "
        LOCKSTEP "eval run --data text:text && "
        LOCKSTEP "sample run --tokens 9 --prompt a >one && "
        LOCKSTEP "sample run --tokens 9 --prompt a --no-cache >two && cmp one two && "
        LOCKSTEP "train gpt --init base --lora-targets c_attn,mlp.c_proj,c_fc " DATA
        "--steps 1 --workers 1 --worker-mode threads --param-group '*:lr=0' --adapter peft "
        "--checkpoint again", 2);
    assert_non_null(strstr(result.err, "'peft' has no adapter_config.json"));
    shell(&result, state, LOCKSTEP "export run --out peft; " LOCKSTEP "train gpt --init base "
        "--lora-targets c_attn,mlp.c_proj,c_fc " DATA "--steps 1 --workers 1 "
        "--worker-mode threads --param-group '*:lr=0' --adapter peft --checkpoint again; "
        LOCKSTEP "export again --out back; diff -r peft back", 0);
    assert_non_null(strstr(result.out, "peft: gpt2, 1344 parameters in f32, step 5\n"));
    /* a step before the first checkpoint, from the adapters that the run began with */
    shell(&result, state, LOCKSTEP "verify again --step 1 | grep -v equal >recorded; " LOCKSTEP
        "verify gpt --init base --lora-targets c_attn,mlp.c_proj,c_fc " DATA "--steps 1 "
        "--param-group '*:lr=0' --step 1 --adapter peft | grep -v 'not compared' >given && "
        "diff recorded given && mv peft moved; " LOCKSTEP
        "resume again --steps 2; mv moved peft", 0);
    /* without a run; targets are those of the folder */
    shell(&result, state, LOCKSTEP "eval again --data text >one; " LOCKSTEP "eval base --adapter "
        "peft --data text >two; diff one two && " LOCKSTEP "sample again --tokens 9 >one; " LOCKSTEP
        "sample --init base --adapter peft --tokens 9 >two; diff one two && ! " LOCKSTEP "sample "
        "base --tokens 9 | cmp - one; " LOCKSTEP "sample again --adapter peft", 2);
    assert_non_null(strstr(result.err, "--adapter is for a folder as transformers writes it"));
    shell(&result, state, LOCKSTEP "sample nowhere --adapter peft", 1);
    assert_says(result.err, "cannot open 'nowhere', the model that the adapters adapt: No such");
    shell(&result, state, LOCKSTEP "sample llama_base --adapter peft", 2);
    assert_says(result.err, "has c_attn, which is no projection of a llama: the adapters are");
    shell(&result, state, LOCKSTEP "export peft --out none", 2);
    assert_says(result.err, "'peft' has adapters as PEFT writes them; give a run, or the folder");
    shell(&result, state, LOCKSTEP "sample peft", 2);
    assert_non_null(strstr(result.err, "'peft' has adapters, not a model: give it as --adapter"));
    shell(&result, state, LOCKSTEP "resume again --steps 3 --adapter=peft", 2);
    assert_non_null(strstr(result.err, "a run goes on with the adapters of its checkpoint"));
    /* targets as PEFT may write them, and a number that FP32 does not hold */
    const char *first = hash_of(&result, state, LOCKSTEP "train gpt --init base --lora-rank 2 "
        "--lora-alpha 0.3 --lora-targets transformer.h.0.attn.c_attn,attn.c_attn,h.1.mlp.c_fc "
        DATA "--steps 1 --workers 1 --worker-mode threads --checkpoint full; " LOCKSTEP
        "export full --out names");
    assert_string_equal(first, hash_of(&again, state, "grep -q '\"lora_alpha\": 0.3,$' "
        "names/adapter_config.json && grep -q '\"transformer.h.0.attn.c_attn\",$' "
        "names/adapter_config.json && " LOCKSTEP "train gpt --init base --adapter names "
        "--lora-targets h.0.attn.c_attn,c_attn,transformer.h.1.mlp.c_fc --param-group '*:lr=0' "
        DATA "--steps 1 --workers 1 --worker-mode threads"));
    /* a statement about such a run */
    shell(&result, state, LOCKSTEP "train gpt --init base --lora-targets c_attn,mlp.c_proj,c_fc "
        DATA "--steps 2 --checkpoint-every 1 --adapter peft --checkpoint stated --log stated.jsonl "
        "--workers 1 --worker-mode threads && " LOCKSTEP "attest stated && " LOCKSTEP
        "verify stated.attest.json --segments all", 0);
    assert_non_null(strstr(result.out, "segment 1 of 2, steps 1-1:\n  equal\n"));
}

#define TARGETS "--init base --lora-targets c_attn,mlp.c_proj,c_fc"
#define EDIT(key, from, to) "sed -i '/\"" key "\"/s/" from "/" to "/' bad/adapter_config.json"

#define TARGET(name, others) "sed -i 's/\"" name "\"/" others "/' bad/adapter_config.json"
#define BOTH(name, whole)                                                                        \
    TARGET(name, "\"transformer.h.0." whole "\",\"transformer.h.1." whole "\"")

static const damage_case refused[] = {
    { "true", "gpt --init base --lora-rank 4",
      "--lora-rank is 4, but bad/adapter_config.json has 3" },
    { "true", "gpt --init base --lora-alpha 4", "--lora-alpha is 4, but bad/adapter_config.json" },
    { "true", "gpt --init base", "give --lora-targets c_attn,c_fc,mlp.c_proj\n" },
    { "true", "gpt --init base --lora-targets all-linear",
      "in bad/adapter_config.json, for example h.0.attn.c_proj; give --lora-targets c_attn,c_fc"
      ",mlp.c_proj\n" },
    { BOTH("c_attn", "attn.c_attn") "; " BOTH("mlp.c_proj", "mlp.c_proj") "; "
      BOTH("c_fc", "mlp.c_fc"),
      "gpt --init base", "give --lora-targets c_attn,c_fc,mlp.c_proj\n" },
    { TARGET("c_fc", "\"c_fc\",\"h.1.attn.c_proj\",\"h.0.attn.c_proj\""), "gpt --init base",
      "give --lora-targets all-linear\n" },
    { TARGET("c_fc", "\"h.1.mlp.c_fc\""), "gpt --init base",
      "give --lora-targets c_attn,mlp.c_proj,1.mlp.c_fc\n" },
    { "true", "gpt --init base --lora-targets c_attn,head", "'head' is no projection of this" },
    { "true", "gpt --init base --lora-targets c_attn,", "'' is no projection of this" },
    { "true", "gpt --init base --lora-targets all-linear,c_attn", "--lora-targets: all-linear "
                                                                  "stands for all projections" },
    { "true", "gpt --init base --lora-targets c_attn,all-linear", "the head; give it alone" },
    { "true", "gpt", "--lora-rank needs --init" },
    { "true", "llama --init llama_base",
      "has c_attn, which is no projection of a llama: the adapters are another model's" },
    { "true", "gpt --init wide_base --lora-targets c_fc,c_attn,mlp.c_proj",
      "the adapters were made for another base than that of --init" },
    { "true", "--init peft", "'peft' has adapters, not a model: give it as --adapter" },
    { "true", "--init g", "is the directory of a run; to continue the run, use lockstep resume g" },
    { "true", "--init run", "is the directory of a run; to continue the run, use lockstep resume" },
    { "true", "gpt --init peft/adapter_model.safetensors",
      "has adapters, not a model: give their folder as --adapter" },
    { "rm -r bad; cp -r base bad", "gpt --init base", "'bad' has no adapter_config.json" },
    { "rm bad/adapter_model.safetensors", "gpt " TARGETS, "adapter_model.safetensors" },
    { "mv bad/adapter_model.safetensors bad/adapter_model.bin", "gpt " TARGETS,
      "'bad' has adapter_model.bin, but only safetensors is read" },
    { "truncate -s 100 bad/adapter_model.safetensors", "gpt " TARGETS, "truncated" },
    { "truncate -s -1 bad/adapter_model.safetensors", "gpt " TARGETS, "is truncated" },
    { "echo '{' >bad/adapter_config.json", "gpt --init base", "bad/adapter_config.json: " },
    { EDIT("peft_type", "LORA", "IA3"), "gpt --init base", "'peft_type' is IA3; only LORA" },
    { EDIT("bias", "none", "all"), "gpt --init base", "'bias' is all; only none" },
    { EDIT("bias", "\"none\"", "3"), "gpt --init base", "'bias' is no text; only none" },
    { EDIT("use_dora", "false", "true"), "gpt --init base", "it has 'use_dora'" },
    { EDIT("r", "3", "0"), "gpt --init base", "'r' is not a whole number from 1 to 4096" },
    { EDIT("lora_alpha", "8", "1e-50"), "gpt --init base", "from 1e-6 to 1e6" },
    { "sed -i 's/\"c_attn\"/\"attn\"/' bad/adapter_config.json", "gpt --init base",
      "has attn, which is no projection of a gpt" },
    { TARGET("c_attn", "\"lm_head\""), "gpt --init base",
      "has lm_head, and adapters of the head and of embeddings are not supported" },
    { TARGET("c_attn", "\"transformer.wte\""), "gpt --init base",
      "has transformer.wte, and adapters of the head" },
    { TARGET("c_attn", "\"model.embed_tokens\""), "llama --init llama_base",
      "has model.embed_tokens, and adapters of the head" },
    { "true", "gpt --init base --lora-targets c_attn,lm_head",
      "--lora-targets 'lm_head': adapters of the head and of embeddings are not supported" },
    { EDIT("lora_alpha", "8", "-8"), "gpt --init base", "'lora_alpha' is not a number from 1e-6" },
    { EDIT("target_modules", "target", "some"), "gpt --init base",
      "'target_modules' is not a list" },
};

static void damage_and_contradictions_are_refused(void **state)
{
    refuse_damage(state, "peft", "--adapter bad " DATA "--steps 1 --workers 1 "
                  "--worker-mode threads", refused, sizeof refused / sizeof refused[0],
                  lki_brief() ? 3 : 1);
}

static void another_base_is_refused(void **state)
{
    static command_result result;
    shell(&result, state, "cp -r base kept; printf '\\1' | dd of=base/model.safetensors bs=1 "
        "seek=$(($(stat -c %s base/model.safetensors) - 3)) conv=notrunc; "
        "cp -r base other; " LOCKSTEP "resume run --steps 6", 1);
    assert_non_null(strstr(result.err, "has other weights"));
    shell(&result, state, LOCKSTEP "sample run --tokens 2; rm -r base; " LOCKSTEP "eval run --data "
        "text:text", 1);
    assert_non_null(strstr(result.err, "has other weights"));
    assert_non_null(strstr(result.err, "base"));
    shell(&result, state, "mv kept base; " LOCKSTEP "train gpt --init base --lr 0.1 " DATA
        "--steps 9 --workers 1 --checkpoint run --resume", 2);
    assert_non_null(strstr(result.err, "but the checkpoint was made with 3"));
    shell(&result, state, "cp run/command.json before; " LOCKSTEP "resume run --steps 6 "
        "--init other", 1);
    assert_non_null(strstr(result.err, "has other weights"));
    shell(&result, state, "cmp before run/command.json", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_the_same_for_all_workers),
        cmocka_unit_test(checkpoints_have_the_adapters_only),
        cmocka_unit_test(base_and_adapters_are_used_together),
        cmocka_unit_test(damage_and_contradictions_are_refused),
        cmocka_unit_test(another_base_is_refused),
    };
    return cmocka_run_group_tests(tests, make_bases, remove_folder);
}
