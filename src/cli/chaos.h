/* cli/chaos.h -- the option --chaos of commands that start workers. */
#ifndef LKI_CLI_CHAOS_H
#define LKI_CLI_CHAOS_H

#include "cli/options.h"
#include "lockstep/launch.h"

/* Parses "SEED,RATE" with optional kinds of faults after it, such as "7,2,kill,stop". */
bool lki_parse_chaos(const char *text, lk_chaos *out, lki_message *error);

#define LKI_CHAOS_HELP                                                                             \
    "for tests: inject faults at random, RATE per second on each host: kill, stop or slow "        \
    "down workers; SEED makes them repeatable; append ,kill ,stop or ,slow to select kinds "       \
    "of faults"

#endif
