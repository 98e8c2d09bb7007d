/* noise_test.c -- `--noise-scale`: the logged critical batch size does not depend on how the run is
 * executed, and continues from a checkpoint.
 *
 * Method: the command itself; the numbers that the log has for the last step are compared to the
 *         last digit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char model[] = "gpt --data synthetic:tokens=4000,vocab=31 --layers 1 --heads 2 "
                            "--width 24 --context 13 --optimizer adamw --lr 1e-3 "
                            "--virtual-workers 8 --global-batch 24 --micro-batch 3 --seed 3";
typedef struct { char text[256]; } figures;

static char dir[] = "/tmp/lockstep-noise-XXXXXX";

/* Trains, and returns the last step's log line from the field of the noise scale to its end. */
static figures train(const char *options)
{
    char    command[1024], line[2048], log[128];
    figures out = { "" };
    (void)snprintf(log, sizeof log, "%s/log.jsonl", dir);
    (void)snprintf(command, sizeof command, "rm -f %s; '%s' train %s --log %s %s > %s/out 2>&1",
                   log, LK_TEST_COMMAND, model, log, options, dir);
    if (system(command) != 0)
        fail_msg("%s", command);
    FILE *file = fopen(log, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        const char *at = strstr(line, "\"critical_batch\": ");
        if (at != NULL)
            (void)snprintf(out.text, sizeof out.text, "%s", at);
    }
    (void)fclose(file);
    return out;
}

static void assert_figures(const char *options, const figures *want)
{
    figures got = train(options);
    if (strcmp(got.text, want->text) != 0)
        fail_msg("%s: %s, not %s", options, got.text, want->text);
}

static void the_noise_scale_is_equal_on_any_workers(void **state)
{
    figures want = train("--steps 7 --noise-scale 0.9 --strategy single --workers 1");
    (void)state;
    assert_true(strtod(want.text + strlen("\"critical_batch\": "), NULL) > 0);
    assert_figures("--steps 7 --noise-scale 0.9 --workers 3 --worker-mode threads", &want);
    assert_figures("--steps 7 --noise-scale 0.9 --workers 4 --hosts 2 --strategy zero1", &want);
    assert_figures("--steps 7 --noise-scale 0.9 --workers 2 --strategy zero2 --bucket-mb 0.01",
                   &want);
    figures none = train("--steps 7 --workers 2");
    assert_string_equal(none.text, "");
    figures other = train("--steps 7 --noise-scale 0.8 --workers 2");
    assert_string_not_equal(other.text, want.text);
}

static void the_noise_scale_continues_from_a_checkpoint(void **state)
{
    char    options[256];
    figures want = train("--steps 7 --noise-scale 0.9 --workers 2");
    (void)state;
    (void)snprintf(options, sizeof options,
                   "--steps 4 --noise-scale 0.9 --workers 2 --checkpoint %s/run", dir);
    (void)train(options);
    (void)snprintf(options, sizeof options,
                   "--steps 7 --noise-scale 0.9 --workers 3 --strategy zero2 --checkpoint %s/run "
                   "--resume", dir);
    assert_figures(options, &want);
}

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_directory(void **state)
{
    char command[64];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_noise_scale_is_equal_on_any_workers),
        cmocka_unit_test(the_noise_scale_continues_from_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
