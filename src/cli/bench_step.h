/* cli/bench_step.h -- `lockstep bench step` and `lockstep bench scaling`. */
#ifndef LKI_CLI_BENCH_STEP_H
#define LKI_CLI_BENCH_STEP_H

#include <stdbool.h>

/* Runs `bench step`.  argv[0] is "bench" and argv[1] is "step".  Returns the exit status. */
int lki_bench_step(int argc, char **argv);

/* Runs `bench scaling`, with arguments and result like lki_bench_step(). */
int lki_bench_scaling(int argc, char **argv);

/* Returns true if the argument at *i is the option `name`.  Skips its value if `valued`. */
bool lki_bench_is_option(char **argv, int argc, int *i, const char *name, bool valued);

/* Runs the command `words`, ending with NULL, which prints one JSON object.  *value becomes the
 * number with this key, or 0 if there is none.  Returns an exit status other than 0 on failure. */
int lki_bench_run(double *value, char **words, const char *key);

#endif
