/* cli/workers.h -- a command that runs as N workers: copies of itself with the same arguments. */
#ifndef LKI_CLI_WORKERS_H
#define LKI_CLI_WORKERS_H

#include <stdint.h>

/* Starts `workers` copies of this program with argv (argv[0] is the command's name), watches them
 * to their end and says on stderr what failed first.  Returns the exit status.  `flight`: as in
 * lk_launch_options. */
int lki_start_workers(char **argv, uint32_t workers, uint32_t timeout_ms, const char *flight);

/* What ps calls this process from here on: "lockstep:3". */
void lki_name_worker(uint32_t rank);

#endif
