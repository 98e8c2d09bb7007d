/* launch/blows.h -- blows at the workers of a job, by a seeded plan: see lk_chaos. */
#ifndef LKI_LAUNCH_BLOWS_H
#define LKI_LAUNCH_BLOWS_H

#include "launch/job.h"

/* Nothing without a plan; closing accepts what was not opened. */
LK_NODISCARD lk_status lki_blows_open(lki_job *job);
void                   lki_blows_close(lki_job *job);

/* Does what is due. */
void lki_blows_turn(lki_job *job);

/* When something is, in seconds; 0 = nothing is planned. */
double lki_blows_next(const lki_job *job);

/* Another process is this worker from here on: it suffers nothing yet. */
void lki_blows_forget(const lki_job *job, uint32_t i);

/* For whoever takes over from this launcher. */
size_t lki_blows_bytes(const lki_job *job);
void   lki_blows_save(const lki_job *job, void *to);
void   lki_blows_restore(lki_job *job, const void *from);

/* All workers have ended: says how many blows there were. */
void lki_blows_report(const lki_job *job);

#endif
