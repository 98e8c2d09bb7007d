/* sample_test.c -- tests `sample` with a llama.
 *
 * Goal:   a trained llama generates text: all of its options come from the checkpoint.
 * Method: the command, with a small model that has learned to repeat seven letters.
 */
#include "command.h"

#define LOCKSTEP LK_TEST_COMMAND " "
#define SMALL                                                                                    \
    " --layers 2 --heads 2 --width 32 --context 16 --global-batch 8 --optimizer adamw --lr 1e-2 " \
    "--steps 60 --workers 1 --worker-mode threads --quiet "

static void run(command_result *out, void **state, const char *line, int status)
{
    (void)run_shell(out, *state, line);
    if (out->status != status)
        fail_msg("%s: status %d\n%s%s", line, out->status, out->out, out->err);
}

static void a_trained_llama_generates_text(void **state)
{
    static command_result result;
    run(&result, state, "yes abcdefg | tr -d '\\n' | head -c 6000 > text; " LOCKSTEP
        "train llama --data text:text" SMALL "--kv-heads 1 --head-size 24 --qk-norm --tie "
        "--qkv-bias --rope-theta 500 --rope-factor 2 --rope-original 16 --checkpoint llama", 0);
    run(&result, state, LOCKSTEP "sample llama --prompt ab --tokens 40 --temperature 0", 0);
    assert_string_equal(result.out, "abcdefgabcdefgabcdefgabcdefgabcdefgabcdefg\n");
    run(&result, state, LOCKSTEP "sample llama/step-00000060/model.safetensors", 2);
    assert_non_null(strstr(result.err, "has a llama, but not its options"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trained_llama_generates_text),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
