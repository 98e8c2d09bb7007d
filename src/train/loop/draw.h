/* train/loop/draw.h -- chooses the next token of a text. */
#ifndef LKI_TRAIN_LOOP_DRAW_H
#define LKI_TRAIN_LOOP_DRAW_H

#include "lockstep/base.h"

/* A token that may be drawn. */
typedef struct {
    float    logit;
    uint32_t token;
} lki_candidate;

typedef struct {
    double         temperature; /* 0: the most likely token */
    double         top_p;       /* 1: all tokens */
    uint32_t       top_k;       /* 0: all tokens */
    uint64_t       seed;
    uint32_t       count;       /* tokens from which one is drawn */
    float         *weights;     /* [count] */
    lki_candidate *candidates;  /* [count] */
} lki_draw;

/* Allocates the arrays for draw->count tokens. */
LK_NODISCARD lk_status lki_draw_open(lki_draw *draw);
void                   lki_draw_close(lki_draw *draw);

/* Draws token `index` of text `text`. */
uint32_t lki_draw_token(const lki_draw *draw, const float *logits, uint32_t text, uint32_t index);

#endif
