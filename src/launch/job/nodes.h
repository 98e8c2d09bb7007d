/* launch/job/nodes.h -- communication between the launchers of the nodes. */
#ifndef LKI_LAUNCH_JOB_NODES_H
#define LKI_LAUNCH_JOB_NODES_H

#include "launch/job/job.h"
#include "launch/job/spawn.h"

/* The messages that a launcher sends to the other launchers while the job runs.  Each message
 * corresponds to a function such as lki_rendezvous_introduce().  The fields below are the arguments
 * of these functions. */
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
    uint64_t                epoch; /* epoch to which the message refers */
    const lki_introduction *workers;
    lki_rank_end            end;
    lki_verdict             verdict;
    lki_order               stop;
    uint32_t                timeout_ms;
    lki_members             members, entrants;
    bool                    admits; /* false: no worker may enter */
} lki_saying;

/* Sends a message to the other nodes.  Called in the process that owns the connections. */
void lki_nodes_speak(const lki_job *job, const lki_saying *what);

/* Returns the data of this node, once all nodes have connected. */
const lki_node *lki_nodes_self(const lki_job *job);

/* Waits for all nodes.  Afterwards job->roster and the placement of all ranks are known. */
LK_NODISCARD lk_status lki_nodes_meet(lki_job *job);

/* Returns the silence after which a node counts as lost.  This is the given timeout of the workers
 * (0: the default), limited to 1 s to 10 s. */
uint32_t lki_nodes_silence_ms(uint32_t timeout_ms);

/* Fails with LK_EPEER if a worker of another launcher has ended before all nodes had connected. */
LK_NODISCARD lk_status lki_nodes_check_workers(const lki_job *job);

/* Writes the facts that workers need to reach other hosts into the control memory, and the key into
 * a memfd. */
LK_NODISCARD lk_status lki_nodes_prepare(lki_job *job);

/* Fills in this node's number and node 0's address for the workers. */
void lki_nodes_describe(lki_job *job, lki_worker_facts *facts);

/* Handles all messages from the other nodes. */
LK_NODISCARD lk_status lki_nodes_serve(lki_job *job);

/* Prints a note about connections that the rendezvous has refused since the last note.  With
 * `last`, prints the note even if the last one is recent. */
void lki_nodes_note_refused(lki_job *job, bool last);

/* Sends new facts from the control memory to the other nodes: addresses of workers, or a
 * failure. */
void lki_nodes_look(lki_job *job);

/* Reports the end of a worker to the other nodes.  If the end was a failure, lki_nodes_look()
 * reports the failure separately. */
void lki_nodes_ended(lki_job *job, uint32_t i);

/* Forwards a user's request to stop to the other nodes. */
void lki_nodes_stop(lki_job *job, int number, bool force);

/* Reports that this node has finished with status `st`.  If `st` is LK_OK, also reports `result`
 * and its `weight`.  Waits for the other nodes, and replaces *result by the result of the whole
 * job. */
LK_NODISCARD lk_status lki_nodes_finish(lki_job *job, lk_status st, uint32_t weight,
                                        lk_launch_result *result);

void lki_nodes_close(lki_job *job);

#endif
