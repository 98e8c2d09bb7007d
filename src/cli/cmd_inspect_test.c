/* cmd_inspect_test.c -- tests `lockstep inspect` with intact, damaged and plain files. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/checkpoint.h"

#include <cmocka.h>

static char folder[64], weights[65];

static int make_checkpoint(void **state)
{
    (void)state;
    static const float       data[4] = { -1.5f, 0.25f, NAN, 7.0f };
    const lk_tensor          tensor  = { "w", LK_F32, { 2, { 2, 2 } }, data };
    const lk_checkpoint_file file    = { .name         = "model.safetensors",
                                         .tensors      = &tensor,
                                         .tensor_count = 1 };
    strcpy(folder, "/tmp/lockstep-inspect-XXXXXX");
    lk_weights_hash(&tensor, 1, weights);
    const lk_checkpoint_info info = { .step         = 40,
                                      .seed         = UINT64_MAX,
                                      .exactness_id = "id-1",
                                      .weights      = weights,
                                      .config       = "{\"lr\":0.1,\"model\":\"gpt\"}" };
    return mkdtemp(folder) == NULL || lk_checkpoint_write(folder, &info, &file, 1, 0) != LK_OK;
}

static int remove_checkpoint(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* Runs the command with the folder and `arguments`.  `out` receives its output and stderr. */
static int inspect(char out[4096], const char *arguments)
{
    char line[1024];
    (void)snprintf(line, sizeof line, "%s inspect %s%s 2>&1", LK_TEST_COMMAND, folder, arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    out[fread(out, 1, 4095, pipe)] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void assert_has(const char *out, const char *wanted)
{
    if (strstr(out, wanted) == NULL)
        fail_msg("no '%s' in:\n%s", wanted, out);
}

static void an_intact_checkpoint_is_shown(void **state)
{
    (void)state;
    char out[4096];
    assert_int_equal(inspect(out, " --tensors"), 0);
    static const char *const wanted[] = { "step           40", "18446744073709551615", "id-1", "lr",
                                          "0.1\n", "verified", "[2,2]", "min -1.5 max 7",
                                          "NOT FINITE: 1", "as the model hashes now" };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        assert_has(out, wanted[i]);
    assert_has(out, weights);
    assert_int_equal(inspect(out, " --no-verify"), 0);
    assert_has(out, "unchecked");
}

static void the_json_report_is_valid(void **state)
{
    (void)state;
    char out[4096];
    assert_int_equal(inspect(out, " --json --tensors"), 0);
    json_t     *report = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    json_int_t  step, parameters, nonfinite;
    const char *hash, *file_state;
    assert_non_null(report);
    assert_int_equal(json_unpack(report, "{s:I, s:s, s:I, s:[{s:s}], s:[{s:I}]}", "step", &step,
                                 "weights", &hash, "parameters", &parameters, "files", "state",
                                 &file_state, "tensors", "nonfinite", &nonfinite), 0);
    assert_int_equal(step, 40);
    assert_int_equal(parameters, 4);
    assert_int_equal(nonfinite, 1);
    assert_string_equal(hash, weights);
    assert_string_equal(file_state, "verified");
    json_decref(report);
}

static void shows_a_plain_file(void **state)
{
    (void)state;
    char out[4096];
    assert_int_equal(inspect(out, "/step-00000040/model.safetensors"), 0);
    assert_has(out, weights);
}

static void consolidate_writes_one_file(void **state)
{
    (void)state;
    char out[4096], arguments[128];
    (void)snprintf(arguments, sizeof arguments, " --consolidate %s/one.safetensors", folder);
    assert_int_equal(inspect(out, arguments), 0);
    assert_has(out, "step-00000040\n");
    assert_has(out, weights);
    assert_int_equal(inspect(out, arguments), 1);
    assert_has(out, "is there already");
    assert_int_equal(inspect(out, "/one.safetensors"), 0);
    assert_has(out, weights);
    assert_int_equal(inspect(out, " --everything"), 2);
    assert_int_equal(inspect(out, " --json --consolidate x"), 2);
}

static void a_damaged_block_is_named(void **state)
{
    (void)state;
    char out[4096], path[128];
    (void)snprintf(path, sizeof path, "%s/step-00000040/model.safetensors", folder);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(0x41, file), 0x41);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(inspect(out, ""), 1);
    assert_has(out, "failed");
    assert_has(out, "model.safetensors: block 0");
    assert_int_equal(inspect(out, " --no-verify"), 0);
    assert_int_equal(inspect(out, "/step-00000041"), 1);
    assert_has(out, "cannot find");
    assert_int_equal(inspect(out, " --wrong"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_intact_checkpoint_is_shown),
        cmocka_unit_test(the_json_report_is_valid),
        cmocka_unit_test(shows_a_plain_file),
        cmocka_unit_test(consolidate_writes_one_file),
        cmocka_unit_test(a_damaged_block_is_named), /* last: it damages the checkpoint */
    };
    return cmocka_run_group_tests(tests, make_checkpoint, remove_checkpoint);
}
