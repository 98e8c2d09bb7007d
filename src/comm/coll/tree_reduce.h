/* comm/coll/tree_reduce.h -- the part of a tree_reduce over hosts that runs on one host. */
#ifndef LKI_COMM_COLL_TREE_REDUCE_H
#define LKI_COMM_COLL_TREE_REDUCE_H

#include "comm/group/request.h"

/* Starts a part of `request` on its local communicator.  When the nodes of all ranks of this host
 * are known, the part calls take() with `forest` and these nodes, in ascending order. */
LK_NODISCARD lk_status lki_tree_gather_start(lk_request **out, lk_request *request,
                                             struct lki_forest *forest, lki_tree_take *take);

#endif
