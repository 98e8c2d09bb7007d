/* cli/foreign.h -- names of options in other launchers and trainers, and what they are here. */
#ifndef LKI_CLI_FOREIGN_H
#define LKI_CLI_FOREIGN_H

#include "cli/options.h"

/* Writes a hint at the option of `command` that does what `name` does elsewhere.  `name` has no
 * leading hyphens, and _ or - between its words.  Returns false if the table does not have it. */
bool lki_foreign_hint(const lki_command *command, const char *name, size_t length,
                      lki_message *out);

/* Copies argv, and replaces the spellings of torchrun and mpirun by those of `lockstep run`:
 * --nproc-per-node N, -np N, --rdzv-endpoint HOST:PORT, --rdzv-backend NAME, --standalone and
 * underscores in names.  Stops at the program.  Free the result with lki_foreign_free(); NULL if
 * out of memory. */
char **lki_foreign_run(int argc, char **argv, int *out_argc);
void   lki_foreign_free(char **argv);

#endif
