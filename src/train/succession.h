/* train/succession.h -- one group after another: what survive.c, change.c and tell.c share. */
#ifndef LKI_TRAIN_SUCCESSION_H
#define LKI_TRAIN_SUCCESSION_H

#include <stdatomic.h>

#include "train/survive.h"

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
    bool     agreed;  /* ... somebody does, of whom there are */
    uint32_t leavers;
    uint32_t first;   /* of them, by its number in the job */
    char     why[LKI_WHY_BYTES]; /* the same on all ranks */
} lki_change;

struct lki_survival {
    lki_minutes *minutes;
    lki_minutes  found;      /* as they were when the group had come to be */
    uint32_t     lost, left; /* ranks, in all */
    double       seconds;
    lki_change   change;
};

/* A group that has come to be. */
typedef struct {
    const lk_comm *before, *now;
    bool           rounds;  /* virtual workers are dealt in */
    bool           planned; /* between two steps, as all had agreed */
    bool           late;    /* somebody was waited for in vain */
    const char    *why;
    uint32_t       lost, left; /* ranks */
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

/* Rank 0: nothing of the log as it is now is to be said again. */
void lki_note_all_said(lki_session *s);

/* Who has taken what over, by the shares before and now; and, at the end, how often. */
void lki_tell_succession(const lki_session *s, const lki_succession *t);
void lki_tell_summary(const lki_session *s);

/* Whether a group has ended as all had agreed. */
bool lki_change_is(const lki_session *s, const lk_error *why);

#endif
