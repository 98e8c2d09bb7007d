/* plan_test.c -- `lockstep plan`: numbers that can be checked by hand, and what it refuses. */
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
    assert_true(number(r.out, "\"gradients\"", "ddp") == 2 * params); /* of two workers */
    assert_true(number(r.out, "\"sent_gradients\"", "ddp") == 2 * 3 * params / 4);
    double all = 5 * params + number(r.out, "\"activations\"", "ddp");
    assert_true(number(r.out, "\"all\"", "ddp") == all + number(r.out, "\"buffers\"", "ddp"));
    assert_true(number(r.out, "\"buffers\"", "ddp") > 2 * 9 * 1024 * 1024); /* of two processes */
    assert_true(number(r.out, "\"parameters\"", "zero1") == params);
    assert_true(number(r.out, "\"optimizer\"", "zero1") < 2 * params);
    double sent = number(r.out, "\"sent_gradients\"", "zero1") +
                  number(r.out, "\"sent_parameters\"", "zero1");
    assert_true(sent > 0 && sent <= 4 * params);

    /* 8 workers, as many virtual ones: a whole gradient in the rooms of each of two workers, and
     * one partial sum of what they own */
    assert_true(number(r.out, "\"parameters\"", "zero2") == params);
    assert_true(number(r.out, "\"optimizer\"", "zero2") < 2 * params);
    assert_true(number(r.out, "\"gradients\"", "zero2") > 2 * params);
    assert_true(number(r.out, "\"gradients\"", "zero2") < 3 * params);
    assert_true(number(r.out, "\"sent_gradients\"", "zero2") +
                    number(r.out, "\"sent_parameters\"", "zero2") == sent);
}

/* Sums of their own, and the undo log. */
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

#define RESNET "plan resnet --depth 8 --global-batch 64 --micro-batch 8 --workers 2 --json "

/* Four virtual workers' activations at a time, and no strategy that deals in rounds. */
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
    assert_null(strstr(r.out, "{\"strategy\": \"zero2\", \"parameters\""));
    assert_non_null(strstr(r.out, "{\"strategy\": \"zero2\", \"why\": \"--batchnorm sync"));
    run_command(&r, *state, RESNET "--batchnorm sync --strategy zero2");
    assert_int_equal(r.status, 2);
}

/* A strategy is never left out without a word. */
static void says_why_a_strategy_cannot(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-hosts 2");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nhybrid  "));
    assert_null(strstr(r.out, " cannot: "));
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-hosts 3");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nhybrid cannot: 4 hosts cannot be cut into groups of 3"));
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-hosts 3 --json");
    assert_non_null(strstr(r.out, "\"refused\": [{\"strategy\": \"hybrid\", \"why\": \"4 hosts"));
    run_command(&r, *state, MLP "--workers 5 --hosts 4 --shard-hosts 2"); /* not as many on each */
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nhybrid cannot: strategy hybrid over groups of 2 hosts needs"));
    run_command(&r, *state, MLP "--workers 4 --hosts 4 --shard-hosts 3 --strategy hybrid");
    assert_int_equal(r.status, 2);
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --shard-hosts 2 --buddies "
                                "--on-failure continue");
    assert_says(r.out, "\nddp cannot: --buddies is for --strategy zero1 to zero3");
    assert_says(r.out, "\nhybrid cannot: --buddies");
    assert_says(r.out, "\nchoose zero1: ");
    run_command(&r, *state, MLP "--workers 2 --hosts 2 --audit 0.1");
    assert_says(r.out, "\nzero3 cannot: --audit needs");
    run_command(&r, *state, MLP "--workers 2 --audit 0.1 --offload parameters:/nvme");
    assert_int_equal(r.status, 2); /* none is left */
    assert_says(r.err, "--audit needs");
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

#define GIVEN "--flops 1e9 --memory-bandwidth 1e9 "

/* 32 samples of 2 (2 64 64 + 3 64 10) operations, the update's bytes, and what is sent. */
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
    double link = 1e3 * (2 * 2 * 1e-3 + 2 * 3 * 4 * 4810 / 4 / 1e6); /* in one bucket: bare */
    assert_true(fabs(number(r.out, "\"exposed_ms\"", "ddp") - link) < 1e-5);
    assert_true(fabs(number(r.out, "\"step_ms\"", "ddp") - link - 1e3 * (work + update)) < 1e-5);
    assert_true(number(r.out, "\"flops\"", NULL) == 32 * 2 * (2 * 64 * 64 + 3 * 64 * 10));
    /* 1 .. 64: there are virtual workers for 8. */
    assert_true(number(r.out, "\"efficiency\"", "\"workers\": 1, ") == 1);
    assert_true(number(r.out, "\"rounds\"", "\"workers\": 4, ") == 2);
    assert_true(number(r.out, "\"hosts\"", "\"workers\": 64, ") == 32);
    assert_null(strstr(strstr(r.out, "\"workers\": 16, "), "rounds"));
    assert_null(strstr(r.out, "\"workers\": 128, "));
}

/* Moments of 4810 parameters, of which a worker has two chunks' buffers or more. */
static void files_take_their_time(void **state)
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
    assert_null(strstr(r.out, "\nddp")); /* it reads parameters where they are */
    assert_non_null(strstr(r.out, "\nzero3: parameters and optimizer state of 0.06 MiB a host"));
    run_command(&r, *state, MLP "--workers 2 --strategy zero2 --offload parameters:/nvme");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "by units: --strategy zero3, or hybrid"));
    run_command(&r, *state, MLP "--workers 2 --offload gradients:/nvme");
    assert_non_null(strstr(r.err, "must be optimizer, parameters, activations, or several"));
}

static void more_workers_go_to_thousands(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--workers 8 --hosts 4 " GIVEN "--bandwidth 1e9");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\n   4096    2048 "));
    /* Beyond one host the network is not known. */
    run_command(&r, *state, MLP "--workers 2 --flops 1e9");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\n      2       1 "));
    assert_null(strstr(r.out, "\n      4 "));
}

static void chooses_what_fits(void **state)
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
    assert_null(strstr(r.out, "\"choice\": \"ddp\""));
    assert_non_null(strstr(r.out, "\"choice\": \"zero"));
    assert_true(number(r.out, "\"largest\"", "ddp") < number(r.out, "\"elements\"", NULL));
    assert_true(number(r.out, "\"largest\"", "zero1") > number(r.out, "\"elements\"", NULL));
    run_command(&r, *state, MLP "--workers 8 --hosts 4 --json --memory 1000");
    assert_non_null(strstr(r.out, "\"choice\": null, \"why\": \"no strategy fits into 1000 bytes"));
    run_command(&r, *state, MLP "--workers 8 --memory 1e9");
    assert_non_null(strstr(r.out, "\nchoose ddp: none sends less\n"));
    run_command(&r, *state, "plan gpt --workers 4 --memory 1000");
    assert_non_null(strstr(r.out, "\nlargest models: ddp none, zero1 none, zero2 none"));
}

/* Whether a strategy's row of such a plan says that it fits. */
static bool fits(void **state, const char *line, const char *strategy)
{
    static command_result r;
    run_command(&r, *state, line);
    assert_int_equal(r.status, 0);
    const char *row = strstr(r.out, strategy);
    assert_non_null(row);
    return strncmp(strstr(row, "\"fits\": ") + 8, "true", 4) == 0;
}

static double second_of(const char *text, const char *list)
{
    assert_non_null(text);
    const char *at = strstr(text, list);
    assert_non_null(at);
    return strtod(strchr(at, ',') + 1, NULL);
}

#define LIMITED "--workers 4 --hosts 4 --optimizer adamw --precision bf16 --json --memory 4e9 "

/* The largest model that a plan tells fits, and the next one does not: with a millionth more
 * parameters, wider by a head's element, or with all layers wider by one. */
static void the_largest_model_fits(void **state)
{
    static const char *const strategies[] = { "\"ddp\"", "\"zero1\"", "\"zero2\"", "\"zero3\"" };
    static command_result    bare, gpt, mlp;
    char                     line[400];
    run_command(&bare, *state, "plan --parameters 1e9 " LIMITED);
    run_command(&gpt, *state, "plan gpt --layers 3 --heads 8 --width 512 " LIMITED);
    run_command(&mlp, *state, "plan mlp --hidden 100,300 " LIMITED);
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        double largest = number(bare.out, "\"largest\"", strategies[i]);
        double width   = number(gpt.out, "\"largest_width\"", strategies[i]);
        (void)snprintf(line, sizeof line, "plan --parameters %.0f " LIMITED, largest);
        assert_true(fits(state, line, strategies[i]));
        (void)snprintf(line, sizeof line, "plan --parameters %.0f " LIMITED,
                       floor(largest * (1 + 2e-6)));
        assert_false(fits(state, line, strategies[i]));
        for (int more = 0; more <= 8; more += 8) {
            (void)snprintf(line, sizeof line, "plan gpt --layers 3 --heads 8 --width %.0f " LIMITED,
                           width + more);
            assert_int_equal(fits(state, line, strategies[i]), more == 0);
        }
        double hidden = second_of(strstr(mlp.out, strategies[i]), "\"largest_hidden\": [");
        for (int more = 0; more <= 1; more++) {
            (void)snprintf(line, sizeof line, "plan mlp --hidden %.0f,%.0f " LIMITED,
                           round((hidden + more) / 3), hidden + more);
            assert_int_equal(fits(state, line, strategies[i]), more == 0);
        }
    }
}

/* The search ends where plans do, and says so: at 4096 layers, 1e15 parameters, the widest gpt. */
static void larger_models_that_cannot_be_planned_may_fit(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan --parameters 1e6 --largest-layer 1e5 --workers 4 --hosts 4 "
                            "--unit-buffers 9 --json --memory 1e12");
    assert_string_equal(r.err, "");
    assert_true(fabs(number(r.out, "\"largest\"", "\"zero3\"") / 4096e5 - 1) < 1e-5);
    assert_non_null(strstr(strstr(r.out, "\"zero3\""), "\"larger_may_fit\": true"));
    run_command(&r, *state, "plan --parameters 1e6 --largest-layer 1e5 --workers 4 --hosts 4 "
                            "--memory 1e8 --json");
    assert_null(strstr(r.out, "\"larger_may_fit\": true"));
    run_command(&r, *state, "plan --parameters 1e6 --workers 4 --hosts 4 --memory 1e17");
    assert_non_null(strstr(r.out, "   yes    1e+15 or more\n"));
    assert_non_null(strstr(r.out, "\nor more: a plan is of at most 4096 layers"));
    run_command(&r, *state, "plan gpt --layers 1 --workers 4 --hosts 4 --memory 1e17");
    assert_non_null(strstr(r.out, "\nlargest models: ddp --width 1048576, zero1 --width 1048576"));
}

/* Nor is there a smaller model than one of such a layer: where that is too large, none fits. */
static void no_model_is_smaller_than_its_layer(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan --parameters 1e6 --largest-layer 1e6 --memory 1e6 --json");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"largest\"", "\"ddp\"") == 0);
    assert_null(strstr(r.out, "\"larger_may_fit\": true"));
    run_command(&r, *state, "plan --parameters 5e6 --largest-layer 1e6 --memory 50e6 --json");
    double largest = number(r.out, "\"largest\"", "\"ddp\"");
    assert_true(largest >= 1e6 && largest < 5e6);
    assert_null(strstr(r.out, "\"larger_may_fit\": true"));
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

/* Well formed: every element is closed, in order; nothing needs escaping. */
static void check_xml(char *text)
{
    const char *open[16];
    size_t      depth = 0;
    for (char *at = strchr(text, '<'); at != NULL; at = strchr(at + 1, '<')) {
        char *end = strchr(at, '>'), *name = at + 1;
        assert_non_null(end);
        assert_true(strcspn(name, "<") > (size_t)(end - name));
        if (*name == '/') {
            assert_true(depth > 0);
            size_t length = strcspn(open[--depth], " >");
            assert_true((size_t)(end - name) == length + 1);
            assert_memory_equal(name + 1, open[depth], length);
        } else if (end[-1] != '/') {
            assert_true(depth < sizeof open / sizeof open[0]);
            open[depth++] = name;
        }
    }
    assert_true(depth == 0);
    assert_null(strchr(text, '&'));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
}

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

static void draws_a_plot(void **state)
{
    static command_result r;
    static char           svg[1 << 16];
    char                  line[512], path[256];

    (void)snprintf(path, sizeof path, "%s/plan.svg", (char *)*state);
    for (int timed = 0; timed < 2; timed++) {
        (void)snprintf(line, sizeof line, MLP "--workers 8 --hosts 4 --memory 2e5 %s --plot %s",
                       timed ? GIVEN "--bandwidth 1e9" : "", path);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        svg[fread(svg, 1, sizeof svg - 1, file)] = '\0';
        (void)fclose(file);
        assert_true(strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0);
        check_xml(svg);
        assert_true(count_of(svg, "<polyline") == (timed ? 2 : 0));
        assert_non_null(strstr(svg, ">zero1</text>"));
        assert_true((count_of(svg, "<rect") - 1) % 5 == 0);
    }
    run_command(&r, *state, MLP "--workers 2 --plot /nowhere/plan.svg");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "cannot write /nowhere/plan.svg"));
}

static void knows_what_others_say(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan gpt --paper --parameters 2851e6 --largest-layer 32e6 --workers 8 "
                            "--optimizer adamw");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\nzero3, offload optimizer, zero.Init"
                                  "            63.72           0.78\n"));
    run_command(&r, *state, "plan resnet --paper --parameters 25557032 --gradient-bytes 102228128 "
                            "--workers 256 --hosts 32 --forward-ms 111.8 --backward-ms 120 "
                            "--bandwidth 6.25e9 --optimizer sgd --momentum 0.9 --json");
    assert_string_equal(r.err, "");
    assert_true(fabs(number(r.out, "\"efficiency\"", "\"stage\": 0") - 0.967) < 1e-3);
    run_command(&r, *state, "plan gpt --paper --parameters 7e9 --workers 512 --hosts 64");
    assert_non_null(strstr(r.out, "sharded inside 8 and replicated, between hosts 3.49316\n"));
}

#define BARE "plan --parameters 1e9 --largest-layer 4e7 --workers 8 --hosts 8 --global-batch 8 "  \
             "--micro-batch 1 --virtual-workers 8 --optimizer adamw "

/* A billion parameters in 25 layers of 4e7, of which nothing but their number is known: 160 MB are
 * a whole number of blocks. */
static void a_number_of_parameters_will_do(void **state)
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
    assert_true(number(r.out, "\"largest\"", "zero3") > p);
    assert_true(number(r.out, "\"efficiency\"", "scaling") > 0.5);
    assert_non_null(strstr(r.out, "\"choice\": \"zero"));

    run_command(&r, *state, "plan --parameters 175e9 --workers 4 --hosts 4 --optimizer adamw");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "activations are not known, and not counted: "));
    assert_non_null(strstr(r.out, "layers are taken to be of 1822916667 parameters")); /* 96 */
    run_command(&r, *state, "plan --parameters 175e9 --workers 64 --paper --optimizer adamw");
    assert_non_null(strstr(r.out, "1.75e+11 parameters, 64 workers, K 12"));
}

/* What is told of a model's number of parameters is what is told of the model. */
static void a_number_says_what_its_model_does(void **state)
{
    static command_result bare, mlp;
    static const char *const fields[] = { "\"parameters\"", "\"optimizer\"", "\"gradients\"",
                                          "\"sent_gradients\"", "\"sent_parameters\"" };
    run_command(&mlp, *state, "plan mlp --data synthetic:images=64,h=8,w=8,c=1,classes=16 --hidden "
                              "1024,1024 --workers 4 --hosts 2 --optimizer adamw --json");
    run_command(&bare, *state, "plan --parameters 1132560 --largest-layer 1049600 --workers 4 "
                               "--hosts 2 --optimizer adamw --json");
    assert_int_equal(bare.status, 0);
    assert_true(number(mlp.out, "\"elements\"", NULL) == 1132560);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        assert_true(number(bare.out, fields[i], "ddp") == number(mlp.out, fields[i], "ddp"));
        double left = number(bare.out, fields[i], "zero1"), right = number(mlp.out, fields[i],
                                                                           "zero1");
        assert_true(fabs(left - right) <= 8 * 4 * 4096); /* where a block lies is another's */
    }
}

/* Neither spans nor what fewer workers need are gone over one by one: that would take hours. */
static void any_size_is_planned_at_once(void **state)
{
    static command_result r;
    run_command(&r, *state, "plan --parameters 1e15 --workers 1024 --hosts 512 --global-batch 1024 "
                            "--micro-batch 1 --virtual-workers 1024 --optimizer adamw --json "
                            "--on-failure continue --buddies");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    assert_true(number(r.out, "\"elements\"", NULL) == 1e15);
    assert_true(fabs(number(r.out, "\"parameters\"", "zero1") / 4e15 - 1) < 1e-9); /* padded */
    /* Of a bucket's 6400 spans one of 1024 owners has at most 7, and some host two such; with that
     * of its buddy four. */
    double blocks = 4 * 7 / (6400 * 4096.) * 1e15;
    assert_true(fabs(number(r.out, "\"optimizer\"", "zero1") / (8 * blocks * 4096) - 1) < 1e-3);
}

/* As train does. */
static void weights_to_begin_with_are_there(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--init /nowhere.safetensors");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "/nowhere.safetensors");
}

static void says_what_is_wrong(void **state)
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
        { "plan --parameters 1e9 --paper --sample-tokens 5", "nothing to --paper" },
        { "plan --parameters 1.5", "--parameters 1.5: must be a whole number from 1 to 1e15" },
        { "plan --parameters 1e9 --largest-layer 2.5", "must be a whole number" },
        { MLP "--kernels onednn --precision bf16", "onednn multiplies FP32 values alone" },
        { MLP "--backup-workers 1 --workers 2 --duplicate auto", "leave one of them out" },
        { "plan --parameters 1e9 --context 5", "--context needs MODEL gpt\n" },
        { "plan bare --workers 2", "has no name: --parameters P in its place" },
        { "plan --parameters 1e9 --flops 1e-300", "a number from 1 to 1e24" },
        { MLP "--largest-layer 5", "--largest-layer needs --parameters or --paper" },
        { MLP "--sample-tokens 5", "--sample-tokens needs --parameters" },
        { MLP "--strategy zero1 --workers 2 --hosts 2 --buddies", "--on-failure continue" },
        { "plan gpt --paper --parameters 1e9", "--paper needs --workers" },
        { "plan gpt --parameters 1e9", "or give --paper\n" },
        { MLP "--strategy zero9", "zero9" },
        { MLP "--workers 2 --hosts 2 --flops 1e9", "--bandwidth" },
        { MLP "--workers 2 --hosts 2 --bandwidth 1e9", "give --flops or --measure, too" },
        { MLP "--latency 1e-5", "give --flops or --measure, too" },
        { MLP "--most-workers 64", "give --flops or --measure, too" },
        { MLP "--offload optimizer:/nvme --file-bandwidth 1e9", "give --flops or --measure, too" },
        { MLP "--memory-bandwidth 1e9", "--memory-bandwidth needs --flops" },
        { MLP "--flops 1e9 --measure", "leave out one of the two" },
        { "plan gpt --paper --parameters 1e9 --workers 4 --flops 1e9", "or --paper" },
        { "plan gpt --paper --parameters 1e9 --workers 4 --bandwidth 1e9", "give --forward-ms" },
        { "plan gpt --paper --parameters 1e9 --workers 4 --plot x.svg", "draws nothing" },
        { "plan --parameters 1e9 --data text:/etc/hostname", "--data is for a MODEL" },
        { "plan gpt --width 0", "--width 0: must be an integer from 1" },
        { MLP "--workers 2 --hosts 2 --measure", "--bandwidth" },
        { MLP "--forward-ms 5", "--paper" },
        { MLP "--file-bandwidth 1e9", "--offload" },
        { MLP "--optimizer sgd --offload optimizer:/nvme", "this optimizer has no state" },
        { MLP "--optimizer sgd --offload optimizer,parameters:/nvme", "has no state" },
        { MLP "--offload activations:/nvme", "give --activation-checkpointing, too" },
        { "plan gpt --paper --parameters 1e9 --workers 4 --hosts 2 --backward-ms 5", "bandwidth" },
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
        cmocka_unit_test(surviving_takes_memory),
        cmocka_unit_test(one_host_sends_nothing),
        cmocka_unit_test(sync_batchnorm_takes_more),
        cmocka_unit_test(says_why_a_strategy_cannot),
        cmocka_unit_test(a_model_may_be_larger_than_the_machine),
        cmocka_unit_test(knows_the_paper),
        cmocka_unit_test(a_number_of_parameters_will_do),
        cmocka_unit_test(a_number_says_what_its_model_does),
        cmocka_unit_test(times_follow_from_rates),
        cmocka_unit_test(files_take_their_time),
        cmocka_unit_test(more_workers_go_to_thousands),
        cmocka_unit_test(chooses_what_fits),
        cmocka_unit_test(the_largest_model_fits),
        cmocka_unit_test(larger_models_that_cannot_be_planned_may_fit),
        cmocka_unit_test(no_model_is_smaller_than_its_layer),
        cmocka_unit_test(measures_this_machine),
        cmocka_unit_test(draws_a_plot),
        cmocka_unit_test(knows_what_others_say),
        cmocka_unit_test(any_size_is_planned_at_once),
        cmocka_unit_test(weights_to_begin_with_are_there),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
