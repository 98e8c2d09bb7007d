/* train_test.c -- tests the properties of `lockstep train` that scripts rely on: the weights line,
 * exit statuses, config files, sampling. */
#include "cli/command.h"

#define DATA "--data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 4 "
#define GPT                                                                                        \
    "--layers 1 --heads 2 --width 16 --context 16 --global-batch 8 --optimizer adamw --lr 1e-2 "   \
    "--quiet "
#define MLP "train mlp " DATA "--hidden 8 --global-batch 8 --micro-batch 2 --lr 0.1 "

static void the_last_line_is_the_weights(void **state)
{
    static command_result r;
    char                  one[65], two[65], threads[65], other[65];
    run_command(&r, *state, MLP "--steps 3 --workers 1");
    assert_int_equal(r.status, 0);
    read_weights(&r, one);
    assert_int_equal(strlen(r.out), 73); /* nothing else on stdout */
    assert_says(r.err, "loss");
    run_command(&r, *state, MLP "--steps 3 --workers 2 --quiet");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "");
    read_weights(&r, two);
    run_command(&r, *state, MLP "--steps 3 --workers 3 --worker-mode threads");
    read_weights(&r, threads);
    run_command(&r, *state, MLP "--steps 3 --seed 1");
    read_weights(&r, other);
    assert_string_equal(one, two);
    assert_string_equal(one, threads);
    assert_string_not_equal(one, other);
}

static void a_config_file_has_the_effect_of_its_options(void **state)
{
    static command_result r;
    char                  by_line[65], by_file[65], over[65], line_over[65];
    (void)run_shell(&r, *state,
                    "printf 'model = \"mlp\"\\nhidden = [8]\\nglobal-batch = 8\\nmicro-batch = 2\\n"
                    "virtual-workers = 4\\nlr = 0.1\\nsteps = 3\\n"
                    "data = \"synthetic:images=64,h=4,w=4,c=1,classes=3\"\\n' > run.toml");
    run_command(&r, *state, MLP "--steps 3");
    read_weights(&r, by_line);
    run_command(&r, *state, "train --config run.toml");
    assert_int_equal(r.status, 0);
    read_weights(&r, by_file);
    assert_string_equal(by_line, by_file);
    run_command(&r, *state, MLP "--steps 3 --seed 5");
    read_weights(&r, line_over);
    run_command(&r, *state, "train --seed 5 --config=run.toml --workers 2");
    read_weights(&r, over);
    assert_string_equal(line_over, over);
    assert_string_not_equal(over, by_file);
    (void)run_shell(&r, *state, "echo 'setps = 3' >> run.toml");
    run_command(&r, *state, "train --config run.toml");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "run.toml:9: unknown key setps; did you mean steps?");
}

/* Checks that a mistake in the file is reported with its line, quoted as in the file. */
static void a_config_file_is_quoted_in_errors(void **state)
{
    static const struct {
        const char *line, *options, *message;
    } cases[] = {
        { "steps = 0", "", ": run.toml:2: steps 0: must be an integer of at least 1" },
        { "config = \"other.toml\"", "", ": run.toml:2: a config file cannot name another" },
        { "optimizer = \"adam\"", "", ": run.toml:2: optimizer adam: is none of: sgd, adamw" },
        { "restart = 2", "", ": run.toml:2: restart needs checkpoint DIR" },
        { "betas = [0.9, 0.99]", "",
          ": run.toml:2: betas needs optimizer adamw, onebit-adam, lamb, onebit-lamb, lion or "
          "yogi; this is" },
        { "nesterov = true", "--optimizer adamw",
          ": run.toml:2: nesterov needs optimizer sgd or lars; this is adamw" },
        { "optimizer = \"adamw\"", "--momentum 0.9",
          ": --momentum needs --optimizer sgd or lars; this is adamw" },
        { "keep = 1", "", ": run.toml:2: keep needs checkpoint DIR" },
        { "layers = 2", "", ": run.toml:2: layers needs MODEL gpt or llama; this is mlp" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static command_result r;
        char                  line[1024];
        (void)snprintf(line, sizeof line,
                       "printf '%%s\n' '# a run' '%s' > run.toml && %s " MLP
                       "--steps 3 --config run.toml %s",
                       cases[i].line, LK_TEST_COMMAND, cases[i].options);
        (void)run_shell(&r, *state, line);
        assert_int_equal(r.status, 2);
        assert_says(r.err, cases[i].message);
    }
}

static void a_loss_that_is_not_finite_has_status_3(void **state)
{
    static const char *const modes[] = { "--workers 2", "--workers 2 --worker-mode threads" };
    for (size_t i = 0; i < 2; i++) {
        char                  line[512];
        static command_result r;
        (void)snprintf(line, sizeof line, MLP "--steps 200 --lr 1e30 --quiet %s", modes[i]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 3);
        assert_string_equal(r.out, "");
        assert_says(r.err, "finite");
        const char *first = strchr(r.err, '\n'); /* reported once */
        assert_non_null(first);
        assert_string_equal(first, "\n");
    }
}

static void a_large_learning_rate_is_noted(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 1 --lr 300");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "note: --lr 300 is far above what sgd usually takes, such as 0.1; if the");
    run_command(&r, *state, MLP "--steps 1 --optimizer adamw --lr 0.2");
    assert_says(r.err, "note: --lr 0.2 is far above what adamw usually takes, such as 1e-3");
    run_command(&r, *state, MLP "--steps 1 --lr 5");
    assert_says_not(r.err, "usually takes");
}

/* Stops a long run after some steps, and resumes from its checkpoint. */
static void a_signal_saves_and_has_status_75(void **state)
{
    static const char *const modes[] = { "--workers 2", "--workers 2 --worker-mode threads" };
    for (size_t i = 0; i < 2; i++) {
        char                  line[1024];
        static command_result r;
        (void)snprintf(line, sizeof line,
                       "rm -rf ck log; %s " MLP
                       "--steps 100000000 --checkpoint ck --log log %s & pid=$!; "
                       "while [ ! -s log ]; do sleep 0.02; done; kill -TERM $pid; wait $pid",
                       LK_TEST_COMMAND, modes[i]);
        (void)run_shell(&r, *state, line);
        assert_int_equal(r.status, 75);
        assert_string_equal(r.out, "");
        run_command(&r, *state, "inspect ck");
        assert_int_equal(r.status, 0);
    }
}

/* Checks --ema.  A very slow mean still has the values of the first steps, and has learned
 * nothing. */
static void moving_means_are_sampled_and_evaluated(void **state)
{
    static const char sample[] = "sample mean --prompt ab --tokens 40 --temperature 0 ";
    static command_result mean, model, slow;
    char                  line[256];
    (void)run_shell(&mean, *state, "rm -rf mean; yes abcdefg | tr -d '\\n' | head -c 6000 > text");
    run_command(&slow, *state, "train gpt --data text:text --validation 0.1 --ema 0.99999 " GPT
                               "--steps 100 --checkpoint mean --log mean.log");
    assert_int_equal(slow.status, 0);
    run_command(&model, *state, "train gpt --data text:text --validation 0.1 --ema 0.99999 " GPT
                                "--steps 100 --eval-weights model --log model.log");
    assert_string_equal(model.out, slow.out);
    (void)run_shell(&slow, *state, "grep -o 'val_loss\": [0-9.]*' mean.log | cut -d' ' -f2");
    (void)run_shell(&model, *state, "grep -o 'val_loss\": [0-9.]*' model.log | cut -d' ' -f2");
    assert_true(atof(model.out) < 0.5 && atof(slow.out) > 3);

    run_command(&mean, *state, sample);
    assert_int_equal(mean.status, 0);
    assert_says_not(mean.out, "abcdefg");
    (void)snprintf(line, sizeof line, "%s--weights ema", sample);
    run_command(&slow, *state, line);
    assert_string_equal(slow.out, mean.out);
    (void)snprintf(line, sizeof line, "%s--weights model", sample);
    run_command(&model, *state, line);
    assert_says(model.out, "abcdefgabcdefg");
    (void)run_shell(&model, *state, "TERM=xterm python3 -c \"import pty; "
                                    "pty.spawn(['" LK_TEST_COMMAND "', 'eval', 'mean'])\"");
    assert_says(model.out, " samples, "); /* the progress on a terminal */
}

static void parameter_groups_are_read(void **state)
{
    static command_result r;
    char                  one[65], two[65], other[65];
    run_command(&r, *state, MLP "--steps 3 --quiet --param-group "
                                "'fc?.bias:lr=2;*weight:lr=0.5,decay=0'");
    assert_int_equal(r.status, 0);
    read_weights(&r, one);
    run_command(&r, *state, MLP "--steps 3 --quiet --param-group '*.bias:lr=2' --param-group "
                                "'*weight:lr=0.5'");
    read_weights(&r, two);
    assert_string_equal(one, two);
    run_command(&r, *state, MLP "--steps 3 --quiet --param-group '*.bias:lr=2' --clip-value 0.01");
    read_weights(&r, other);
    assert_string_not_equal(one, other);
    run_command(&r, *state, MLP "--steps 3 --param-group 'fc9.*:lr=2'");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--param-group: no parameter is named like 'fc9.*'; there are fc0.weight, ");
    run_command(&r, *state, MLP "--steps 3 --param-group 'fc0.*:rate=2'");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--param-group fc0.*:rate=2: must be PATTERN:lr=X,decay=Y");
    run_command(&r, *state, MLP "--steps 3 --param-group 'fc0.*:lr=2,decay=0,lr=1'");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--param-group fc0.*:lr=2,decay=0,lr=1: must be PATTERN:lr=X,decay=Y, each "
                       "once");
    run_command(&r, *state, MLP "--steps 3 --clip-value 1 --clip-norm 1");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "give --clip-norm or --clip-value, not both");
}

static void a_limit_is_a_normal_end(void **state)
{
    static command_result r;
    char                  steps[65], limit[65];
    run_command(&r, *state, MLP "--steps 3 --quiet");
    read_weights(&r, steps);
    run_command(&r, *state, MLP "--steps 9 --workers 2 --max-samples 20 --log limit.log --quiet");
    assert_int_equal(r.status, 0);
    read_weights(&r, limit);
    assert_string_equal(limit, steps);
    assert_string_equal(r.err, "--max-samples ended the run after step 3 of 9\n");
    (void)run_shell(&r, *state, "tail -n 1 limit.log");
    assert_says(r.out, "{\"step\": 3, \"weights\": ");
    assert_says(r.out, ", \"ended\": \"max-samples\"}");
    run_command(&r, *state, MLP "--steps 3 --min-delta 0.1");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--min-delta needs --patience N");
}

static void a_trained_gpt_generates_text(void **state)
{
    static const char     sample[] = "sample run --prompt ab --tokens 40 ";
    static command_result r, again;
    char                  line[256];
    (void)run_shell(&r, *state, "rm -rf run; yes abcdefg | tr -d '\\n' | head -c 6000 > text");
    run_command(&r, *state, "train gpt --data text:text " GPT "--steps 100 --checkpoint run");
    assert_int_equal(r.status, 0);
    (void)snprintf(line, sizeof line, "%s--temperature 0", sample);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 0);
    assert_says(r.out, "abcdefgabcdefg"); /* at temperature 0 the sample repeats the training
                                           * text */
    assert_int_equal(strlen(r.out), 2 + 40 + 1);
    (void)snprintf(line, sizeof line, "%s--temperature 2 --seed 1", sample);
    run_command(&r, *state, line);
    run_command(&again, *state, line);
    assert_memory_equal(r.out, again.out, 43);
    (void)snprintf(line, sizeof line, "%s--temperature 2 --seed 2 --threads 2", sample);
    run_command(&again, *state, line);
    assert_int_not_equal(memcmp(r.out, again.out, 43), 0);
    (void)snprintf(line, sizeof line, "%s--temperature 2 --top-k 1", sample);
    run_command(&again, *state, line);
    assert_says(again.out, "abcdefgabcdefg");

    run_command(&r, *state, "sample run --weights ema");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "run has no tensor wte.weight.ema: the run was without --ema");
    run_command(&r, *state, "export run --weights ema --out none");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "'run' has no moving means: the run was without --ema");

    run_command(&r, *state, "sample run/step-00000100/model.safetensors");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--heads");
    run_command(&again, *state,
                "sample run/step-00000100/model.safetensors --heads 2 --prompt ab "
                "--tokens 40 --temperature 0");
    assert_int_equal(again.status, 0);
    assert_says(again.out, "abcdefgabcdefg");
}

/* Overwrites 4 bytes, `from_end` bytes before the end of the file, with a NaN. */
#define POISON(file, from_end)                                                                     \
    "printf '\\000\\000\\300\\177' | dd of=" file " bs=1 conv=notrunc seek=$(($(stat -c %s " file  \
    ") - " #from_end "))"

static void weights_that_are_not_finite_are_refused(void **state)
{
    static const char *const modes[] = { "--workers 2", "--workers 2 --worker-mode threads" };
    static command_result    r;
    (void)run_shell(&r, *state, "rm -rf run; yes abcdefg | tr -d '\\n' | head -c 6000 > text");
    run_command(&r, *state, "train gpt --data text:text " GPT "--steps 2 --checkpoint run");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state,
                    "cp run/step-00000002/model.safetensors bad && " /* ln_f.bias is last */
                    POISON("bad", 8) " && " POISON("bad", 100));
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "sample bad --heads 2 --prompt ab");
    assert_int_equal(r.status, 1);
    assert_string_equal(r.out, "");
    assert_says(r.err, "'bad': element 7 of tensor 'ln_f.weight' is nan");
    for (size_t i = 0; i < 2; i++) {
        char line[512];
        (void)snprintf(line, sizeof line,
                       "train gpt --data text:text " GPT "--micro-batch 4 --steps 2 --init bad %s",
                       modes[i]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 1);
        assert_string_equal(r.out, "");
        assert_says(r.err, "'bad': element 7 of tensor 'ln_f.weight' is nan");
    }
}

static void an_end_that_is_not_finite_has_status_3(void **state)
{
    static const struct {
        const char *options, *message;
    } cases[] = {
        { "--lr 1e30 --validation 0.25", "step 1: the validation loss is not finite" },
        { "--lr 1e300", "step 1: element 0 of '" },
    };
    static const char *const modes[] = { "--workers 2", "--workers 2 --worker-mode threads" };
    for (size_t i = 0; i < 4; i++) {
        char                  line[512];
        static command_result r;
        (void)snprintf(line, sizeof line, MLP "--steps 1 --quiet %s %s", cases[i / 2].options,
                       modes[i % 2]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 3);
        assert_string_equal(r.out, "");
        assert_says(r.err, cases[i / 2].message);
        assert_says(r.err, "lower the learning rate or clip the gradient");
    }
}

/* Checks that checkpoints record default values in the same way as given values. */
static void a_default_is_recorded(void **state)
{
#define SMALL                                                                                      \
    "train gpt --data synthetic:tokens=2000,vocab=256 --layers 1 --width 16 --context 16 "         \
    "--global-batch 8 --lr 0.1 --quiet --checkpoint small "
    static command_result r;
    run_command(&r, *state, SMALL "--steps 2");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "sample small --tokens 3");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, SMALL "--steps 3 --resume --heads 4");
    if (r.status != 0)
        fail_msg("%s", r.err);
    run_command(&r, *state, "inspect small");
    assert_says(r.out, "  heads                    4\n");
    assert_says_not(r.out, "  depth ");
}

/* Checks --kernels onednn.  Without the module the error names the package; with it the run is
 * labelled. */
static void runs_with_other_kernels_are_labelled(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    "LOCKSTEP_MODULES=/nowhere " LK_TEST_COMMAND " " MLP
                    "--steps 2 --kernels onednn");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "no lockstep-onednn.so (looked in /nowhere)");
    assert_says(r.err, "libdnnl-dev");
    run_command(&r, *state, MLP "--steps 2 --kernels onednn --quiet");
    if (r.status == 1 && strstr(r.err, "no lockstep-onednn.so") != NULL)
        return;
    assert_int_equal(r.status, 0);
    assert_says(r.err, "note: products are oneDNN's (");
    assert_says(r.err, "note: this run is timed (kernels onednn): ");
    assert_says_not(r.err, "the own kernels computed");
    run_command(&r, *state, MLP "--steps 2 --kernels onednn --precision bf16");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--kernels onednn multiplies FP32 values alone");
}

/* Checks that two of the four virtual workers are dropped in each step, and that the run is
 * labelled timed. */
static void runs_with_backup_workers_are_labelled(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 3 --workers 2 --backup-workers 1 --quiet --log b.log "
                                "--checkpoint b");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "note: this run is timed (backup-workers 1): ");
    assert_says(r.err, "note: each step uses the first 1 workers");
    (void)run_shell(&r, *state, "grep -c '\"dropped\": 2,.*\"label\": \"timed\"}' b.log");
    assert_string_equal(r.out, "3\n");
    (void)run_shell(&r, *state, "grep -E '\"(checkpoint|weights)\"' b.log |"
                                "grep -c '\"label\": \"timed\"}'");
    assert_string_equal(r.out, "2\n");
    run_command(&r, *state, "inspect b");
    assert_says(r.out, " (timed)\n");
}

/* Checks that a run is labelled timed if it resumes, directly or indirectly, from a run with
 * that label. */
static void runs_resumed_from_backup_workers_are_labelled(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 3 --workers 2 --backup-workers 1 --checkpoint g");
    for (int steps = 4; steps <= 5; steps++) {
        char line[256];
        (void)snprintf(line, sizeof line, MLP "--steps %d --checkpoint g --resume --log g.log",
                       steps);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        bool others = strstr(r.err, "note: the checkpoint has exactness id") != NULL;
        assert_int_equal(others, steps == 4);
        assert_says(r.err, "note: this run is timed: it continues from steps that are timed");
        (void)run_shell(&r, *state, "grep -vc '\"label\": \"timed\"}' g.log");
        assert_string_equal(r.out, "0\n");
        (void)run_shell(&r, *state, "grep -c '\"dropped\"' g.log");
        assert_string_equal(r.out, "0\n");
        run_command(&r, *state, "inspect g");
        assert_says(r.out, " (timed)\n");
    }
}

/* Checks the label of runs whose bits are the same for any workers, but not those of exact runs.
 * Exact runs that continue them have it, too. */
static void runs_with_lossy_messages_are_labelled(void **state)
{
    static command_result r;
    static char           weights[sizeof r.out];
    static const char *const rules[] = { "grad-comm-dtype int8", "grad-comm-dtype int4",
                                         "param-comm-dtype int8" };
    char                     line[256];
    for (size_t i = 0; i < 3; i++)
        for (int workers = 1; workers <= 2; workers++) {
            (void)snprintf(line, sizeof line,
                           MLP "--steps 3 --workers %d --quiet --log i.log --checkpoint i%zu --%s",
                           workers, 2 * i + (size_t)workers, rules[i]);
            (void)run_shell(&r, *state, "rm -f i.log");
            run_command(&r, *state, line);
            assert_int_equal(r.status, 0);
            (void)snprintf(line, sizeof line, "note: this run is invariant (%s): ", rules[i]);
            assert_says(r.err, line);
            if (workers == 2)
                assert_string_equal(r.out, weights);
            (void)snprintf(weights, sizeof weights, "%s", r.out);
            (void)run_shell(&r, *state, "grep -vc '\"label\": \"invariant\"}' i.log");
            assert_string_equal(r.out, "0\n");
        }
    (void)run_shell(&r, *state, "rm i.log"); /* of another run */
    run_command(&r, *state, MLP "--steps 4 --checkpoint i1 --resume --log i.log");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "note: this run is invariant: it continues from steps that are invariant");
    run_command(&r, *state, "inspect i1");
    assert_says(r.out, " (invariant)\n");
    run_command(&r, *state, "train --help=rules");
    assert_says(r.out, "int8 (invariant), int4");
    assert_says(r.out, "own, onednn (timed)");
}

static void unsupported_backup_workers_are_refused(void **state)
{
    static const char *const cases[][2] = {
        { "train mlp " DATA "--hosts 2 ", "--backup-workers is for workers of one host" },
        { "plan mlp " DATA "--hosts 2 ", "--backup-workers is for workers of one host" },
        { "train mlp " DATA "--on-failure continue ", "continue after losing workers" },
        { "train mlp " DATA "--strategy zero2 ", "take --strategy ddp or zero1" },
        { "train mlp " DATA "--backup-workers 2 ", "--backup-workers 2 of --workers 2" },
        { "train mlp " DATA "--rebalance on ", "leave out --rebalance" },
        { "train mlp " DATA "--speculate on ", "leave one of them out" },
        { "train mlp " DATA "--speculate auto ", "leave one of them out" },
        { "train mlp " DATA "--sdc-check 1 ", "what --sdc-check would compare" },
        { "train mlp " DATA "--noise-scale 0.9 ", "what --noise-scale compares" },
        { "train resnet " DATA "--batchnorm sync ", "take --batchnorm ghost" },
        { "verify mlp " DATA "--step 1 --virtual-worker 0 ", "of its steps can be made again" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char                  line[512];
        static command_result r;
        bool                  counted = strstr(cases[i][0], "--backup-workers") != NULL;
        (void)snprintf(line, sizeof line, "%s --steps 2 --global-batch 8 --lr 0.1 --workers 2 %s",
                       cases[i][0], counted ? "" : "--backup-workers 1");
        run_command(&r, *state, line);
        assert_int_equal(r.status, 2);
        assert_says(r.err, cases[i][1]);
    }
}

/* Checks that the defaults do not depend on the number of cores, and are as printed. */
static void defaults_do_not_depend_on_the_machine(void **state)
{
    static command_result one, all, said;
    char                  line[512], a[65], b[65], c[65];
    static const char     command[] = "train mlp --hidden 8 --data synthetic:images=300,h=4,w=4,"
                                      "c=1,classes=3";
    (void)snprintf(line, sizeof line, "taskset -c $(taskset -cp $$ | sed 's/.*: *//; s/[-,].*//') "
                   LK_TEST_COMMAND " %s", command);
    (void)run_shell(&one, *state, line);
    run_command(&all, *state, command);
    read_weights(&one, a);
    read_weights(&all, b);
    assert_string_equal(a, b);
    assert_says(one.err, "workers: 1 with 1 thread each, on 1 core");
    const char *chosen = strstr(all.err, "not given, so:");
    assert_non_null(chosen);
    assert_says(all.err, "--optimizer sgd --momentum 0.9 --lr 0.05 --micro-batch 8 --global-batch "
                         "128 --steps 1000 --max-epochs 20");
    assert_says(all.err, "note: the weights are not kept; --checkpoint DIR keeps them");
    (void)snprintf(line, sizeof line, "%s %.*s", command,
                   (int)strcspn(chosen + 14, "("), chosen + 14);
    run_command(&said, *state, line);
    read_weights(&said, c);
    assert_string_equal(a, c);
    assert_says_not(said.err, "not given");
    run_command(&said, *state, "train mlp --hidden 8 --data synthetic:images=64,h=2,w=2,c=1,"
                               "classes=2 --global-batch 8 --steps 1 --threads 1");
    assert_int_equal(said.status, 0);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
        assert_says(said.err, "note: 1 virtual worker for");
}

__attribute__((noinline)) static void a_copy_leaves_the_events(void *folder)
{
    static command_result r, files;
    (void)run_shell(&files, folder, "cp -r kept copy; cksum board/*");
    run_command(&r, folder, "resume copy --epochs 3 --max-samples 100000");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "so it does not write to that run's --tensorboard board");
    (void)run_shell(&r, folder, "cksum board/*");
    assert_string_equal(r.out, files.out);
}

__attribute__((noinline)) static void its_steps_are_verified(void *folder)
{
    static command_result r, files;
    run_command(&r, folder, "verify kept --step 5");
    assert_int_equal(r.status, 1); /* it has no log, and no checkpoint of the step */
    assert_says(r.out, "step 5, virtual worker 0, from step 4 on");
    run_command(&r, folder, "resume kept --resume=77");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "there is no checkpoint of step 77 in '");
    assert_says(r.err, ": it has those of the steps 4, ");
    assert_says(r.err, "give one of them, or --resume without a step for the newest\n"
                       "(lockstep train --help=all lists the options)");
    (void)run_shell(&files, folder, "ls board");
    run_command(&r, folder, "verify kept --step 1"); /* no checkpoint is older */
    assert_int_equal(r.status, 1);
    assert_says(r.out, "step 1, virtual worker 0, from step 0 on");
    run_command(&r, folder, "verify kept --step 1 --seed 9"); /* compared with later ones */
    assert_int_equal(r.status, 2);
    assert_says(r.err, "seed");
    (void)run_shell(&r, folder, "ls board");
    assert_string_equal(r.out, files.out);
}

__attribute__((noinline)) static void lengths_are_replaced(void *folder)
{
    static command_result r;
    run_command(&r, folder, "resume kept");
    assert_int_equal(r.status, 0);
    assert_says(r.err, "note: the run has all its 8 steps: give more steps to go on");
    run_command(&r, folder, "resume kept --epochs 2 --max-samples 100000"); /* not --steps, too */
    assert_int_equal(r.status, 0);
    assert_says(r.err, "step 12/12 ");
    run_command(&r, folder, "resume kept --lr 1");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--lr is 1");
}

/* Checks that a run is continued and verified with its directory alone, from any directory. */
static void a_run_is_continued_by_its_directory(void **state)
{
    static command_result r;
    char                  whole[65], resumed[65];
    static const char     command[] = "train gpt --layers 1 --heads 1 --width 8 --context 4 --data "
                                      "poem.txt --steps 8 --param-group '*.bias:lr=2' "
                                      "--param-group '*.weight:decay=0'";
    (void)run_shell(&r, *state, "seq 200 >poem.txt");
    run_command(&r, *state, command);
    read_weights(&r, whole);
    assert_says(r.err, "--optimizer adamw --lr 1e-3 --clip-norm 1 --micro-batch 2");
    char line[512];
    (void)snprintf(line, sizeof line, "%s --checkpoint kept --checkpoint-every 2 --tensorboard "
                   "board --max-samples 64", command);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "mkdir -p below && cd below && " LK_TEST_COMMAND
                                " resume ../kept --max-samples 100000 --workers 1");
    read_weights(&r, resumed);
    assert_string_equal(whole, resumed);
    its_steps_are_verified(*state);
    lengths_are_replaced(*state);
    a_copy_leaves_the_events(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_line_is_the_weights),
        cmocka_unit_test(a_config_file_has_the_effect_of_its_options),
        cmocka_unit_test(a_config_file_is_quoted_in_errors),
        cmocka_unit_test(a_loss_that_is_not_finite_has_status_3),
        cmocka_unit_test(a_large_learning_rate_is_noted),
        cmocka_unit_test(weights_that_are_not_finite_are_refused),
        cmocka_unit_test(an_end_that_is_not_finite_has_status_3),
        cmocka_unit_test(a_signal_saves_and_has_status_75),
        cmocka_unit_test(moving_means_are_sampled_and_evaluated),
        cmocka_unit_test(parameter_groups_are_read),
        cmocka_unit_test(a_limit_is_a_normal_end),
        cmocka_unit_test(a_trained_gpt_generates_text),
        cmocka_unit_test(a_default_is_recorded),
        cmocka_unit_test(runs_with_other_kernels_are_labelled),
        cmocka_unit_test(runs_with_backup_workers_are_labelled),
        cmocka_unit_test(runs_resumed_from_backup_workers_are_labelled),
        cmocka_unit_test(runs_with_lossy_messages_are_labelled),
        cmocka_unit_test(unsupported_backup_workers_are_refused),
        cmocka_unit_test(defaults_do_not_depend_on_the_machine),
        cmocka_unit_test(a_run_is_continued_by_its_directory),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
