/* comm/group/engine.h -- a launcher, such as MPI's, that also performs collectives.
 *
 * An engine serves the communicator that was opened with it, but no communicators created from this
 * one.  The ranks compare the fingerprints of a "native" operation, and then the engine performs
 * it.  The engine chooses the algorithm, the order of sums and the treatment of NaN.  An operation
 * makes progress only while a rank polls the engine.
 */
#ifndef LKI_COMM_GROUP_ENGINE_H
#define LKI_COMM_GROUP_ENGINE_H

#include "comm/group/group.h"

typedef struct lki_engine lki_engine;

typedef struct {
    /* Takes over the request if all ranks are on one host and the user selected "native". */
    void (*claim)(lk_request *request);

    /* Frees the engine when a rank has freed its last communicator.  `first` is the rank's first
     * communicator, on this host. */
    void (*leave)(lki_engine *engine, lk_comm *first);
} lki_engine_ops;

/* The head of every engine. */
struct lki_engine {
    const lki_engine_ops *ops;
    const lk_comm        *comm; /* the communicator that the engine serves */
};

/* Returns true if there is an engine and it serves the communicator `comm`. */
static inline bool lki_engine_serves(const lki_engine *engine, const lk_comm *comm)
{
    return engine != NULL && engine->comm == comm;
}

#endif
