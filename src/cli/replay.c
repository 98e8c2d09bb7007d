/* replay.c -- trains a part of a run again.  See replay.h.
 *
 * The options are those of a statement that somebody else may have written.  So only those are
 * used that decide the result or read a file; others, such as --log, could replace files here.
 *
 * A replay is a tree of processes: `lockstep train` and its workers.  The kernel kills each of them
 * when its parent dies, so none outlives this command, however it ends.
 */
#include "cli/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/record.h"
#include "cli/settings.h"
#include "lockstep/checkpoint.h"

enum { PATH = 1024, EXTRA = 7 };

static bool is_safe(const lki_option *row)
{
    static const char *const others[] = { "data", "init", "adapter", "sample-weights",
                                          "loss-weights", "eval-every", "keep-best" };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(row->name, others[i]) == 0)
            return true;
    return row->scope == LKI_SCOPE_RESULT || row->scope == LKI_SCOPE_RULE;
}

/* Writes the path of a file where it is now, or as it is.  Not inlined, because the paths are
 * large. */
__attribute__((noinline)) static void place_stated(void *context, const char *path, size_t length,
                                                   char *out, size_t bytes)
{
    const lki_replay_part *part = context;
    char                   name[2 * PATH];
    (void)snprintf(name, sizeof name, "%.*s", (int)length, path);
    if (lk_statement_file(part->statement, part->run, name, out, bytes) != LK_OK)
        (void)snprintf(out, bytes, "%s", name);
}

/* Returns the value of an option of the statement, with its files where they are now.  Not inlined,
 * because the value is large. */
__attribute__((noinline)) static json_t *placed(const lki_replay_part *part, const lki_option *row,
                                                const char *value)
{
    char text[4 * PATH];
    lki_place_value(row, place_stated, (void *)(uintptr_t)part, value, text, sizeof text);
    return json_string(text);
}

/* Writes FOLDER/command.json with the options of the statement that are safe. */
static bool write_command(const lki_replay_part *part, const char *folder)
{
    char    path[PATH];
    json_t *command = json_loads(lk_statement_command(part->statement), 0, NULL);
    json_t *all = json_object_get(command, "options"), *kept = json_object();
    for (const lki_option *row = lki_train_table; row->type != LKI_OPTION_END; row++) {
        const char *value = json_string_value(json_object_get(all, row->name));
        if (value != NULL && is_safe(row))
            (void)json_object_set_new(kept, row->name, placed(part, row, value));
    }
    (void)json_object_set_new(command, "options", kept);
    (void)snprintf(path, sizeof path, "%s/" LK_RUN_COMMAND, folder);
    bool good = json_dump_file(command, path, JSON_INDENT(1)) == 0;
    json_decref(command);
    return good;
}

/* Makes the checkpoint where the replay begins appear in the folder.  Not inlined, because its
 * paths are large. */
__attribute__((noinline)) static bool link_start(const lki_replay_part *part,
                                                 const char *folder)
{
    char step[2 * PATH], path[PATH], *whole;
    if (part->from == 0)
        return true;
    (void)snprintf(step, sizeof step, "%s/step-%08" PRIu64, part->run, part->from);
    (void)snprintf(path, sizeof path, "%s/step-%08" PRIu64, folder, part->from);
    whole     = realpath(step, NULL);
    bool good = whole != NULL && symlink(whole, path) == 0;
    free(whole);
    return good;
}

/* Runs `lockstep train` in this process, with its output in FOLDER/output, and exits. */
static _Noreturn void train(const lki_replay_part *part, const char *folder)
{
    char   text[EXTRA][PATH + 16], *more[64 + EXTRA] = { NULL };
    size_t count = 0;
    int    argc, status = LKI_EXIT_FAILURE;
    for (; part->more[count] != NULL && count < 64; count++)
        more[count] = part->more[count];
    (void)snprintf(text[0], sizeof text[0], "--log=%s/log.jsonl", folder);
    (void)snprintf(text[1], sizeof text[1], "--checkpoint-every=%" PRIu64, part->to);
    (void)snprintf(text[2], sizeof text[2], "--keep=1048576");
    for (size_t i = 0; i < 3; i++)
        more[count++] = text[i];
    if (part->from > 0) { /* with other data, the replay finds the first step that differs */
        (void)snprintf(text[3], sizeof text[3], "--resume=%" PRIu64, part->from);
        (void)snprintf(text[6], sizeof text[6], "--changed-data");
        more[count++] = text[3];
        more[count++] = text[6];
    }
    if (!lk_statement_has_key(part->statement, "steps")) { /* the schedule does not need it */
        (void)snprintf(text[4], sizeof text[4], "--steps=%" PRIu64, part->to);
        more[count++] = text[4];
    }
    (void)snprintf(text[5], sizeof text[5], "%s/output", folder);
    int output = open(text[5], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output >= 0 && dup2(output, STDOUT_FILENO) >= 0 && dup2(output, STDERR_FILENO) >= 0) {
        (void)setenv(LKI_TRAIN_FOR, "verify", 1);
        char **line = lki_record_arguments("verify", "train", folder, more, &argc);
        if (line != NULL)
            status = lki_command_train.main(argc, line);
        (void)fflush(NULL);
    }
    _exit(status);
}

/* The progress of a replay on a terminal, from the log that it writes. */
typedef struct {
    const lki_replay_part *part;
    FILE                  *log; /* NULL: no terminal, or no log yet */
    uint64_t               step;
    struct timespec        begun;
    bool                   terminal;
} progress;

/* Reads the lines that are new. */
static void read_log(progress *p)
{
    char              *line = NULL;
    size_t             room = 0;
    unsigned long long step;
    long               at   = ftell(p->log);
    for (ssize_t length; (length = getline(&line, &room, p->log)) > 0;) {
        if (line[length - 1] != '\n')
            break;
        at += length;
        if (strstr(line, "\"loss_bits\"") != NULL && sscanf(line, "{\"step\": %llu", &step) == 1)
            p->step = step;
    }
    (void)fseek(p->log, at, SEEK_SET); /* a line that is not complete is read again */
    free(line);
}

static void show_progress(progress *p, const char *folder)
{
    char            path[PATH];
    struct timespec now;
    const uint64_t  before = p->step, all = p->part->to - p->part->from;
    (void)snprintf(path, sizeof path, "%s/log.jsonl", folder);
    if (p->terminal && p->log == NULL)
        p->log = fopen(path, "re");
    if (p->log == NULL)
        return;
    read_log(p);
    if (p->step == before || p->step > p->part->to)
        return;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    double took = (double)(now.tv_sec - p->begun.tv_sec) +
                  1e-9 * (double)(now.tv_nsec - p->begun.tv_nsec);
    uint64_t done = p->step - p->part->from;
    fprintf(stderr, "\r\033[K  step %" PRIu64 " of %" PRIu64 "-%" PRIu64 ", %.0f s left", p->step,
            p->part->from + 1, p->part->to, took / (double)done * (double)(all - done));
}

static void end_progress(const progress *p)
{
    if (p->log != NULL) {
        fprintf(stderr, "\r\033[K");
        (void)fclose(p->log);
    }
}

/* Kills a replay, and waits for all its processes: this process is the parent of orphans. */
static void kill_all(pid_t pid)
{
    const struct timespec moment = { .tv_nsec = 10000000 };
    pid_t                 ended  = 0;
    (void)kill(pid, SIGKILL);
    for (int i = 0; i < 1000 && ended >= 0; i++) {
        ended = waitpid(-1, NULL, WNOHANG);
        if (ended == 0)
            (void)nanosleep(&moment, NULL);
        else if (ended < 0 && errno == EINTR)
            ended = 0;
    }
}

/* ---- The process --------------------------------------------------------------------------- */

/* Waits for the process.  Asks it to stop once the wanted checkpoint is there, because a run whose
 * schedule depends on its length goes on to its end.  Returns its exit status; -1 if a signal has
 * ended the replay. */
static int await(pid_t pid, const lki_replay_part *part, const char *folder, const char *wanted,
                 const sigset_t *before)
{
    progress              p      = { .part = part, .step = part->from,
                                     .terminal = lki_shows_progress() };
    const struct timespec moment = { .tv_nsec = 20000000 };
    bool                  asked  = false, ends_early = false;
    int                   status = 0;
    (void)clock_gettime(CLOCK_MONOTONIC, &p.begun);
    for (pid_t ended = 0; !ends_early && (ended = waitpid(pid, &status, WNOHANG)) != pid;) {
        ends_early = lki_is_asked_to_end(before) || (ended < 0 && errno != EINTR);
        if (!asked && access(wanted, F_OK) == 0) {
            (void)kill(pid, SIGTERM);
            asked = true;
        }
        show_progress(&p, folder);
        (void)nanosleep(&moment, NULL);
    }
    if (ends_early)
        kill_all(pid);
    end_progress(&p);
    if (ends_early)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Starts `lockstep train`, which dies with this process. */
static pid_t start(const lki_replay_part *part, const char *folder, const sigset_t *before)
{
    const pid_t parent = getpid();
    (void)fflush(NULL);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(LKI_EXIT_FAILURE);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    train(part, folder);
}

static void print_output(const char *folder)
{
    char  path[PATH], text[1024];
    (void)snprintf(path, sizeof path, "%s/output", folder);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(text, sizeof text, file) != NULL)
        fprintf(stderr, "  %s", text);
    if (file != NULL)
        (void)fclose(file);
}

bool lki_replay(const lki_replay_part *part, const char *folder, const sigset_t *before)
{
    char wanted[PATH];
    (void)snprintf(wanted, sizeof wanted, "%s/step-%08" PRIu64, folder, part->to);
    if (!write_command(part, folder) || !link_start(part, folder)) {
        fprintf(stderr, "lockstep verify: cannot prepare a replay in '%s': %s\n", folder,
                strerror(errno));
        return false;
    }
    pid_t pid    = start(part, folder, before);
    int   status = pid > 0 ? await(pid, part, folder, wanted, before) : -1;
    if (lki_is_asked_to_end(before))
        return false;
    if (access(wanted, F_OK) == 0)
        return true;
    fprintf(stderr, "lockstep verify: the replay of steps %" PRIu64 "-%" PRIu64 " ended with "
                    "status %d, and says:\n", part->from + 1, part->to, status);
    print_output(folder);
    return false;
}
