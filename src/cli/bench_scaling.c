/* bench_scaling.c -- `lockstep bench scaling`: the speedup of steps with more workers.
 *
 * Runs the same global batch on 1, 2, ... N workers, so the result and the work are equal.  Each
 * run is a `bench step`.  Every round runs each number of workers once, alternately in descending
 * and ascending order; options that do not suit the largest number thus fail at once.  Efficiency
 * is the ratio of two speeds divided by the ratio of the numbers of workers.  Both speeds are
 * measured in the same round, so that disturbances of the machine affect both.
 */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench_step.h"
#include "cli/commands.h"
#include "cli/values.h"
#include "cli/workers.h"

enum { ROUNDS_DEFAULT = 3, ROUNDS_MAX = 99, COUNTS_MAX = 16, LINE_BYTES = 1 << 13 };

extern char **environ;

typedef struct {
    uint32_t counts[COUNTS_MAX], count_count, rounds;
    double   rates[COUNTS_MAX][ROUNDS_MAX];
    bool     json;
    char   **words; /* arguments of a run; the last one is the number of workers; ends with NULL */
    char     workers[16];
} scaling;

/* ---- Options: ours are removed, all others are passed to `bench step` -------------------- */

typedef struct {
    uint32_t workers, rounds;
    bool     json;
} scaling_options;

static const lki_option own[] = {
    LKI_U32("workers", "N", offsetof(scaling_options, workers), 2, 4096, "2",
            "largest number of workers"),
    LKI_U32("rounds", "N", offsetof(scaling_options, rounds), 1, ROUNDS_MAX, "3",
            "number of rounds; each round runs every number of workers once"),
    LKI_FLAG("json", offsetof(scaling_options, json),
             "print one JSON object per number of workers"),
    LKI_OPTIONS_END,
};

const lki_command lki_command_bench_scaling = {
    .name    = "bench scaling",
    .summary = "time training steps with growing numbers of workers",
    .usage   = "MODEL [--workers N] [--rounds N] [--json] [options of bench step]",
    .about = "Runs `bench step` with 1, 2, 4 ... and N workers, each once per round, and\n"
             "prints how much faster more workers are.  All compute the same batch, so the\n"
             "result is the same: --virtual-workers must be at least N.  The efficiency is the\n"
             "speedup over one worker divided by the number of workers: median and range over\n"
             "the rounds.",
    .examples = "  lockstep bench scaling gpt --workers 4 --global-batch 32 --micro-batch 4",
    .options  = own,
    .inherits = "bench step",
};

bool lki_bench_is_option(char **argv, int argc, int *i, const char *name, bool valued)
{
    size_t length = strlen(name);
    if (strncmp(argv[*i], "--", 2) != 0 || strncmp(argv[*i] + 2, name, length) != 0)
        return false;
    char end = argv[*i][2 + length];
    if (end == '\0' && valued && *i + 1 < argc)
        ++*i;
    return end == '\0' || (end == '=' && valued);
}

/* Splits argv into the arguments of `bench scaling` and those of a run.  Both arrays have space for
 * all arguments. */
static void split(int argc, char **argv, char **mine, int *mine_count, char **run, int *run_count)
{
    for (int i = 2; i < argc; i++) {
        int  from = i;
        bool ours = lki_bench_is_option(argv, argc, &i, "workers", true) ||
                    lki_bench_is_option(argv, argc, &i, "rounds", true) ||
                    lki_bench_is_option(argv, argc, &i, "json", false) ||
                    lki_bench_is_option(argv, argc, &i, "help", false) ||
                    strncmp(argv[i], "--help=", 7) == 0 || strcmp(argv[i], "-h") == 0;
        for (; from <= i; from++)
            if (ours)
                mine[(*mine_count)++] = argv[from];
            else
                run[(*run_count)++] = argv[from];
    }
}

static void choose_counts(scaling *s, uint32_t most)
{
    for (uint32_t n = 1; n < most && s->count_count + 1 < COUNTS_MAX; n *= 2)
        s->counts[s->count_count++] = n;
    s->counts[s->count_count++] = most;
}

/* ---- A run ------------------------------------------------------------------------------- */

/* Starts a run with its output in a pipe; *from becomes the read end.  Returns 0 or an errno. */
static int start_run(char **words, pid_t *pid, int *from)
{
    posix_spawn_file_actions_t actions;
    int                        ends[2];
    if (pipe(ends) != 0)
        return errno;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    (void)posix_spawn_file_actions_addclose(&actions, ends[0]);
    (void)posix_spawn_file_actions_addclose(&actions, ends[1]);
    int error = posix_spawn(pid, "/proc/self/exe", &actions, NULL, words, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    *from = ends[0];
    if (error != 0)
        (void)close(ends[0]);
    return error;
}

static size_t read_all(int from, char *line)
{
    size_t  used = 0;
    ssize_t got;
    while ((got = read(from, line + used, LINE_BYTES - 1 - used)) > 0 ||
           (got < 0 && errno == EINTR))
        used += got > 0 ? (size_t)got : 0;
    line[used] = '\0';
    return used;
}

int lki_bench_run(double *value, char **words, const char *key)
{
    char  line[LINE_BYTES], named[64];
    pid_t pid  = -1;
    int   from = -1, status = 0;

    int error = start_run(words, &pid, &from);
    if (error != 0) {
        fprintf(stderr, "lockstep bench: cannot start a run: %s\n", strerror(error));
        return LKI_EXIT_FAILURE;
    }
    (void)read_all(from, line);
    (void)close(from);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    (void)snprintf(named, sizeof named, "\"%s\": ", key);
    const char *at = strstr(line, named);
    if (at == NULL || sscanf(at + strlen(named), "%lf", value) != 1)
        *value = 0;
    return 0;
}

/* Measures samples per second.  Returns an exit status other than 0 on failure. */
static int run(scaling *s, uint32_t workers, double *rate)
{
    (void)snprintf(s->workers, sizeof s->workers, "%u", workers);
    int result = lki_bench_run(rate, s->words, "samples_per_s");
    return result != 0 || *rate > 0 ? result : LKI_EXIT_FAILURE;
}

/* ---- Output ------------------------------------------------------------------------------ */

static void print_count(const scaling *s, uint32_t c)
{
    double rates[ROUNDS_MAX], ratios[ROUNDS_MAX];
    for (uint32_t i = 0; i < s->rounds; i++) {
        rates[i]  = s->rates[c][i];
        ratios[i] = s->rates[c][i] / s->rates[0][i] / s->counts[c];
    }
    qsort(rates, s->rounds, sizeof *rates, lki_compare_numbers);
    qsort(ratios, s->rounds, sizeof *ratios, lki_compare_numbers);
    double rate = rates[s->rounds / 2], ratio = ratios[s->rounds / 2];
    double least = ratios[0], most = ratios[s->rounds - 1];
    if (s->json)
        printf("{\"workers\": %u, \"rounds\": %u, \"samples_per_s\": %.3f, \"efficiency\": %.4f, "
               "\"efficiency_min\": %.4f, \"efficiency_max\": %.4f}\n",
               s->counts[c], s->rounds, rate, ratio, least, most);
    else
        printf("%7u %14.1f %11.2f  (%.2f to %.2f)\n", s->counts[c], rate, ratio, least, most);
}

static int measure(scaling *s)
{
    for (uint32_t round = 0; round < s->rounds; round++)
        for (uint32_t i = 0; i < s->count_count; i++) {
            uint32_t c      = round % 2 == 1 ? i : s->count_count - 1 - i;
            int      result = run(s, s->counts[c], &s->rates[c][round]);
            if (result != 0)
                return result;
        }
    if (!s->json)
        printf("%7s %14s %11s\n", "workers", "samples/s", "efficiency");
    for (uint32_t c = 0; c < s->count_count; c++)
        print_count(s, c);
    return 0;
}

int lki_bench_scaling(int argc, char **argv)
{
    static char name[] = "lockstep", bench[] = "bench", step[] = "step", json[] = "--json",
                workers[]      = "--workers";
    scaling_options options    = { .workers = 2, .rounds = ROUNDS_DEFAULT };
    char          **mine       = calloc((size_t)argc + 2, sizeof *mine);
    char          **words      = calloc((size_t)argc + 8, sizeof *words);
    scaling        *s          = calloc(1, sizeof *s);
    int             mine_count = 1, run_count = 3, result = LKI_EXIT_FAILURE;
    bool            launched; /* unused; each run determines it for itself */

    if (mine != NULL && words != NULL && s != NULL) {
        mine[0]  = argv[1];
        words[0] = name;
        words[1] = bench;
        words[2] = step;
        split(argc, argv, mine, &mine_count, words, &run_count);
        result = lki_options_parse(&lki_command_bench_scaling, mine_count, mine, &options);
    }
    if (result < 0)
        result = lki_find_launcher(&lki_command_bench_scaling, NULL, &launched);
    if (result < 0) {
        words[run_count++] = json;
        words[run_count++] = workers;
        words[run_count]   = s->workers;
        s->words           = words;
        s->rounds          = options.rounds;
        s->json            = options.json;
        choose_counts(s, options.workers);
        result = measure(s);
    }
    free(mine);
    free(words);
    free(s);
    return result;
}
