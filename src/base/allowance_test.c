/* allowance_test.c -- tests the share of the machine that a process may use.
 *
 * Method: fopen() finds the files of the kernel in a folder of the test, and sched_getaffinity()
 * answers with a number of cores that the test has chosen.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lockstep/base.h"

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
int   __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *cpus);

static int bound; /* cores of the affinity; 0: sched_getaffinity() fails */

FILE *__wrap_fopen(const char *path, const char *mode)
{
    static const char kernel[] = "/sys/fs/cgroup/";
    if (strcmp(path, "/proc/self/cgroup") == 0)
        return __real_fopen("groups", mode);
    return __real_fopen(strncmp(path, kernel, strlen(kernel)) == 0 ? path + 1 : path, mode);
}

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *cpus)
{
    (void)pid;
    if (bound == 0) {
        errno = EINVAL; /* the kernel has more processors than `cpus` */
        return -1;
    }
    memset(cpus, 0, bytes);
    for (size_t i = 0; i < (size_t)bound; i++)
        CPU_SET(2 * i, cpus);
    return 0;
}

/* Writes a file below sys/fs/cgroup and makes its folder. */
static void put(const char *folder, const char *name, const char *text)
{
    char path[128] = "sys/fs/cgroup/";
    (void)snprintf(path, sizeof path, "sys/fs/cgroup/%s", folder);
    (void)mkdir(path, 0755);
    (void)snprintf(path, sizeof path, "sys/fs/cgroup/%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Writes /proc/self/cgroup. */
static void join_groups(const char *text)
{
    put("../../..", "groups", text);
}

static void check_cores(double granted, uint32_t cores)
{
    const lk_allowance a = lk_allowance_read();
    assert_int_equal(a.bound_cores, bound > 0 ? bound : 1);
    if (a.granted_cores != granted || a.cores != cores)
        fail_msg("granted %g, cores %u; expected %g and %u", a.granted_cores, a.cores, granted,
                 cores);
}

static int enter_folder(void **state)
{
    char folder[] = "/tmp/lockstep-allowance-XXXXXX";
    (void)state;
    bound = 8;
    return mkdtemp(folder) == NULL || chdir(folder) != 0 || mkdir("sys", 0755) != 0 ||
           mkdir("sys/fs", 0755) != 0 || mkdir("sys/fs/cgroup", 0755) != 0;
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

/* ---- Cores --------------------------------------------------------------------------------- */

static void without_a_limit_the_affinity_counts(void **state)
{
    (void)state;
    check_cores(0, 8); /* there is not even /proc/self/cgroup */
    join_groups("12:cpu:/a\n0::/a\n");
    check_cores(0, 8); /* the files of the groups cannot be read */
    put("", "cpu.max", "max 100000\n");
    put("cpu", "cpu.cfs_quota_us", "-1\n");
    check_cores(0, 8); /* the period of version 1 cannot be read */
    put("cpu", "cpu.cfs_period_us", "100000\n");
    check_cores(0, 8);
    put("", "cpu.max", "");
    put("cpu", "cpu.cfs_quota_us", "100000\n");
    put("cpu", "cpu.cfs_period_us", "0\n");
    check_cores(0, 8);
    bound = 0;
    check_cores(0, 1);
}

static void a_limit_of_version_2_is_rounded_up(void **state)
{
    (void)state;
    join_groups("0::/a\n");
    put("", "cpu.max", "max 100000\n");
    put("a", "cpu.max", "250000 100000\n");
    check_cores(2.5, 3);
    put("a", "cpu.max", "200000 100000\n");
    check_cores(2, 2);
    put("a", "cpu.max", "1000 100000\n");
    check_cores(0.01, 1);
}

static void a_limit_of_version_1_is_rounded_up(void **state)
{
    (void)state;
    join_groups("12:cpuacct,cpu:/\n3:cpuset:/\n0::/\n");
    put("cpu", "cpu.cfs_quota_us", "250000\n");
    put("cpu", "cpu.cfs_period_us", "100000\n");
    check_cores(2.5, 3);
    put("cpu", "cpu.cfs_quota_us", "50000\n");
    check_cores(0.5, 1);
    join_groups("3:cpuset:/\n2:cpuacct:/\n");
    check_cores(0, 8);
}

static void the_smallest_limit_above_counts(void **state)
{
    (void)state;
    join_groups("0::/a/b/c\n");
    put("a", "cpu.max", "300000 100000\n");
    put("a/b", "cpu.max", "max 100000\n");
    put("a/b/c", "cpu.max", "500000 100000\n");
    check_cores(3, 3);
    put("a/b/c", "cpu.max", "100000 100000\n");
    check_cores(1, 1);
    put("a", "cpu.max", "max 100000\n");
    put("a/b/c", "cpu.max", "max 100000\n");
    put("", "cpu.max", "400000 100000\n");
    check_cores(4, 4);
    join_groups("4:cpu:/docker/1\n"); /* a path of the host, of which the container has the end */
    put("cpu", "cpu.cfs_quota_us", "600000\n");
    put("cpu", "cpu.cfs_period_us", "100000\n");
    check_cores(6, 6);
}

static void a_smaller_affinity_counts(void **state)
{
    (void)state;
    join_groups("0::/\n");
    put("", "cpu.max", "250000 100000\n");
    bound = 2;
    check_cores(2.5, 2);
    put("", "cpu.max", "100000000000000 1000\n");
    check_cores(1e11, 2);
}

/* ---- Memory -------------------------------------------------------------------------------- */

static void put_memory(const char *folder, const char *limit, const char *used)
{
    put(folder, "memory.max", limit);
    put(folder, "memory.current", used);
    put(folder, "memory.stat", "anon 1\ninactive_file 100\nactive_file 200\n");
}

static void memory_is_what_groups_have_left(void **state)
{
    (void)state;
    assert_true(lk_allowance_read().granted_bytes == UINT64_MAX);
    join_groups("0::/a/b\n");
    put("a", "memory.max", "10000\n");
    assert_true(lk_allowance_read().granted_bytes == UINT64_MAX); /* the use cannot be read */
    put_memory("a", "10000\n", "4300\n");
    assert_int_equal(lk_allowance_read().granted_bytes, 6000); /* page cache can be reclaimed */
    put_memory("a/b", "max\n", "4000\n");
    assert_int_equal(lk_allowance_read().granted_bytes, 6000);
    put_memory("a/b", "5000\n", "4000\n");
    assert_int_equal(lk_allowance_read().granted_bytes, 1300);
    put_memory("a/b", "5000\n", "9000\n");
    assert_int_equal(lk_allowance_read().granted_bytes, 0);
    put_memory("a/b", "5000\n", "200\n"); /* the numbers were read at different times */
    assert_int_equal(lk_allowance_read().granted_bytes, 5000);
}

static void version_1_has_other_names(void **state)
{
    (void)state;
    join_groups("4:memory:/docker/1\n0::/\n");
    put("memory", "memory.limit_in_bytes", "1000\n");
    put("memory", "memory.usage_in_bytes", "400\n");
    put("memory", "memory.stat", "inactive_file 9\nactive_file 9\ntotal_inactive_file 60\n"
                                 "total_active_file 40\n");
    assert_int_equal(lk_allowance_read().granted_bytes, 700);
    put("memory", "memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_true(lk_allowance_read().granted_bytes == UINT64_MAX);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(without_a_limit_the_affinity_counts),
        IN_FOLDER(a_limit_of_version_2_is_rounded_up),
        IN_FOLDER(a_limit_of_version_1_is_rounded_up),
        IN_FOLDER(the_smallest_limit_above_counts),
        IN_FOLDER(a_smaller_affinity_counts),
        IN_FOLDER(memory_is_what_groups_have_left),
        IN_FOLDER(version_1_has_other_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
