/* train_defaults_test.c -- tests that defaults follow a limit of the cgroup.
 *
 * Method: fopen() finds the files of the kernel in a folder of the test.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/commands.h"

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);

FILE *__wrap_fopen(const char *path, const char *mode)
{
    static const char kernel[] = "/sys/fs/cgroup/";
    if (strcmp(path, "/proc/self/cgroup") == 0)
        return __real_fopen("groups", mode);
    return __real_fopen(strncmp(path, kernel, strlen(kernel)) == 0 ? path + strlen(kernel) : path,
                        mode);
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int enter_folder(void **state)
{
    static char folder[] = "/tmp/lockstep-defaults-XXXXXX";
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int remove_folder(void **state)
{
    char here[64], line[96];
    (void)state;
    if (getcwd(here, sizeof here) == NULL || chdir("/") != 0)
        return 1;
    (void)snprintf(line, sizeof line, "rm -r %s", here);
    return system(line); /* a folder of this test */
}

/* Trains for a step, with one more option, and compares the number of workers with `workers`, and
 * what is said about them with `about`. */
static void check_workers(const char *option, uint32_t workers, const char *about)
{
    const char *const words[] = { "train", "mlp", "--data",
                                  "synthetic:samples=64,features=4,classes=2", "--steps", "1",
                                  "--hidden", "4", "--worker-mode", "threads", option };
    enum { COUNT = sizeof words / sizeof words[0] };
    char *line[COUNT + 1] = { NULL }, said[8192], wanted[160];
    int   kept = dup(STDERR_FILENO);
    for (size_t i = 0; i < COUNT; i++)
        line[i] = (char *)(uintptr_t)words[i];
    assert_non_null(freopen("said", "w+", stderr));
    int status = lki_command_train.main(COUNT, line);
    rewind(stderr);
    said[fread(said, 1, sizeof said - 1, stderr)] = '\0';
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    (void)close(kept);
    assert_int_equal(status, 0);
    (void)snprintf(wanted, sizeof wanted, "workers: %u with 1 thread each, on %s\n", workers,
                   about);
    if (strstr(said, wanted) == NULL || strstr(said, "(V 16)") == NULL)
        fail_msg("not '%s', or not V 16, in: %s", wanted, said);
}

static void train_follows_a_limit(void **state)
{
    cpu_set_t cpus;
    char      free[32], limited[96];
    (void)state;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) < 2)
        skip(); /* the default is one worker with one thread */
    const uint32_t cores = (uint32_t)CPU_COUNT(&cpus), most = cores < 16 ? cores : 16;
    (void)snprintf(free, sizeof free, "%u cores", cores);
    (void)snprintf(limited, sizeof limited, "%s, of which the cgroup grants the time of 0.5", free);
    put("groups", "0::/\n");
    put("cpu.max", "50000 100000\n");
    check_workers("--seed=1", 1, limited);
    put("cpu.max", "max 100000\n");
    check_workers("--seed=1", most, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_follows_a_limit),
    };
    return cmocka_run_group_tests(tests, enter_folder, remove_folder);
}
