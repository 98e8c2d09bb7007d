/* train/core/display.h -- the progress of a run on stderr: a bar on a terminal, or plain lines. */
#ifndef LKI_TRAIN_DISPLAY_H
#define LKI_TRAIN_DISPLAY_H

#include "train/core/step_record.h"

enum { LKI_CURVE = 64, LKI_WAITS_BYTES = 48 };

/* The mean losses of equal parts of the steps so far.  A full curve is halved: two parts become
 * one. */
typedef struct {
    double   values[LKI_CURVE];
    uint32_t count;  /* complete parts */
    uint64_t stride; /* steps of a part */
    double   sum;    /* of the part that is not complete */
    uint64_t added;
} lki_curve;

typedef struct {
    const lk_train_config *config;
    bool                   terminal, bar_shown;
    uint64_t               start, end;
    double                 begun, shown; /* shown: time of the last redraw or line */
    double                 rate;         /* units per second, smoothed */
    double                 validation;   /* the last validation loss; NaN: none */
    char                   waits[LKI_WAITS_BYTES]; /* who is waited for */
    lki_curve              curve;
} lki_display;

void lki_display_open(lki_display *display, const lk_train_config *config);

/* Returns true if a line about the step is to be printed where there is no terminal: of the first
 * and the last step, 20 times in the run, and if a twentieth of the time so far, but at least ten
 * seconds, have passed since the last line. */
bool lki_display_is_due(const lki_display *display, uint64_t step, double now);

/* Begins with the step after `start`. */
void lki_display_begin(lki_display *display, uint64_t start, uint64_t end);
/* On a terminal, says that the step after `done` steps is being computed. */
void lki_display_wait(lki_display *display, uint64_t done);
void lki_display_step(lki_display *display, const lki_step_record *record);

/* On a terminal, replaces the bar by a summary of the steps.  `last`: the record of the last one.
 * `hashes`: text about the hashes that follow, which are the same for any number of workers; NULL:
 * they are not. */
void lki_display_end(lki_display *display, const lki_step_record *last, const char *hashes);

/* Removes the bar, so that another line can be printed. */
void lki_display_clear(lki_display *display);

void lki_curve_add(lki_curve *curve, double value);

/* Writes the curve as `columns` characters from U+2581 to U+2588.  Returns the columns written. */
size_t lki_curve_draw(const lki_curve *curve, size_t columns, char *out, size_t bytes);

/* Writes the line of the bar for a terminal of `columns` columns. */
void lki_display_line(const lki_display *display, const lki_step_record *record, size_t columns,
                      double left, char *out, size_t bytes);

#endif
