/* hosts/nodes.h -- for tests: the nodes of a job, each a separate command, as on several hosts.
 *
 * All nodes run on this machine, and connect to a port of 127.0.0.1.  Each node's output goes to
 * separate files.  Every wait has a generous limit.
 */
#ifndef LKT_NODES_H
#define LKT_NODES_H

#include <errno.h>
#include <signal.h>
#include <time.h>

#include "cli/command.h"

enum { NODES_MAX = 4, LIMIT_SECONDS = 300 };

typedef struct {
    const char    *folder;
    uint32_t       count;
    unsigned       port;
    pid_t          pid[NODES_MAX]; /* pid of each command, a launcher; 0 = ended */
    command_result ended[NODES_MAX];
} nodes;

static inline double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void nap(void)
{
    const struct timespec moment = { 0, 2000000 };
    (void)nanosleep(&moment, NULL);
}

static inline void pass(double seconds)
{
    for (double since = seconds_now(); seconds_now() - since < seconds;)
        nap();
}

/* Prepares a job without nodes; its key is the file "key". */
static inline void nodes_begin(nodes *j, const char *folder)
{
    memset(j, 0, sizeof *j);
    j->folder = folder;
    j->port   = free_port();
}

static inline void forget_stream(const nodes *j, const char *stream, uint32_t i)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%s/%s%u", j->folder, stream, i);
    (void)close(open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
}

/* Starts a line of shell, in which $L is the command and $R the options that all nodes share. */
static inline uint32_t node_start(nodes *j, const char *line)
{
    static char whole[12000];
    uint32_t    i = j->count++;

    assert_true(i < NODES_MAX);
    forget_stream(j, "out", i); /* no test may read the output of an earlier job */
    forget_stream(j, "err", i);
    (void)snprintf(whole, sizeof whole,
                   "cd %s; L=%s; R='--rendezvous tcp://127.0.0.1:%u --job-key key'\n"
                   "exec >out%u 2>err%u </dev/null\n%s",
                   j->folder, LK_TEST_COMMAND, j->port, i, i, line);
    (void)fflush(NULL);
    j->pid[i] = fork();
    assert_true(j->pid[i] >= 0);
    if (j->pid[i] == 0) {
        (void)setpgid(0, 0);
        (void)execl("/bin/sh", "sh", "-c", whole, (char *)NULL);
        _exit(127);
    }
    (void)setpgid(j->pid[i], j->pid[i]);
    return i;
}

static inline void nodes_kill(nodes *j)
{
    for (uint32_t i = 0; i < j->count; i++)
        if (j->pid[i] > 0)
            (void)kill(-j->pid[i], SIGKILL);
}

static inline void nodes_fail(nodes *j, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline void nodes_fail(nodes *j, const char *format, ...)
{
    char    text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    nodes_kill(j);
    for (uint32_t i = 0; i < j->count; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "err%u", i);
        read_stream(j->folder, name, j->ended[i].err, sizeof j->ended[i].err);
        print_message("node %u says: %s", i, j->ended[i].err);
    }
    fail_msg("%s", text);
}

/* Returns the output of a node so far. */
static inline const char *node_said(nodes *j, uint32_t i, const char *stream)
{
    char name[16];
    (void)snprintf(name, sizeof name, "%s%u", stream, i);
    char *text = strcmp(stream, "out") == 0 ? j->ended[i].out : j->ended[i].err;
    read_stream(j->folder, name, text, sizeof j->ended[i].out);
    return text;
}

static inline void node_await_word(nodes *j, uint32_t i, const char *word)
{
    for (double since = seconds_now(); strstr(node_said(j, i, "out"), word) == NULL; nap())
        if (seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(j, "node %u does not say %s", i, word);
}

/* Waits until the launcher has handled all its signals.  The launcher handles them between two
 * sleeps.  Two pending signals of one kind would be merged. */
static inline void node_await_signals_taken(nodes *j, uint32_t i)
{
    bool taken = false, sleeps = false;
    for (double since = seconds_now(); !taken || !sleeps; nap()) {
        char path[64], line[256];
        (void)snprintf(path, sizeof path, "/proc/%d/status", (int)j->pid[i]);
        FILE *file = fopen(path, "r");
        if (file == NULL || seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(j, "node %u does not take its signal", i);
        while (fgets(line, sizeof line, file) != NULL) {
            if (strncmp(line, "State:", 6) == 0)
                sleeps = line[strlen("State:\t")] == 'S';
            if (strncmp(line, "ShdPnd:", 7) == 0)
                taken = strtoull(line + 7, NULL, 16) == 0;
        }
        (void)fclose(file);
    }
}

/* Waits for a node to end; ended[i] then has its output. */
static inline const command_result *node_wait(nodes *j, uint32_t i)
{
    int status = 0;

    for (double since = seconds_now(); j->pid[i] > 0; nap()) {
        pid_t got = waitpid(j->pid[i], &status, WNOHANG);
        if (got == j->pid[i])
            j->pid[i] = 0;
        else if (seconds_now() - since > LIMIT_SECONDS)
            nodes_fail(j, "node %u does not end", i);
    }
    j->ended[i].status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    (void)node_said(j, i, "out");
    (void)node_said(j, i, "err");
    return &j->ended[i];
}

/* Checks that node `i` ends with this status, and prints these words on stderr. */
static inline void node_ends(nodes *j, uint32_t i, int status, const char *words)
{
    const command_result *r = node_wait(j, i);
    if (r->status != status || strstr(r->err, words) == NULL)
        nodes_fail(j, "node %u ends with %d, not %d and '%s'", i, r->status, status, words);
}

static inline void nodes_end(nodes *j, int status, const char *words)
{
    for (uint32_t i = 0; i < j->count; i++)
        node_ends(j, i, status, words);
}

/* Creates a folder with a key in it. */
static inline int make_folder_with_key(void **state)
{
    static command_result r;
    if (make_folder(state) != 0)
        return 1;
    run_command(&r, *state, "key key");
    return r.status;
}

#endif
