/* cmd_report.c -- `lockstep report`: writes a page about runs for a browser. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/paths.h"
#include "cli/replace.h"
#include "cli/report.h"
#include "cli/words.h"
#include "cli/workers.h"

typedef struct {
    lki_report_runs given;
    const char     *out;
} report_options;

static const lki_option table[] = {
    LKI_REPORT_FLIGHT,
    LKI_STRING("out", "FILE", offsetof(report_options, out), "standard output",
               "the file to write, new or an HTML page that is replaced; - is standard output"),
    LKI_REPORT_RUNS,
    LKI_OPTIONS_END,
};

int lki_report_open(const lki_command *command, const lki_report_runs *given, lk_report **out)
{
    lk_report_options options = LK_REPORT_OPTIONS_INIT;
    char            **runs    = given->runs;
    options.flight            = given->flight;
    options.runs              = (const char *const *)runs;
    for (; runs[options.run_count] != NULL; options.run_count++)
        if (strncmp(runs[options.run_count], "--", 2) == 0)
            return lki_usage_error(command, "%s comes after a run: options come before the runs",
                                   runs[options.run_count]);
    if (lk_report_open(out, &options) == LK_OK)
        return -1;
    lki_print_error(command->name);
    return LKI_EXIT_FAILURE;
}

static bool is_regular(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Returns true for a file that begins as an HTML page. */
static bool is_page(const char *path)
{
    static const char opening[]             = "<!doctype html";
    char              begin[sizeof opening] = "";
    return lki_read_beginning(path, begin, sizeof begin - 1) == sizeof begin - 1 &&
           strcasecmp(begin, opening) == 0;
}

/* Refuses to replace a file that is no page, such as a log: one of the runs, or the first of them
 * after --out without a name.  Returns a negative number, or the exit status. */
static int check_out(const char *path)
{
    if (path == NULL || !is_regular(path) || is_page(path))
        return -1;
    return lki_usage_error(&lki_command_report,
                           "--out %s would replace a file that is no HTML page; give --out the "
                           "name of a new file or of a page, and the runs after it",
                           path);
}

static int write_page(const char *path, const char *text, size_t bytes)
{
    bool good;
    if (path == NULL || strcmp(path, "-") == 0)
        good = fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
    else if (access(path, F_OK) == 0 && !is_regular(path)) { /* a pipe, or a device */
        FILE *file = fopen(path, "we");
        good       = file != NULL && lki_fill_file(file, text, bytes);
    } else
        good = lki_replace_file(path, text, bytes);
    if (good)
        return 0;
    fprintf(stderr, "lockstep report: cannot write %s: %s\n", path != NULL ? path : "the page",
            strerror(errno));
    return LKI_EXIT_FAILURE;
}

static int report_main(int argc, char **argv)
{
    report_options options = { 0 };
    lk_report     *report  = NULL;
    const char    *text;
    size_t         bytes;
    int            done = lki_options_parse(&lki_command_report, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_report, NULL);
    if (done < 0)
        done = check_out(options.out);
    if (done < 0)
        done = lki_report_open(&lki_command_report, &options.given, &report);
    if (done >= 0)
        return done;
    if (lk_report_page(report, &text, &bytes) == LK_OK) {
        done = write_page(options.out, text, bytes);
    } else {
        lki_print_error("report");
        done = LKI_EXIT_FAILURE;
    }
    lk_report_free(report);
    return done;
}

const lki_command lki_command_report = {
    .name    = "report",
    .summary = "write a page about runs for a browser",
    .usage   = "[--out FILE] [--flight DIR] RUN...",
    .about =
        "Writes one HTML file that needs nothing else and requests nothing from anywhere: losses,\n"
        "validation and all other values of the logs as curves, the time of a step by parts, who\n"
        "computed what and who was lost, hashes of weights, the configurations, and where each\n"
        "run parts from the first one.  A RUN is a log (--log FILE) or a directory with\n"
        "checkpoints and a log.  A run may still be active; `lockstep watch` follows it.",
    .examples = "  lockstep report run1.jsonl > page.html\n"
                "  lockstep report --out page.html run1.jsonl run2.jsonl run3.jsonl",
    .options  = table,
    .main     = report_main,
};
