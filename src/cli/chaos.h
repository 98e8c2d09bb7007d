/* cli/chaos.h -- the option --chaos of commands that start workers. */
#ifndef LKI_CLI_CHAOS_H
#define LKI_CLI_CHAOS_H

#include "cli/options.h"
#include "lockstep/launch.h"

/* Parses "SEED,RATE" with optional kinds of faults after it, such as "7,2,kill,stop". */
bool lki_parse_chaos(const char *text, lk_chaos *out, lki_message *error);

#define LKI_CHAOS_HELP                                                                             \
    "for tests: kill, stop or slow down workers at random, with RATE faults per second on each "   \
    "host; SEED makes the faults repeatable; append ,kill ,stop or ,slow to select kinds of "      \
    "faults"

#endif
