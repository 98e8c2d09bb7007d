/* joined_test.c -- what a worker that has joined must not do to its group: join again, or leave in
 * a forked child.
 *
 * Method: the workers are this program, started with "worker MODE".  Each does the wrong thing and
 *         then passes a barrier with the others, on one host and on two.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/self_testing.h"
#include "lockstep/launch.h"

static char self[SELF_BYTES];

/* Ends with an exit status that names the line. */
#define MUST(condition)                                                                          \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "line %d: %s\n", __LINE__, lk_error_last()->message);                \
            return 90;                                                                           \
        }                                                                                        \
    } while (0)

/* A child of fork() and a program that exec() starts have the environment of the worker. */
static int join_in_child(void)
{
    static char word[] = "worker", mode[] = "join_executed";
    char       *argv[] = { self, word, mode, NULL };
    lk_comm    *comm, *again;
    int         end = -1;
    MUST(lk_join(&comm) == LK_OK);
    for (int executes = 0; executes < 2; executes++) {
        pid_t child = fork();
        if (child == 0 && executes)
            (void)execv(self, argv);
        if (child == 0) {
            const bool refused = lk_join(&again) == LK_EINVAL && again == NULL;
            _exit(refused && strstr(lk_error_last()->message, "joins its group once") ? 0 : 1);
        }
        MUST(waitpid(child, &end, 0) == child && end == 0);
    }
    MUST(lk_barrier(comm) == LK_OK);
    lk_comm_free(comm);
    return 0;
}

static int join_executed(void)
{
    lk_comm *again;
    MUST(lk_join(&again) == LK_EINVAL && again == NULL);
    MUST(strstr(lk_error_last()->message, "is not open here") != NULL);
    return 0;
}

/* Whatever started the program has closed the descriptors, and their number is free or that of a
 * file. */
static int join_closed(void)
{
    const int control = atoi(getenv("LOCKSTEP_CONTROL_FD"));
    lk_comm  *comm;
    (void)close(control);
    while (dup(0) < control)
        continue;
    (void)close(control);
    MUST(lk_join(&comm) == LK_EINVAL && comm == NULL);
    MUST(strstr(lk_error_last()->message, "is not open here") != NULL);
    MUST(dup2(0, control) == control);
    MUST(lk_join(&comm) == LK_EINVAL && comm == NULL);
    MUST(strstr(lk_error_last()->message, "closed it") != NULL);
    return 0;
}

/* Numbers of descriptors that the first lk_join() has closed are soon those of connections. */
static int join_again(void)
{
    lk_comm *comm, *again;
    MUST(lk_join(&comm) == LK_OK);
    MUST(lk_barrier(comm) == LK_OK);
    MUST(lk_join(&again) == LK_EINVAL && again == NULL);
    MUST(strstr(lk_error_last()->message, "joins its group once") != NULL);
    MUST(lk_barrier(comm) == LK_OK);
    lk_comm_free(comm);
    return 0;
}

/* A child frees what it has inherited, as clean-up code of programs does. */
static int free_in_child(void)
{
    lk_comm *comm, *half;
    int      end = -1;
    MUST(lk_join(&comm) == LK_OK);
    MUST(lk_comm_split(&half, comm, lk_comm_rank(comm) / 2, 0) == LK_OK);
    pid_t child = fork();
    if (child == 0) {
        lk_comm_free(half);
        lk_comm_free(comm);
        _exit(0);
    }
    MUST(waitpid(child, &end, 0) == child && end == 0);
    MUST(lk_barrier(half) == LK_OK && lk_barrier(comm) == LK_OK);
    lk_comm_free(half);
    lk_comm_free(comm);
    return 0;
}

static int run(const char *mode)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } modes[] = { { "join_again", join_again }, { "join_in_child", join_in_child },
                  { "join_executed", join_executed }, { "join_closed", join_closed },
                  { "free_in_child", free_in_child } };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(mode, modes[i].name) == 0)
            return modes[i].run();
    return 91;
}

static void work(const char *mode)
{
    static char       word[]  = "worker";
    char              copy[32];
    char             *argv[]  = { self, word, copy, NULL };
    lk_launch_options options = LK_LAUNCH_OPTIONS_INIT;
    lk_launch_result  result;
    (void)snprintf(copy, sizeof copy, "%s", mode);
    options.workers    = 4;
    options.argv       = argv;
    options.timeout_ms = 20000;
    for (options.hosts = 0; options.hosts <= 2; options.hosts += 2) {
        assert_int_equal(lk_launch(&options, &result), LK_OK);
        if (result.exit_code != 0)
            fail_msg("%s, %u hosts: %s", mode, options.hosts, result.cause);
    }
}

static void a_second_join_is_refused_and_harmless(void **state)
{
    (void)state;
    work("join_again");
}

static void children_of_a_worker_cannot_join(void **state)
{
    (void)state;
    work("join_in_child");
}

static void closed_descriptors_are_named(void **state)
{
    (void)state;
    work("join_closed");
}

static void a_forked_child_does_not_leave_for_its_parent(void **state)
{
    (void)state;
    work("free_in_child");
}

int main(int argc, char **argv)
{
    if (self_is_worker(self, argc, argv))
        return run(argv[argc - 1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_join_is_refused_and_harmless),
        cmocka_unit_test(children_of_a_worker_cannot_join),
        cmocka_unit_test(closed_descriptors_are_named),
        cmocka_unit_test(a_forked_child_does_not_leave_for_its_parent),
    };
    return cmocka_run_group_tests_name("launch.joined", tests, NULL, NULL);
}
