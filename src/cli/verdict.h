/* cli/verdict.h -- compares a replay of a step with what the run has left: its log and the
 * checkpoint of the step. */
#ifndef LKI_CLI_VERDICT_H
#define LKI_CLI_VERDICT_H

#include "lockstep/report.h"
#include "lockstep/train.h"

typedef struct {
    lk_log_check *log;          /* that of the run; NULL: none, or it cannot be read */
    char          no_log[512];  /* why there is none; "" = there is, or the run has written none */
    char          damage[512];  /* why the log cannot be read; "" = it can be, or there is none */
    char          weights[65];  /* hash in the checkpoint of the step; "" = none */
    char          unread[512];  /* why this checkpoint cannot be read; "" = it can be, or there is
                                 * none */
    int           replayed;     /* descriptor of the log of the replay; -1: none */
    char          path[32];     /* its path */
    uint64_t      printed;      /* differences that were printed */
    bool          alone;        /* no run is named, so nothing need be compared */
    bool          changed;      /* the run has changed its bits since */
} lki_verdict;

/* Finds the log: `log` if it `is_named`, or else that of the run in the directory `run` (or NULL),
 * which has written `log` (or NULL); and the checkpoint of the step in that directory.  Has the
 * replay write a log and evaluate as the run did, and sets `whole` if the run has left the result
 * of the step. */
void lki_verdict_open(lki_verdict *verdict, const char *run, const char *log, bool is_named,
                      lk_replay *replay);

/* Says whether an evaluation is wanted after a step (lk_replay.evaluates). */
bool lki_verdict_evaluates(const lki_verdict *verdict, uint64_t step);

/* Prints what is equal, and what is not.  Returns false if something is not, or cannot be
 * compared. */
bool lki_verdict_print(lki_verdict *verdict, const lk_replay *replay);

void lki_verdict_close(lki_verdict *verdict);

#endif
