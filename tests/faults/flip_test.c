/* flip_test.c -- flips one bit in a run, and checks that the run detects the flip.
 *
 * Goal:   `--sdc-check 1` detects a gradient that differs by one bit on one worker in the same
 *         step.  It names worker, virtual worker and tensor, on stderr and in the log.  With
 *         --on-failure continue that worker is excluded, and the weights and the log are those of
 *         the undisturbed run.  A bit flipped in packed weights, which all workers read, is
 *         detected, too.  A bit flipped in the parameters between two steps is detected in the next
 *         step, and tensor, elements and worker are named.
 * Method: this program is also the command, and its workers are copies of it.  In the workers the
 *         linker replaces functions of the strategy by the functions below (flip_test.wrap), and
 *         LKT_FLIP has the form "KIND RANK STEP".
 * Control: without --sdc-check the flip is not reported, and the weights differ.
 */
#include "cli/command.h"
#include "cli/commands.h"
#include "comm/worker.h"
#include "parallel/state.h"

#define MLP                                                                                        \
    "train mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --virtual-workers 5 --hidden 8 "   \
    "--global-batch 20 --micro-batch 2 --momentum 0.9 --lr 0.05 --steps 9 --quiet "
enum { AT_STEP = 3, TERM = 1 }; /* steps count from 1; the term is the last bias */

/* ---- Flips in a worker -------------------------------------------------------------------- */

void      __real_lk_parallel_grad_ready(lk_parallel *parallel, uint32_t index, uint32_t term);
lk_status __real_lk_parallel_begin(lk_parallel *parallel, uint64_t step);
void      __wrap_lk_parallel_grad_ready(lk_parallel *parallel, uint32_t index, uint32_t term);
LK_NODISCARD lk_status __wrap_lk_parallel_begin(lk_parallel *parallel, uint64_t step);

static bool flipped; /* flip only once */

static bool strikes(const lk_parallel *parallel, const char *kind, uint64_t step)
{
    const char   *wish = getenv("LKT_FLIP");
    char          what[16];
    unsigned      rank;
    unsigned long at;
    return !flipped && wish != NULL && sscanf(wish, "%15s %u %lu", what, &rank, &at) == 3 &&
           strcmp(what, kind) == 0 && at == step + 1 &&
           lk_comm_world_rank(parallel->comm, parallel->rank) == rank;
}

static void flip(float *value)
{
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    bits ^= 1u << 20;
    memcpy(value, &bits, sizeof bits);
    flipped = true;
}

/* Flips a bit in the first row of the first weight, which follows the identity of the layout and
 * the state of the first pack. */
static void flip_packs(const lk_parallel *parallel)
{
    lk_arena *packs = lki_comm_arena_named(parallel->comm, "packs");
    LK_ASSERT(packs != NULL);
    for (uint32_t i = 0; i < 8; i++)
        flip((float *)(void *)((char *)lk_arena_data(packs) + 128) + i);
}

void __wrap_lk_parallel_grad_ready(lk_parallel *parallel, uint32_t index, uint32_t term)
{
    if (term == TERM && parallel->turn.micro + 1 == parallel->now.micros &&
        (strikes(parallel, "gradient", parallel->step) ||
         (parallel->turn.kind == LKI_TURN_AGAIN && strikes(parallel, "again", parallel->step))))
        flip(lk_parallel_grad(parallel, index, term));
    if (term == TERM && strikes(parallel, "pack", parallel->step))
        flip_packs(parallel);
    __real_lk_parallel_grad_ready(parallel, index, term);
}

lk_status __wrap_lk_parallel_begin(lk_parallel *parallel, uint64_t step)
{
    if (strikes(parallel, "parameter", step))
        flip(&parallel->params[parallel->layout->spans[parallel->layout->first_span[TERM]].at + 5]);
    return __real_lk_parallel_begin(parallel, step);
}

/* ---- Runs ---------------------------------------------------------------------------------- */

static char self[256];

/* Runs the command.  `flips`: "KIND RANK" for step AT_STEP, or NULL. */
static void run(command_result *r, const char *folder, const char *flips, uint32_t workers,
                const char *options)
{
    char line[1024], wish[64] = "";
    if (flips != NULL)
        (void)snprintf(wish, sizeof wish, "LKT_FLIP='%s %d' ", flips, AT_STEP);
    (void)snprintf(line, sizeof line, "rm -f log; %s%s " MLP "--workers %u --log log %s", wish,
                   self, workers, options);
    (void)run_shell(r, folder, line);
}

/* Reads the steps of the log, without times and without the lines at its end. */
static void read_steps(command_result *r, const char *folder)
{
    (void)run_shell(r, folder, "sed -E '/\"(config|workers|audit|weights|checkpoint)\"/d; "
                               "s/\"samples_per_s.*//' log");
}

static void undisturbed(const char *folder, char digits[65], command_result *steps)
{
    static command_result r;
    run(&r, folder, NULL, 1, "--strategy single");
    assert_int_equal(r.status, 0);
    read_weights(&r, digits);
    read_steps(steps, folder);
}

/* Checks the reports on stderr and in the log. */
static void assert_named(const command_result *r, const char *folder, uint32_t rank)
{
    static command_result log;
    char                  wanted[128];
    (void)snprintf(wanted, sizeof wanted, "step %d: rank %u has made other results of virtual "
                   "worker ", AT_STEP, rank);
    assert_says(r->err, wanted);
    assert_says(r->err, "(gradient of 'fc1.bias') than ranks ");
    (void)run_shell(&log, folder, "grep audit\\\" log");
    (void)snprintf(wanted, sizeof wanted, "{\"step\": %d, \"audit\": {\"virtual_worker\": ",
                   AT_STEP);
    assert_ptr_equal(strstr(log.out, wanted), log.out);
    (void)snprintf(wanted, sizeof wanted, "], \"odd\": %u, \"what\": \"gradient of "
                   "'fc1.bias'\"}, \"time\": ", rank);
    assert_says(log.out, wanted);
    assert_true(strchr(log.out, '\n')[1] == '\0'); /* one report only */
}

static const char *const kinds[]      = { "gradient", "again" };
static const char *const strategies[] = { "ddp", "zero1", "zero2", "zero3" };

static void a_flipped_gradient_ends_the_run(void **state)
{
    static command_result r;
    char                  options[64], flips[32];
    for (uint32_t i = 0; i < 4; i++) {
        (void)snprintf(options, sizeof options, "--sdc-check 1 --strategy %s", strategies[i]);
        (void)snprintf(flips, sizeof flips, "%s %u", kinds[i % 2], i % 3);
        run(&r, *state, flips, 3, options);
        if (r.status != 1)
            fail_msg("%s: status %d: %s", options, r.status, r.err);
        assert_named(&r, *state, i % 3);
    }
    run(&r, *state, "gradient 1", 2, "--sdc-check 1");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "and there is no third rank to tell which (nothing was updated)");
}

/* Flips packed weights.  The worker that reads them has other results than the two workers that
 * repeat its virtual workers. */
static void a_flipped_pack_ends_the_run(void **state)
{
    static command_result r;
    run(&r, *state, "pack 1", 3, "--sdc-check 1");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "has made other results of virtual worker ");
}

static void a_worker_with_wrong_gradients_is_excluded(void **state)
{
    static command_result r, want, got;
    char                  options[128], flips[32], wanted[65], digits[65];
    undisturbed(*state, wanted, &want);
    for (uint32_t i = 0; i < 4; i++) {
        (void)snprintf(options, sizeof options, "--sdc-check 1 --on-failure continue --strategy %s "
                       "--checkpoint ck", strategies[i]);
        (void)snprintf(flips, sizeof flips, "%s %u", kinds[i / 2], i % 3);
        run(&r, *state, flips, 3, options);
        if (r.status != 0)
            fail_msg("%s: status %d: %s", options, r.status, r.err);
        assert_named(&r, *state, i % 3);
        assert_says(r.err, "; 5 of 5 were unfinished; ");
        read_weights(&r, digits);
        assert_string_equal(digits, wanted);
        read_steps(&got, *state);
        assert_string_equal(got.out, want.out);
        (void)run_shell(&got, *state, "rm -rf ck");
    }
}

static void a_flip_is_not_detected_without_audits(void **state)
{
    static command_result r, steps;
    char                  wanted[65], digits[65];
    undisturbed(*state, wanted, &steps);
    run(&r, *state, "gradient 1", 3, "");
    assert_int_equal(r.status, 0);
    read_weights(&r, digits);
    assert_string_not_equal(digits, wanted);
    run(&r, *state, NULL, 3, "--sdc-check 1"); /* audits change no bits */
    assert_int_equal(r.status, 0);
    read_weights(&r, digits);
    assert_string_equal(digits, wanted);
}

static void flipped_parameters_are_found(void **state)
{
    static command_result r;
    char                  options[64], wanted[64];
    for (uint32_t i = 0; i < 4; i++) {
        (void)snprintf(options, sizeof options, "--strategy %s", strategies[i]);
        run(&r, *state, "parameter 1", 3, options);
        if (r.status != 1)
            fail_msg("%s: status %d: %s", options, r.status, r.err);
        (void)snprintf(wanted, sizeof wanted, ", step %d: parameter 'fc", AT_STEP);
        assert_says(r.err, wanted);
        assert_says(r.err, "changed since it was written");
    }
}

#define OPTIONS                                                                                    \
    "mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --hidden 8 --global-batch 20 "           \
    "--micro-batch 2 --momentum 0.9 --steps 9 --quiet "

/* Copies the line of stdout that begins with `word` to `line`. */
static void read_line(const command_result *r, const char *word, char line[128])
{
    const char *at     = strstr(r->out, word);
    size_t      length = at != NULL ? strcspn(at, "\n") : 0;
    if (length == 0 || length >= 128)
        fail_msg("no '%s': status %d: %s%s", word, r->status, r->out, r->err);
    memcpy(line, at, length);
    line[length] = '\0';
}

static void verify_recomputes_one_virtual_worker(void **state)
{
    static command_result r;
    char                  here[128], there[128];
    run_command(&r, *state, "train " OPTIONS "--virtual-workers 5 --lr 0.05 --workers 3 "
                            "--checkpoint saved --checkpoint-every 3");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "verify " OPTIONS "--virtual-workers 5 --lr 0.05 --workers 3 "
                            "--checkpoint saved --step 6 --virtual-worker 2");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "step 6, virtual worker 2, from step 3 on\nsamples 4\nloss ");
    read_line(&r, "gradient", here);
    for (uint32_t v = 2; v < 4; v++) {
        char line[512];
        (void)snprintf(line, sizeof line, "verify " OPTIONS "--virtual-workers 5 --lr 0.05 "
                       "--step 6 --virtual-worker %u", v);
        run_command(&r, *state, line);
        assert_says(r.out, ", from step 0 on\n");
        read_line(&r, "gradient", there);
        assert_true((strcmp(here, there) == 0) == (v == 2));
    }
}

#define JOINED                                                                                     \
    "--global-batch 32 --micro-batch 4 --steps 9 --virtual-workers 8 --lr 0.1 --quiet --step 4 "

/* Verifies virtual workers of runs whose turns are joined, and of one whose turns are not. */
static void verify_divides_joint_turns(void **state)
{
    static const char *const lines[] = {
        "verify mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --hidden 8 " JOINED
        "--virtual-worker 0",
        "verify mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --hidden 8 " JOINED
        "--virtual-worker 5",
        "verify resnet --data synthetic:images=64,h=8,w=8,c=3,classes=3 --depth 8 " JOINED
        "--virtual-worker 5",
        "verify resnet --data synthetic:images=64,h=8,w=8,c=3,classes=3 --depth 8 " JOINED
        "--virtual-worker 5 --activation-checkpointing",
    };
    static command_result r;
    char                  gradient[4][128];
    for (int i = 0; i < 4; i++) {
        run_command(&r, *state, lines[i]);
        if (r.status != 0)
            fail_msg("%s: %s", lines[i], r.err);
        read_line(&r, "gradient", gradient[i]);
    }
    assert_string_not_equal(gradient[0], gradient[1]);
    assert_string_equal(gradient[2], gradient[3]);
}

/* Verifies the only virtual worker of a run, whose loss must be that of the log. */
static void verify_prints_the_loss_of_the_log(void **state)
{
    static command_result r;
    char                  loss[64];
    run_command(&r, *state, "train " OPTIONS "--virtual-workers 1 --lr 0.05 --log alone");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "sed -n 's/^{\"step\": 6, .*\"loss\": \\([^,]*\\),.*/\\1/p' "
                                "alone");
    (void)snprintf(loss, sizeof loss, "\nloss %.*s (a mean over 20)\n",
                   (int)strcspn(r.out, "\n"), r.out);
    run_command(&r, *state, "verify " OPTIONS "--virtual-workers 1 --lr 0.05 --step 6 "
                            "--virtual-worker 0");
    assert_says(r.out, loss);
}

static void verify_finds_a_non_finite_value_again(void **state)
{
    static command_result r;
    unsigned long         step = 0;
    char                  line[512];
    run_command(&r, *state, "train " OPTIONS "--virtual-workers 5 --lr 1e30");
    assert_int_equal(r.status, 3);
    const char *said = strstr(r.err, ": step ");
    assert_true(said != NULL && sscanf(said, ": step %lu:", &step) == 1);
    (void)snprintf(line, sizeof line, "verify " OPTIONS "--virtual-workers 5 --lr 1e30 --step %lu "
                   "--virtual-worker 0", step);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 3);
    assert_says(r.out, "not finite: block ");
    assert_says(r.out, ", gradient of 'fc1.bias': element ");
    run_command(&r, *state, "verify " OPTIONS "--virtual-workers 5 --lr 1 --step 10 "
                            "--virtual-worker 0");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "there is no step 10: they are numbered from 1, up to 9");
}

static void options_that_cannot_be_audited_are_refused(void **state)
{
    static const char *const lines[][2] = {
        { MLP "--workers 2 --sdc-check 1.5", "must be a number above 0 and up to 1" },
        { MLP "--workers 3 --hosts 3 --strategy zero3 --sdc-check 1", "needs --strategy ddp, "
                                                                      "zero1" },
        { "train resnet --data synthetic:images=60,h=9,w=9,c=3,classes=4 --batchnorm sync "
          "--virtual-workers 4 --global-batch 8 --steps 2 --lr 0.1 --sdc-check 1",
          "--sdc-check needs --batchnorm ghost" },
    };
    static command_result r;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        run_command(&r, *state, lines[i][0]);
        assert_int_equal(r.status, 2);
        assert_says(r.err, lines[i][1]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_gradient_ends_the_run),
        cmocka_unit_test(a_flipped_pack_ends_the_run),
        cmocka_unit_test(a_worker_with_wrong_gradients_is_excluded),
        cmocka_unit_test(a_flip_is_not_detected_without_audits),
        cmocka_unit_test(flipped_parameters_are_found),
        cmocka_unit_test(verify_recomputes_one_virtual_worker),
        cmocka_unit_test(verify_divides_joint_turns),
        cmocka_unit_test(verify_prints_the_loss_of_the_log),
        cmocka_unit_test(verify_finds_a_non_finite_value_again),
        cmocka_unit_test(options_that_cannot_be_audited_are_refused),
    };
    if (argc > 1)
        return lki_command_train.main(argc - 1, argv + 1);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
