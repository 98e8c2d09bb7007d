/* launch/blows.h -- injects faults into a job by a seeded plan, for tests: see lk_chaos. */
#ifndef LKI_LAUNCH_BLOWS_H
#define LKI_LAUNCH_BLOWS_H

#include "launch/job.h"

/* Opens the plan of faults; does nothing if job->options has no plan. */
LK_NODISCARD lk_status lki_blows_open(lki_job *job);
void                   lki_blows_close(lki_job *job); /* accepts a job without a plan */

/* Injects and ends the faults that are due. */
void lki_blows_turn(lki_job *job);

/* Returns the time of the next fault in seconds; 0 if none is planned. */
double lki_blows_next(const lki_job *job);

/* Resets the fault state of worker `i`, whose place a new process has taken. */
void lki_blows_forget(const lki_job *job, uint32_t i);

/* Returns the number of bytes that lki_blows_save() writes. */
size_t lki_blows_bytes(const lki_job *job);

/* Writes the state of fault injection to `to`, for the next coordinator (keeper.h). */
void   lki_blows_save(const lki_job *job, void *to);

/* Restores the state that a previous coordinator has saved with lki_blows_save(). */
void   lki_blows_restore(lki_job *job, const void *from);

/* Prints a note with the number of injected faults.  Called when all workers have ended. */
void lki_blows_report(const lki_job *job);

#endif
