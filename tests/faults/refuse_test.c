/* refuse_test.c -- tests that wrong input is refused with a message that names it, and that the
 * first failure is reported.
 *
 * Goal:   options that contradict a checkpoint, another model's checkpoint, truncated data and
 *         non-finite numbers end the run with a message that names them.  They change no file.
 *         `lockstep run` reports the failure that caused the other failures.
 * Method: the command itself.
 */
#include "faults/job.h"

#define ON_CK "--checkpoint ck --resume --steps 20 --workers 2 --quiet "

static void contradicting_options_are_named(void **state)
{
    static const struct {
        const char *options, *named;
    } others[] = {
        { "--lr 0.06", "--lr is 0.06, but the checkpoint was made with 0.05" },
        { "--momentum 0.8", "--momentum is 0.8," },
        { "--nesterov", "--nesterov" },
        { "--weight-decay 0.1", "--weight-decay is 0.1," },
        { "--clip-norm 1", "--clip-norm is 1" },
        { "--schedule cosine", "--schedule is \"cosine\"," },
        { "--warmup 3", "--warmup is 3," },
        { "--seed 1", "--seed is 1," },
        { "--validation 0.5", "--validation is 0.5," },
        { "--drop-last", "--drop-last is true," },
        { "--hidden 9", "--hidden is [9], but the checkpoint was made with [8]" },
        { "--global-batch 16", "--global-batch is 16," },
        { "--micro-batch 1", "--micro-batch is 1," },
        { "--virtual-workers 2", "--virtual-workers is 2," },
        { "--compress topk", "--compress is \"topk\", but the checkpoint was made with none" },
        { "--steps 5", "step 10, past --steps 5: give more --steps, or begin at an earlier" },
    };
    static command_result r;
    run_command(&r, *state, MLP "--steps 10 --checkpoint ck --workers 2");
    assert_int_equal(r.status, 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        static char line[1024];
        (void)snprintf(line, sizeof line, MLP ON_CK "%s", others[i].options);
        run_command(&r, *state, line);
        assert_int_not_equal(r.status, 0);
        assert_in_range(r.status, 1, 2);
        assert_string_equal(r.out, "");
        assert_says(r.err, others[i].named);
    }
    run_command(&r, *state,
                "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 4 "
                "--hidden 8 --global-batch 8 --micro-batch 2 --lr 0.05 --optimizer adamw " ON_CK);
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--optimizer is \"adamw\", but the checkpoint was made with \"sgd\"");
    run_command(&r, *state, MLP "--steps 20 --checkpoint ck");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "already has checkpoints; continue that run by lockstep resume ");
    run_command(&r, *state,
                "train gpt --data synthetic:tokens=4000,vocab=31 --global-batch 8 --micro-batch 2 "
                "--lr 0.05 " ON_CK);
    assert_int_equal(r.status, 2);
    assert_says(r.err, "the model is \"gpt\", but the checkpoint was made with \"mlp\"");
    run_command(&r, *state, "inspect ck"); /* no run has changed the checkpoint */
    assert_int_equal(r.status, 0);
    forget(*state);
}

static void options_of_compression_are_named(void **state)
{
    static const struct {
        const char *options, *named;
    } others[] = {
        { "", "--compress is none, but the checkpoint was made with \"topk\"" },
        { "--compress topk", "--ratio is 0.01, but the checkpoint was made with 0.5" },
        { "--compress topk --ratio 0.5 --groups 2",
          "--groups is 2, but the checkpoint was made with 4" },
        { "--compress topk --ratio 0.5 --error-feedback off", "--error-feedback is \"off\"" },
        { "--compress topk --ratio 0.5 --group-clip-norm 1",
          "--group-clip-norm is 1.0, but the checkpoint was made with none" },
    };
    static command_result r;
    run_command(&r, *state, MLP "--steps 10 --checkpoint ck --compress topk --ratio 0.5");
    assert_int_equal(r.status, 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        static char line[1024];
        (void)snprintf(line, sizeof line, MLP ON_CK "%s", others[i].options);
        run_command(&r, *state, line);
        assert_int_not_equal(r.status, 0);
        assert_says(r.err, others[i].named);
    }
    forget(*state);
}

/* Without a compressor groups change no bit, so a run may be resumed with and without them. */
static void groups_may_come_and_go(void **state)
{
    static command_result want, r;
    run_command(&want, *state, MLP "--steps 20 --quiet");
    run_command(&r, *state, MLP "--steps 10 --checkpoint ck");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, MLP "--checkpoint ck --resume --steps 15 --groups 2 --quiet");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, MLP "--checkpoint ck --resume --steps 20 --quiet");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, want.out);
    forget(*state);
}

static void a_non_finite_step_updates_nothing(void **state)
{
    static const char *const modes[] = { "--workers 3", "--workers 2 --worker-mode threads" };
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        char          line[1024];
        unsigned long saved = 0, failed = 0;
        (void)snprintf(line, sizeof line,
                       MLP "--lr 1e30 --steps 60 --quiet --checkpoint ck --checkpoint-every 1 "
                           "--log log %s",
                       modes[i]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 3);
        assert_string_equal(r.out, "");
        assert_says(r.err, "is not finite; lower the learning rate");
        assert_says(r.err, "; `lockstep verify` with --step ");
        *strstr(r.err, "; `lockstep verify`") = '\0';
        const char *said = strstr(r.err, "step ");
        for (const char *next; (next = strstr(said + 1, "step ")) != NULL;) /* finds the last one */
            said = next;
        assert_int_equal(sscanf(said, "step %lu: the ", &failed), 1);
        (void)run_shell(&r, *state, "tail -n 1 log; ls ck | tail -n 1");
        assert_int_equal(sscanf(strstr(r.out, "\nstep-") + 1, "step-%lu", &saved), 1);
        assert_int_equal(saved + 1, failed); /* the last checkpoint is that of the step before the
                                              * failed one */
        (void)snprintf(line, sizeof line, "{\"step\": %lu, ", saved);
        assert_int_equal(strncmp(r.out, line, strlen(line)), 0); /* the log ends with that step */
        forget(*state);
    }
}

#define IMAGES                                                                                     \
    "train mlp --virtual-workers 4 --hidden 8 --global-batch 8 --micro-batch 2 "                   \
    "--lr 0.1 --quiet --workers 2 --steps 3 --data "

static void cut_data_is_refused(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    "{ printf '\\0\\0\\10\\3\\0\\0\\0\\100\\0\\0\\0\\4\\0\\0\\0\\4'; "
                    "head -c 1024 /dev/urandom; } >x && "
                    "{ printf '\\0\\0\\10\\1\\0\\0\\0\\100'; printf '%64s' | tr ' ' '\\1'; } >y && "
                    "head -c 500 x >cut && head -c 3 x >stump && : >empty && gzip -c x >x.gz && "
                    "head -c 400 x.gz >cut.gz && printf abc >short");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, IMAGES "idx:x,y");
    if (r.status != 0)
        fail_msg("%s", r.err);
    assert_int_equal(r.status, 0);
    static const char *const wrong[][2] = {
        { "idx:cut,y", "'cut'" },     { "idx:stump,y", "'stump'" }, { "idx:empty,y", "'empty'" },
        { "idx:cut.gz,y", "cut.gz" }, { "idx:x,x", "'x'" },         { "idx:none,y", "'none'" },
        { "text:short", "short" },    { "text:empty", "empty" },    { "tokens:stump", "stump" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char line[512];
        (void)snprintf(line, sizeof line, IMAGES "%s", wrong[i][0]);
        run_command(&r, *state, line);
        assert_in_range(r.status, 1, 2);
        assert_string_equal(r.out, "");
        assert_says(r.err, wrong[i][1]);
    }
}

/* Changes the data during a run.  The steps before the change are saved, later steps are not. */
static void data_that_change_are_named(void **state)
{
    static const char *const modes[] = { "", "--worker-mode threads" };
    static job               j;
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        char line[512], path[64];
        (void)run_shell(&r, *state, "rm -rf ck; head -c 4000 /dev/zero | tr '\\0' a > text");
        (void)snprintf(line, sizeof line,
                       "train gpt --data text:text --layers 1 --width 16 --context 16 "
                       "--global-batch 8 --micro-batch 2 --lr 0.01 --steps 300 --checkpoint ck "
                       "--checkpoint-every 10 --log pipe %s",
                       modes[i]);
        job_start(&j, *state, 2, line);
        job_await_step(&j, HIT_AT);
        (void)snprintf(path, sizeof path, "%s/text", (const char *)*state);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(pwrite(fd, "b", 1, 100), 1);
        assert_int_equal(close(fd), 0);
        j.hit_at = seconds_now();
        (void)memset(j.worker, 0, sizeof j.worker);
        (void)job_wait(&j);
        assert_int_equal(j.result.status, 1);
        assert_string_equal(j.result.out, "");
        assert_says(j.result.err, "'text' has changed since it was opened (written at 20");
        (void)run_shell(&r, *state, "ls ck");
        assert_says(r.out, "step-00000010");
        assert_says_not(r.out, "step-0000006");
        forget(*state);
    }
}

/* ---- lockstep run ------------------------------------------------------------------------- */

static void run_reports_the_first_failure(void **state)
{
    static command_result r;
    run_command(&r, *state, "run -n 3 -- sh -c 'test $RANK = 1 && exit 9; exec sleep 100'");
    assert_int_equal(r.status, 9);
    assert_says(r.err, "lockstep run: rank 1 (pid ");
    assert_says(r.err, ") exited with status 9\n");
    run_command(&r, *state, "run -n 3 -- sh -c 'test $RANK = 2 && kill -9 $$; exec sleep 100'");
    assert_int_equal(r.status, 128 + SIGKILL);
    assert_says(r.err, "lockstep run: rank 2 (pid ");
    assert_says(r.err, ") was killed by SIGKILL\n");
    run_command(&r, *state, "run -n 3 no-such-program");
    assert_int_equal(r.status, 127);
    assert_says(r.err, "lockstep run: cannot run no-such-program: ");
}

static void the_example_has_the_same_weights_for_every_n(void **state)
{
    static command_result r;
    char                  line[1024], program[512], first[128] = "";
    (void)snprintf(program, sizeof program, "%s", LK_TEST_COMMAND); /* BUILD/bin/lockstep */
    for (int up = 0; up < 2; up++)
        *strrchr(program, '/') = '\0';
    (void)strcat(program, "/examples/own_gradients");
    if (access(program, X_OK) != 0) {
        print_message("skipped: %s is not built\n", program);
        skip();
    }
    (void)snprintf(line, sizeof line, "WORLD_SIZE=2 %s", program); /* it cannot join, and must not
                                                                    * crash */
    (void)run_shell(&r, *state, line);
    assert_int_equal(r.status, 1);
    assert_says(r.err, "WORLD_SIZE=2 is set, but not RANK");
    for (int workers = 1; workers <= 3; workers++) {
        (void)snprintf(line, sizeof line, "run -n %d %s", workers, program);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        const char *weights = strstr(r.out, "weights ");
        assert_non_null(weights);
        assert_true(strlen(weights) >= 8 + 64);
        if (workers == 1)
            (void)snprintf(first, sizeof first, "%.72s", weights);
        else if (strncmp(first, weights, 72) != 0)
            fail_msg("%d workers: %.72s, one: %s", workers, weights, first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(contradicting_options_are_named, begin_afresh),
        cmocka_unit_test_setup(options_of_compression_are_named, begin_afresh),
        cmocka_unit_test_setup(groups_may_come_and_go, begin_afresh),
        cmocka_unit_test_setup(a_non_finite_step_updates_nothing, begin_afresh),
        cmocka_unit_test_setup(cut_data_is_refused, begin_afresh),
        cmocka_unit_test_setup(data_that_change_are_named, begin_afresh),
        cmocka_unit_test_setup(run_reports_the_first_failure, begin_afresh),
        cmocka_unit_test_setup(the_example_has_the_same_weights_for_every_n, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
