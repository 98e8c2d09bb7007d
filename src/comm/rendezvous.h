/* comm/rendezvous.h -- where the launchers of a job on several hosts meet, and stay in touch.
 *
 * The launcher of node 0 listens at the one address that everybody knows.  The others connect to
 * it and say who they are: which node (or any), how many workers, which version.  When all have
 * come, or as many as are enough to begin, everybody is told the roster: which ranks are on which
 * host, and which are those of hosts that have yet to come.  Through the same
 * connections then travel the addresses of the workers, the end of every worker, verdicts (why
 * the job has failed), requests to stop, and at last how each launcher's part ended.  Node 0
 * passes on what concerns the others; its own launcher is a guest like them.
 *
 * Where the job goes on after a failure (comm/rebuild.c), each launcher says which of its ranks do,
 * and node 0, which hears of all, says who the next group is.  Letters keep their order on every
 * connection, so what comes after that belongs to the new epoch, introductions first.
 *
 * A node whose connection breaks, or that says nothing for `silence_ms`, is lost: the others get
 * a verdict that names its host, and it counts as a failure.  A node that loses node 0 gives the
 * same verdict about that one.
 *
 * Strangers (scanners, wrong keys, other versions, garbage, somebody who says nothing) are
 * refused and counted, and disturb nobody: they have little memory, little time, and there is
 * room for a few of them only.
 *
 * Ownership: a rendezvous owns its sockets.  Texts in events are valid until the next call.
 * Threads:   one at a time.  Nothing here blocks, save opening (names are resolved) and closing
 *            (node 0 gives the others a moment to hear the end).
 */
#ifndef LKI_COMM_RENDEZVOUS_H
#define LKI_COMM_RENDEZVOUS_H

#include "comm/control.h"

typedef struct lki_rendezvous lki_rendezvous;

enum { LKI_CAUSE_BYTES = 512, LKI_ENDPOINT_BYTES = 160, LKI_SETTINGS_MAX = 64 };

typedef struct {
    const char *endpoint;   /* "tcp://HOST:PORT"; node 0 listens there */
    int         listener;   /* node 0: a socket that listens already, borrowed; else -1 */
    const char *host;       /* what this host is called in messages */
    uint32_t    nodes;      /* of the job; 0 = so many as have `world` workers together */
    uint32_t    least;      /* node 0: so many are enough to begin, when they have waited for others
                             * for `wait_ms`; who comes later is as if it had been lost before, and
                             * brings as many workers as node 0; 0 = all */
    uint32_t    wait_ms;
    uint32_t    workers;    /* of this node */
    int32_t     node;       /* 0 listens; -1 = any other that is free */
    uint32_t    world;      /* where somebody else has numbered the ranks: how many there are, */
    uint32_t    first;      /* and which is the first of this node; -1 stands for its number then */
    uint64_t    epoch;      /* of the job: all must say the same */
    bool        goes_on;    /* after a failure, without those that it has lost: likewise */
    bool        together;   /* who has an outcome of weight 0 has seen that all is done: a node that
                             * is lost then is no failure */
    bool        returns;    /* node 0: where the job goes on without a node, another may come in its
                             * place */
    const char *const *settings; /* what must be the same on who comes so: LKI_SETTINGS_MAX texts at
                             * most, then NULL, which stay where they are; NULL = none */
    uint32_t    join_ms;    /* how long to wait for the others; 0 = 5 min */
    uint32_t    silence_ms; /* after which a node is lost; node 0's counts; 0 = 10 s */
    uint16_t    port;       /* node 0: for lki_rendezvous_port() */
    const unsigned char *key; /* LKI_KEY_BYTES, copied; NULL: no TLS, for trusted networks */
} lki_rendezvous_options;

typedef struct {
    lki_roster roster;                /* the ranks of this node */
    char       host[LKI_HOST_BYTES];  /* "" = nobody was there when the job began */
} lki_node;

/* What is known of a worker once it can be reached. */
typedef struct {
    int32_t pid;
    char    address[LKI_ADDRESS_BYTES];
} lki_introduction;

/* A worker has ended: it left, or it is dead, and then `loss` may say more: lki_control_lose(). */
typedef struct {
    uint32_t rank;
    int32_t  exit_code, signal;
    char     loss[LKI_LOSS_BYTES];
} lki_rank_end;

/* Why the job has failed. */
typedef struct {
    uint32_t  culprit; /* a rank */
    bool      host;    /* its whole host is lost */
    lk_status status;
    char      message[LKI_MESSAGE_BYTES];
} lki_verdict;

/* How the workers of a node ended, and in the end how the job did: the weightiest of all nodes that
 * are in the last group, and among equals the first. */
typedef struct {
    uint32_t weight; /* 0 = all is well; the launcher's scale, up to LKI_WEIGHT_MAX */
    bool     failed;
    int32_t  exit_code, signal, pid;
    uint32_t rank;
    char     cause[LKI_CAUSE_BYTES];
} lki_outcome;

enum { LKI_WEIGHT_LOST = 4, LKI_WEIGHT_MAX = 100 }; /* of a node that is lost */

typedef enum {
    LKI_EVENT_NONE,    /* nothing more for now */
    LKI_EVENT_MET,     /* everybody has come: lki_rendezvous_node() */
    LKI_EVENT_KNOWN,   /* all workers of the group can be reached: lki_rendezvous_introduction(); or
                        * only those who have an address, and it takes long */
    LKI_EVENT_ENDED,   /* `ended`, on another node */
    LKI_EVENT_VERDICT, /* `verdict`, of another node */
    LKI_EVENT_STOP,    /* `signal` was sent to another node; with `force` for the second time */
    LKI_EVENT_ASKED,   /* ranks of another node ask for the group after `epoch`, and wait for
                        * `timeout_ms` at least */
    LKI_EVENT_GROUP,   /* `epoch` begins, with `members` */
    LKI_EVENT_AWAITED, /* `node`, which is called `host`, waits for the group to let it in; or, if
                        * not `waits`, it does not any more */
    LKI_EVENT_OVER,    /* `outcome` of the job: there is nothing left to do but to close */
} lki_event_kind;

typedef struct {
    lki_event_kind kind;
    int            signal;
    bool           force;
    lki_rank_end   ended;
    lki_verdict    verdict;
    uint64_t       epoch;
    uint32_t       timeout_ms;
    lki_members    members;
    uint32_t       node;
    bool           waits;
    char           host[LKI_HOST_BYTES];
    lki_outcome    outcome;
} lki_event;

/* LK_EINVAL unless it is tcp://HOST:PORT; asks nobody whether there is such a host. */
LK_NODISCARD lk_status lki_rendezvous_check(const char *endpoint);

/* Opens this node's end, and on node 0 the meeting place.  LK_EINVAL for an endpoint that is none,
 * LK_EIO where nothing can listen there. */
LK_NODISCARD lk_status lki_rendezvous_open(lki_rendezvous **out,
                                           const lki_rendezvous_options *options);

/* Tells those who still wait for this node, if `why` is not NULL, that it gives up. */
void lki_rendezvous_close(lki_rendezvous *rendezvous, const char *why);

/* In a fork of who has opened it: closes this process' copies of its descriptors, and nobody is
 * told.  What was known of the nodes stays so; nothing else may be asked of it. */
void lki_rendezvous_forget(lki_rendezvous *rendezvous);

/* For poll(): readable when lki_rendezvous_next() may have something to do. */
int lki_rendezvous_fd(const lki_rendezvous *rendezvous);

/* The next event.  Fails only before LKI_EVENT_MET: LK_ETIMEOUT names who is missing, LK_EINVAL
 * and LK_EPEER say why this node was refused. */
LK_NODISCARD lk_status lki_rendezvous_next(lki_rendezvous *rendezvous, lki_event *out);

/* ---- Known once all have met ------------------------------------------------------------- */

uint32_t        lki_rendezvous_self(const lki_rendezvous *rendezvous); /* the number of this node */
uint32_t        lki_rendezvous_nodes(const lki_rendezvous *rendezvous);
const lki_node *lki_rendezvous_node(const lki_rendezvous *rendezvous, uint32_t node);

/* LKI_JOB_BYTES that are random, and the same on all nodes. */
const unsigned char *lki_rendezvous_job(const lki_rendezvous *rendezvous);

/* Of a job that had begun when this node came, in the place of one that it had lost: the epoch, and
 * of each rank 1 + that in which it entered, 0 for who is not in the group.  NULL = it was there
 * from the beginning. */
typedef struct {
    uint64_t  epoch;
    uint64_t *since;
} lki_standing;

const lki_standing *lki_rendezvous_standing(const lki_rendezvous *rendezvous);

/* A port that was free on node 0, for programs that want one (MASTER_PORT). */
uint16_t lki_rendezvous_port(const lki_rendezvous *rendezvous);

/* The address, without port, by which this host reaches node 0 (which, itself: is reached). */
const char *lki_rendezvous_address(const lki_rendezvous *rendezvous);

const lki_introduction *lki_rendezvous_introduction(const lki_rendezvous *rendezvous,
                                                    uint32_t rank);

/* ---- Telling the others; without effect once node 0 is lost -------------------------------- */

/* The workers of this node, in order of rank, after LKI_EVENT_MET: once an epoch.  Who is not in
 * the group has no address. */
void lki_rendezvous_introduce(lki_rendezvous *rendezvous, const lki_introduction *workers);
void lki_rendezvous_ended(lki_rendezvous *rendezvous, const lki_rank_end *end);
void lki_rendezvous_verdict(lki_rendezvous *rendezvous, const lki_verdict *verdict);
void lki_rendezvous_stop(lki_rendezvous *rendezvous, int signal, bool force);

/* Ranks of this node ask for the group after `epoch`; and, as soon as it is known of all of them,
 * `members` are those of this node who go on, and `entrants` those who would enter; NULL: members
 * would have nobody enter, on any node.  LKI_EVENT_GROUP follows when all nodes that are in the
 * group of `epoch` have said so, have finished or are lost; its members are both, where nobody
 * objects and somebody of the entrant's node goes on.
 *
 * A node that has come late says it once, of all its ranks, when they are ready to enter, and
 * hears of every group until it is in one: who is in the group hears LKI_EVENT_AWAITED, and is to
 * make it anew when it suits. */
void lki_rendezvous_asked(lki_rendezvous *rendezvous, uint64_t epoch, uint32_t timeout_ms);
void lki_rendezvous_go_on(lki_rendezvous *rendezvous, uint64_t epoch, const lki_members *members,
                          const lki_members *entrants);

/* Whether all that was told has been sent. */
bool lki_rendezvous_has_told(const lki_rendezvous *rendezvous);

/* Whether node 0 is lost, so that nobody decides any more. */
bool lki_rendezvous_lost(const lki_rendezvous *rendezvous);

/* This node has nothing more to say; LKI_EVENT_OVER follows when that is true of all. */
void lki_rendezvous_finish(lki_rendezvous *rendezvous, const lki_outcome *outcome);

/* ---- For tests and reports ----------------------------------------------------------------- */

/* How many connections node 0 has turned away. */
uint32_t lki_rendezvous_refused(const lki_rendezvous *rendezvous);

/* The last of them: "10.0.0.9:4711: said no hello in time"; "" = none. */
const char *lki_rendezvous_last_refused(const lki_rendezvous *rendezvous);

#endif
