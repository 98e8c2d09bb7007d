/* span/forest.h -- a tree_reduce over several hosts, each of which holds a part of the tree. */
#ifndef LKI_COMM_FOREST_H
#define LKI_COMM_FOREST_H

#include "comm/group/request.h"
#include "comm/span/task.h"

typedef struct lki_forest lki_forest;

/* A host's branches use the lanes of a schedule round, and there are names for LKI_STEPS_MAX / 4
 * lanes (forest.c has a stride of 4).  In the worst case every second leaf is a branch. */
enum { LKI_FOREST_LEAVES_MAX = 4096 };

/* Creates the forest of a request of a span communicator, and starts to gather this host's
 * nodes. */
LK_NODISCARD lk_status lki_forest_new(lki_forest **out, lk_request *request);

/* Advances the forest.  Sets *moved if the forest advanced, and *done if it is complete. */
LK_NODISCARD lk_status lki_forest_move(lki_forest *forest, const lki_wire_op *op, bool *moved,
                                       bool *done);

/* Returns the task that the forest executes, or NULL if it executes none. */
const lki_task *lki_forest_task(const lki_forest *forest);

/* Frees the forest.  NULL is allowed. */
void lki_forest_free(lki_forest *forest);

#endif
