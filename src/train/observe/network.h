/* train/observe/network.h -- whether the network makes a host slow.
 *
 * A link is what goes from one host to another.  TCP knows the bytes that have arrived, the time in
 * which some were on their way, and at what rate they arrived last (comm/traffic.h).  So over a
 * window a link has two paces, in seconds a byte, whatever hosts wait for each other: by time,
 * which a reader's process has a part in if it is stopped, and by rate, the median after each of
 * the last steps.  Links over which little goes, against the one over which most does, say nothing:
 * their time is that of messages, not of bytes.
 *
 *      slow     a host to which, or from which, the lower median of its links, by either pace,
 *               takes LKI_SLOW_LINK times as long for a byte as that of the links between others
 *      matters  if the busiest of these links took no longer than those, steps would take
 *               1 / LKI_SLOW of their time; of that no more can be saved than is not computed
 *
 * Of two hosts nobody can say which it is.  There the link between them is slow if it is so against
 * its own best window before, in one direction.
 */
#ifndef LKI_TRAIN_NETWORK_H
#define LKI_TRAIN_NETWORK_H

#include "base/status.h"
#include "comm/traffic.h"
#include "train/observe/stragglers.h"

#define LKI_SLOW_LINK 2.0 /* processors that are busy with something else make 1.6 */

typedef enum { LKI_BY_TIME, LKI_BY_RATE, LKI_PACES } lki_pace_by;

/* Of a host; of two, the first one's is that of the link between them. */
typedef struct {
    bool     slow, was_slow; /* in the last window, and in the one before */
    double   pace, times;    /* in it: seconds a byte, by time, and over the others', or the best */
    double   share;          /* of the steps' time, which the network could have saved */
    uint32_t windows;        /* in which it was slow */
    double   worst;          /* times the others' */
} lki_slow_host;

typedef struct {
    uint32_t       ranks, hosts; /* hosts: 0 or 1: there is no network */
    lki_traffic   *before; /* [ranks]: from this one, when the last window was over */
    double        *rates;  /* [ranks][LKI_WINDOW_STEPS]: after the last steps */
    lki_traffic   *mine;   /* [hosts + 1]: from this rank, in the window, and its steps' seconds */
    lki_traffic   *all;    /* [ranks][hosts + 1]: everybody's */
    lki_traffic   *links;  /* [hosts][hosts]: from, to */
    double         best[LKI_PACES][2]; /* of two hosts, from each: paces; 0: not known */
    double        *sorted; /* [hosts][hosts], or [LKI_WINDOW_STEPS] */
    lki_slow_host *of;     /* [hosts] */
    uint32_t       windows;
    uint32_t       next, steps;        /* steps of the window under way: wanted, and so far */
    double         seconds, computing; /* of these, as lki_network_judge() has it */
    bool           begun, full; /* the first one is over; the last step has filled another */
} lki_network;

/* Closing accepts what was not opened. */
LK_NODISCARD lk_status lki_network_open(lki_network *out, const lk_comm *comm);
void                   lki_network_close(lki_network *network);

/* Collective: a step has taken so long, by this rank's clock, of which the slowest rank, as all
 * know, was computing or waiting for data for so long.  With the last step of a window its links
 * are filled in, and who is slow is said.  Windows are as long as those of stragglers.h, by rank
 * 0's clock; the first, in which connections begin, tells no more than how many steps that is. */
LK_NODISCARD lk_status lki_network_step(lki_network *network, lk_comm *comm, double seconds,
                                        double computing);

/* Says who is slow, in a window whose steps took so many seconds, of which the slowest ranks were
 * computing or waiting for data for so many. */
void lki_network_judge(lki_network *network, double seconds, double computing);

#endif
