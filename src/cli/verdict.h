/* cli/verdict.h -- compares a replay of a step with what the run has left: its log and the
 * checkpoint of the step. */
#ifndef LKI_CLI_VERDICT_H
#define LKI_CLI_VERDICT_H

#include "lockstep/report.h"
#include "lockstep/train.h"

typedef struct {
    lk_log_losses *losses;      /* of the run's log; NULL: none */
    char           weights[65]; /* hash in the checkpoint of the step; "" = none */
    char           damage[512]; /* why this checkpoint cannot be read; "" = it can be, or there is
                                 * none */
    uint64_t       first, last, count; /* of the steps that were compared */
    uint64_t       step;        /* the first step with another loss; 0: none */
    double         logged, replayed; /* losses of this step */
} lki_verdict;

/* Finds the log of the run in the directory `run` (or NULL), or else `log` (or NULL), and the
 * checkpoint of step `step`.  Sets `whole` in the replay if they have the result of this step. */
void lki_verdict_open(lki_verdict *verdict, const char *run, const char *log, lk_replay *replay);

/* Compares the loss of a step (lk_replay.after). */
void lki_verdict_step(lki_verdict *verdict, uint64_t step, double loss);

/* Prints what is equal, and what is not.  Returns false if something is not. */
bool lki_verdict_print(const lki_verdict *verdict, const lk_replay *replay);

void lki_verdict_close(lki_verdict *verdict);

#endif
