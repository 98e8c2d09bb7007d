/* cli/report.h -- what `lockstep report` and `lockstep watch` share. */
#ifndef LKI_CLI_REPORT_H
#define LKI_CLI_REPORT_H

#include "cli/options.h"
#include "lockstep/report.h"

/* Counts the runs that were given, and opens their report.  Returns a negative number, or the exit
 * status after an error, which it prints. */
int lki_report_open(const lki_command *command, char **runs, const char *flight, lk_report **out);

#endif
