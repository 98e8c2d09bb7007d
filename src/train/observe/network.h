/* train/observe/network.h -- detects hosts that are slow because of the network.
 *
 * A link is one direction between two hosts.  TCP reports the bytes that arrived, the time for
 * which any bytes were in flight, and the latest delivery rate (comm/traffic.h).  So over a window
 * of steps a link has two paces, in seconds per byte.  The pace by time also grows if the receiving
 * process is stopped.  The pace by rate is the median over the last steps.  Neither depends on how
 * long hosts wait for each other.  Links that carry few bytes compared with the busiest link are
 * ignored, since latency dominates their time.
 *
 * A host is slow if two conditions hold.  By both paces, the lower median of its incoming or
 * outgoing links exceeds LKI_SLOW_LINK times the lower median of the links between other hosts.
 * And steps would take at most 1 / LKI_SLOW of their time if the busiest of its links had the pace
 * of the other links.  Only time in which no rank computes can be saved.
 *
 * With two hosts it is unknown which of them is slow.  Then the link between them is compared, in
 * each direction, with its own best window so far.
 */
#ifndef LKI_TRAIN_NETWORK_H
#define LKI_TRAIN_NETWORK_H

#include "base/status.h"
#include "comm/traffic.h"
#include "train/observe/stragglers.h"

#define LKI_SLOW_LINK 2.0 /* a CPU busy with other work causes factors up to 1.6 */

typedef enum { LKI_BY_TIME, LKI_BY_RATE, LKI_PACES } lki_pace_by;

/* The state of one host.  With two hosts the first one represents the link between them. */
typedef struct {
    bool     slow, was_slow; /* slow in the last window; slow in the window before that */
    double   pace, times;    /* last window: seconds per byte by time; ratio to other hosts' pace */
    double   share;          /* fraction of the window saved at other hosts' pace */
    uint32_t windows;        /* number of windows in which the host was slow */
    double   worst;          /* largest `times` of all windows */
} lki_slow_host;

typedef struct {
    uint32_t       ranks, hosts; /* hosts 0 or 1: there is no network */
    lki_traffic   *before; /* [ranks]: this rank's counters at the end of the last window */
    double        *rates;  /* [ranks][LKI_WINDOW_STEPS]: delivery rates after the last steps */
    lki_traffic   *mine;   /* [hosts + 1]: this rank's traffic in the window; last: seconds */
    lki_traffic   *all;    /* [ranks][hosts + 1]: `mine` of all ranks */
    lki_traffic   *links;  /* [hosts][hosts]: from, to */
    double         best[LKI_PACES][2]; /* with two hosts: best pace of each direction; 0: unknown */
    double        *sorted; /* scratch memory: [hosts][hosts] or [LKI_WINDOW_STEPS] */
    lki_slow_host *of;     /* [hosts] */
    uint32_t       windows;
    uint32_t       next, steps;        /* planned steps of the current window; its steps so far */
    double         seconds, computing; /* of these steps; see lki_network_judge() */
    bool           begun, full; /* the first window is over; the last step completed a window */
} lki_network;

/* Opens the state of all hosts.  lki_network_close() accepts a zeroed structure. */
LK_NODISCARD lk_status lki_network_open(lki_network *out, const lk_comm *comm);
void                   lki_network_close(lki_network *network);

/* Adds a step that took `seconds` by this rank's clock.  `computing` is the part that the slowest
 * rank spent computing or waiting for data.  The last step of a window exchanges the traffic of all
 * links and judges it.  Windows are as long as those of stragglers.h, by rank 0's clock.  The first
 * window, in which connections are opened, only determines the number of steps.  Collective. */
LK_NODISCARD lk_status lki_network_step(lki_network *network, lk_comm *comm, double seconds,
                                        double computing);

/* Determines which hosts were slow in a window of `seconds` seconds.  `computing` is the part that
 * the slowest ranks spent computing or waiting for data. */
void lki_network_judge(lki_network *network, double seconds, double computing);

#endif
