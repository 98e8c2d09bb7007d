/* plan_test.c -- `lockstep plan`: numbers that can be checked by hand, and refusals. */
#include <math.h>

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
    assert_true(number(r.out, "\"gradients\"", "ddp") == 2 * params); /* the gradients of two
                                                                       * workers */
    assert_true(number(r.out, "\"sent_gradients\"", "ddp") == 2 * 3 * params / 4);
    double all = 5 * params + number(r.out, "\"activations\"", "ddp");
    assert_true(number(r.out, "\"all\"", "ddp") == all + number(r.out, "\"buffers\"", "ddp"));
    assert_true(number(r.out, "\"buffers\"", "ddp") > 2 * 9 * 1024 * 1024); /* the buffers of two
                                                                             * processes */
    assert_true(number(r.out, "\"parameters\"", "zero1") == params);
    assert_true(number(r.out, "\"optimizer\"", "zero1") < 2 * params);
    double sent = number(r.out, "\"sent_gradients\"", "zero1") +
                  number(r.out, "\"sent_parameters\"", "zero1");
    assert_true(sent > 0 && sent <= 4 * params);

    /* 8 workers and 8 virtual workers: buffers for a whole gradient on each of two workers, and one
     * partial sum of the workers' own slices */
    assert_true(number(r.out, "\"parameters\"", "zero2") == params);
    assert_true(number(r.out, "\"optimizer\"", "zero2") < 2 * params);
    assert_true(number(r.out, "\"gradients\"", "zero2") > 2 * params);
    assert_true(number(r.out, "\"gradients\"", "zero2") < 3 * params);
    assert_true(number(r.out, "\"sent_gradients\"", "zero2") +
                    number(r.out, "\"sent_parameters\"", "zero2") == sent);
}

/* Checks the bytes of compressed gradients, by the formula of powersgd, and the advice. */
static void a_plan_knows_compressed_bytes(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan mlp --data synthetic:images=64,h=8,w=8,c=1,classes=10 "
                            "--hidden 96 --global-batch 8 --virtual-workers 8 --lr 0.1 "
                            "--workers 4 --hosts 2 "
                            "--strategy ddp --compress powersgd --rank 2 --groups 4 --json");
    assert_int_equal(r.status, 0);
    /* two groups on each host; 2 (rows + columns) elements of each matrix, and the biases */
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "\"sent_gradients\": %d,",
                   2 * 4 * (2 * (96 + 64) + 2 * (10 + 96) + 96 + 10));
    assert_says(r.out, wanted);
    assert_says(r.out, "\"sent_before\": 0");
    run_command(&r, *state, "plan mlp --data synthetic:images=64,h=8,w=8,c=1,classes=10 "
                            "--hidden 96 --global-batch 8 --virtual-workers 8 --lr 0.1 "
                            "--workers 4 --hosts 2 --compress-start 20 "
                            "--strategy ddp --compress powersgd --rank 2 --groups 4 --json");
    assert_says(r.out, wanted);
    (void)snprintf(wanted, sizeof wanted, "\"sent_before\": %d}", /* as ddp sends */
                   4 * (96 * 64 + 10 * 96 + 96 + 10 + 6));
    assert_says(r.out, wanted);
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --virtual-workers 8 --compress powersgd "
                            "--groups 8 --flops 1e9 --bandwidth 1e8");
    assert_says(r.out, "8 groups: with powersgd fewer groups change only roundings");
    assert_says(r.out, "no times: what compression takes and saves is not predicted");
    assert_null(strstr(r.out, "communication"));
    assert_says(r.out, "none sends less"); /* so bytes decide, not times */
}

/* Copies the options of docs/training.md for ResNet-50, from --augment on, to one line. */
static void read_recipe(char out[1024])
{
    static char text[1 << 18];
    FILE       *file = fopen(LK_TEST_SOURCE "/docs/training.md", "r");
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    const char *at = strstr(text, "lockstep train resnet --depth 50");
    assert_non_null(at);
    at              = strstr(at, "--augment");
    const char *end = strstr(at, "\n```");
    for (assert_true(end - at < 1024); at < end; at++)
        *out++ = *at == '\\' || *at == '\n' ? ' ' : *at;
    *out = '\0';
}

/* Plans the recipe of Goyal et al. with the shape of ImageNet, and follows its rates with epochs of
 * one step. */
static void the_recipe_of_goyal_et_al_is_planned(void **state)
{
    static command_result r;
    static char           log[1 << 16], line[2048];
    char                  recipe[1024];
    const double          want[] = { 3.2, 0.32, 0.032, 0.0032 };
    read_recipe(recipe);
    (void)snprintf(line, sizeof line, "plan resnet --depth 50 --workers 256 --hosts 32 %s --data "
                   "synthetic:images=1281167,h=224,w=224,c=3,classes=1000", recipe);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 0);
    assert_says(r.out, "resnet, 25557032 parameters, fp32; batch 8192 as V 256 x 32");
    assert_null(strstr(r.out, "cannot"));
    run_command(&r, *state, "train mlp --hidden 1 --data synthetic:images=64,h=1,w=1,c=1,classes=2 "
                            "--global-batch 64 --base-batch 2 --virtual-workers 1 --epochs 90 "
                            "--optimizer sgd --lr 0.1 --scale-lr linear --warmup-epochs 5 "
                            "--schedule step --milestones 30,60,80 --workers 1 --log log");
    assert_int_equal(r.status, 0);
    read_stream(*state, "log", log, sizeof log);
    const char *at = strstr(log, "\n{\"step\": 1, ");
    for (int step = 1; step <= 90; step++, at = strstr(strstr(at, "\"loss\""), "\n")) {
        double due = want[(step > 30) + (step > 60) + (step > 80)];
        due        = step <= 5 ? 0.1 + 3.1 * step / 5 : due;
        assert_true(fabs(number(at, "\"lr\"", "\"loss\"") - due) < 1e-6 * due);
    }
}

/* Two hosts with a replica each send a gradient of 4 x 4816 bytes every ten steps. */
static void replicas_are_compared_with_ddp(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --groups 2 --diloco --local-steps 10 "
                                "--strategy ddp --flops 1e9 --bandwidth 1e6");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "ddp: 10 inner steps of ");
    assert_says(r.out, "ms, and 1 outer step of 19.264 ms in which a host sends 0.02 MiB\n");
    assert_says(r.out, "without replicas, ddp would take ");
    assert_says(r.out, "send 0.02 MiB (10.0 times as much)");
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --groups 2 --diloco --local-steps 10 "
                                "--strategy ddp --json");
    assert_true(number(r.out, "\"sent_outer\"", NULL) == 4 * 4816);
    assert_true(number(r.out, "\"sent_gradients\"", "without_replicas") == 4 * 4816);
    run_command(&r, *state, MLP "--workers 2 --json");
    assert_says_not(r.out, "outer");
}

/* Checks the label of the planned run, in JSON and in text. */
static void a_plan_has_the_label_of_its_run(void **state)
{
    static const char *const cases[][3] = {
        { "--grad-comm-dtype bf16", "\"label\": \"exact\"", "fp32, grad-comm-dtype bf16; batch" },
        { "--grad-comm-dtype int4", "\"label\": \"invariant\"",
          "fp32, grad-comm-dtype int4; invariant (grad-comm-dtype int4); batch" },
        { "--strategy ddp --backup-workers 1", "\"label\": \"timed\"",
          "fp32; timed (backup-workers 1); batch" },
        { "--kernels onednn", "\"label\": \"timed\"", "fp32; timed (kernels onednn); batch" },
    };
    static command_result r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[400];
        (void)snprintf(line, sizeof line, MLP "--workers 2 --json %s", cases[i][0]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        assert_says(r.out, cases[i][1]);
        (void)snprintf(line, sizeof line, MLP "--workers 2 %s", cases[i][0]);
        run_command(&r, *state, line);
        assert_says(r.out, cases[i][2]);
    }
}

/* Checks that continuing after failures needs memory for separate sums and for the undo log. */
static void surviving_takes_memory(void **state)
{
    static command_result r;
    static const char *const hosts[] = { "", "--hosts 2 " };
    char                     line[400];
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(line, sizeof line, MLP "--workers 4 --strategy ddp --json %s", hosts[i]);
        run_command(&r, *state, line);
        double without = number(r.out, "\"gradients\"", "ddp");
        (void)snprintf(line, sizeof line, MLP "--workers 4 --strategy ddp --json "
                       "--on-failure continue %s", hosts[i]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        assert_true(number(r.out, "\"gradients\"", "ddp") > without);
    }
}

/* Plans with the options that a run says it has chosen. */
static void a_plan_has_the_defaults_of_its_run(void **state)
{
    static const char *const models[] = {
        "gpt --data synthetic:tokens=4000,vocab=31 --layers 1 --heads 2 --width 16 --context 8",
        "mlp --data synthetic:images=64,h=8,w=8,c=1,classes=10 --hidden 16",
        "resnet --data synthetic:images=64,h=8,w=8,c=3,classes=4 --depth 8",
    };
    static command_result run, plan, spelled;
    char                  line[512];
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        (void)snprintf(line, sizeof line, "train %s --max-samples 1", models[i]);
        run_command(&run, *state, line);
        assert_int_equal(run.status, 0);
        const char *chosen = strstr(run.err, "not given, so:");
        assert_non_null(chosen);
        chosen += strlen("not given, so:");
        (void)snprintf(line, sizeof line, "plan %s --json", models[i]);
        run_command(&plan, *state, line);
        assert_int_equal(plan.status, 0);
        (void)snprintf(line, sizeof line, "plan %s --json %.*s", models[i],
                       (int)(strstr(chosen, "  (V") - chosen), chosen);
        run_command(&spelled, *state, line);
        assert_string_equal(plan.out, spelled.out);
    }
}

static void one_host_sends_nothing(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 3 --strategy ddp --json");
    assert_int_equal(r.status, 0);
    assert_says_not(r.out, "zero1");
    assert_true(number(r.out, "\"sent_gradients\"", "ddp") == 0);
    run_command(&r, *state, MLP "--workers 3");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nddp "));
    assert_non_null(strstr(r.out, "\nzero1 "));
}

#define RESNET "plan resnet --depth 8 --global-batch 64 --micro-batch 8 --workers 2 --json "

/* Checks that ddp has the activations of several virtual workers at a time, and zero2 of one, if
 * they are small.  The gradients of joint turns take fewer buffers: of eight virtual workers on two
 * workers 4 instead of 6, or 2 if shares do not move. */
static void joint_turns_are_counted(void **state)
{
    static command_result r;
    run_command(&r, *state, RESNET "--data synthetic:images=64,h=8,w=8,c=3,classes=4");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"activations\"", "ddp") >
                2 * number(r.out, "\"activations\"", "zero2"));
    double moving = number(r.out, "\"gradients\"", "ddp");
    run_command(&r, *state, RESNET "--rebalance off "
                            "--data synthetic:images=64,h=8,w=8,c=3,classes=4");
    assert_true(2 * number(r.out, "\"gradients\"", "ddp") == moving);
    run_command(&r, *state, RESNET "--data synthetic:images=64,h=32,w=32,c=3,classes=4");
    assert_int_equal(r.status, 0);
    assert_true(4 * number(r.out, "\"gradients\"", "ddp") == 6 * moving);
    assert_true(number(r.out, "\"activations\"", "ddp") ==
                number(r.out, "\"activations\"", "zero2"));
}

/* Checks that SyncBatchNorm needs the activations of four virtual workers at a time, and excludes
 * strategies with dealing rounds. */
static void sync_batchnorm_takes_more(void **state)
{
    static command_result r;
    run_command(&r, *state, RESNET "--batchnorm ghost");
    assert_int_equal(r.status, 0);
    double one = number(r.out, "\"activations\"", "ddp");
    run_command(&r, *state, RESNET "--batchnorm sync");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"activations\"", "ddp") > 3 * one);
    assert_non_null(strstr(r.out, "zero1"));
    assert_says_not(r.out, "{\"strategy\": \"zero2\", \"parameters\"");
    assert_non_null(strstr(r.out, "{\"strategy\": \"zero2\", \"why\": \"--batchnorm sync"));
    run_command(&r, *state, RESNET "--batchnorm sync --strategy zero2");
    assert_int_equal(r.status, 2);
}

/* Checks that a strategy is never omitted without a reason. */
static void an_impossible_strategy_has_its_reason(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-size 2");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nhybrid  "));
    assert_says_not(r.out, " cannot: ");
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-size 3");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nhybrid cannot: 4 hosts cannot be cut into groups of 3"));
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-size 3 --json");
    assert_non_null(strstr(r.out, "\"refused\": [{\"strategy\": \"hybrid\", \"why\": \"4 hosts"));
    run_command(&r, *state, MLP "--workers 5 --hosts 4 --shard-size 2"); /* hosts have unequal
                                                                          * numbers of workers */
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nhybrid cannot: strategy hybrid over groups of 2 hosts needs"));
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-size 3 --strategy hybrid");
    assert_int_equal(r.status, 2);
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --shard-size 2 --shard-replicas 2 "
                                "--on-failure continue");
    assert_says(r.out, "\nddp cannot: --shard-replicas 2 is for --strategy zero1 to zero3");
    assert_says(r.out, "\nhybrid cannot: --shard-replicas 2");
    assert_says(r.out, "\nchoose zero1: ");
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --sdc-check 0.1");
    assert_says(r.out, "\nzero3 cannot: --sdc-check needs");
    run_command(&r, *state, MLP "--workers 2 --sdc-check 0.1 --offload parameters:/nvme");
    assert_int_equal(r.status, 2); /* no strategy is possible */
    assert_says(r.err, "--sdc-check needs");
}

/* Plans a model with 80 GB of state.  Expects success, even if this machine has less memory. */
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

#define GIVEN "--flops 1e9 --memory-bandwidth 1e9 "

/* Checks the times of 32 samples with 2 (2 64 64 + 3 64 10) operations each, of the update's bytes,
 * and of the network. */
static void times_follow_from_rates(void **state)
{
    static command_result r;
    const double          work = 4 * 2 * (2 * 64 * 64 + 3 * 64 * 10) / 1e9;
    const double          update = 4 * 4810 * (1 + (2 + 5 + 4) / 2.) / 1e9;

    run_command(&r, *state, MLP "--workers 8 --hosts 4 --json " GIVEN
                                "--bandwidth 1e6 --latency 1e-3 --most-workers 100");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(fabs(number(r.out, "\"compute_ms\"", "ddp") - 1e3 * work) < 1e-5);
    assert_true(fabs(number(r.out, "\"update_ms\"", "ddp") - 1e3 * update) < 1e-5);
    double link = 1e3 * (2 * 2 * 1e-3 + 2 * 3 * 4 * 4810 / 4 / 1e6); /* one bucket */
    assert_true(fabs(number(r.out, "\"exposed_ms\"", "ddp") - link) < 1e-5);
    assert_true(fabs(number(r.out, "\"step_ms\"", "ddp") - link - 1e3 * (work + update)) < 1e-5);
    assert_true(number(r.out, "\"flops\"", NULL) == 32 * 2 * (2 * 64 * 64 + 3 * 64 * 10));
    /* The table has 1 to 64 workers; there are virtual workers for only 8. */
    assert_true(number(r.out, "\"efficiency\"", "\"workers\": 1, ") == 1);
    assert_true(number(r.out, "\"rounds\"", "\"workers\": 4, ") == 2);
    assert_true(number(r.out, "\"hosts\"", "\"workers\": 64, ") == 32);
    assert_null(strstr(strstr(r.out, "\"workers\": 16, "), "rounds"));
    assert_says_not(r.out, "\"workers\": 128, ");
}

/* Checks the time of file transfers.  Two moments of 4810 parameters are read and written,
 * overlapped with the update in buffers for two or more chunks. */
static void offloading_takes_the_predicted_time(void **state)
{
    static command_result r;
    const double          update = 4 * 4810 * (4 + 3 * 3 + (2 + 5 + 4) / 2.) / 1e9;

    run_command(&r, *state, MLP "--workers 2 --strategy ddp --json " GIVEN
                                "--offload optimizer:/nvme --file-bandwidth 1e6");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"files\"", "ddp") == 2 * 4 * (64 * 64 + 64 + 10 * 64 + 16));
    assert_true(fabs(number(r.out, "\"files_ms\"", "ddp") - 1e3 * 16 * 4810 / 1e6) < 1e-5);
    assert_true(fabs(number(r.out, "\"stalled_ms\"", "ddp") -
                     1e3 * (16 * 4810 / 1e6 - update)) < 1e-5);
    run_command(&r, *state, MLP "--workers 2 --strategy ddp " GIVEN "--offload optimizer:/nvme");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "not known without --file-bandwidth"));
    run_command(&r, *state, MLP "--workers 2 --offload optimizer,parameters:/nvme");
    assert_string_equal(r.err, "");
    assert_says_not(r.out, "\nddp"); /* ddp reads parameters in place */
    assert_non_null(strstr(r.out, "\nzero3: parameters and optimizer state of 0.06 MiB a host"));
    run_command(&r, *state, MLP "--workers 2 --strategy zero2 --offload parameters:/nvme");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "by units: --strategy zero3, or hybrid"));
    run_command(&r, *state, MLP "--workers 2 --offload gradients:/nvme");
    assert_non_null(strstr(r.err, "must be optimizer, parameters, activations, or several"));
}

static void predictions_reach_thousands_of_workers(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 8 --hosts 4 " GIVEN "--bandwidth 1e9");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\n   4096    2048 "));
    /* Without rates for the network, only one host is predicted. */
    run_command(&r, *state, MLP "--workers 2 --flops 1e9");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\n      2       1 "));
    assert_says_not(r.out, "\n      4 ");
}

/* A file of constants says the same as the options. */
static void rates_may_come_from_a_file(void **state)
{
    static command_result by_options, by_file;
    (void)run_shell(&by_file, *state, "printf 'alpha 0.001\nbeta 1e-6\n' > constants");
    run_command(&by_options, *state, MLP "--workers 4 --hosts 2 --json --flops 1e9 "
                "--bandwidth 1e6 --latency 0.001");
    run_command(&by_file, *state, MLP "--workers 4 --hosts 2 --json --flops 1e9 "
                "--tuning constants");
    assert_int_equal(by_file.status, 0);
    assert_string_equal(by_file.out, by_options.out);
    run_command(&by_file, *state, MLP "--workers 4 --hosts 2 --json --flops 1e9 "
                "--tuning constants --latency 0.5");
    assert_string_not_equal(by_file.out, by_options.out);
    run_command(&by_file, *state, MLP "--workers 4 --hosts 2 --flops 1e9 --tuning nowhere");
    assert_int_not_equal(by_file.status, 0);
    assert_says(by_file.err, "nowhere");
}

static void the_chosen_strategy_fits_into_memory(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 8 --hosts 4 --json");
    double ddp = number(r.out, "\"all\"", "ddp"), zero1 = number(r.out, "\"all\"", "zero1");
    char   line[256];
    assert_true(zero1 < ddp);

    (void)snprintf(line, sizeof line, MLP "--workers 8 --hosts 4 --json --memory %.0f", ddp - 1);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\"fits\": false"));
    assert_says_not(r.out, "\"choice\": \"ddp\"");
    assert_non_null(strstr(r.out, "\"choice\": \"zero"));
    run_command(&r, *state, MLP "--workers 8 --hosts 4 --json --memory 1000");
    assert_non_null(strstr(r.out, "\"choice\": null, \"why\": \"no strategy fits into 1000 bytes"));
    run_command(&r, *state, MLP "--workers 8 --memory 1e9");
    assert_non_null(strstr(r.out, "\nchoose ddp: none sends less\n"));
}

static void measures_this_machine(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 2 --measure --json --strategy ddp");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"step_ms\"", "ddp") > 0);
    assert_true(number(r.out, "\"compute_ms\"", "ddp") > 0);
    assert_true(number(r.out, "\"update_ms\"", "ddp") > 0);
    run_command(&r, *state, MLP "--workers 2 --measure --json --offload parameters:.");
    assert_string_equal(r.err, "");
    assert_true(number(r.out, "\"files_ms\"", "zero3") > 0);
}

#define BARE "plan --parameters 1e9 --largest-layer 4e7 --workers 8 --hosts 8 --global-batch 8 "  \
             "--micro-batch 1 --virtual-workers 8 --optimizer adamw "

/* Plans a billion parameters in 25 layers of 4e7.  A layer has 160 MB, which is a whole number of
 * blocks. */
static void a_model_may_be_given_by_its_parameter_count(void **state)
{
    static command_result r;
    const double          p = 1e9;

    run_command(&r, *state, BARE "--sample-tokens 1024 --activation-bytes 5e8 --flops 1e12 "
                                 "--bandwidth 1e10 --memory 12e9 --json");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"elements\"", NULL) == p);
    assert_true(number(r.out, "\"largest_layer\"", NULL) == 4e7);
    assert_non_null(strstr(r.out, "\"activations_known\": true"));
    assert_true(number(r.out, "\"parameters\"", "ddp") == 4 * p);
    assert_true(number(r.out, "\"optimizer\"", "ddp") == 8 * p);
    assert_true(number(r.out, "\"gradients\"", "ddp") == 4 * p);
    assert_true(fabs(number(r.out, "\"activations\"", "ddp") - 5e8) < 1e5);
    assert_true(number(r.out, "\"sent_gradients\"", "ddp") == 2 * 7 * 4 * p / 8);
    assert_true(fabs(number(r.out, "\"optimizer\"", "zero1") / p - 1) < 1e-3);
    assert_true(number(r.out, "\"parameters\"", "zero3") > 4 * p / 8 + 2 * 16e7);
    assert_true(number(r.out, "\"parameters\"", "zero3") < 1.001 * (4 * p / 8 + 2 * 16e7));
    assert_true(fabs(number(r.out, "\"compute_ms\"", "ddp") - 6 * p * 1024 / 1e9) < 1e-3);
    assert_non_null(strstr(r.out, "\"fits\": false"));
    assert_true(number(r.out, "\"efficiency\"", "scaling") > 0.5);
    assert_non_null(strstr(r.out, "\"choice\": \"zero"));

    run_command(&r, *state, "plan --parameters 175e9 --workers 4 --hosts 4 --optimizer adamw");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "activations are not known, and not counted: "));
    assert_non_null(strstr(r.out, "layers are taken to be of 1822916667 parameters")); /* 96
                                                                                        * layers */
}

/* Plans a model by its name and by its number of parameters.  Expects equal numbers for ddp, and
 * nearly equal numbers for zero1. */
static void a_parameter_count_gives_the_plan_of_its_model(void **state)
{
    static command_result bare, mlp;
    static const char *const fields[] = { "\"parameters\"", "\"optimizer\"", "\"gradients\"",
                                          "\"sent_gradients\"", "\"sent_parameters\"" };
    run_command(&mlp, *state, "plan mlp --data synthetic:images=64,h=8,w=8,c=1,classes=16 --hidden "
                              "1024,1024 --workers 4 --hosts 2 --optimizer adamw --json "
                              "--global-batch 32");
    run_command(&bare, *state, "plan --parameters 1132560 --largest-layer 1049600 --workers 4 "
                               "--hosts 2 --optimizer adamw --json --global-batch 32");
    assert_int_equal(bare.status, 0);
    assert_true(number(mlp.out, "\"elements\"", NULL) == 1132560);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        assert_true(number(bare.out, fields[i], "ddp") == number(mlp.out, fields[i], "ddp"));
        double left = number(bare.out, fields[i], "zero1"), right = number(mlp.out, fields[i],
                                                                           "zero1");
        assert_true(fabs(left - right) <= 8 * 4 * 4096); /* blocks of elements end at other
                                                          * places */
    }
}

/* Plans huge sizes.  Expects an answer at once, which shows that sizes are not enumerated one by
 * one. */
static void any_size_is_planned_at_once(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan --parameters 1e15 --workers 1024 --hosts 512 --global-batch 1024 "
                            "--micro-batch 1 --virtual-workers 1024 --optimizer adamw --json "
                            "--on-failure continue --shard-replicas 2");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"elements\"", NULL) == 1e15);
    assert_true(fabs(number(r.out, "\"parameters\"", "zero1") / 4e15 - 1) < 1e-9); /* the parameters
                                                                                    * are padded */
    /* One of 1024 owners has at most 7 of a bucket's 6400 blocks of elements.  Some host has two
     * such owners.  With its buddy's part it stores the blocks of four owners. */
    double blocks = 4 * 7 / (6400 * 4096.) * 1e15;
    assert_true(fabs(number(r.out, "\"optimizer\"", "zero1") / (8 * blocks * 4096) - 1) < 1e-3);
}

/* Checks that the file of --init must exist, as for train. */
static void the_file_of_init_must_exist(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--init /nowhere.safetensors");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "/nowhere.safetensors");
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *line, *text;
    } mistakes[] = {
        { "plan", "MODEL" },
        { MLP "--workers 9", "raise --virtual-workers" },
        { MLP "--workers 2 --hosts 3", "each has at least one; raise --workers" },
        { MLP "--parameters 5", "leave out one of the two" },
        { "plan --parameters 1e9 --measure", "--parameters give --flops" },
        { "plan --parameters 1e9 --largest-layer 1e4", "more than 4096 layers" },
        { "plan --parameters 1e9 --largest-layer 2e9", "the largest layer has 2000000000" },
        { "plan --parameters 1.5", "--parameters 1.5: must be a whole number from 1 to 1e15" },
        { "plan --parameters 1e9 --largest-layer 2.5", "must be a whole number" },
        { MLP "--kernels onednn --precision bf16", "onednn multiplies FP32 values alone" },
        { MLP "--backup-workers 1 --workers 2 --speculate auto", "leave one of them out" },
        { "plan --parameters 1e9 --context 5", "--context needs MODEL gpt or llama\n" },
        { "plan bare --workers 2", "has no name: --parameters P in its place" },
        { "plan --parameters 1e9 --flops 1e-300", "a number from 1 to 1e24" },
        { MLP "--largest-layer 5", "--largest-layer needs --parameters" },
        { MLP "--sample-tokens 5", "--sample-tokens needs --parameters" },
        { MLP "--strategy zero1 --workers 2 --hosts 2 --shard-replicas 2",
          "--on-failure continue" },
        { "plan gpt --parameters 1e9", "leave out one of the two" },
        { MLP "--strategy zero9", "zero9" },
        { MLP "--workers 2 --hosts 2 --flops 1e9", "--bandwidth" },
        { MLP "--workers 2 --hosts 2 --bandwidth 1e9", "give --flops or --measure, too" },
        { MLP "--latency 1e-5", "give --flops or --measure, too" },
        { MLP "--most-workers 64", "give --flops or --measure, too" },
        { MLP "--offload optimizer:/nvme --file-bandwidth 1e9", "give --flops or --measure, too" },
        { MLP "--memory-bandwidth 1e9", "--memory-bandwidth needs --flops" },
        { MLP "--flops 1e9 --measure", "leave out one of the two" },
        { "plan --parameters 1e9 --data text:/etc/hostname", "--data is for a MODEL" },
        { "plan gpt --width 0", "--width 0: must be an integer from 1" },
        { MLP "--workers 2 --hosts 2 --measure", "--bandwidth" },
        { MLP "--file-bandwidth 1e9", "--offload" },
        { MLP "--optimizer sgd --offload optimizer:/nvme", "this optimizer has no state" },
        { MLP "--optimizer sgd --offload optimizer,parameters:/nvme", "has no state" },
        { MLP "--offload activations:/nvme", "give --activation-checkpointing, too" },
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
        cmocka_unit_test(a_plan_knows_compressed_bytes),
        cmocka_unit_test(the_recipe_of_goyal_et_al_is_planned),
        cmocka_unit_test(replicas_are_compared_with_ddp),
        cmocka_unit_test(a_plan_has_the_label_of_its_run),
        cmocka_unit_test(surviving_takes_memory),
        cmocka_unit_test(a_plan_has_the_defaults_of_its_run),
        cmocka_unit_test(one_host_sends_nothing),
        cmocka_unit_test(joint_turns_are_counted),
        cmocka_unit_test(sync_batchnorm_takes_more),
        cmocka_unit_test(an_impossible_strategy_has_its_reason),
        cmocka_unit_test(a_model_may_be_larger_than_the_machine),
        cmocka_unit_test(a_model_may_be_given_by_its_parameter_count),
        cmocka_unit_test(a_parameter_count_gives_the_plan_of_its_model),
        cmocka_unit_test(times_follow_from_rates),
        cmocka_unit_test(offloading_takes_the_predicted_time),
        cmocka_unit_test(predictions_reach_thousands_of_workers),
        cmocka_unit_test(rates_may_come_from_a_file),
        cmocka_unit_test(the_chosen_strategy_fits_into_memory),
        cmocka_unit_test(measures_this_machine),
        cmocka_unit_test(any_size_is_planned_at_once),
        cmocka_unit_test(the_file_of_init_must_exist),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
