/* parallel/offload/supply.h -- units of parameters out of files into their slots: see supply.c. */
#ifndef LKI_PARALLEL_OFFLOAD_SUPPLY_H
#define LKI_PARALLEL_OFFLOAD_SUPPLY_H

#include "parallel/strategy.h"

typedef struct lki_supply lki_supply;

/* Where parameters are in files; else *out is NULL.  lki_supply_close() accepts NULL. */
LK_NODISCARD lk_status lki_supply_open(lki_supply **out, lk_parallel *parallel);
void                   lki_supply_close(lki_supply *supply);

/* Collective of a host's ranks.  What this rank keeps of `unit` is to come to `to`, its place in
 * the slot: when all of them are done with what is there, and behind the units that were ordered
 * before. */
LK_NODISCARD lk_status lki_supply_order(lki_supply *supply, uint32_t unit, float *to);

/* Moves the first order forward, to its end with `wait`; *unit is the one whose part has come and
 * which is no order any more, or LKI_NO_UNIT. */
LK_NODISCARD lk_status lki_supply_move(lki_supply *supply, bool wait, uint32_t *unit);

/* Where in its unit my part begins, and how many elements it has; 0 if there are none. */
size_t lki_supply_part(const lki_supply *supply, uint32_t unit, size_t *at);

#endif
