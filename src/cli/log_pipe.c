/* log_pipe.c -- holds a log's pipe open; see log_pipe.h. */
#include "cli/log_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/settings.h"

static const char held[] = "LOCKSTEP_LOG_PIPE_HELD";

bool lki_log_pipe_is_held(void)
{
    return getenv(held) != NULL;
}

/* Opens a pipe, which must have a reader within a second.  Otherwise fails with ENXIO. */
static int open_soon(const char *path, int how)
{
    const struct timespec moment = { .tv_nsec = 20000000 };
    int                   fd     = open(path, how | O_NONBLOCK);
    for (int i = 0; fd < 0 && errno == ENXIO && i < 50; i++) {
        (void)nanosleep(&moment, NULL);
        fd = open(path, how | O_NONBLOCK);
    }
    return fd;
}

/* A pipe without a name, such as /dev/stdout, needs no reader to be opened. */
static int open_pipe(const char *command, const char *path)
{
    const int how = O_WRONLY | O_CLOEXEC;
    int       fd  = open_soon(path, how);
    if (fd >= 0 || errno != ENXIO)
        return fd;
    fprintf(stderr, "%slockstep %s: note: the log '%s' is a pipe that nobody reads; waiting for a "
                    "reader\n", lki_line_start(command), command, path);
    return open(path, how);
}

int lki_log_pipe_hold(const char *command, const char *path)
{
    struct stat info;
    (void)unsetenv(held);
    if (path == NULL || stat(path, &info) != 0 || !S_ISFIFO(info.st_mode))
        return -1;
    int fd = open_pipe(command, path);
    if (fd >= 0)
        (void)setenv(held, "1", 1);
    return fd;
}
