/* train/core/step_record.h -- the values of a step, as the log and the display show them. */
#ifndef LKI_TRAIN_STEP_RECORD_H
#define LKI_TRAIN_STEP_RECORD_H

#include "lockstep/train.h"
#include "parallel/losses.h"

/* The values of a step for its log line. */
typedef struct lki_step_record {
    uint64_t step, epoch, samples, tokens;
    double   loss, lr, grad_norm;
    lki_losses losses;   /* of single virtual workers; none with clients */
    double   loss_scale; /* 0: no loss scaling */
    uint64_t skipped;    /* number of skipped steps so far, including this one */
    bool     skips;      /* this step was skipped */
    uint32_t audited;    /* number of virtual workers computed twice with identical results */
    uint32_t moved;      /* number of virtual workers assigned to another rank after this step */
    uint32_t duplicated; /* virtual workers computed by a rank they were not assigned to */
    uint32_t dropped;    /* number of virtual workers left out of the update (--backup-workers) */
    lk_noise noise;      /* averages so far, if the noise scale is measured */
    double   stalled;    /* seconds that rank 0 waited for its offload file */
    double   seconds, data_seconds, compute_seconds, finish_seconds;
    /* The time that the step's samples took, if rank 0 may finish several steps at once; else 0,
     * and it is `seconds`. */
    double   pace;
} lki_step_record;

/* Returns how many of `count` things of the step are done in a second. */
static inline double lki_per_second(const lki_step_record *record, uint64_t count)
{
    return (double)count / (record->pace > 0 ? record->pace : record->seconds);
}

#endif
