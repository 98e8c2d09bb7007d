/* cli/chaos.h -- the option --chaos of commands that start workers. */
#ifndef LKI_CLI_CHAOS_H
#define LKI_CLI_CHAOS_H

#include "cli/options.h"
#include "lockstep/launch.h"

/* "SEED,RATE", or with the kinds of blows behind it: "7,2,kill,stop". */
bool lki_parse_chaos(const char *text, lk_chaos *out, lki_message *error);

#define LKI_CHAOS_HELP                                                                             \
    "kill, stop and slow workers down at random: RATE times a second on each host, by the plan "   \
    "of SEED; of some kinds only with ,kill ,stop or ,slow behind it"

#endif
