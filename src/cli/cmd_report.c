/* cmd_report.c -- `lockstep report`: writes a page about runs for a browser. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/report.h"
#include "cli/words.h"
#include "cli/workers.h"

typedef struct {
    char      **runs;
    const char *flight, *out;
} report_options;

#define AT(field) offsetof(report_options, field)

static const lki_option table[] = {
    LKI_STRING("flight", "DIR", AT(flight), NULL,
               "also show where each rank is and whom the others wait for, from the records of "
               "--flight-recorder DIR"),
    LKI_STRING("out", "FILE", AT(out), "standard output", "the file to write"),
    { .name     = "RUN...",
      .type     = LKI_OPTION_REST,
      .offset   = AT(runs),
      .required = true,
      .help     = "a log, or a directory with a log" },
    LKI_OPTIONS_END,
};

int lki_report_open(const lki_command *command, char **runs, const char *flight, lk_report **out)
{
    lk_report_options options = LK_REPORT_OPTIONS_INIT;
    options.flight            = flight;
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

static int write_page(const report_options *options, const char *text, size_t bytes)
{
    FILE *out = options->out != NULL ? fopen(options->out, "we") : stdout;
    bool  bad = out == NULL || fwrite(text, 1, bytes, out) != bytes || fflush(out) != 0;
    int   why = errno;
    if (out != NULL && out != stdout && fclose(out) != 0 && !bad) {
        bad = true;
        why = errno;
    }
    if (bad)
        fprintf(stderr, "lockstep report: cannot write %s: %s\n",
                options->out != NULL ? options->out : "the page", strerror(why));
    return bad ? LKI_EXIT_FAILURE : 0;
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
        done = lki_report_open(&lki_command_report, options.runs, options.flight, &report);
    if (done >= 0)
        return done;
    if (lk_report_page(report, &text, &bytes) == LK_OK) {
        done = write_page(&options, text, bytes);
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
