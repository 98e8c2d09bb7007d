/* train/observe/stragglers.h -- which ranks are slower than others, and why.
 *
 * Over a window of LKI_WINDOW_STEPS steps, or as many as take LKI_WINDOW_SECONDS, a rank is a
 * straggler that takes LKI_SLOW times as long for a virtual worker as the median rank does; of two
 * in the middle the faster one counts, so that with two ranks it is the other.  What it takes more
 * has a cause, whichever makes up more than half of it: waiting for its data, or computing.
 */
#ifndef LKI_TRAIN_STRAGGLERS_H
#define LKI_TRAIN_STRAGGLERS_H

#include "parallel/balance.h"

enum { LKI_WINDOW_STEPS = 20 };
#define LKI_WINDOW_SECONDS 2.0
#define LKI_SLOW           1.3

typedef enum { LKI_CAUSE_COMPUTE, LKI_CAUSE_DATA, LKI_CAUSES } lki_cause;

/* Of a rank. */
typedef struct {
    double    seconds, data;  /* of a virtual worker, in the window that is full, or in its steps so
                               * far */
    bool      slow, was_slow; /* in the last window that was full, and in the one before */
    double    times;          /* the median, in it */
    lki_cause cause;          /* if it was slow */
    uint32_t  windows;        /* in which it was slow */
    uint32_t  by[LKI_CAUSES];
    double    worst;          /* times the median */
} lki_straggler;

typedef struct {
    uint32_t       ranks;
    lki_straggler *of;     /* [ranks] */
    double        *sorted; /* [ranks] */
    uint32_t       steps, windows;
    double         seconds; /* of the window's steps: what the slowest rank took */
    bool           full;
} lki_stragglers;

/* Closing accepts what was not opened. */
LK_NODISCARD lk_status lki_stragglers_open(lki_stragglers *out, uint32_t ranks);
void                   lki_stragglers_close(lki_stragglers *all);

/* A step's times of all ranks.  True: the window is full with it, and says who is slow; the next
 * step begins another. */
bool lki_stragglers_add(lki_stragglers *all, const lki_rank_time *times);

/* "10.1 ms", and of short ones as many decimals as leave two digits that are not 0. */
enum { LKI_PACE_BYTES = 32 };
void lki_pace_text(char text[LKI_PACE_BYTES], double seconds);

/* "compute" or "data"; of a rank that was slow in some windows, what made it so most often. */
const char *lki_cause_name(lki_cause cause);
lki_cause   lki_straggler_cause(const lki_straggler *of);

#endif
