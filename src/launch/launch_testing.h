/* launch/launch_testing.h -- the workers of launch_test.c, by mode. */
#ifndef LKI_LAUNCH_LAUNCH_TESTING_H
#define LKI_LAUNCH_LAUNCH_TESTING_H

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/group/group.h"
#include "lockstep/launch.h"

static int my_rank(void)
{
    const char *text = getenv("RANK");
    return text != NULL ? atoi(text) : -1;
}

static void sleep_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&time, NULL);
}

/* Sleeps until another process ends this one, but for some minutes at most. */
static void stay(void)
{
    sleep_ms(300000);
}

static lk_comm *join(void)
{
    lk_comm *comm;
    if (lk_join(&comm) == LK_OK)
        return comm;
    fprintf(stderr, "%s\n", lk_error_last()->message);
    exit(90);
}

/* Ends like a program that found an error: reports it to the group, and exits with 1. */
static int give_up(lk_comm *comm)
{
    fprintf(stderr, "%s\n", lk_error_last()->message);
    lk_comm_abort(comm);
    lk_comm_free(comm);
    return 1;
}

static int work_environment(void)
{
    static const char *const names[] = {"RANK",        "WORLD_SIZE",      "LOCAL_RANK", "CANARY",
                                        "MASTER_ADDR", "OMP_NUM_THREADS", "LOCAL_WORLD_SIZE",
                                        "LOCKSTEP_CONTINUES"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        printf("%s=%s\n", names[i], getenv(names[i]) != NULL ? getenv(names[i]) : "(none)");
    int port = getenv("MASTER_PORT") != NULL ? atoi(getenv("MASTER_PORT")) : 0;
    bool launched = false;
    return port > 0 && port < 65536 && lk_launched(&launched) == LK_OK && launched
                   && lk_continues() == (getenv("LOCKSTEP_CONTINUES") != NULL)
               ? 0 : 4;
}

static int work_lines(void)
{
    if (my_rank() == 1) {
        printf("one\ntwo\n\nlast");
        fprintf(stderr, "aside\n");
        return 0;
    }
    for (int i = 0; i < 20000; i++)
        putchar('x');
    putchar('\n');
    return 0;
}

static int work_exit3(void)
{
    if (my_rank() == 1)
        return 3;
    stay();
    return 0;
}

static int work_kill9(void)
{
    lk_comm *comm = join();

    lk_comm_note(comm, 12, "backward");
    if (lk_barrier(comm) != LK_OK)
        return give_up(comm);
    if (my_rank() == 1)
        (void)raise(SIGKILL);
    if (lk_barrier(comm) == LK_OK)
        return 0;
    return lk_error_last()->status == LK_EPEER ? give_up(comm) : 91;
}

/* Dies like work_kill9(), but without a report to the group.  Only the exit status shows the
 * failure. */
static int work_quiet(void)
{
    lk_comm *comm = join();

    if (lk_barrier(comm) != LK_OK)
        return 91;
    if (my_rank() == 1)
        _exit(7);
    _exit(lk_barrier(comm) == LK_OK ? 0 : 1);
}

/* Waits until the launcher has seen the end of ranks `first` to `first` + `count` - 1. */
static void await_end(const lk_comm *comm, uint32_t first, uint32_t count)
{
    for (uint32_t rank = first; rank < first + count; rank++)
        while (atomic_load(&lki_rank_of(comm, rank)->state) != LKI_RANK_DEAD)
            sleep_ms(1);
}

/* Rank 0 has an error, reports the error to the group, and exits only after its peers have
 * ended. */
static int work_slow_to_leave(void)
{
    lk_comm *comm = join();
    lk_comm *none;

    if (my_rank() == 0 && lk_comm_open_threads(&none, 0, NULL) != LK_OK) {
        lk_comm_abort(comm);
        await_end(comm, 1, lk_comm_size(comm) - 1);
        _exit(5);
    }
    _exit(lk_barrier(comm) == LK_OK ? 0 : 1);
}

/* Rank 0 reports an error to the group, and never exits by itself. */
static int work_never_leaves(void)
{
    lk_comm *comm = join();
    lk_comm *none;

    if (my_rank() == 0 && lk_comm_open_threads(&none, 0, NULL) != LK_OK) {
        lk_comm_abort(comm);
        stay();
    }
    _exit(lk_barrier(comm) == LK_OK ? 0 : 1);
}

/* Rank 0 receives LK_EPEER, and exits with 1.  Rank 1 is killed only after the launcher has seen
 * the end of rank 0. */
static int work_told_first(void)
{
    lk_comm *comm = join(), *pair[2];

    if (lk_barrier(comm) != LK_OK) /* the launcher ends workers that have not joined */
        return 91;
    if (my_rank() == 1) {
        await_end(comm, 0, 1);
        (void)raise(SIGKILL);
    }
    if (lk_comm_open_threads(pair, 2, NULL) != LK_OK)
        return 91;
    lk_comm_free(pair[1]); /* makes the barrier below return LK_EPEER */
    bool told = lk_barrier(pair[0]) == LK_EPEER;
    lk_comm_abort(comm);
    _exit(told ? 1 : 92);
}

static int work_error(void)
{
    lk_comm *comm = join();
    lk_comm *none;

    if (my_rank() == 2 && lk_comm_open_threads(&none, 0, NULL) != LK_OK) {
        lk_comm_note(comm, 3, "forward");
        return give_up(comm);
    }
    return lk_barrier(comm) == LK_OK ? 0 : give_up(comm);
}

static int work_stopped(void)
{
    lk_comm *comm = join();

    if (lk_barrier(comm) != LK_OK)
        return 91;
    lk_comm_set_timeout(comm, 3000); /* milliseconds; enough for the surviving ranks on a busy
                                      * machine */
    if (my_rank() == 1)
        (void)raise(SIGSTOP);
    return lk_barrier(comm) == LK_OK ? 0 : give_up(comm);
}

/* Makes steps until any rank was asked to stop; all ranks then agree to stop. */
static int steps_until_stop(lk_comm *comm)
{
    for (int step = 0; step < 100000; step++) {
        unsigned char mine = lk_stop_requested(comm), all[8];
        if (lk_all_gather(comm, &mine, all, 1) != LK_OK)
            return give_up(comm);
        for (uint32_t i = 0; i < lk_comm_size(comm); i++)
            if (all[i] != 0) {
                lk_comm_free(comm);
                return 75;
            }
        sleep_ms(1);
    }
    return 0;
}

static int work_stop(void)
{
    lk_comm *comm = join();
    if (my_rank() == 0)
        (void)kill(getppid(), SIGTERM);
    return steps_until_stop(comm);
}

/* Joins, and ignores every request. */
static int work_heedless(void)
{
    lk_comm *comm = join();

    if (lk_barrier(comm) == LK_OK && my_rank() == 0)
        (void)kill(getppid(), SIGTERM);
    stay();
    lk_comm_free(comm);
    return 0;
}

/* Signals every process, as timeout(1) and a terminal do. */
static int work_stop_all(void)
{
    lk_comm *comm = join();
    (void)raise(SIGINT);
    (void)raise(SIGTERM);
    (void)raise(SIGHUP);
    return steps_until_stop(comm);
}

/* Returns a signal mask of a process from /proc. "SigCgt" has the signals with handlers, "SigIgn"
 * the ignored signals. */
static uint64_t mask_of(int pid, const char *name)
{
    char          path[64], line[128];
    unsigned long mask = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            mask = strtoul(line + strlen(name) + 1, NULL, 16);
    if (file != NULL)
        (void)fclose(file);
    return mask;
}

/* Waits until the signal mask `name` of every worker contains the signal `number`. */
static void await_all(int number, const char *name)
{
    const char *size = getenv("WORLD_SIZE");
    int         ready, pid, launcher = (int)getppid();
    char        path[64];

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", launcher, launcher);
    do {
        FILE *children = fopen(path, "re");
        ready = 0;
        while (children != NULL && fscanf(children, "%d", &pid) == 1)
            ready += (int)(mask_of(pid, name) >> (number - 1) & 1);
        if (children != NULL)
            (void)fclose(children);
        sleep_ms(1);
    } while (size == NULL || ready < atoi(size));
}

static void on_signal(int number)
{
    static const char text[] = "asked\n";
    (void)!write(STDOUT_FILENO, text, sizeof text - 1);
    _exit(number == SIGTERM ? 0 : 20);
}

/* Runs like a program that does not use the library, with a signal handler of its own. */
static int work_plain(void)
{
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGUSR1, on_signal);
    if (my_rank() == 0) {
        await_all(SIGUSR1, "SigCgt");
        (void)kill(getppid(), getenv("USR1") != NULL ? SIGUSR1 : SIGTERM);
    }
    stay();
    return 0;
}

/* Ignores SIGTERM, and sends the launcher further requests from processes that are not workers. */
static int work_deaf(void)
{
    pid_t launcher = getppid();

    (void)signal(SIGTERM, SIG_IGN);
    await_all(SIGTERM, "SigIgn");
    while (my_rank() == 0) {
        sleep_ms(150);
        if (fork() == 0) {
            (void)kill(launcher, SIGTERM);
            _exit(0);
        }
        (void)wait(NULL);
    }
    stay();
    return 0;
}

static int work_leaves_child(void)
{
    if (fork() == 0) {
        sleep_ms(3000);
        _exit(0);
    }
    printf("gone\n");
    return 0;
}

static int work_pid(void)
{
    printf("%d\n", (int)getpid());
    (void)fflush(stdout);
    stay();
    return 0;
}

static int work_input(void)
{
    char text[16] = "nothing";
    (void)!fgets(text, sizeof text, stdin);
    printf("%s\n", text);
    return 0;
}

static int work_join(void)
{
    lk_comm *comm = join();
    int      bad  = lk_barrier(comm) != LK_OK;
    lk_comm_free(comm);
    return bad;
}

/* Prints the cores on which this rank may run.  Checks that a waiting rank spins if and only if
 * there is a core for each rank, whether or not ranks are bound to cores. */
static int work_cores(void)
{
    lk_comm  *comm = join();
    cpu_set_t set;
    bool      room = strcmp(getenv("CORES_ENOUGH"), "yes") == 0;
    bool      good = (comm->spins > 0) == room && sched_getaffinity(0, sizeof set, &set) == 0;

    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            printf("runs on %u\n", cpu);
    good = lk_barrier(comm) == LK_OK && good; /* no rank exits before the other ranks have
                                               * checked */
    lk_comm_free(comm);
    return !good;
}

static int work_wrong_size(void)
{
    (void)setenv("WORLD_SIZE", "7", 1);
    lk_comm *comm;
    bool     good = lk_join(&comm) == LK_EINVAL && comm == NULL;
    return good && strstr(lk_error_last()->message, "WORLD_SIZE=7") != NULL ? 0 : 92;
}

static int work(const char *mode)
{
    static const struct {
        const char *mode;
        int (*run)(void);
    } table[] = {
        {"environment", work_environment}, {"lines", work_lines},     {"exit3", work_exit3},
        {"kill9", work_kill9},             {"quiet", work_quiet},     {"error", work_error},
        {"stopped", work_stopped},         {"stop", work_stop},       {"stop_all", work_stop_all},
        {"heedless", work_heedless},
        {"plain", work_plain},             {"deaf", work_deaf},       {"pid", work_pid},
        {"leaves_child", work_leaves_child}, {"input", work_input},   {"join", work_join},
        {"wrong_size", work_wrong_size},   {"told_first", work_told_first},
        {"slow_to_leave", work_slow_to_leave}, {"never_leaves", work_never_leaves},
        {"cores", work_cores},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].mode, mode) == 0)
            return table[i].run();
    return 99;
}

#endif
