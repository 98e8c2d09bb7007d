/* workers.c -- starting copies of this program. */
#include "cli/workers.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/options.h"

/* The file that this program is, under its own name where that still leads to it: an upgrade may
 * have put another there. */
static char *own_file(char name[PATH_MAX])
{
    static char always[] = "/proc/self/exe";
    struct stat mine, named;
    ssize_t     length            = readlink(always, name, PATH_MAX - 1);
    name[length > 0 ? length : 0] = '\0';
    bool same                     = stat(always, &mine) == 0 && stat(name, &named) == 0 &&
                mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
    return same ? name : always;
}

void lki_name_worker(uint32_t rank)
{
    char name[16]; /* what the kernel keeps */
    (void)snprintf(name, sizeof name, "lockstep:%u", rank);
    (void)prctl(PR_SET_NAME, name);
}

/* What a launcher takes as a request to stop. */
static sigset_t requests(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    return set;
}

/* A launcher sends the request to those who have not joined, too; we have heard of it in our group
 * by now. */
lk_status lki_join_workers(lk_comm **out, const lk_join_options *options)
{
    const struct timespec none   = { 0, 0 };
    sigset_t              set    = requests();
    lk_status             status = lk_join_with(out, options);

    while (status == LK_OK && lk_stop_requested(*out) && sigtimedwait(&set, NULL, &none) > 0)
        continue;
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return status;
}

int lki_start_workers(char **argv, lk_launch_options how)
{
    /* argv is the command's part of main's: the program's name stands before it. */
    char   self[PATH_MAX];
    size_t count = 0;
    while (argv[count] != NULL)
        count++;
    char **worker = calloc(count + 2, sizeof *worker);
    if (worker == NULL) {
        fprintf(stderr, "lockstep %s: out of memory\n", argv[0]);
        return LKI_EXIT_FAILURE;
    }
    worker[0] = own_file(self);
    memcpy(worker + 1, argv, count * sizeof *argv);

    lk_launch_result result = { .exit_code = 0 };
    const sigset_t   set    = requests(); /* workers inherit what is blocked: lki_join_workers() */
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    how.argv                = worker;
    lk_status status        = lk_launch(&how, &result);
    free(worker);
    if (status != LK_OK) {
        fprintf(stderr, "lockstep %s: %s\n", argv[0], lk_error_last()->message);
        return result.exit_code;
    }
    /* Workers that refuse what the user wants have said so. */
    if (result.failed && result.exit_code != LKI_EXIT_STOPPED &&
        result.exit_code != LKI_EXIT_USAGE)
        fprintf(stderr, "lockstep %s: %s\n", argv[0], result.cause);
    return result.exit_code;
}
