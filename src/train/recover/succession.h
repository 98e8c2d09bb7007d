/* train/recover/succession.h -- one group after another: what survive.c, change.c and tell.c
 * share. */
#ifndef LKI_TRAIN_SUCCESSION_H
#define LKI_TRAIN_SUCCESSION_H

#include <stdatomic.h>

#include "train/recover/survive.h"

enum { LKI_LIST_BYTES = 160, LKI_WHY_BYTES = 400 };

/* How far the log is. */
typedef struct {
    uint64_t bytes, step, evaluation;
    bool     ended, done;
    double   loss, accuracy; /* of the evaluation */
} lki_said;

/* In an arena; rank 0 writes it. */
typedef struct {
    _Atomic uint64_t turn, settled;
    lki_said         said[2];
} lki_minutes;

/* What all have agreed to do with the group when the step is over. */
typedef struct {
    bool     wish;    /* this rank wants to leave, or ... */
    bool     agreed;  /* ... somebody does, of whom there are some, or wants to enter */
    uint32_t leavers;
    uint32_t first;   /* of them, or of all, by its number in the job */
    char     why[LKI_WHY_BYTES]; /* the same on all ranks */
} lki_change;

struct lki_survival {
    lki_minutes *minutes;
    lki_minutes  found;      /* as they were when the group had come to be */
    uint32_t     lost, left, entered; /* ranks, in all */
    double       seconds;
    lki_change   change;
    bool         over; /* all has been said and done: who ends now is not missed */
};

/* A group that has come to be. */
typedef struct {
    const lk_comm *before, *now;
    bool           rounds;  /* virtual workers are dealt in */
    const uint32_t *bounds; /* of their shares before, where those had moved */
    bool           planned; /* between two steps, as all had agreed */
    bool           late;    /* somebody was waited for in vain */
    bool           early;   /* nobody has made a step */
    const char    *why;
    const char    *refused; /* planned for one to enter, and why none has */
    uint32_t       lost, left, entered; /* ranks */
    uint64_t       done;       /* steps */
    uint32_t       unfinished; /* virtual workers of the next step */
    double         seconds;
} lki_succession;

/* "2, 4-6" of ascending numbers: begins as { 0 }; when all are added, it is ended. */
typedef struct {
    char     text[LKI_LIST_BYTES];
    uint32_t count, from, to;
} lki_list;

void lki_list_add(lki_list *list, uint32_t number);
void lki_list_end(lki_list *list);

/* The session is in this group.  The one before is the caller's. */
void lki_take_group(lki_session *s, lk_comm *next);

/* Collective: how far the log is, as rank 0 has noted it. */
LK_NODISCARD lk_status lki_read_minutes(lki_session *s, lk_comm *next);

/* What is in the arenas that `comm` has taken over becomes its strategy's, and a step that was
 * decided on is complete. */
LK_NODISCARD lk_status lki_parallel_over(lki_session *s, lk_parallel **out, lk_comm *comm,
                                         lk_parallel_standing *standing);

/* What the last complete step gave, where this rank has not come so far. */
void lki_catch_up(lki_session *s, const lk_parallel_standing *standing, lki_position *at,
                  lk_train_result *result);

/* Collective: LK_EPEER where somebody has entered `comm` with other data, LK_EMISMATCH for him; the
 * group is over then. */
LK_NODISCARD lk_status lki_check_entrants(const lki_session *s, lk_comm *comm);

/* Collective: those who have entered `comm`, if any have, learn what is in no arena. */
LK_NODISCARD lk_status lki_welcome(lki_session *s, lk_comm *comm);

/* Rank 0: nothing of the log as it is now is to be said again. */
void lki_note_all_said(lki_session *s);

/* Who has taken what over, by the shares before and now; and, at the end, how often. */
void lki_tell_succession(const lki_session *s, const lki_succession *t);
void lki_tell_summary(const lki_session *s);

/* Whether a group has ended as all had agreed. */
bool lki_change_is(const lki_session *s, const lk_error *why);

#endif
