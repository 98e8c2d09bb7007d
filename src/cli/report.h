/* cli/report.h -- what `lockstep report` and `lockstep watch` share. */
#ifndef LKI_CLI_REPORT_H
#define LKI_CLI_REPORT_H

#include "cli/options.h"
#include "lockstep/report.h"

/* Options of both commands, at the beginning of theirs. */
typedef struct {
    char      **runs;
    const char *flight;
} lki_report_runs;

#define LKI_REPORT_FLIGHT                                                                          \
    LKI_STRING("flight", "DIR", offsetof(lki_report_runs, flight), NULL,                           \
               "also show where each rank is and whom the others wait for, from the records of "   \
               "--flight-recorder DIR")
#define LKI_REPORT_RUNS                                                                            \
    {                                                                                              \
        .name = "RUN...", .type = LKI_OPTION_REST, .offset = offsetof(lki_report_runs, runs),      \
        .required = true,                                                                          \
        .help     = "a log, or a directory with checkpoints whose run has a log"                   \
    }

/* Counts the runs that were given, and opens their report.  Returns a negative number, or the exit
 * status after an error, which it prints. */
int lki_report_open(const lki_command *command, const lki_report_runs *given, lk_report **out);

#endif
