/* comm/transport/sim.h -- all ranks in one process, over pipes in memory.
 *
 * A pipe holds so many bytes and no more, cuts what is written at places that the seed says, and
 * lets bytes arrive after delays that the seed says.  Nothing happens on the machine that the test
 * runs on: time is a number that moves on when nobody has anything to do, so a deadline of 30 s
 * takes none.
 *
 * How ranks share the processor:
 *
 * LKI_SIM_BATON  each rank has a thread, and one at a time runs, from one call of its link to
 *                another; who is next, the seed says.  Ranks may wait for each other by their links
 *                only.  The same seed gives the same run.  Every rank's link must be used, and
 *                closed, by some thread: nobody moves before all have come.
 * LKI_SIM_ALONE  one thread calls all links in turn; wait() makes the time pass that it says.
 * LKI_SIM_FREE   each rank has a thread, which may wait by other means, too; real time, no delays.
 *
 * Ownership: a sim is freed after its links are closed.
 */
#ifndef LKI_COMM_TRANSPORT_SIM_H
#define LKI_COMM_TRANSPORT_SIM_H

#include "comm/link.h"

typedef struct lki_sim lki_sim;

typedef enum { LKI_SIM_BATON, LKI_SIM_ALONE, LKI_SIM_FREE } lki_sim_mode;

typedef struct {
    lki_sim_mode mode;
    uint32_t     ranks, streams;
    uint64_t     seed;
    size_t       pipe_bytes;   /* 0: 64 KiB */
    int64_t      delay_us_max; /* of a delivery; 0: 200 */
} lki_sim_options;

LK_NODISCARD lk_status lki_sim_new(lki_sim **out, const lki_sim_options *options);
void lki_sim_free(lki_sim *sim);

/* The link of a rank, once; its holder closes it. */
lki_link *lki_sim_link(lki_sim *sim, uint32_t rank);

/* The host of this rank is gone, with all that was on its way: calls of its link return LK_EPEER,
 * and its peers' streams from and to it break. */
void lki_sim_kill(lki_sim *sim, uint32_t rank);

/* Of everything that happened, in order. */
uint64_t lki_sim_trace(const lki_sim *sim);

/* The time that passed in the simulation. */
int64_t lki_sim_now_us(const lki_sim *sim);

#endif
