/* launch/job/faults.h -- injects faults into a job by a seeded plan, for tests: see lk_chaos. */
#ifndef LKI_LAUNCH_JOB_FAULTS_H
#define LKI_LAUNCH_JOB_FAULTS_H

#include "launch/job/job.h"

/* Opens the plan of faults; does nothing if job->options has no plan. */
LK_NODISCARD lk_status lki_faults_open(lki_job *job);
void                   lki_faults_close(lki_job *job); /* accepts a job without a plan */

/* Injects and ends the faults that are due. */
void lki_faults_turn(lki_job *job);

/* Returns the time of the next fault in seconds; 0 if none is planned. */
double lki_faults_next(const lki_job *job);

/* Resets the fault state of worker `i`, whose place a new process has taken. */
void lki_faults_forget(const lki_job *job, uint32_t i);

/* Returns the number of bytes that lki_faults_save() writes. */
size_t lki_faults_bytes(const lki_job *job);

/* Writes the state of fault injection to `to`, for the next process that runs the loop. */
void   lki_faults_save(const lki_job *job, void *to);

/* Restores the state that an earlier process has saved with lki_faults_save(). */
void   lki_faults_restore(lki_job *job, const void *from);

/* Prints a note with the number of injected faults.  Called when all workers have ended. */
void lki_faults_report(const lki_job *job);

#endif
