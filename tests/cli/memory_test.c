/* memory_test.c -- `--host-memory`: a model too large for a host is split over them, or refused.
 *
 * What a whole copy of this model takes is four times what each of the eight hosts has.
 */
#include "base/sanitized.h"
#include "cli/command.h"

#define MODEL_OF(workers)                                                                          \
    "train gpt --layers 22 --heads 4 --width 256 --context 8 --virtual-workers " workers           \
    " --micro-batch 1 --global-batch " workers " --data synthetic:tokens=2000,vocab=64 "           \
    "--optimizer adamw --lr 1e-3 --quiet --bucket-mb 1 --steps 1 "
#define MODEL MODEL_OF("8")

static void a_whole_copy_is_refused(void **state)
{
    static command_result r;
    run_command(&r, *state, MODEL "--workers 8 --hosts 8 --host-memory 66 --strategy ddp");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "ddp takes 268.");
    assert_says(r.err, " MiB of each of 8 hosts (parameters 66.");
    assert_says(r.err, "but --host-memory leaves 66.0; choose --strategy zero3, which takes ");
    run_command(&r, *state, MODEL "--workers 2 --hosts 2 --host-memory 66");
    assert_says(r.err, "no strategy fits: zero3 takes the least, ");
    run_command(&r, *state, MODEL "--workers 2 --worker-mode threads --host-memory 66");
    assert_int_equal(r.status, 2);
}

/* Threads' stacks, which are never used up, would count. */
static void parts_of_it_are_made_and_trained(void **state)
{
    static command_result r;
    char                  whole[65], parts[65];
    if (LKI_SANITIZED)
        skip(); /* sanitizers take more than a host has */
    run_command(&r, *state, MODEL "--workers 1");
    read_weights(&r, whole);
    run_shell(&r, *state, "ulimit -s 1024; " LK_TEST_COMMAND " " MODEL
                          "--workers 8 --hosts 8 --host-memory 66 --strategy zero3");
    assert_int_equal(r.status, 0);
    read_weights(&r, parts);
    assert_string_equal(parts, whole);
}

/* Of two hosts neither has the memory for half of the states, but for those in files. */
static void files_hold_what_memory_does_not(void **state)
{
    static command_result r;
    char                  whole[65], parts[65];
    if (LKI_SANITIZED)
        skip(); /* likewise */
    run_command(&r, *state, MODEL_OF("2") "--workers 1");
    read_weights(&r, whole);
    run_command(&r, *state, MODEL_OF("2") "--workers 2 --hosts 2 --host-memory 90 "
                                          "--strategy zero3");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "--offload for the optimizer's state and zero3's parameters, or a smaller");
    run_shell(&r, *state, "ulimit -s 1024; " LK_TEST_COMMAND " " MODEL_OF("2")
                          "--workers 2 --hosts 2 --host-memory 90 --strategy zero3 "
                          "--offload optimizer,parameters:/tmp");
    if (r.status != 0)
        fail_msg("%s", r.err);
    read_weights(&r, parts);
    assert_string_equal(parts, whole);
}

/* What is planned for leaves no room here for the rest that a process takes. */
static void the_limit_holds(void **state)
{
    static command_result r;
    run_command(&r, *state, MODEL "--workers 8 --hosts 8 --host-memory 41 --strategy zero3");
    assert_int_not_equal(r.status, 0);
    assert_says(r.err, "of this host's 42991616 to each of 1 workers; this one has ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_copy_is_refused),
        cmocka_unit_test(parts_of_it_are_made_and_trained),
        cmocka_unit_test(files_hold_what_memory_does_not),
        cmocka_unit_test(the_limit_holds),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
