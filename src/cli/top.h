/* cli/top.h -- the state of a run from its log, and its picture on a terminal. */
#ifndef LKI_CLI_TOP_H
#define LKI_CLI_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { LKI_TOP_RANKS = 256, LKI_TOP_POINTS = 512, LKI_TOP_EVENTS = 8, LKI_TOP_RECENT = 16 };

typedef struct {
    uint32_t rank, host;
    uint64_t pid, first, count; /* of virtual workers */
    double   ms;                /* for them, in the last step that the log has for all ranks */
    char     name[64];          /* of the host */
} lki_top_rank;

/* A log that is read as it grows. */
typedef struct {
    const char *path;
    long        at; /* bytes read so far */
    char        model[32], exactness_id[40], weights[65], ended[32];
    uint64_t    parameters, steps, step, epoch;
    double      begun, time;    /* of the first and the last line */
    double      stopped;        /* seconds between the ends of runs and their continuations */
    double      recent[LKI_TOP_RECENT]; /* milliseconds of the last steps, in a ring */
    uint32_t    recent_count;           /* of all steps so far */
    double      loss, lr, norm, validation, accuracy, samples, tokens, step_ms, data_ms,
        compute_ms, finish_ms;
    bool         has_loss, has_validation, has_epoch, has_parts, done;
    lki_top_rank ranks[LKI_TOP_RANKS], old[LKI_TOP_RANKS]; /* old: before the last change */
    uint32_t     rank_count;
    double       points[LKI_TOP_POINTS]; /* mean losses of equal parts of the steps */
    uint32_t     point_count;
    uint64_t     stride, added;
    double       sum;
    char         events[LKI_TOP_EVENTS][120]; /* the last ones, oldest first */
    uint32_t     event_count;
} lki_top;

/* Reads the lines that are new.  Starts over if the file has become shorter.  Returns false if
 * there is no such file. */
bool lki_top_read(lki_top *top);

/* Adds one line of a log. */
void lki_top_add(lki_top *top, const char *text, size_t length);

typedef struct {
    size_t columns, rows;
    bool   color, unicode;
    bool   gone; /* the run's processes, which were on this host, have ended */
    double now;  /* seconds since 1970 */
} lki_top_screen;

/* Draws the state as at most `rows` lines of at most `columns` columns. */
void lki_top_draw(const lki_top *top, const lki_top_screen *screen, FILE *out);

#endif
