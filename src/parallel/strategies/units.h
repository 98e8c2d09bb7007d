/* parallel/strategies/units.h -- sharded parameters that are gathered when blocks read them.  See
 * units.c. */
#ifndef LKI_PARALLEL_UNITS_H
#define LKI_PARALLEL_UNITS_H

#include "parallel/state.h"

/* Returns the bytes of all unit buffers, and sets parallel->slots.slot_bytes. */
size_t lki_units_bytes(lk_parallel *parallel);

/* Returns the bytes of all parcels, which hold quantised units, and sets
 * parallel->slots.parcel_bytes. */
size_t lki_units_parcels(lk_parallel *parallel);

/* Returns the number of turns of a step. */
uint64_t               lki_units_turns(const lk_parallel *parallel);

/* Counts how often each unit is gathered in `turns` turns. out[unit_count] must be zeroed.  Defined
 * in gathers.c. */
LK_NODISCARD lk_status lki_units_count(lk_parallel *parallel, uint64_t turns, lki_gathers *out);

/* Prepares gathering, once the layout, the pieces and the arena exist. lki_units_close() accepts a
 * half-opened state. */
LK_NODISCARD lk_status lki_units_open(lk_parallel *parallel);
void                   lki_units_close(lk_parallel *parallel);

/* Gathers the parameters of the block whose first gradient term is `term`.  They may be read until
 * the next call.  Even on failure their addresses are valid memory.  Collective. */
LK_NODISCARD lk_status lki_units_read(lk_parallel *parallel, uint32_t term);

/* Gathers the units that the turn has not read yet, up to the last read of the block of `term`.
 * UINT32_MAX gathers all units, and restarts the list of reads. */
LK_NODISCARD lk_status lki_units_catch_up(lk_parallel *parallel, uint32_t term);

/* Returns true if the turn will not read the term's block again. */
bool lki_units_passed(const lk_parallel *parallel, uint32_t term);

/* Begins a turn. */
void lki_units_begin(lk_parallel *parallel);

/* Waits for units that are still arriving; called before values change. */
LK_NODISCARD lk_status lki_units_settle(lk_parallel *parallel);

/* Discards all gathered units, because the values have changed. */
void lki_units_forget(lk_parallel *parallel);

/* Advances the current transfers without waiting. */
LK_NODISCARD lk_status lki_units_progress(lk_parallel *parallel);

/* Returns the address of a parameter whose block is being read, or NULL. */
const void *lki_units_find(const lk_parallel *parallel, uint32_t param);

#endif
