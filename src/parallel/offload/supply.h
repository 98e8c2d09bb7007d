/* parallel/offload/supply.h -- reads units of parameters from files into unit buffers: supply.c. */
#ifndef LKI_PARALLEL_OFFLOAD_SUPPLY_H
#define LKI_PARALLEL_OFFLOAD_SUPPLY_H

#include "parallel/state.h"

typedef struct lki_supply lki_supply;

/* Opens the supply if parameters are in files; otherwise sets *out to NULL. lki_supply_close()
 * accepts NULL. */
LK_NODISCARD lk_status lki_supply_open(lki_supply **out, lk_parallel *parallel);
void                   lki_supply_close(lki_supply *supply);

/* Requests that this rank's part of `unit` be read into `to`, its address in the unit buffer.  The
 * read starts when all ranks of the host have finished with the unit buffer, after all earlier
 * orders.  Collective on a host. */
LK_NODISCARD lk_status lki_supply_order(lki_supply *supply, uint32_t unit, float *to);

/* Advances the oldest order; with `wait`, until it is complete.  *unit is set to the unit whose
 * part is complete, which removes its order, or to LKI_NO_UNIT. */
LK_NODISCARD lk_status lki_supply_move(lki_supply *supply, bool wait, uint32_t *unit);

/* Returns the number of elements of a unit that this rank stores, and sets *at to the first one's
 * offset in the parameter space. */
size_t lki_supply_part(const lki_supply *supply, uint32_t unit, size_t *at);

#endif
