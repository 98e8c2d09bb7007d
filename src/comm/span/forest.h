/* span/forest.h -- a tree_reduce over several hosts: what each host holds of the tree. */
#ifndef LKI_COMM_FOREST_H
#define LKI_COMM_FOREST_H

#include "comm/request.h"
#include "comm/span/task.h"

typedef struct lki_forest lki_forest;

/* A host's branches are the lanes of a round, of which LKI_STEPS_MAX / 4 have names (forest.c takes
 * a stride of 4); at worst every other leaf is one. */
enum { LKI_FOREST_LEAVES_MAX = 4096 };

/* For a request of a communicator over hosts; begins to gather the nodes of this host. */
LK_NODISCARD lk_status lki_forest_new(lki_forest **out, lk_request *request);

/* Of a gathering: the nodes of all ranks of this host, ascending. */
LK_NODISCARD lk_status lki_forest_take(lki_forest *forest, const lki_tree_input *inputs,
                                       uint32_t count);

/* As lki_task_move(). */
LK_NODISCARD lk_status lki_forest_move(lki_forest *forest, const lki_wire_op *op, bool *moved,
                                       bool *done);

/* What it waits for: the gathering on this host, or, if NULL is returned, the task. */
const lk_request *lki_forest_gathering(const lki_forest *forest);
const lki_task   *lki_forest_task(const lki_forest *forest);

/* NULL is allowed. */
void lki_forest_free(lki_forest *forest);

/* Starts a part of `request` on its local communicator that calls lki_forest_take()
 * (coll/tree_reduce.c). */
LK_NODISCARD lk_status lki_tree_gather_start(lk_request **out, lk_request *request,
                                             lki_forest *forest);

#endif
