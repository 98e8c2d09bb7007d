/* cli/workers.h -- a command that runs as N workers: copies of itself with the same arguments. */
#ifndef LKI_CLI_WORKERS_H
#define LKI_CLI_WORKERS_H

#include "lockstep/launch.h"

/* Starts copies of this program as `how` says, with argv (argv[0] is the command's name), watches
 * them to their end and says on stderr what failed first.  Returns the exit status. */
int lki_start_workers(char **argv, lk_launch_options how);

/* The same, but workers that were lost (lk_launch_result.lost) are started again, all of them, with
 * lki_started_again(); at most `most` times in a row without a newer checkpoint in `checkpoint`
 * (NULL: it is elsewhere, and whoever is there counts). */
int lki_keep_workers(char **argv, lk_launch_options how, const char *checkpoint, uint32_t most);

/* In such a copy: whether there were others before it. */
bool lki_started_again(void);

/* lk_join_with() of such a copy.  A request to stop that comes earlier than that is kept for it. */
lk_status lki_join_workers(lk_comm **out, const lk_join_options *options);

/* What ps calls this process from here on: "lockstep:3". */
void lki_name_worker(uint32_t rank);

#endif
