/* groups.c -- what groups keep between steps, as one file of a checkpoint. */
#include "train/saves/groups.h"

#include "base/memory.h"

lk_checkpoint_file lki_group_file(lki_group_list *list, lk_tensor *tensors,
                                  char (*names)[LKI_OPTIMIZER_NAME_MAX])
{
    for (size_t i = 0; i < list->count; i++) {
        const lki_group_value *v    = &list->values[i];
        const void            *data = NULL;
        size_t                 bytes;
        if (v->shared > 0)
            data = lk_parallel_shared(list->session->parallel, v->param, &bytes);
        lki_group_value_name(list->session, v, names[i]);
        tensors[i] = (lk_tensor){ names[i], LK_F32, lki_group_value_shape(list->session, v),
                                  data };
    }
    return (lk_checkpoint_file){ .name         = LKI_GROUPS_FILE,
                                 .tensors      = tensors,
                                 .tensor_count = list->count,
                                 .fetch        = lki_group_fetch,
                                 .context      = list };
}

static lk_status load_value(lki_session *session, const lk_checkpoint *checkpoint,
                            const lki_group_value *v, float *values)
{
    char           name[LKI_GROUP_VALUE_NAME_MAX];
    const lk_shape shape = lki_group_value_shape(session, v);
    const size_t   count = lk_shape_count(shape);
    lki_group_value_name(session, v, name);
    if (checkpoint != NULL)
        LK_TRY(lk_checkpoint_read(checkpoint, LKI_GROUPS_FILE, name, shape, 0, count, values));
    LK_TRY(lk_broadcast(session->comm, values, count * sizeof *values, 0));
    if (v->running)
        return lk_parallel_load_replica_state(session->parallel, v->group, v->param, values);
    return v->shared > 0 ? lk_parallel_load_shared(session->parallel, v->param, values)
                         : lk_parallel_load_kept(session->parallel, v->param, v->which, v->group,
                                                 values);
}

lk_status lki_group_load(lki_session *session, const lk_checkpoint *checkpoint)
{
    lki_group_list list;
    size_t         widest = 0;
    float         *values = NULL;
    lk_status      status = lki_group_list_make(&list, session);
    for (size_t i = 0; i < list.count; i++)
        widest = lki_max(widest, lk_shape_count(lki_group_value_shape(session, &list.values[i])));
    if (status == LK_OK && widest > 0)
        status = LKI_NEW(&values, widest, "values of groups");
    for (size_t i = 0; status == LK_OK && i < list.count; i++)
        status = load_value(session, checkpoint, &list.values[i], values);
    lki_free(values);
    lki_group_list_free(&list);
    return status;
}
