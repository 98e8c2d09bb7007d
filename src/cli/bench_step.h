/* cli/bench_step.h -- `lockstep bench step` and `lockstep bench scaling`. */
#ifndef LKI_CLI_BENCH_STEP_H
#define LKI_CLI_BENCH_STEP_H

/* Runs `bench step`.  argv[0] is "bench" and argv[1] is "step".  Returns the exit status. */
int lki_bench_step(int argc, char **argv);

/* Runs `bench scaling`, with arguments and result like lki_bench_step(). */
int lki_bench_scaling(int argc, char **argv);

#endif
