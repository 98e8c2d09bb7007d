/* comm/coll/split.h -- a split whose ranks must also agree on other arguments. */
#ifndef LKI_COMM_SPLIT_H
#define LKI_COMM_SPLIT_H

#include "lockstep/comm.h"

/* Splits like lk_comm_split().  Ranks with different `hash` fail with LK_EMISMATCH. */
LK_NODISCARD lk_status lki_split(lk_comm **out, lk_comm *comm, uint32_t color, uint32_t key,
                                 uint64_t hash);

#endif
