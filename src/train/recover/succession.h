/* train/recover/succession.h -- declarations that survive.c, membership.c and membership_notes.c
 * share, for replacing one communicator by the next. */
#ifndef LKI_TRAIN_SUCCESSION_H
#define LKI_TRAIN_SUCCESSION_H

#include <stdatomic.h>

#include "train/recover/survive.h"

enum { LKI_LIST_BYTES = 160, LKI_WHY_BYTES = 400 };

/* The position up to which rank 0 has written the log. */
typedef struct {
    uint64_t bytes, step, evaluation, versions;
    bool     ended, done;
    lki_evaluated found; /* by the evaluation after step `evaluation` */
} lki_said;

/* Notes of rank 0, in an arena, so that they are still available if rank 0 is lost. */
typedef struct {
    _Atomic uint64_t turn, settled;
    lki_said         said[2];
} lki_minutes;

/* A change of the communicator that all ranks have agreed on, to be made at the end of a step. */
typedef struct {
    bool     wish;   /* this rank wants to leave */
    bool     agreed; /* some rank leaves or another process enters */
    uint32_t leavers;
    uint32_t first;              /* lowest job rank of the leavers; rank 0's if nobody leaves */
    char     why[LKI_WHY_BYTES]; /* equal on all ranks */
} lki_membership;

struct lki_survival {
    lki_minutes   *minutes;
    lki_minutes    found;               /* as read when the communicator was replaced */
    uint32_t       lost, left, entered; /* numbers of ranks, in total */
    double         seconds;
    lki_membership membership;
    bool           over; /* all results are reported; a later death of this rank is harmless */
};

/* A communicator that has replaced another communicator. */
typedef struct {
    const lk_comm *before, *now;
    bool           rounds;  /* virtual workers are assigned in dealing rounds */
    /* the bounds of ranges before and now, as in lki_dealing.bounds; NULL: of equal ranges */
    const uint32_t *bounds, *next;
    bool           planned; /* an agreed change between two steps */
    bool           late;    /* some rank did not answer in time */
    bool           early;   /* replaced before the first step */
    const char    *why;
    const char    *refused; /* why no process entered although expected; else NULL */
    uint32_t       lost, left, entered; /* numbers of ranks */
    uint64_t       done;       /* number of complete steps */
    uint32_t       unfinished; /* virtual workers of the next step that are still to be computed */
    double         seconds;
} lki_succession;

/* A list of ascending numbers as text, such as "2, 4-6".  Initialised with { 0 }; lki_list_end()
 * completes the text. */
typedef struct {
    char     text[LKI_LIST_BYTES];
    uint32_t count, from, to;
} lki_list;

void lki_list_add(lki_list *list, uint32_t number);
void lki_list_end(lki_list *list);

/* Makes the session use the communicator `next`.  The caller still owns the previous one. */
void lki_take_group(lki_session *s, lk_comm *next);

/* Reads how much of the log rank 0 has written.  Collective. */
LK_NODISCARD lk_status lki_read_minutes(lki_session *s, lk_comm *next);

/* Rebuilds the strategy from the arenas that `comm` has taken over.  Completes the last step if all
 * its sums were complete. */
LK_NODISCARD lk_status lki_parallel_over(lki_session *s, lk_parallel **out, lk_comm *comm,
                                         lk_parallel_standing *standing);

/* Updates this rank's progress to the last complete step. */
void lki_catch_up(lki_session *s, const lk_parallel_standing *standing, lki_position *at,
                  lk_train_result *result);

/* Checks the data of ranks that have entered `comm`.  If their data differ from rank 0's, dissolves
 * the communicator.  Then fails with LK_EMISMATCH on ranks that entered, and with LK_EPEER on all
 * other ranks.  Collective. */
LK_NODISCARD lk_status lki_check_entrants(const lki_session *s, lk_comm *comm);

/* Sends ranks that have entered `comm` the state that is not in arenas.  Collective. */
LK_NODISCARD lk_status lki_welcome(lki_session *s, lk_comm *comm);

/* Prints which ranks have taken over which virtual workers. */
void lki_note_succession(const lki_session *s, const lki_succession *t);

/* Logs which ranks are gone or have entered, and who now computes which virtual workers. */
LK_NODISCARD lk_status lki_log_succession(const lki_session *s, const lki_succession *t);

/* Prints at the end of the run how many ranks were lost, left and entered. */
void lki_note_summary(const lki_session *s);

/* Returns true if a communicator ended because of an agreed change. */
bool lki_membership_is(const lki_session *s, const lk_error *why);

#endif
