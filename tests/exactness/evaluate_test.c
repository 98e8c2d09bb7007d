/* evaluate_test.c -- tests that evaluation counts each sample once, whatever the size of the
 * validation part.
 *
 * Goal:   validation parts of 1 to 3 * 8 + 1 samples have the same loss and accuracy on any number
 *         of workers, whether they have more or fewer samples than workers, virtual workers and
 *         micro-batches.  The accuracy is a whole number of samples, as counted by a single worker
 *         one sample at a time.
 * Method: the command itself.  The learning rate is 1e-30, so a step changes nothing and every run
 *         evaluates equal weights.
 */
#include <math.h>

#include "base/thorough_testing.h"
#include "cli/command.h"

enum { WORKERS = 8, LARGEST = 3 * WORKERS + 1 };

typedef struct {
    double loss, accuracy;
} verdict;

/* Evaluates a run.  Half of the 2 * `samples` images are reserved for validation. */
static verdict judge(const char *folder, int samples, const char *options)
{
    static command_result r;
    char                  line[1024], log[4096];
    verdict               out = { 0 };

    (void)snprintf(line, sizeof line,
                   "rm -f log; "
                   "'%s' train mlp --data synthetic:images=%d,h=4,w=4,c=1,classes=3 --hidden 9 "
                   "--validation 0.5 --global-batch 16 --steps 1 --lr 1e-30 --log log %s",
                   LK_TEST_COMMAND, 2 * samples, options);
    (void)run_shell(&r, folder, line);
    if (r.status != 0)
        fail_msg("%s: status %d\n%s", line, r.status, r.err);
    read_stream(folder, "log", log, sizeof log);
    const char *at = strstr(log, "\"val_loss\"");
    if (at == NULL || sscanf(at, "\"val_loss\": %lf, \"val_loss_bits\": \"%*16[0-9a-f]\", "
                                 "\"val_accuracy\": %lf", &out.loss, &out.accuracy) != 2)
        fail_msg("%s\nhas no validation in its log:\n%s", line, log);
    return out;
}

static void every_size_counts_each_sample_once(void **state)
{
    static const char *const ways[] = { "--workers 8 --worker-mode threads",
                                        "--workers 3 --worker-mode threads",
                                        "--workers 5 --hosts 2 --strategy zero1" };

    for (int samples = 1; samples <= LARGEST; samples += lki_brief() ? 3 : 1) {
        verdict alone = judge(*state, samples, "--workers 1 --virtual-workers 1 --micro-batch 1");
        verdict want  = judge(*state, samples, "--workers 1 --virtual-workers 8 --micro-batch 2");
        double  hits  = alone.accuracy * samples;
        assert_true(fabs(hits - nearbyint(hits)) < 1e-9);
        assert_memory_equal(&want.accuracy, &alone.accuracy, sizeof want.accuracy);
        assert_true(fabs(want.loss - alone.loss) < 1e-5 * alone.loss);
        for (size_t w = 0; w < 3; w++) {
            char options[128];
            if (w == 2 && samples % 8 > 1)
                continue;
            (void)snprintf(options, sizeof options, "%s --virtual-workers 8 --micro-batch 2",
                           ways[w]);
            verdict got = judge(*state, samples, options);
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("%d samples, %s: loss %.17g, accuracy %.17g, not %.17g, %.17g", samples,
                         ways[w], got.loss, got.accuracy, want.loss, want.accuracy);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_size_counts_each_sample_once, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
