/* comm/engine.h -- what started a job and stays in it: MPI. */
#ifndef LKI_COMM_ENGINE_H
#define LKI_COMM_ENGINE_H

#include "comm/group.h"

typedef struct lki_engine lki_engine;

/* The last communicator of a rank goes; `first` is its first one, on this host.  Where no link
 * does it, waits for the other ranks to leave, too, and lets go of MPI; after a failure for 5 s at
 * most, and then MPI is left as it is.  NULL is allowed. */
void lki_engine_leave(lki_engine *engine, lk_comm *first);

/* Without leaving: MPI stays.  NULL is allowed. */
void lki_engine_free(lki_engine *engine);

#endif
