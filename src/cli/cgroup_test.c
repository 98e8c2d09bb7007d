/* cgroup_test.c -- tests the limits of cgroups, and what `train` says about them.
 *
 * Method: fopen() finds the files of the kernel in a folder of the test.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/cgroup.h"
#include "cli/commands.h"

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);

FILE *__wrap_fopen(const char *path, const char *mode)
{
    static const char kernel[] = "/sys/fs/cgroup/";
    if (strcmp(path, "/proc/self/cgroup") == 0)
        return __real_fopen("groups", mode);
    return __real_fopen(strncmp(path, kernel, strlen(kernel)) == 0 ? path + 1 : path, mode);
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
    static char folder[] = "/tmp/lockstep-cgroup-XXXXXX";
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0 || mkdir("sys", 0755) != 0 ||
           mkdir("sys/fs", 0755) != 0 || mkdir("sys/fs/cgroup", 0755) != 0 ||
           mkdir("sys/fs/cgroup/cpu", 0755) != 0 || mkdir("sys/fs/cgroup/memory", 0755) != 0;
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

static void controllers_of_cgroup_1_may_be_together(void **state)
{
    (void)state;
    put("groups", "12:cpuacct,cpu:/docker/1\n4:memory:/docker/1\n0::/\n");
    assert_true(lki_cgroup_cores() == 0);
    assert_true(lki_cgroup_memory() == UINT64_MAX);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "400\n");
    assert_true(lki_cgroup_cores() == 2.5);
    assert_true(lki_cgroup_memory() == 600);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    assert_true(lki_cgroup_cores() == 0);
    put("groups", "12:cpuset:/\n");
    assert_true(lki_cgroup_cores() == 0);
}

static void cgroup_2_comes_first(void **state)
{
    (void)state;
    put("groups", "0::/a\n");
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_true(lki_cgroup_cores() == 0);
    put("sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_true(lki_cgroup_cores() == 0.5);
}

/* Trains for a step, with one more option, and looks for a note. */
static void train_notes(const char *option, const char *note)
{
    const char *const words[] = { "train", "mlp", "--data",
                                  "synthetic:samples=64,features=4,classes=2", "--steps", "1",
                                  "--hidden", "4", "--worker-mode", "threads", option };
    enum { COUNT = sizeof words / sizeof words[0] };
    char *line[COUNT + 1] = { NULL }, said[8192];
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
    if ((strstr(said, "note: the cgroup grants") != NULL) != (note != NULL) ||
        (note != NULL && strstr(said, note) == NULL))
        fail_msg("not '%s' in: %s", note != NULL ? note : "no note", said);
}

static void train_notes_a_limit(void **state)
{
    cpu_set_t cpus;
    (void)state;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) < 2)
        skip(); /* the default is one worker with one thread */
    put("groups", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "50000 100000\n");
    train_notes("--seed=1", "the time of 0.5 cores: --workers 1 --threads 1 suits it");
    train_notes("--workers=2", NULL);
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    train_notes("--seed=1", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controllers_of_cgroup_1_may_be_together),
        cmocka_unit_test(cgroup_2_comes_first),
        cmocka_unit_test(train_notes_a_limit),
    };
    return cmocka_run_group_tests(tests, enter_folder, remove_folder);
}
