/* cli/inspect.h -- what `lockstep inspect` shows beside checkpoints. */
#ifndef LKI_CLI_INSPECT_H
#define LKI_CLI_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

/* The flight records in `directory`, merged, with the last `rows` operations.  Returns the exit
 * status: 1 if a record is missing or damaged. */
int lki_inspect_flight(const char *directory, uint32_t rows, bool json);

/* Writes the checkpoint at `path` into one safetensors file `out`, progress to stderr.  Returns the
 * exit status. */
int lki_inspect_consolidate(const char *path, const char *out, bool everything);

#endif
