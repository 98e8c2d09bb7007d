/* cli/bench_step.h -- `lockstep bench step` and `lockstep bench scaling`. */
#ifndef LKI_CLI_BENCH_STEP_H
#define LKI_CLI_BENCH_STEP_H

/* argv[0] is "bench", argv[1] the benchmark's name.  Return the exit status. */
int lki_bench_step(int argc, char **argv);
int lki_bench_scaling(int argc, char **argv);

#endif
