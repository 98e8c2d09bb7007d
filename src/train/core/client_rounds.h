/* train/core/client_rounds.h -- federated averaging: the clients of this rank's turns. */
#ifndef LKI_TRAIN_CORE_CLIENT_ROUNDS_H
#define LKI_TRAIN_CORE_CLIENT_ROUNDS_H

#include "train/core/session.h"

/* The objects with which a rank trains clients, one after another.  `model` has the weights of the
 * client that trains: an object of this rank alone, with one virtual worker. */
struct lki_clients {
    lk_clients  *of;
    lk_comm     *comm;
    lk_parallel *model;
    uint32_t     micro_count; /* micro-batches of a local step */
    uint64_t     round;       /* the round whose clients are in `chosen`; UINT64_MAX: none yet */
    uint32_t    *chosen;      /* [V]: the clients of the round */
    uint64_t     counted;     /* samples of the clients that counted in the last round */
    double       drift;       /* root mean square of their distances from the weights of the round,
                               * weighted by samples; undefined if none counted */
    lk_parallel_turn turn;    /* the turn of session->parallel */
    void        *x;           /* samples of a micro-batch */
    int32_t     *y;           /* targets of a micro-batch */
    uint64_t    *indices;     /* [micro_batch] */
    float       *zeros;       /* as many as the largest parameter has elements */
};

/* Clients of a round. */
typedef struct {
    uint32_t chosen;  /* number of clients that began */
    uint32_t stopped; /* number of those that stopped early */
    uint64_t samples; /* samples of the clients that do not stop too early to count */
} lki_round;

/* Opens session->clients, if the run has clients.  Not collective. */
LK_NODISCARD lk_status lki_clients_open(lki_session *session);
void                   lki_clients_close(lki_session *session);

/* Returns the number of local steps of a client that trains to the end. */
uint64_t lki_client_steps(const lki_session *session, uint32_t client);

/* Returns the number of local steps that a client does in a round, 0 if it does not count. */
uint64_t lki_client_does(const lki_session *session, uint32_t client, uint64_t round);

/* Chooses the clients of a round. */
void      lki_clients_choose(const lki_session *session, uint64_t round);
lki_round lki_round_of(const lki_session *session, uint64_t round);

#endif
