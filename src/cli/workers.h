/* cli/workers.h -- a command that runs as N workers: copies of itself with the same arguments. */
#ifndef LKI_CLI_WORKERS_H
#define LKI_CLI_WORKERS_H

#include "lockstep/launch.h"

/* Starts copies of this program as `how` says, with argv (argv[0] is the command's name), watches
 * them to their end and says on stderr what failed first.  Returns the exit status. */
int lki_start_workers(char **argv, lk_launch_options how);

/* lk_join_with() of such a copy.  A request to stop that comes earlier than that is kept for it. */
lk_status lki_join_workers(lk_comm **out, const lk_join_options *options);

/* What ps calls this process from here on: "lockstep:3". */
void lki_name_worker(uint32_t rank);

#endif
