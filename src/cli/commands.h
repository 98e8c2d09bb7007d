/* cli/commands.h -- the subcommands, each defined in its cmd_NAME.c; main.c lists them. */
#ifndef LKI_CLI_COMMANDS_H
#define LKI_CLI_COMMANDS_H

#include "cli/options.h"

extern const lki_command lki_command_train, lki_command_sample, lki_command_eval;
extern const lki_command lki_command_inspect, lki_command_export;
extern const lki_command lki_command_run, lki_command_key, lki_command_bench, lki_command_doctor;
extern const lki_command lki_command_diff, lki_command_attest;
extern const lki_command lki_command_report, lki_command_watch;
extern const lki_command lki_command_plan, lki_command_verify, lki_command_resume, lki_command_top;
extern const lki_command lki_command_bench_step, lki_command_bench_scaling, lki_command_tokenize;
extern const lki_command lki_command_help, lki_command_version, lki_command_completion;

#endif
