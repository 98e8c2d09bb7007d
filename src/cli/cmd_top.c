/* cmd_top.c -- `lockstep top`: shows a run that is going on, or was, from its log. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/settings.h"
#include "cli/top.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/report.h"
#include "lockstep/train.h"

typedef struct {
    const char *run;
    bool        once;
    uint32_t    every_ms;
} top_options;

#define AT(field) offsetof(top_options, field)

/* clang-format off */
static const lki_option table[] = {
    LKI_POSITIONAL("RUN", AT(run), true,
                   "the --log file of the run, or its --checkpoint directory"),
    { .name = "every", .type = LKI_OPTION_SECONDS, .value = "S", .offset = AT(every_ms),
      .range = &lki_range_positive, .preset = "1", .help = "seconds between two looks" },
    LKI_FLAG("once", AT(once), "print once, and end (the default if this is no terminal)"),
    LKI_OPTIONS_END,
};
/* clang-format on */

/* Returns true if all processes of the run were on this host, and none is left. */
static bool is_gone(const lki_top *top)
{
    char host[65] = "";
    bool gone     = gethostname(host, sizeof host - 1) == 0 && top->rank_count > 0;
    for (uint32_t r = 0; r < top->rank_count && gone; r++)
        gone = strcmp(top->ranks[r].name, host) == 0 && top->ranks[r].pid > 0 &&
               kill((pid_t)top->ranks[r].pid, 0) != 0 && errno == ESRCH;
    return gone;
}

static lki_top_screen look(const lki_top *top, bool terminal)
{
    struct winsize size;
    unsigned       can    = lki_terminal_of();
    lki_top_screen screen = { .columns = 80, .rows = 24, .now = (double)time(NULL),
                              .gone    = is_gone(top),
                              .color   = terminal && (can & LK_TERMINAL_COLOR) != 0,
                              .unicode = (can & LK_TERMINAL_UNICODE) != 0 };
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        screen.columns = size.ws_col;
        screen.rows    = size.ws_row;
    }
    if (screen.rows > 1)
        screen.rows--; /* the cursor's line */
    return screen;
}

/* Draws in place: every line is replaced as a whole, so nothing flickers. */
static void redraw(const lki_top *top, bool terminal)
{
    char          *text  = NULL;
    size_t         bytes = 0;
    lki_top_screen screen = look(top, terminal);
    FILE          *out    = open_memstream(&text, &bytes);
    if (out == NULL)
        return;
    lki_top_draw(top, &screen, out);
    (void)fclose(out);
    if (terminal)
        fputs("\033[H", stdout);
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        printf("%.*s%s\n", (int)length, at, terminal ? "\033[K" : "");
        at += length + (at[length] == '\n');
    }
    fputs(terminal ? "\033[J" : "", stdout);
    (void)fflush(stdout);
    free(text);
}

/* Waits for the next look.  Returns false after q, Ctrl-C or SIGTERM. */
static bool wait_for(uint32_t ms, const sigset_t *ends)
{
    struct timespec none = { 0, 0 };
    struct pollfd   key  = { .fd = STDIN_FILENO, .events = POLLIN };
    char            c    = '\0';
    sigset_t        open;
    struct timespec time = { ms / 1000, (long)(ms % 1000) * 1000000 };
    (void)sigemptyset(&open);
    int ready = ppoll(&key, isatty(STDIN_FILENO) == 1 ? 1 : 0, &time, &open);
    if (ready > 0 && (read(STDIN_FILENO, &c, 1) != 1 || c == 'q'))
        return false;
    return ready >= 0 && sigtimedwait(ends, NULL, &none) < 0;
}

static void on_signal(int number)
{
    (void)number; /* interrupts ppoll() */
}

static void follow(lki_top *top, uint32_t every_ms)
{
    sigset_t ends;
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGTERM, on_signal);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL);
    fputs("\033[?1049h\033[?25l\033[H\033[J", stdout); /* another screen, without a cursor */
    do {
        (void)lki_top_read(top);
        redraw(top, true);
    } while (!top->done && wait_for(every_ms, &ends));
    fputs("\033[?25h\033[?1049l", stdout);
    redraw(top, false); /* what stays on the terminal */
}

static int top_main(int argc, char **argv)
{
    top_options options = { .every_ms = 1000 };
    char        path[4096];
    lki_top    *top  = calloc(1, sizeof *top);
    int         done = lki_options_parse(&lki_command_top, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_top, NULL);
    if (done >= 0 || top == NULL) {
        free(top);
        return done >= 0 ? done : LKI_EXIT_FAILURE;
    }
    struct stat info;
    bool        there = stat(options.run, &info) == 0;
    (void)snprintf(path, sizeof path, "%s", options.run);
    if (there && S_ISDIR(info.st_mode) && lk_run_log(path, sizeof path, options.run) != LK_OK) {
        lki_print_error("top");
        done = LKI_EXIT_USAGE;
    } else if (there && !S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
        done = lki_usage_error(&lki_command_top, "'%s' is no file; give the --log FILE of a run",
                               options.run);
    } else {
        top->path = path;
        done      = 0;
        if (!lki_top_read(top)) {
            fprintf(stderr, "lockstep top: cannot read '%s'; give the --log FILE of a run, or its "
                            "--checkpoint directory\n", path);
            done = LKI_EXIT_FAILURE;
        } else if (top->begun == 0 && there && info.st_size > 0) {
            fprintf(stderr, "lockstep top: '%s' is no log of lockstep train or "
                            "lockstep.torch\n", path);
            done = LKI_EXIT_FAILURE;
        } else if (options.once || isatty(STDOUT_FILENO) != 1 ||
                   (lki_terminal_of() & LK_TERMINAL_DUMB) != 0)
            redraw(top, false);
        else
            follow(top, options.every_ms);
    }
    free(top);
    return done;
}

const lki_command lki_command_top = {
    .name    = "top",
    .summary = "show a run: loss, speed, and a row a worker",
    .usage   = "RUN [--every S] [--once]",
    .about =
        "Shows the state of a run from its log: progress, the curve of the loss, the parts of a\n"
        "step, a row for every worker with its time in the step, and what happened last.  The run\n"
        "may be elsewhere, as long as its --log FILE can be read, and may have ended.  q ends it.\n"
        "NO_COLOR and TERM=dumb are respected.",
    .examples = "  lockstep top run1.jsonl\n"
                "  lockstep top run1        (the --checkpoint directory of a run with --log)",
    .options  = table,
    .main     = top_main,
};
