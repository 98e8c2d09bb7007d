/* memory_test.c -- `--host-memory`: a model too large for one host is distributed over several, or
 * refused.
 *
 * A complete copy of this model needs three times the memory of each of the eight hosts.
 */
#include "base/sanitized_testing.h"
#include "cli/command.h"

#define LAYERS_OF(layers, workers)                                                                 \
    "gpt --layers " layers " --heads 4 --width 256 --context 8 --micro-batch 1 "                   \
    "--virtual-workers " workers " --global-batch " workers                                        \
    " --data synthetic:tokens=2000,vocab=64 "                                                      \
    "--optimizer adamw --lr 1e-3 --quiet --bucket-mb 1 --steps 1 "
#define OPTIONS_OF(workers) LAYERS_OF("11", workers)
#define MODEL_OF(workers) "train " OPTIONS_OF(workers)
#define MODEL             MODEL_OF("8")
#define PLAN              "plan " OPTIONS_OF("8")

static void a_complete_copy_is_refused(void **state)
{
    static command_result r;
    run_command(&r, *state, MODEL "--workers 8 --hosts 8 --host-memory 46 --strategy ddp");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "ddp takes 149.");
    assert_says(r.err, " MiB of each of 8 hosts (parameters 33.");
    assert_says(r.err, "but --host-memory leaves 46.0; choose --strategy zero3, which takes ");
    run_command(&r, *state, MODEL "--workers 2 --hosts 2 --host-memory 46");
    assert_says(r.err, "no strategy fits: zero3 takes the least, ");
    run_command(&r, *state, MODEL "--workers 1 --nnodes 2 --node-rank 0 --rendezvous "
                "tcp://127.0.0.1:1 --insecure --host-memory 46");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "MiB of each of 2 hosts (");
    run_command(&r, *state, MODEL "--workers 2 --worker-mode threads --host-memory 46");
    assert_int_equal(r.status, 2);
}

/* Runs commands that are refused for lack of memory.  Expects that the advice in the message names
 * no option that would be refused, too. */
static void refusals_advise_only_usable_options(void **state)
{
    static command_result r;
    run_command(&r, *state, MODEL "--workers 8 --hosts 8 --host-memory 66 --sdc-check 1");
    assert_int_equal(r.status, 2);
    assert_says_not(r.err, "zero3");
    assert_says(r.err, "--offload for the optimizer's state, or a smaller model");
    run_command(&r, *state, MODEL "--workers 2 --hosts 2 --host-memory 30 --param-comm-dtype int8");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--offload for the optimizer's state, or a smaller model");
    run_command(&r, *state, "train gpt --data synthetic:tokens=8000,vocab=64 --global-batch 32 "
                            "--steps 1 --lr 0.1 --optimizer sgd --workers 2 --hosts 2 "
                            "--shard-replicas 2 --on-failure continue --strategy zero3 "
                            "--host-memory 54");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "choose --strategy zero1");
}

static void a_sharded_model_is_created_and_trained(void **state)
{
    static command_result r;
    char                  whole[65], parts[65];
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more memory than a host has */
    run_command(&r, *state, MODEL "--workers 1");
    read_weights(&r, whole);
    run_command(&r, *state, MODEL "--workers 8 --hosts 8 --host-memory 46 --strategy zero3");
    assert_int_equal(r.status, 0);
    read_weights(&r, parts);
    assert_string_equal(parts, whole);
}

/* Checks that two hosts succeed with states in files if neither has memory for half of the
 * states. */
static void offloaded_states_need_not_fit_into_memory(void **state)
{
    static command_result r;
    char                  whole[65], parts[65];
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more memory than a host has */
    run_command(&r, *state, MODEL_OF("2") "--workers 1");
    read_weights(&r, whole);
    run_command(&r, *state, MODEL_OF("2") "--workers 2 --hosts 2 --host-memory 58 "
                                          "--strategy zero3");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--offload for the optimizer's state and zero3's parameters, or a smaller");
    run_command(&r, *state, MODEL_OF("2") "--workers 2 --hosts 2 --host-memory 58 "
                                          "--strategy zero3 --offload optimizer,parameters:/tmp");
    if (r.status != 0)
        fail_msg("%s", r.err);
    read_weights(&r, parts);
    assert_string_equal(parts, whole);
}

/* Runs with the memory that the plan states, rounded up to a whole MiB. */
static void run_as_planned(const char *folder, const char *options)
{
    static command_result r;
    char                  line[512];
    (void)snprintf(line, sizeof line, "plan --json %s", options);
    run_command(&r, folder, line);
    const char *all = strstr(r.out, "\"all\": ");
    assert_non_null(all);
    double mebi = strtod(all + 7, NULL) / (1 << 20);
    (void)snprintf(line, sizeof line, "train %s --host-memory %.0f", options, mebi + 0.5);
    run_command(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: %s", line, r.err);
}

/* A model whose tables of rotary embeddings have 1 MiB. */
#define LLAMA                                                                                      \
    "llama --layers 1 --heads 2 --kv-heads 1 --width 64 --head-size 128 --context 2048 "           \
    "--micro-batch 1 --virtual-workers 4 --global-batch 4 --steps 1 "                              \
    "--data synthetic:tokens=12000,vocab=64 --optimizer adamw --lr 1e-3 --quiet --bucket-mb 1 "

static void runs_fit_into_their_plan(void **state)
{
    static const char *const ways[] = {
        LAYERS_OF("4", "8") "--workers 4 --hosts 2 --strategy ddp",
        LAYERS_OF("4", "8") "--workers 4 --hosts 4 --strategy zero3 --threads 2",
        LAYERS_OF("4", "8") "--workers 8 --hosts 2 --strategy zero2",
        LAYERS_OF("4", "8") "--workers 4 --hosts 2 --strategy zero3 --precision bf16",
        LAYERS_OF("4", "8") "--workers 2 --strategy zero1",
        LLAMA "--workers 4 --hosts 2 --strategy zero3",
    };
    for (size_t i = 0; !LKI_SANITIZED && i < sizeof ways / sizeof ways[0]; i++)
        run_as_planned(*state, ways[i]);
}

/* A small model.  At the end of its run, when parameters are read back piece by piece, the planned
 * data are almost all of the memory in use. */
#define SIX_WORKERS                                                                                \
    "gpt --layers 1 --heads 4 --width 192 --context 32 --data synthetic:tokens=8000,vocab=64 "     \
    "--strategy zero3 --workers 6 --hosts 3 --virtual-workers 6 --micro-batch 4 "                  \
    "--global-batch 24 --bucket-mb 1 --lr 1e-3 --quiet --steps 3 --activation-checkpointing "      \
    "--offload optimizer,parameters:/tmp "

static void offloaded_runs_fit_into_their_plan(void **state)
{
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more memory than a host has */
    run_as_planned(*state, SIX_WORKERS "--optimizer lamb");
    run_as_planned(*state, SIX_WORKERS "--optimizer adamw --checkpoint saved");
}

/* Checks the copies in a plan.  For asynchronous checkpoints one worker of a host has a copy.  With
 * files, or if workers may be lost, rank 0 has a copy of everything.  Otherwise each host's writer
 * has a copy of its part.  Each worker has a copy of the moving mean that it evaluates. */
static void runs_with_copies_fit_into_their_plan(void **state)
{
    static const char *const ways[] = {
        "--hosts 1 --strategy zero3 --offload optimizer,parameters:/tmp --checkpoint files",
        "--hosts 2 --strategy zero3 --checkpoint parts",
        "--hosts 4 --strategy zero3 --checkpoint buddies --on-failure continue --shard-replicas 2",
        "--hosts 2 --strategy zero2 --checkpoint mean --ema 0.9 --validation 0.2",
    };
    char line[512];
    for (size_t i = 0; !LKI_SANITIZED && i < sizeof ways / sizeof ways[0]; i++) {
        (void)snprintf(line, sizeof line, "gpt --layers 2 --heads 4 --width 320 --context 8 "
                       "--data synthetic:tokens=2000,vocab=5000 --global-batch 4 --micro-batch 1 "
                       "--workers 4 --optimizer adamw --lr 1e-3 --steps 3 --checkpoint-async "
                       "--quiet --checkpoint-every 2 %s", ways[i]);
        run_as_planned(*state, line);
    }
}

/* Checks that the limit also covers memory outside of the plan: the stacks of many threads. */
static void the_limit_covers_memory_outside_the_plan(void **state)
{
    static command_result r;
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more memory than a host has */
    run_command(&r, *state, MODEL "--workers 8 --hosts 8 --host-memory 42 --strategy zero3 "
                                  "--loader-threads 64");
    assert_int_not_equal(r.status, 0);
    assert_says(r.err, "loader: cannot start its threads");
}

/* Creates a cgroup that limits its processes to `bytes` of memory, if possible. */
static bool open_cgroup(char *group, size_t capacity, double bytes)
{
    char line[512];
    (void)snprintf(group, capacity, "/sys/fs/cgroup/memory/lockstep-test-%d", (int)getpid());
    (void)snprintf(line, sizeof line,
                   "mkdir %s 2>/dev/null && echo %.0f 2>/dev/null >%s/memory.limit_in_bytes",
                   group, bytes, group);
    if (system(line) == 0)
        return true;
    (void)snprintf(group, capacity, "/sys/fs/cgroup/lockstep-test-%d", (int)getpid());
    (void)snprintf(line, sizeof line,
                   "mkdir %s 2>/dev/null && echo %.0f 2>/dev/null >%s/memory.max", group, bytes,
                   group);
    return system(line) == 0;
}

/* Runs the command in a cgroup that limits its memory to `bytes`.  Returns false if no such cgroup
 * can be created. */
static bool run_within(command_result *r, const char *folder, double bytes, const char *arguments)
{
    char group[128], line[1024];
    bool there = open_cgroup(group, sizeof group, bytes);
    if (there) {
        (void)snprintf(line, sizeof line, "sh -c 'echo $$ >%s/cgroup.procs && exec %s %s'", group,
                       LK_TEST_COMMAND, arguments);
        (void)run_shell(r, folder, line);
    }
    (void)rmdir(group);
    return there;
}

/* Checks that a run needs no more memory than its plan, plus some MiB for the launcher. */
static void a_run_needs_no_more_than_its_plan(void **state)
{
    const double          launcher = 16 << 20;
    static command_result r;
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more memory than a host has */
    run_command(&r, *state, PLAN "--workers 8 --hosts 8 --strategy zero3 --json");
    const char *all = strstr(r.out, "\"all\": ");
    assert_non_null(all);
    double bytes = 8 * strtod(all + 7, NULL);
    assert_true(bytes > 0);
    if (!run_within(&r, *state, bytes + launcher, MODEL "--workers 8 --hosts 8 --strategy zero3"))
        skip();
    if (r.status != 0)
        fail_msg("%s", r.err);
    assert_true(run_within(&r, *state, 0.8 * bytes,
                           MODEL "--workers 8 --hosts 8 --strategy zero3"));
    assert_int_not_equal(r.status, 0);
}

/* A model whose gradients of single virtual workers take 35.5 MiB, and of joint turns 7.1. */
#define JOINT                                                                                      \
    "mlp --hidden 1024,1024 --global-batch 256 --data synthetic:images=512,h=28,w=28,c=1,"         \
    "classes=10 --workers 1 --strategy ddp --momentum 0.9 --micro-batch 8 --virtual-workers 32 "

/* Returns the bytes that a run with joint turns has, under a limit in MiB. */
static double planned(const char *folder, double limit, const char *name)
{
    static command_result r;
    char                  line[512], key[32];
    (void)snprintf(line, sizeof line, "plan --json --host-memory %.0f " JOINT, limit);
    (void)snprintf(key, sizeof key, "\"%s\": ", name);
    run_command(&r, folder, line);
    assert_int_equal(r.status, 0);
    const char *at = strstr(r.out, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

/* Checks that a limit makes joint turns smaller, or keeps them, in a plan and in a run.  Single
 * turns do not fit into the limit of this run, which is enforced. */
static void a_limit_chooses_joint_turns(void **state)
{
    static command_result r;
    char                  weights[65], limited[65], line[512];
    const double          mebi = planned(*state, 1000, "all") / (1 << 20);
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more memory than a host has */
    run_command(&r, *state, "train " JOINT "--steps 2 --lr 0.1 --quiet");
    read_weights(&r, weights);
    const double tight = (int)mebi + 1;
    assert_true(planned(*state, tight, "gradients") < 8 << 20);
    (void)snprintf(line, sizeof line, "train --host-memory %.0f --steps 2 --lr 0.1 --quiet " JOINT,
                   tight);
    run_command(&r, *state, line);
    if (r.status != 0)
        fail_msg("%s", r.err);
    read_weights(&r, limited);
    assert_string_equal(limited, weights);
    (void)snprintf(line, sizeof line, "train --host-memory %.0f --steps 2 --lr 0.1 --quiet " JOINT,
                   tight - 8);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--host-memory leaves");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_complete_copy_is_refused),
        cmocka_unit_test(refusals_advise_only_usable_options),
        cmocka_unit_test(a_sharded_model_is_created_and_trained),
        cmocka_unit_test(offloaded_states_need_not_fit_into_memory),
        cmocka_unit_test(runs_fit_into_their_plan),
        cmocka_unit_test(offloaded_runs_fit_into_their_plan),
        cmocka_unit_test(runs_with_copies_fit_into_their_plan),
        cmocka_unit_test(a_limit_chooses_joint_turns),
        cmocka_unit_test(the_limit_covers_memory_outside_the_plan),
        cmocka_unit_test(a_run_needs_no_more_than_its_plan),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
