/* plan_test.c -- `lockstep plan`: numbers that can be checked by hand, and what it refuses. */
#include "cli/command.h"

#define MLP "plan mlp --data synthetic:images=64,h=8,w=8,c=1,classes=10 --hidden 64 "             \
            "--global-batch 32 --virtual-workers 8 --optimizer adamw "

static double number(const char *text, const char *name, const char *after)
{
    const char *from = after == NULL ? text : strstr(text, after);
    assert_non_null(from);
    const char *at = strstr(from, name);
    assert_non_null(at);
    return strtod(at + strlen(name) + 2, NULL);
}

static void tells_memory_and_traffic(void **state)
{
    static command_result r;
    const double          params = 4 * (64 * 64 + 64 + 10 * 64 + 16); /* the last bias is padded */

    run_command(&r, *state, MLP "--workers 8 --hosts 4 --json");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"elements\"", NULL) == 64 * 64 + 64 + 10 * 64 + 10);
    assert_true(number(r.out, "\"parameters\"", "ddp") == params);
    assert_true(number(r.out, "\"optimizer\"", "ddp") == 2 * params);
    assert_true(number(r.out, "\"gradients\"", "ddp") == 2 * params); /* of two workers */
    assert_true(number(r.out, "\"sent_gradients\"", "ddp") == 2 * 3 * params / 4);
    assert_true(number(r.out, "\"parameters\"", "zero1") == params);
    assert_true(number(r.out, "\"optimizer\"", "zero1") < 2 * params);
    double sent = number(r.out, "\"sent_gradients\"", "zero1") +
                  number(r.out, "\"sent_parameters\"", "zero1");
    assert_true(sent > 0 && sent <= 4 * params);
}

static void one_host_sends_nothing(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 3 --strategy ddp --json");
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.out, "zero1"));
    assert_true(number(r.out, "\"sent_gradients\"", "ddp") == 0);
    run_command(&r, *state, MLP "--workers 3");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nddp "));
    assert_non_null(strstr(r.out, "\nzero1 "));
}

/* States of 80 GB are no reason to refuse. */
static void a_model_may_be_larger_than_the_machine(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan gpt --layers 32 --heads 32 --width 4096 --context 64 --workers 8 "
                            "--virtual-workers 8 --optimizer adamw --hosts 8 --json");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"elements\"", NULL) > 6.4e9);
    assert_true(number(r.out, "\"optimizer\"", "zero1") < 6.8e9);
}

static void knows_the_paper(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan gpt --paper --parameters 7.5e9 --workers 64 --optimizer adamw "
                            "--memory 32e9 --json");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"bytes\"", "\"stage\": 0") == 120e9);
    assert_true(number(r.out, "\"bytes\"", "\"stage\": 1") == 7.5e9 * (4 + 12 / 64.));
    assert_true(number(r.out, "\"bytes\"", "\"stage\": 3") == 7.5e9 * 16 / 64);
    assert_true(number(r.out, "\"elements_sent\"", "\"stage\": 3") == 3 * 7.5e9);
    double largest = number(r.out, "\"largest\"", "\"stage\": 1") / 1e9;
    assert_true(largest > 7.64 && largest < 7.65);
    run_command(&r, *state, "plan mlp --hidden 64 --paper --workers 2 --optimizer sgd --lr 0.1");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "50890 parameters, 2 workers, K 4"));
}

static void says_what_is_wrong(void **state)
{
    static const struct {
        const char *line, *text;
    } mistakes[] = {
        { "plan", "MODEL" },
        { MLP "--workers 9", "raise --virtual-workers" },
        { MLP "--workers 2 --hosts 3", "each has at least one; raise --workers" },
        { MLP "--parameters 5", "--paper" },
        { "plan gpt --paper --parameters 1e9", "--paper needs --workers" },
        { MLP "--strategy zero9", "zero9" },
    };
    static command_result r;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        run_command(&r, *state, mistakes[i].line);
        if (r.status != 2 || strstr(r.err, mistakes[i].text) == NULL)
            fail_msg("lockstep %s: status %d, %s", mistakes[i].line, r.status, r.err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_memory_and_traffic),
        cmocka_unit_test(one_host_sends_nothing),
        cmocka_unit_test(a_model_may_be_larger_than_the_machine),
        cmocka_unit_test(knows_the_paper),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
