/* runs_test.c -- the same run on other workers, hosts, threads, buckets and instruction sets gives
 * the same bits.
 *
 * Goal:   for each model, the hash of a run (weights, running state, optimizer state, losses) is
 *         that of `--strategy single`, however the run is executed, even if the run resumes in a
 *         different way of execution.
 * Method: the command itself, on small models.  Each way of executing a run differs from its
 *         neighbours in several options at once, so that pairs of options are covered.  Half of the
 *         ways recompute activations if the model supports that.  `./dev bench exactness` has the
 *         full matrix.  Every rank prints the virtual workers that it has computed, and the test
 *         checks them.
 * Controls: a different V, seed, learning rate, clipping or precision must give a different hash.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"

typedef struct {
    const char *name, *options;
} run_model;

static const run_model models[] = {
    { "mlp", "mlp --data synthetic:images=150,h=6,w=6,c=1,classes=5 --hidden 33,17 --optimizer sgd "
             "--momentum 0.9 --lr 0.05 --validation 0.2 --clip-norm 0.5 --grad-comm-dtype int4 "
             "--param-comm-dtype int8" },
    { "gpt",
      "gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 --width 24 --context 13 "
      "--dropout 0.1 --optimizer adamw --lr 1e-3 --validation 0.1 --clip-norm 1 "
      "--weight-decay 0.1 --schedule cosine --warmup 2" },
    { "resnet",
      "resnet --data synthetic:images=150,h=9,w=9,c=3,classes=4 --depth 8 --optimizer sgd "
      "--momentum 0.9 --nesterov --lr 0.1 --validation 0.2 --augment crop=2,flip "
      "--grad-comm-dtype bf16" },
    { "llama",
      "llama --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 4 --kv-heads 2 --width 24 "
      "--head-size 10 --context 13 --tie --qkv-bias --qk-norm --optimizer adamw --lr 1e-3 "
      "--validation 0.1 --clip-norm 1 --weight-decay 0.1" },
};

enum { MODELS = sizeof models / sizeof models[0] };

/* A way of executing a run, and the number of workers that this way uses. */
typedef struct {
    uint32_t    leaves, workers, hosts;
    const char *options;
} way;

static const way ways[] = {
    { 8, 1, 1, "--workers 1 --bucket-mb 0.1 --first-bucket-mb 0.02" },
    { 8, 2, 1, "--workers 2 --bucket-mb 1 --isa avx2" },
    { 8, 3, 1, "--workers 3 --worker-mode threads --isa portable" },
    { 8, 4, 1, "--workers 4 --bucket-mb 0.1 --first-bucket-mb 0.01 --threads 2" },
    { 8, 5, 1, "--workers 5 --worker-mode threads --bucket-mb 25" },
    { 8, 7, 1, "--workers 7 --isa portable --bucket-mb 0.1" },
    { 8, 8, 1, "--workers 8 --worker-mode threads --isa avx2 --bucket-mb 0.1" },
    { 12, 5, 1, "--workers 5 --bucket-mb 0.1 --threads 2" },
    { 12, 1, 1, "--workers 1 --threads 2 --worker-mode threads" },
    { 8, 2, 2, "--workers 2 --hosts 2 --bucket-mb 0.1 --isa portable" },
    { 8, 5, 3, "--workers 5 --hosts 3 --strategy zero1 --bucket-mb 0.1 --threads 2" },
    { 8, 6, 2, "--workers 6 --hosts 2 --bucket-mb 0.1 --first-bucket-mb 0.01 --threads 2" },
    { 12, 4, 2, "--workers 4 --hosts 2 --isa avx2 --strategy zero1" },
    { 12, 7, 3, "--workers 7 --hosts 3 --bucket-mb 1" },
    { 8, 2, 1, "--workers 2 --strategy zero2 --bucket-mb 0.01 --threads 2" },
    { 8, 5, 2, "--workers 5 --hosts 2 --strategy zero2 --bucket-mb 0.02 --isa avx2" },
    { 12, 4, 4, "--workers 4 --hosts 4 --strategy FULL_SHARD --bucket-mb 0.1 --prefetch-units 3" },
    { 12, 5, 1, "--workers 5 --worker-mode threads --strategy zero2 --isa portable" },
    { 8, 6, 3, "--workers 6 --hosts 3 --strategy zero3 --bucket-mb 0.02 --threads 2" },
    { 8, 4, 4, "--workers 4 --hosts 4 --strategy hybrid --shard-size 2 --bucket-mb 0.02" },
};

typedef struct {
    int      status;
    char     hash[65];
    bool     rounds;               /* virtual workers are assigned in dealing rounds, not in
                                    * ranges */
    uint32_t ranks, hosts, leaves; /* as reported by the ranks */
} outcome;

static void read_line(outcome *out, const char *line)
{
    unsigned rank, host = 0, first, last, every = 1;
    if (sscanf(line, "run %64[0-9a-f]", out->hash) == 1)
        return;
    if (sscanf(line, "rank %u (pid %*u) runs virtual workers %u-%u", &rank, &first, &last) != 3 &&
        sscanf(line, "rank %u (pid %*u on host %u) runs virtual workers %u-%u", &rank, &host,
               &first, &last) != 4)
        return;
    if (strstr(line, ", every ") != NULL)
        assert_int_equal(sscanf(strstr(line, ", every "), ", every %u", &every), 1);
    assert_int_equal(rank, out->ranks);
    assert_int_equal(first, out->rounds ? rank : out->leaves);
    assert_true(last >= first && (out->rounds || every == 1));
    assert_true(host == out->hosts || host + 1 == out->hosts);
    out->ranks++;
    out->hosts  = host + 1;
    out->leaves += (last - first) / every + 1;
}

/* Returns true if virtual workers are assigned in dealing rounds. */
static bool in_rounds(const char *options)
{
    static const char *const names[] = { "zero2", "zero3", "FULL_SHARD", "hybrid" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(options, names[i]) != NULL)
            return true;
    return false;
}

static outcome run(const run_model *model, uint32_t leaves, const char *options)
{
    char    command[2048], line[1024], tail[4096] = "";
    outcome out = { .rounds = in_rounds(options) };
    (void)snprintf(
        command, sizeof command,
        "'%s' train %s --virtual-workers %u --global-batch 24 --micro-batch %u --seed 3 --steps %s "
        "2>&1",
        LK_TEST_COMMAND, model->options, leaves, leaves == 8 ? 3 : 1, options);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    while (fgets(line, sizeof line, pipe) != NULL) {
        read_line(&out, line);
        if (strlen(tail) + strlen(line) < sizeof tail)
            strcat(tail, line);
    }
    out.status = pclose(pipe);
    if (out.status != 0)
        print_message("%s\n%s", command, tail);
    return out;
}

static bool isa_is_here(const char *options)
{
    char command[256];
    if (strstr(options, "--isa avx2") == NULL)
        return true;
    (void)snprintf(command, sizeof command, "grep -qw avx2 /proc/cpuinfo");
    return system(command) == 0;
}

static const char *with_checkpointing(const run_model *model, size_t way_index)
{
    bool has = strncmp(model->name, "mlp", 3) != 0 && way_index / 2 % 2 == 1;
    return has ? "--activation-checkpointing" : "";
}

/* Returns true if the combination is refused, because SyncBatchNorm excludes dealing rounds. */
static bool is_refused(const run_model *model, const char *options)
{
    return strstr(model->name, "sync") != NULL && in_rounds(options);
}

/* Checks the way with index `nth` and every `step`-th way after that.  Under a sanitizer or with
 * LK_BRIEF, the model that is checked in all ways takes half of its ways, and other models take a
 * quarter of theirs: models share the code of the ways. */
static void check_ways(const run_model *model, size_t nth, size_t step)
{
    step *= LKI_SANITIZED || lki_brief() ? step > 1 ? 4 : 2 : 1;
    for (uint32_t leaves = 8; leaves <= 12; leaves += 4) {
        outcome want = run(model, leaves, "7 --strategy single --workers 1");
        assert_int_equal(want.status, 0);
        assert_int_equal(strlen(want.hash), 64);
        for (size_t i = nth; i < sizeof ways / sizeof ways[0]; i += step) {
            if (ways[i].leaves != leaves || !isa_is_here(ways[i].options) ||
                is_refused(model, ways[i].options))
                continue;
            char options[256];
            (void)snprintf(options, sizeof options, "7 %s %s", ways[i].options,
                           with_checkpointing(model, i));
            outcome got = run(model, leaves, options);
            assert_int_equal(got.status, 0);
            assert_int_equal(got.ranks, ways[i].workers);
            assert_int_equal(got.hosts, ways[i].hosts);
            assert_int_equal(got.leaves, leaves);
            if (strcmp(got.hash, want.hash) != 0)
                fail_msg("%s, V %u, %s: run %s, but single gives %s", model->name, leaves,
                         ways[i].options, got.hash, want.hash);
        }
    }
}

static void mlp_has_the_same_bits(void **state)
{
    (void)state;
    check_ways(&models[0], 0, 1);
}

/* Checks each model in half of the ways; with LK_THOROUGH=1, in all ways. */
static void gpt_has_the_same_bits(void **state)
{
    (void)state;
    check_ways(&models[1], 0, lki_thorough() ? 1 : 2);
}

static void resnet_has_the_same_bits(void **state)
{
    (void)state;
    check_ways(&models[2], lki_thorough() ? 0 : 1, lki_thorough() ? 1 : 2);
}

static void llama_has_the_same_bits(void **state)
{
    (void)state;
    check_ways(&models[3], lki_thorough() ? 0 : 2, lki_thorough() ? 1 : 3);
}

/* A network of bottleneck blocks, whose many parameters take their time: one step. */
static const run_model bottleneck = {
    "resnet, bottleneck",
    "resnet --data synthetic:images=30,h=4,w=4,c=3,classes=4 --depth 50 --optimizer sgd "
    "--momentum 0.9 --lr 0.1"
};

/* Checks the bottleneck in two ways; with LK_BRIEF, in one. */
static void bottlenecks_have_the_same_bits(void **state)
{
    static const char *const rest[] = {
        "1 --workers 2 --worker-mode threads --activation-checkpointing",
        "1 --workers 2 --hosts 2 --strategy zero3",
    };
    (void)state;
    outcome want = run(&bottleneck, 8, "1 --strategy single --workers 1");
    assert_int_equal(want.status, 0);
    for (size_t i = 0; i < (lki_brief() ? 1 : 2); i++) {
        outcome got = run(&bottleneck, 8, rest[i]);
        assert_int_equal(got.status, 0);
        assert_string_equal(got.hash, want.hash);
    }
}

/* Checks each model in a third of the ways. */
static void other_precisions_have_the_same_bits(void **state)
{
    static const char *const precisions[] = { "bf16", "bf16",
                                              "fp16 --loss-scale-initial 4294967296", "bf16" };
    char                     name[64], options[512];
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        (void)snprintf(name, sizeof name, "%s, %s", models[m].name, precisions[m]);
        (void)snprintf(options, sizeof options, "%s --precision %s", models[m].options,
                       precisions[m]);
        check_ways(&(run_model){ name, options }, 1 + m, 3);
    }
}

#define OTHER_OPTIMIZER(name) \
    "mlp --data synthetic:images=150,h=6,w=6,c=1,classes=5 --hidden 300,17 --lr 0.01 " \
    "--validation 0.2 --clip-norm 0.5 --weight-decay 0.1 --optimizer " name

static const run_model optimizers[] = { { "mlp, lars",
                                          OTHER_OPTIMIZER("lars --trust-coefficient 0.1") },
                                        { "mlp, lamb",
                                          OTHER_OPTIMIZER("lamb --ema 0.9 --param-group "
                                                          "'*.bias:lr=2,decay=0.01'") },
                                        { "mlp, lion",
                                          OTHER_OPTIMIZER("lion --order torch-distributed") } };

/* A model whose gradients overflow, so that it skips steps before and after the fourth. */
static const run_model overflowing = {
    "mlp, fp16",
    OTHER_OPTIMIZER("adamw --precision fp16 --loss-scale-initial 8388608 --loss-scale-window 2")
};

/* Checks evaluations after steps that are all skipped. */
static void evaluations_may_follow_skipped_steps(void **state)
{
    static const run_model gpt = {
        "gpt, fp16",
        "gpt --data synthetic:tokens=4000,vocab=31 --layers 1 --heads 2 --width 16 --context 13 "
        "--optimizer adamw --lr 1e-3 --validation 0.1 --eval-every 1 --precision fp16 "
        "--loss-scale-initial 4294967296"
    };
    (void)state;
    check_ways(&gpt, 16, 2); /* the ways with zero3 */
}

/* Checks each optimizer in a few ways; lars and lamb with both strategies for several hosts. */
static void other_optimizers_have_the_same_bits(void **state)
{
    (void)state;
    check_ways(&optimizers[0], 2, 4);
    check_ways(&optimizers[1], 4, 3);
    check_ways(&optimizers[2], 6, 4);
}

/* Runs four steps in the way `first`, and the rest from the checkpoint in the way `then`. */
static void goes_on_elsewhere(const run_model *model, const char *first, const char *then,
                              const char *want)
{
    char dir[] = "/tmp/lockstep-runs-XXXXXX", options[256];

    assert_non_null(mkdtemp(dir));
    (void)snprintf(options, sizeof options, "4 --schedule constant --checkpoint %s %s", dir,
                   first);
    assert_int_equal(run(model, 8, options).status, 0);
    (void)snprintf(options, sizeof options, "7 --schedule constant --checkpoint %s --resume %s",
                   dir, then);
    outcome got = run(model, 8, options);
    (void)snprintf(options, sizeof options, "rm -r %s", dir);
    assert_int_equal(system(options), 0);
    assert_int_equal(got.status, 0);
    if (strcmp(got.hash, want) != 0)
        fail_msg("%s, %s, then %s: run %s, not %s", model->name, first, then, got.hash, want);
}

/* A model with a short last batch, in which most virtual workers have no samples. */
static const run_model synced = {
    "resnet, sync",
    "resnet --data synthetic:images=155,h=9,w=9,c=3,classes=4 --depth 8 --optimizer sgd "
    "--momentum 0.9 --nesterov --lr 0.1 --validation 0.2 --batchnorm sync"
};

static void sync_batchnorm_has_the_same_bits(void **state)
{
    (void)state;
    check_ways(&synced, 0, 3);
    outcome want = run(&synced, 8, "7 --strategy single --workers 1 --schedule constant");
    outcome got  = run(&synced, 8, "7 --strategy zero3 --workers 8 --hosts 2");
    assert_int_equal(got.status, 0);
    assert_string_equal(got.hash, want.hash);
    goes_on_elsewhere(&synced, "--workers 4 --hosts 2", "--workers 3", want.hash);
    got = run(&synced, 8, "7 --workers 2 --batchnorm ghost");
    assert_int_equal(got.status, 0);
    assert_string_not_equal(got.hash, want.hash);
    assert_int_not_equal(run(&synced, 8, "7 --strategy zero2 --workers 4").status, 0);
}

static void a_run_resumes_on_any_workers(void **state)
{
    static const char two_by_two[] = "--workers 4 --hosts 2", three[] = "--workers 3";
    (void)state;
    for (size_t m = 0; m < MODELS; m += lki_brief() ? 2 : 1) {
        outcome want = run(&models[m], 8, "7 --schedule constant --strategy single --workers 1");
        assert_int_equal(want.status, 0);
        goes_on_elsewhere(&models[m], two_by_two, three, want.hash);
        goes_on_elsewhere(&models[m], three, two_by_two, want.hash);
    }
    outcome want = run(&optimizers[1], 8, "7 --strategy single --workers 1");
    goes_on_elsewhere(&optimizers[1], "--workers 4 --hosts 2 --strategy zero1", three, want.hash);
    want = run(&overflowing, 8, "7 --strategy single --workers 1");
    goes_on_elsewhere(&overflowing, three, two_by_two, want.hash);
}

static void result_options_change_the_hash(void **state)
{
    (void)state;
    static const char *const others[] = { "7 --workers 2 --seed 4", "7 --workers 2 --lr 0.04",
                                          "7 --workers 2 --clip-norm 0.01",
                                          "7 --workers 2 --precision bf16",
                                          "7 --workers 2 --precision fp16" };
    outcome base  = run(&models[0], 8, "7 --workers 2"),
            other = run(&models[0], 12, "7 --workers 2 --hosts 2");
    assert_string_not_equal(base.hash, other.hash);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        other = run(&models[0], 8, others[i]);
        assert_int_equal(other.status, 0);
        assert_string_not_equal(base.hash, other.hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_has_the_same_bits),
        cmocka_unit_test(gpt_has_the_same_bits),
        cmocka_unit_test(resnet_has_the_same_bits),
        cmocka_unit_test(llama_has_the_same_bits),
        cmocka_unit_test(bottlenecks_have_the_same_bits),
        cmocka_unit_test(other_precisions_have_the_same_bits),
        cmocka_unit_test(other_optimizers_have_the_same_bits),
        cmocka_unit_test(evaluations_may_follow_skipped_steps),
        cmocka_unit_test(sync_batchnorm_has_the_same_bits),
        cmocka_unit_test(a_run_resumes_on_any_workers),
        cmocka_unit_test(result_options_change_the_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
