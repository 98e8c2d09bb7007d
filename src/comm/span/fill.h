/* span/fill.h -- a mirror that starts when a host's ranks have written their parts: see fill.c. */
#ifndef LKI_COMM_SPAN_FILL_H
#define LKI_COMM_SPAN_FILL_H

#include "comm/group/request.h"

typedef struct lki_filling lki_filling;

LK_NODISCARD lk_status lki_filling_new(lki_filling **out, lk_request *request);

/* Advances the filling.  Sets *moved if the filling advanced, and *done if it is complete. */
LK_NODISCARD lk_status lki_filling_move(lki_filling *fill, bool *moved, bool *done);

/* Frees the filling.  NULL is allowed. */
void lki_filling_free(lki_filling *fill);

#endif
