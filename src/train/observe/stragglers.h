/* train/observe/stragglers.h -- detects ranks that are slower than the other ranks, with the cause.
 *
 * A window is LKI_WINDOW_STEPS steps, or as many as take LKI_WINDOW_SECONDS.  A rank is a straggler
 * in a window if it takes LKI_SLOW times as long per virtual worker as the median rank.  With an
 * even number of ranks the median is the faster of the two middle ranks, so the slower of two ranks
 * can be a straggler.  The cause is waiting for data or computing, whichever makes up more than
 * half of the excess.
 */
#ifndef LKI_TRAIN_STRAGGLERS_H
#define LKI_TRAIN_STRAGGLERS_H

#include "parallel/balance.h"

enum { LKI_WINDOW_STEPS = 20 };
#define LKI_WINDOW_SECONDS 2.0
#define LKI_SLOW           1.3

typedef enum { LKI_CAUSE_COMPUTE, LKI_CAUSE_DATA, LKI_CAUSES } lki_cause;

/* The state of one rank. */
typedef struct {
    double    seconds, data;  /* per virtual worker, in the last full or the current window */
    bool      slow, was_slow; /* slow in the last full window; slow in the window before that */
    double    times;          /* time relative to the median rank's, in the last full window */
    lki_cause cause;          /* valid if `slow` */
    uint32_t  windows;        /* number of windows in which the rank was slow */
    uint32_t  by[LKI_CAUSES]; /* number of windows by cause */
    double    worst;          /* largest `times` of all windows */
} lki_straggler;

typedef struct {
    uint32_t       ranks;
    lki_straggler *of;     /* [ranks] */
    double        *sorted; /* [ranks] */
    uint32_t       steps, windows;
    double         seconds; /* sum of the slowest rank's seconds over the steps of the window */
    bool           full;
} lki_stragglers;

/* Opens the state of `ranks` ranks.  lki_stragglers_close() accepts a zeroed structure. */
LK_NODISCARD lk_status lki_stragglers_open(lki_stragglers *out, uint32_t ranks);
void                   lki_stragglers_close(lki_stragglers *all);

/* Adds the times of all ranks in one step.  Returns true if the window is full and its results are
 * valid; the next step then begins a new window. */
bool lki_stragglers_add(lki_stragglers *all, const lki_rank_time *times);

/* Formats a duration with at least two significant digits, such as "10.1 ms". */
enum { LKI_PACE_BYTES = 32 };
void lki_pace_text(char text[LKI_PACE_BYTES], double seconds);

/* Returns "compute" or "data". */
const char *lki_cause_name(lki_cause cause);

/* Returns the most frequent cause of a rank that was slow in at least one window. */
lki_cause   lki_straggler_cause(const lki_straggler *of);

#endif
