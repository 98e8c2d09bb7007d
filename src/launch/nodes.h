/* launch/nodes.h -- a launcher among those of the other nodes. */
#ifndef LKI_LAUNCH_NODES_H
#define LKI_LAUNCH_NODES_H

#include "launch/job.h"
#include "launch/spawn.h"

/* What a launcher says to the others while the job runs, as lki_rendezvous_introduce() and so on
 * have it; `workers` to `entrants` are those functions' arguments. */
typedef enum {
    LKI_SAY_INTRODUCE,
    LKI_SAY_ENDED,
    LKI_SAY_VERDICT,
    LKI_SAY_STOP,
    LKI_SAY_ASKED,
    LKI_SAY_GO_ON,
    LKI_SAY_KINDS,
} lki_say_kind;

typedef struct lki_saying {
    lki_say_kind            kind;
    uint64_t                epoch; /* in which it is said */
    const lki_introduction *workers;
    lki_rank_end            end;
    lki_verdict             verdict;
    lki_order               stop;
    uint32_t                timeout_ms;
    lki_members             members, entrants;
    bool                    admits; /* false: nobody shall enter */
} lki_saying;

/* Says it, wherever the connections are; and where they are. */
void lki_nodes_say(const lki_job *job, const lki_saying *what);
void lki_nodes_speak(const lki_job *job, const lki_saying *what);

/* This one, once all have met. */
const lki_node *lki_nodes_self(const lki_job *job);

/* Whether node 0 is lost, so that nobody decides any more. */
bool lki_nodes_lost(const lki_job *job);

/* Waits until all nodes have come: job->roster is known then, and who is where. */
LK_NODISCARD lk_status lki_nodes_meet(lki_job *job);

/* After how much silence a node is lost, for waits of this length (0: as they are when nothing is
 * asked for): as long as these, from 1 s to 10 s. */
uint32_t lki_nodes_silence_ms(uint32_t timeout_ms);

/* LK_EPEER if a worker that another launcher has started ended before all had met. */
LK_NODISCARD lk_status lki_nodes_check_workers(const lki_job *job);

/* Puts into the control memory, and a descriptor, what workers need to reach those on other hosts:
 * names of the hosts, the job, the key. */
LK_NODISCARD lk_status lki_nodes_prepare(lki_job *job);

/* What workers are told of the nodes: the number of this one, where node 0 is. */
void lki_nodes_describe(lki_job *job, lki_worker_facts *facts);

/* The others have said something. */
LK_NODISCARD lk_status lki_nodes_serve(lki_job *job);

/* Strangers at the rendezvous, since the last note; `last`: or none will follow. */
void lki_nodes_note_refused(lki_job *job, bool last);

/* Something may have changed in the control memory: addresses of workers, or a failure. */
void lki_nodes_look(lki_job *job);

/* A worker of this node has ended; whether it failed the job is said by lki_nodes_look(). */
void lki_nodes_ended(lki_job *job, uint32_t i);

/* The user wants something of this node that all shall do. */
void lki_nodes_stop(lki_job *job, int number, bool force);

/* All is said and done on this node, with `st` and (where that is LK_OK) `weight` of `result`.
 * Waits for the others; the result is everybody's then. */
LK_NODISCARD lk_status lki_nodes_finish(lki_job *job, lk_status st, uint32_t weight,
                                        lk_launch_result *result);

void lki_nodes_close(lki_job *job);

#endif
