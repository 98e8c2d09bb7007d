/* parallel/strategies/units.h -- parameters that hosts keep in parts and gather while they read
 * them.  See units.c. */
#ifndef LKI_PARALLEL_UNITS_H
#define LKI_PARALLEL_UNITS_H

#include "parallel/strategy.h"

/* Of all slots, and of what comes there if it is quantised; leaves how large one is. */
size_t lki_units_bytes(lk_parallel *parallel);
size_t lki_units_parcels(lk_parallel *parallel);

/* Turns of a step; plan/gathers.c: how often so many gather each unit, out[unit_count], zeroed. */
uint64_t               lki_units_turns(const lk_parallel *parallel);
LK_NODISCARD lk_status lki_units_count(lk_parallel *parallel, uint64_t turns, lki_gathers *out);

/* Once layout, pieces and arena are there; lki_units_close() accepts a half-made one. */
LK_NODISCARD lk_status lki_units_open(lk_parallel *parallel);
void                   lki_units_close(lk_parallel *parallel);

/* Collective.  The block whose first gradient term is `term` reads its parameters from now on until
 * the next call.  They are in memory even if it fails. */
LK_NODISCARD lk_status lki_units_read(lk_parallel *parallel, uint32_t term);

/* What the turn has not read yet, up to the last read of the block of `term`; UINT32_MAX: all, and
 * the next read is the first again. */
LK_NODISCARD lk_status lki_units_catch_up(lk_parallel *parallel, uint32_t term);

/* Whether the turn has no read of the term's block to come. */
bool lki_units_passed(const lk_parallel *parallel, uint32_t term);

/* A turn begins. */
void lki_units_begin(lk_parallel *parallel);

/* Before values change: waits for what still comes. */
LK_NODISCARD lk_status lki_units_settle(lk_parallel *parallel);

/* They have changed: what was gathered is old. */
void lki_units_forget(lk_parallel *parallel);

/* Moves forward what is on its way, without waiting. */
LK_NODISCARD lk_status lki_units_progress(lk_parallel *parallel);

/* Where a parameter that is being read lies, or NULL. */
const void *lki_units_find(const lk_parallel *parallel, uint32_t param);

#endif
