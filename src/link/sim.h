/* link/sim.h -- a simulated link: all ranks in one process, over pipes in memory.
 *
 * A pipe has a bounded capacity.  The seed determines where writes are split and how long bytes are
 * delayed.  Nothing depends on the speed of the machine.  Simulated time advances when all ranks
 * wait, so a deadline of 30 s takes no real time.
 *
 * The modes differ in how ranks share the processor:
 *
 * LKI_SIM_BATON  each rank has a thread.  One thread runs at a time, from one call of its link to
 *                the next, and the seed chooses its successor.  Ranks may wait for each other only
 *                through their links.  The same seed gives the same run.  Every rank needs a thread
 *                that uses and closes its link, because no thread runs before all ranks have made a
 *                call.
 * LKI_SIM_ALONE  one thread calls all links in turn; wait() advances the time.
 * LKI_SIM_FREE   each rank has a thread, which may also wait by other means.  The clock is the real
 *                clock, and bytes are not delayed.
 *
 * Ownership: the caller frees the simulation after all its links are closed.
 */
#ifndef LKI_LINK_SIM_H
#define LKI_LINK_SIM_H

#include "link/link.h"

typedef struct lki_sim lki_sim;

typedef enum { LKI_SIM_BATON, LKI_SIM_ALONE, LKI_SIM_FREE } lki_sim_mode;

typedef struct {
    lki_sim_mode mode;
    uint32_t     ranks, streams;
    uint64_t     seed;
    size_t       pipe_bytes;   /* capacity of a pipe; 0: 64 KiB */
    int64_t      delay_us_max; /* longest delay of a delivery; 0: 200 */
} lki_sim_options;

LK_NODISCARD lk_status lki_sim_new(lki_sim **out, const lki_sim_options *options);
void lki_sim_free(lki_sim *sim);

/* Returns the link of a rank.  May be called once per rank; the caller closes the link. */
lki_link *lki_sim_link(lki_sim *sim, uint32_t rank);

/* Simulates the loss of a rank's host.  All bytes that this rank has in flight are lost.  Reads and
 * writes on its link return LK_EPEER, and wait() on its link returns LK_EIO.  The streams of other
 * ranks with this rank break. */
void lki_sim_kill(lki_sim *sim, uint32_t rank);

/* Returns a hash of all events so far and their order. */
uint64_t lki_sim_trace(const lki_sim *sim);

/* Returns the simulated time. */
int64_t lki_sim_now_us(const lki_sim *sim);

#endif
