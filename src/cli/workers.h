/* cli/workers.h -- runs a command as N workers: copies of this process with the same arguments. */
#ifndef LKI_CLI_WORKERS_H
#define LKI_CLI_WORKERS_H

#include "cli/nodes.h"
#include "cli/options.h"
#include "lockstep/launch.h"

/* Starts copies of this program as `how` specifies, with argv (argv[0] is the name of the command
 * that a worker runs).  Watches them until they end, and prints the first failure, as one of
 * `command`.  If workers were lost, and the directory `checkpoint` (or NULL) has a checkpoint, also
 * prints how to continue.  `from` is the step that the run goes back to; -1: to none.  Returns the
 * exit status. */
int lki_start_workers(const char *command, char **argv, lk_launch_options how,
                      const char *checkpoint, int64_t from);

/* Starts workers like lki_start_workers().  If workers were lost (lk_launch_result.lost), starts
 * all of them again, at most `most` times in a row without a newer checkpoint in `checkpoint`.  A
 * NULL `checkpoint` means that another host has the checkpoints and counts the restarts. */
int lki_keep_workers(const char *command, char **argv, lk_launch_options how,
                     const char *checkpoint, int64_t from, uint32_t most);

/* Reads the value of --restart: a maximum of failures in a row, or nothing, which means 3. */
bool lki_parse_restart(const char *text, uint32_t *most, lki_message *error);

/* Determines whether a launcher has started this process as a worker (*out).  Returns a negative
 * number or, if the environment describes only a part of a job, prints the reason and returns the
 * exit status.  Every command that starts or joins a job calls this first.  If `nodes`, which may
 * be NULL, has --nnodes, the options describe the job, and other launchers are ignored. */
int lki_find_launcher(const lki_command *command, const lki_nodes *nodes, bool *out);

/* Returns a negative number or, if the environment describes only a part of a job, prints the
 * reason and returns the exit status.  `nodes` is as for lki_find_launcher(). */
int lki_refuse_half_job(const lki_command *command, const lki_nodes *nodes);

/* Returns the exit status of a worker that could not join.  An invalid environment (LK_EINVAL) is a
 * usage error. */
int lki_exit_unjoined(lk_status status);

/* From where the workers of a job begin: as their options say or, if the job was restarted, from
 * the newest checkpoint, or from the step of --resume=STEP, because the run was lost before it had
 * set later checkpoints aside and recorded its command.  Hosts take the largest value of all, since
 * only the host with the checkpoints knows the last. */
typedef enum { LKI_AGAIN_NO, LKI_AGAIN_NEWEST, LKI_AGAIN_FROM_STEP } lki_again;

lki_again lki_started_again(void);

/* Calls lk_join_with() in a worker.  A request to stop that arrived before the call is not lost. */
lk_status lki_join_workers(lk_comm **out, const lk_join_options *options);

/* Sets the name that ps shows for this process, such as "lockstep:3". */
void lki_name_worker(uint32_t rank);

#endif
