/* span/relay.h -- an operation over hosts with several ranks, made of operations of smaller
 * groups. */
#ifndef LKI_COMM_RELAY_H
#define LKI_COMM_RELAY_H

#include "comm/group/request.h"

enum { LKI_LEGS = 3 };

/* The groups that carry out a span communicator's operations.  Two groups consist of the
 * communicator's ranks on this host.  The third consists of the ranks, one on each host, that have
 * this rank's local rank.  Each group carries out one leg of every relay, in the order of the
 * relays.  All ranks of a group therefore see the same order, whichever request they wait for. */
typedef struct lki_levels {
    lk_comm *groups[LKI_LEGS]; /* this host's ranks, across hosts, this host's ranks */
    uint32_t each;             /* number of ranks per host */
    uint64_t next;             /* number of the next part of any relay */
    uint64_t turn[LKI_LEGS];   /* [leg]: number of the part that may start this leg next */
    uint64_t done;             /* number of complete parts */
} lki_levels;

typedef struct lki_relay lki_relay;

/* Creates the groups.  Collective. *out is NULL if hosts have one rank or unequal numbers of ranks,
 * or if ranks are not in the order of their hosts. */
LK_NODISCARD lk_status lki_levels_open(lki_levels **out, lk_comm *comm);
/* Frees the groups.  NULL is allowed. */
void lki_levels_free(lki_levels *levels);

/* Creates the relay of a request for which lki_method_levels was chosen, and takes the next part
 * numbers. */
LK_NODISCARD lk_status lki_relay_new(lki_relay **out, lk_request *request);

/* Advances the relay.  Sets *moved if the relay advanced, and *done if it is complete. */
LK_NODISCARD lk_status lki_relay_move(lki_relay *relay, bool *moved, bool *done);

/* Frees the relay.  NULL is allowed. */
void lki_relay_free(lki_relay *relay);

#endif
