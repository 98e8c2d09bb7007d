/* train/core/group_values.h -- the values that groups keep between steps.  See group_values.c. */
#ifndef LKI_TRAIN_GROUP_VALUES_H
#define LKI_TRAIN_GROUP_VALUES_H

#include "train/core/session.h"

enum { LKI_GROUP_VALUE_NAME_MAX = LK_NAME_MAX + 32 };

typedef struct {
    /* see lk_parallel_fetch_kept(); param_count: the whole model */
    uint32_t param, which, group;
    bool     running; /* running state `param` of a replica */
    size_t   shared; /* elements of what groups share of the parameter; 0: a value of one group */
} lki_group_value;

typedef struct {
    const lki_session *session;
    lki_group_value   *values;
    size_t             count;
} lki_group_list;

/* Lists the values that groups keep; the list is empty without groups. */
LK_NODISCARD lk_status lki_group_list_make(lki_group_list *out, const lki_session *session);
void                   lki_group_list_free(lki_group_list *list);

lk_shape lki_group_value_shape(const lki_session *session, const lki_group_value *value);
void     lki_group_value_name(const lki_session *session, const lki_group_value *value,
                              char name[LKI_GROUP_VALUE_NAME_MAX]);

/* Copies elements [first, first + count) of value number `value` of a list, which is the context,
 * to `out`.  Collective. */
LK_NODISCARD lk_status lki_group_fetch(void *context, size_t value, size_t first, size_t count,
                                       void *out);

/* Passes all values of groups to `visit`, in the order of the list.  Values of one group are
 * fetched in pieces of LK_CHECKPOINT_PIECE elements.  Collective. */
LK_NODISCARD lk_status lki_group_visit(const lki_session *session,
                                       void (*visit)(void *context, const float *values,
                                                     size_t count),
                                       void *context);

#endif
