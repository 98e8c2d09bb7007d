/* cli/inspect.h -- functions of `lockstep inspect` that are defined in other files. */
#ifndef LKI_CLI_INSPECT_H
#define LKI_CLI_INSPECT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "lockstep/checkpoint.h"

/* Prints the merged flight records of a directory, with the last `rows` operations.  Returns the
 * exit status, which is 1 if a record is missing or damaged. */
int lki_inspect_flight(const char *directory, uint32_t rows, bool json);

/* Writes the checkpoint at `path` into one safetensors file `out`, with progress on stderr.
 * Returns the exit status. */
int lki_inspect_consolidate(const char *path, const char *out, bool everything);

/* Returns the norms of what groups keep of all parameters: a list by group for each name, such as
 * {"error": [0.5, 0.4]}; NULL if the checkpoint has none.  The checkpoint is open with its data. */
json_t *lki_inspect_groups(const lk_checkpoint *checkpoint);

/* Prints these norms; nothing if `groups` is NULL. */
void lki_inspect_print_groups(const json_t *groups);

#endif
