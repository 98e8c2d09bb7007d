/* span/fill.h -- a mirror in stages: see fill.c. */
#ifndef LKI_COMM_SPAN_FILL_H
#define LKI_COMM_SPAN_FILL_H

#include "comm/request.h"

/* Where the ranks of a host meet before and after what is on the network. */
typedef struct {
    lk_comm *enter, *leave;
    uint64_t next, turn; /* of the next one to start, and of that which may start to leave */
} lki_doors;

typedef struct lki_filling lki_filling;

LK_NODISCARD lk_status lki_filling_new(lki_filling **out, lk_request *request);

/* As lki_task_move(). */
LK_NODISCARD lk_status lki_filling_move(lki_filling *fill, bool *moved, bool *done);

/* NULL is allowed. */
void lki_filling_free(lki_filling *fill);

#endif
