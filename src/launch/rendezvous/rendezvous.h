/* launch/rendezvous/rendezvous.h -- connects the launchers of a job.
 *
 * The launcher of node 0 listens at one address that all launchers know.  The other launchers
 * connect to node 0 and introduce themselves: they send their node number (or -1 for any), number
 * of workers, and version.  When all have connected, or enough of them to begin, node 0 sends the
 * roster to all.  The roster has the ranks of each host, including hosts that have not connected
 * yet.  The same connections then carry the addresses of the workers, the end of each worker,
 * verdicts (why the job has failed), stop requests, and finally the outcome of each launcher.  Node
 * 0 forwards messages between the other launchers.  Its own launcher connects like the other
 * launchers.
 *
 * If the job continues after a failure (comm/join/rebuild.c), each launcher reports its surviving
 * ranks.  Node 0 receives all reports and announces the next group.  Messages on a connection
 * arrive in order, so all messages after the announcement belong to the new epoch.  The first of
 * them are introductions.
 *
 * A node is lost when its connection breaks or is silent for `silence_ms`.  The other nodes receive
 * a verdict that names its host, and the loss counts as a failure.  A node whose connection to node
 * 0 breaks generates the same verdict about node 0.
 *
 * Strangers (port scanners, wrong keys, other versions, invalid bytes, silent peers) are refused
 * and counted.  They cannot disturb the job: memory, time and number of such connections are
 * bounded.
 *
 * Ownership: a rendezvous owns its sockets.  Texts in events are valid until the next call.
 * Threads:   one at a time.  No function blocks, except opening (name resolution) and closing
 *            (node 0 gives the others a moment to receive the end).
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_RENDEZVOUS_H
#define LKI_LAUNCH_RENDEZVOUS_RENDEZVOUS_H

#include "comm/roster.h"

typedef struct lki_rendezvous lki_rendezvous;

enum { LKI_CAUSE_BYTES = 512, LKI_SETTINGS_MAX = 64 };

typedef struct {
    const char *endpoint;   /* "tcp://HOST:PORT", where node 0 listens */
    int         listener;   /* node 0: a socket that already listens, borrowed; -1: none */
    const char *host;       /* this host's name in messages */
    uint32_t    nodes;      /* number of nodes; 0 = as many as have `world` workers in total */
    uint32_t    least;      /* node 0: begins with this many nodes after `wait_ms`; 0 = waits for
                             * all.  A late node counts as lost before it connects, and must have as
                             * many workers as node 0 */
    uint32_t    wait_ms;
    uint32_t    workers;    /* number of workers on this node */
    int32_t     node;       /* node number; node 0 listens; -1 = any other free number */
    uint32_t    world;      /* world size, if a foreign launcher has assigned the ranks; 0 = no
                             * foreign launcher */
    uint32_t    first;      /* if `world` is not 0: this node's first rank; `node` is then 0 on the
                             * node with rank 0, else -1 */
    uint64_t    epoch;      /* group epoch of the job; must be equal on all nodes */
    bool        goes_on;    /* the job continues after a failure without the lost nodes; must be
                             * equal on all nodes */
    bool        together;   /* an outcome of weight 0 proves that the whole job is done, so a later
                             * loss of a node is not a failure */
    bool        returns;    /* node 0: a late node may replace a lost node */
    const char *const *settings; /* settings that a late node must share: at most LKI_SETTINGS_MAX
                                  * texts, then NULL; borrowed; NULL = none */
    uint32_t    join_ms;    /* limit of the wait for the other nodes; 0 = 5 min */
    uint32_t    silence_ms; /* longest silence of a node; node 0's value applies; 0 = 10 s */
    uint16_t    port;       /* node 0: the result of lki_rendezvous_port() */
    const unsigned char *key; /* LKI_KEY_BYTES, copied; NULL: no TLS, for trusted networks */
} lki_rendezvous_options;

typedef struct {
    lki_roster roster;                /* the ranks of this node */
    char       host[LKI_HOST_BYTES];  /* "" = the node was absent when the job began */
} lki_node;

/* A worker's contact data. */
typedef struct {
    int32_t pid;
    char    address[LKI_ADDRESS_BYTES];
} lki_introduction;

/* The end of a worker, by exit or death.  `loss` may describe a death (lki_control_lose()). */
typedef struct {
    uint32_t rank;
    int32_t  exit_code, signal;
    char     loss[LKI_LOSS_BYTES];
} lki_rank_end;

/* The reason why the job has failed. */
typedef struct {
    uint32_t  culprit; /* a failed rank, or a rank of the node that reports the failure */
    bool      host;    /* the whole host of `culprit` is lost */
    lk_status status;
    char      message[LKI_MESSAGE_BYTES];
} lki_verdict;

/* The end of a node's workers and, in the final event, of the job.  The job's outcome is the first
 * outcome of the highest weight among the nodes in the last group. */
typedef struct {
    uint32_t weight; /* 0 = success; on the launcher's scale, up to LKI_WEIGHT_MAX */
    bool     failed;
    int32_t  exit_code, signal, pid;
    uint32_t rank;
    char     cause[LKI_CAUSE_BYTES];
} lki_outcome;

enum { LKI_WEIGHT_LOST = 4, LKI_WEIGHT_MAX = 100 }; /* LOST: weight of the outcome of a lost node */

typedef enum {
    LKI_EVENT_NONE,    /* no event is pending */
    LKI_EVENT_MET,     /* all nodes have arrived: lki_rendezvous_node() */
    LKI_EVENT_KNOWN,   /* the workers of the group can be reached: lki_rendezvous_introduction();
                        * after some time also sent if some workers have no address yet */
    LKI_EVENT_ENDED,   /* `ended`, on another node */
    LKI_EVENT_VERDICT, /* `verdict`, from another node */
    LKI_EVENT_STOP,    /* a user has sent `signal` to another node; `force` is true for the second
                        * request */
    LKI_EVENT_ASKED,   /* ranks of another node request the group after `epoch`, and wait for at
                        * least `timeout_ms` */
    LKI_EVENT_GROUP,   /* `epoch` begins, with `members` */
    LKI_EVENT_AWAITED, /* `node`, on `host`, waits to enter the group, or has given up (!waits) */
    LKI_EVENT_OVER,    /* the job ended with `outcome`; only closing is left to do */
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

/* Returns LK_EINVAL unless `endpoint` is tcp://HOST:PORT.  Does not resolve the host's name. */
LK_NODISCARD lk_status lki_rendezvous_check(const char *endpoint);

/* Opens this node's end, and on node 0 also the server.  Returns LK_EINVAL for an invalid endpoint,
 * LK_EIO if node 0 cannot listen there. */
LK_NODISCARD lk_status lki_rendezvous_open(lki_rendezvous **out,
                                           const lki_rendezvous_options *options);

/* Closes this node's end.  `why`, if not NULL, is sent to launchers that wait for the start. */
void lki_rendezvous_close(lki_rendezvous *rendezvous, const char *why);

/* Closes a forked child's copies of the descriptors without sending anything.  The nodes' data
 * remain readable; no other call is allowed. */
void lki_rendezvous_forget(lki_rendezvous *rendezvous);

/* Returns a descriptor that is readable if lki_rendezvous_next() may have an event. */
int lki_rendezvous_fd(const lki_rendezvous *rendezvous);

/* Returns the next event.  Fails only before LKI_EVENT_MET: LK_ETIMEOUT names the missing nodes,
 * LK_EINVAL and LK_EPEER say why this node was refused. */
LK_NODISCARD lk_status lki_rendezvous_next(lki_rendezvous *rendezvous, lki_event *out);

/* ---- Known once all have met ------------------------------------------------------------- */

uint32_t        lki_rendezvous_self(const lki_rendezvous *rendezvous); /* this node's number */
uint32_t        lki_rendezvous_nodes(const lki_rendezvous *rendezvous);
const lki_node *lki_rendezvous_node(const lki_rendezvous *rendezvous, uint32_t node);

/* Returns LKI_JOB_BYTES random bytes, equal on all nodes. */
const unsigned char *lki_rendezvous_job(const lki_rendezvous *rendezvous);

/* The state of a running job that this node has joined late. `since` has, for each rank, 1 + the
 * epoch in which the rank entered, or 0 if the rank is not in the group. */
typedef struct {
    uint64_t  epoch;
    uint64_t *since;
} lki_standing;

/* Returns the standing of the job; NULL if this node has been in the job from the beginning. */
const lki_standing *lki_rendezvous_standing(const lki_rendezvous *rendezvous);

/* Returns a port that was free on node 0, for programs that need one (MASTER_PORT). */
uint16_t lki_rendezvous_port(const lki_rendezvous *rendezvous);

/* Returns the address, without port, by which this host reaches node 0.  On node 0, returns the
 * address by which the other nodes reach node 0. */
const char *lki_rendezvous_address(const lki_rendezvous *rendezvous);

/* Returns a worker's contact data, once LKI_EVENT_KNOWN has occurred. */
const lki_introduction *lki_rendezvous_introduction(const lki_rendezvous *rendezvous,
                                                    uint32_t rank);

/* ---- Reports to the others; without effect once node 0 is lost --------------------------- */

/* Publishes the contact data of this node's workers, in order of rank.  Called once per epoch,
 * after LKI_EVENT_MET.  Workers outside the group have no address. */
void lki_rendezvous_introduce(lki_rendezvous *rendezvous, const lki_introduction *workers);

/* Reports the end of a worker of this node. */
void lki_rendezvous_ended(lki_rendezvous *rendezvous, const lki_rank_end *end);

/* Reports why the job has failed. */
void lki_rendezvous_verdict(lki_rendezvous *rendezvous, const lki_verdict *verdict);

/* Reports a request to stop; `force`: the second request. */
void lki_rendezvous_stop(lki_rendezvous *rendezvous, int signal, bool force);

/* Announces that ranks of this node request the group after `epoch`. */
void lki_rendezvous_asked(lki_rendezvous *rendezvous, uint64_t epoch, uint32_t timeout_ms);

/* Reports the `members` of this node that survive and the `entrants` that ask to enter, once both
 * are known for all its ranks.  NULL `entrants`: these members refuse all entrants, on any node.
 * LKI_EVENT_GROUP follows when all nodes in the group of `epoch` have reported, finished or been
 * lost.  The new group has all reported members.  It also has the entrants if no member refused
 * them and a member of their node survives.
 *
 * A late node calls this function once, with all its ranks as entrants, when they are ready to
 * enter.  It receives every new group until one contains it.  Nodes in the group receive
 * LKI_EVENT_AWAITED and should rebuild the group when convenient. */
void lki_rendezvous_go_on(lki_rendezvous *rendezvous, uint64_t epoch, const lki_members *members,
                          const lki_members *entrants);

/* Leaves a job that continues without this node, after lki_rendezvous_finish().  The caller must
 * handle events until lki_rendezvous_has_left() returns true: node 0 has then read all reports, or
 * has not read them within two seconds.  Node 0 itself cannot leave. */
void lki_rendezvous_leave(lki_rendezvous *rendezvous);
bool lki_rendezvous_has_left(const lki_rendezvous *rendezvous);

/* Returns true if node 0 is lost, so that no further decisions are made. */
bool lki_rendezvous_lost(const lki_rendezvous *rendezvous);

/* Reports that this node has finished.  LKI_EVENT_OVER follows when all nodes have finished. */
void lki_rendezvous_finish(lki_rendezvous *rendezvous, const lki_outcome *outcome);

/* ---- For tests and reports ----------------------------------------------------------------- */

/* Returns the number of connections that node 0 has refused. */
uint32_t lki_rendezvous_refused(const lki_rendezvous *rendezvous);

/* Describes the last refusal, e.g. "10.0.0.9:4711: said no hello in time"; "" = none. */
const char *lki_rendezvous_last_refused(const lki_rendezvous *rendezvous);

#endif
