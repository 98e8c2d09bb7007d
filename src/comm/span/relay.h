/* span/relay.h -- an operation over hosts of several ranks, by operations of smaller groups. */
#ifndef LKI_COMM_RELAY_H
#define LKI_COMM_RELAY_H

#include "comm/request.h"

enum { LKI_LEGS = 3 };

/* The groups that a span's operations are made of: its ranks on this host, twice, and the ranks of
 * all hosts that have the same place there.  Each has one leg of every relay, in the order of the
 * relays, so that all ranks see the same order in each, whatever they are waiting for. */
typedef struct {
    lk_comm *groups[LKI_LEGS]; /* this host's, across hosts, this host's */
    uint32_t each;             /* ranks on a host */
    uint64_t next;             /* number of the next part of a relay */
    uint64_t turn[LKI_LEGS];   /* which part may start this leg */
    uint64_t done;             /* parts */
} lki_levels;

typedef struct lki_relay lki_relay;

/* Collective.  NULL where hosts have one rank, or not equally many, or ranks in no order. */
LK_NODISCARD lk_status lki_levels_open(lki_levels **out, lk_comm *comm);
void lki_levels_free(lki_levels *levels);

/* Takes the next places in the order; of a request that lki_method_levels is chosen for. */
LK_NODISCARD lk_status lki_relay_new(lki_relay **out, lk_request *request);

/* As lki_task_move(). */
LK_NODISCARD lk_status lki_relay_move(lki_relay *relay, bool *moved, bool *done);

/* A request that it waits for, or NULL. */
lk_request *lki_relay_waits_for(const lki_relay *relay);

/* NULL is allowed. */
void lki_relay_free(lki_relay *relay);

#endif
