/* cli/command.h -- for tests: runs the command, and stores its output and exit status. */
#ifndef LKT_COMMAND_H
#define LKT_COMMAND_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Prints the whole message before it fails, because cmocka truncates messages at 1024 bytes. */
#undef fail_msg
#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), fail())

typedef struct {
    int  status; /* exit status, or 128 + signal */
    char out[16384], err[16384];
} command_result;

/* Creates a folder for the files of one test program. remove_folder() removes it. */
static inline int make_folder(void **state)
{
    static char folder[32];
    strcpy(folder, "/tmp/lockstep-cli-XXXXXX");
    *state = mkdtemp(folder);
    return *state == NULL;
}

static inline int remove_folder(void **state)
{
    char line[64];
    (void)snprintf(line, sizeof line, "rm -rf %s", (const char *)*state);
    return system(line);
}

/* Reads a file.  If it is too long, its middle is left out, because its last lines say how a job
 * ended. */
static inline void read_stream(const char *folder, const char *name, char *out, size_t bytes)
{
    static const char gap[] = "\n[...]\n";
    const size_t      half  = bytes / 2;
    char              path[64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t used = fread(out, 1, bytes - 1, file);
    if (used == bytes - 1 && fgetc(file) != EOF) {
        const size_t at = half + strlen(gap);
        memcpy(out + half, gap, strlen(gap));
        assert_int_equal(fseek(file, -(long)(bytes - 1 - at), SEEK_END), 0);
        used = at + fread(out + at, 1, bytes - 1 - at, file);
    }
    out[used] = '\0';
    (void)fclose(file);
}

static inline const char *run_shell(command_result *out, const char *folder, const char *line)
{
    static char whole[4096];
    int length = snprintf(whole, sizeof whole, "cd %s && { %s ; } >out 2>err </dev/null", folder,
                          line);
    assert_true(length > 0 && (size_t)length < sizeof whole);
    int status  = system(whole);
    out->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_stream(folder, "out", out->out, sizeof out->out);
    read_stream(folder, "err", out->err, sizeof out->err);
    return line;
}

/* Runs a line of the shell in the test's folder, and expects that it ends with a status. */
static inline void shell(command_result *out, void **state, const char *line, int status)
{
    (void)run_shell(out, *state, line);
    if (out->status != status)
        fail_msg("%s: status %d\n%s%s", line, out->status, out->out, out->err);
}

/* Reads the lines of a log that have a word, without the time and what is after it. */
static inline void read_log_lines(command_result *out, const char *folder, const char *word,
                                  const char *log)
{
    char line[256];
    (void)snprintf(line, sizeof line, "grep '%s' %s | sed 's/, .time.*//'", word, log);
    run_shell(out, folder, line);
}

/* Returns a port of 127.0.0.1 that nobody uses. */
static inline unsigned free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t          bytes   = sizeof address;
    int                fd      = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    (void)close(fd);
    return ntohs(address.sin_port);
}

/* Runs "lockstep ARGUMENTS" in the folder, through the shell. */
static inline void run_command(command_result *out, const char *folder, const char *arguments)
{
    char line[3000];
    (void)snprintf(line, sizeof line, "%s %s", LK_TEST_COMMAND, arguments);
    (void)run_shell(out, folder, line);
}

static inline void assert_says(const char *text, const char *wanted)
{
    if (strstr(text, wanted) == NULL)
        fail_msg("no '%s' in: %s", wanted, text);
}

static inline void assert_says_not(const char *text, const char *unwanted)
{
    if (strstr(text, unwanted) != NULL)
        fail_msg("\"%s\" in: %s", unwanted, text);
}

/* Reads the 64 digits of the last line of stdout, which must be "weights DIGITS". */
static inline void read_weights(const command_result *result, char digits[65])
{
    size_t      length = strlen(result->out);
    const char *line   = result->out + (length < 73 ? length : length - 73);
    if (sscanf(line, "weights %64[0-9a-f]\n", digits) != 1 || strlen(digits) != 64)
        fail_msg("the last line is no weights line: %s\n%s", result->out, result->err);
}

/* Runs a command that trains, and copies the hash of the run. */
static inline void run_for_hash(void *scratch, const char *line, char hash[65])
{
    static command_result r;
    run_command(&r, scratch, line);
    if (r.status != 0)
        fail_msg("%s: %s", line, r.err);
    const char *run = strstr(r.err, "\nrun ");
    assert_non_null(run);
    (void)snprintf(hash, 65, "%.64s", run + 5);
}

/* Trains `model` with `rule` and `how`, for some of all its steps of 16 samples, and copies the
 * hash of the run.  Not inlined, because each copy would have its own line on the stack. */
__attribute__((noinline, unused)) static void run_steps(void *scratch, int all, const char *model,
                                                        const char *rule, int steps,
                                                        const char *how, char hash[65])
{
    char line[1024];
    (void)snprintf(line, sizeof line, "%s --steps %d --max-samples %d %s %s", model, all,
                   16 * steps, rule, how);
    run_for_hash(scratch, line, hash);
}

#endif
