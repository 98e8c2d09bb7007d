/* group_values.c -- the values that groups keep between steps (lockstep/exchange.h).
 *
 * A value is that of a parameter and a group, so a run can load it with any number of workers and
 * hosts.  Its name is PARAMETER.WHAT.GROUP, such as wte.weight.error.3.  What all groups share of a
 * parameter is PARAMETER.shared, and what they share of the whole model is "shared".  The running
 * state of a replica is STATE.running.GROUP.
 */
#include "train/core/group_values.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "lockstep/checkpoint.h"
#include "train/config.h"

static uint32_t count_kept(const lki_session *session, uint32_t param)
{
    uint32_t count = 0;
    while (param < session->param_count &&
           lk_parallel_kept_name(session->parallel, param, count) != NULL)
        count++;
    return count;
}

/* Lists the values of a parameter, or those of the whole model after the last, or counts them if
 * `out` is NULL. */
static size_t list_values(const lki_session *session, uint32_t param, lki_group_value *out)
{
    size_t count = 0, bytes;
    for (uint32_t w = 0; w < count_kept(session, param); w++)
        for (uint32_t g = 0; g < lk_parallel_kept_groups(session->parallel, w); g++, count++)
            if (out != NULL)
                out[count] = (lki_group_value){ .param = param, .which = w, .group = g };
    if (lk_parallel_shared(session->parallel, param, &bytes) == NULL)
        return count;
    if (out != NULL)
        out[count] = (lki_group_value){ .param = param, .shared = bytes / sizeof(float) };
    return count + 1;
}

/* Lists the running state of replicas, or counts it if `out` is NULL. */
static size_t list_running(const lki_session *session, lki_group_value *out)
{
    const uint32_t groups = lki_replicates(session->config) ? lk_parallel_groups(session->parallel)
                                                            : 0;
    size_t         count  = 0;
    for (uint32_t s = 0; s < session->state_count; s++)
        for (uint32_t g = 0; g < groups; g++, count++)
            if (out != NULL)
                out[count] = (lki_group_value){ .param = s, .group = g, .running = true };
    return count;
}

lk_status lki_group_list_make(lki_group_list *out, const lki_session *session)
{
    size_t count = list_running(session, NULL);
    for (uint32_t p = 0; p <= session->param_count; p++)
        count += list_values(session, p, NULL);
    *out = (lki_group_list){ .session = session, .count = count };
    if (count == 0)
        return LK_OK;
    LK_TRY(LKI_NEW(&out->values, count, "values of groups"));
    count = list_running(session, out->values);
    for (uint32_t p = 0; p <= session->param_count; p++)
        count += list_values(session, p, out->values + count);
    return LK_OK;
}

void lki_group_list_free(lki_group_list *list)
{
    lki_free(list->values);
    *list = (lki_group_list){ 0 };
}

lk_shape lki_group_value_shape(const lki_session *session, const lki_group_value *value)
{
    if (value->running)
        return (lk_shape){ 1, { session->states[value->param].count } };
    return value->shared > 0 ? (lk_shape){ 1, { value->shared } }
                             : session->params[value->param].shape;
}

void lki_group_value_name(const lki_session *session, const lki_group_value *v,
                       char name[LKI_GROUP_VALUE_NAME_MAX])
{
    if (v->running) {
        (void)snprintf(name, LKI_GROUP_VALUE_NAME_MAX, "%s.running.%u",
                       session->states[v->param].name, v->group);
        return;
    }
    if (v->param == session->param_count) {
        (void)snprintf(name, LKI_GROUP_VALUE_NAME_MAX, "shared");
        return;
    }
    const char *param = session->params[v->param].name;
    const char *what  = lk_parallel_kept_name(session->parallel, v->param, v->which);
    if (v->shared > 0)
        (void)snprintf(name, LKI_GROUP_VALUE_NAME_MAX, "%s.shared", param);
    else if (what != NULL && strcmp(what, "server_error") == 0)
        (void)snprintf(name, LKI_GROUP_VALUE_NAME_MAX, "%s.%s", param, what);
    else
        (void)snprintf(name, LKI_GROUP_VALUE_NAME_MAX, "%s.%s.%u", param, what, v->group);
}

/* Copies a part of the running state of a replica. */
static lk_status fetch_running(const lki_group_list *list, const lki_group_value *v, size_t first,
                               size_t count, float *out)
{
    const lki_session *session = list->session;
    float             *whole   = NULL;
    LK_TRY(LKI_NEW(&whole, session->states[v->param].count, "running state"));
    lk_status status = lk_parallel_fetch_replica_state(session->parallel, v->group, v->param,
                                                       whole);
    if (status == LK_OK)
        memcpy(out, whole + first, count * sizeof *out);
    lki_free(whole);
    return status;
}

lk_status lki_group_fetch(void *context, size_t value, size_t first, size_t count, void *out)
{
    const lki_group_list  *list = context;
    const lki_group_value *v    = &list->values[value];
    if (v->running)
        return fetch_running(list, v, first, count, out);
    return lk_parallel_fetch_kept(list->session->parallel, v->param, v->which, v->group, first,
                                  count, out);
}

static lk_status visit_value(lki_group_list *list, size_t value, float *piece,
                             void (*visit)(void *context, const float *values, size_t count),
                             void *context)
{
    const lki_group_value *v     = &list->values[value];
    const size_t           count = lk_shape_count(lki_group_value_shape(list->session, v));
    size_t                 bytes;
    if (v->shared > 0) {
        visit(context, lk_parallel_shared(list->session->parallel, v->param, &bytes), count);
        return LK_OK;
    }
    for (size_t at = 0; at < count; at += LK_CHECKPOINT_PIECE) {
        size_t n = lki_min(count - at, LK_CHECKPOINT_PIECE);
        LK_TRY(lki_group_fetch(list, value, at, n, piece));
        visit(context, piece, n);
    }
    return LK_OK;
}

lk_status lki_group_visit(const lki_session *session,
                          void (*visit)(void *context, const float *values, size_t count),
                          void *context)
{
    lki_group_list list;
    float         *piece  = NULL;
    lk_status      status = lki_group_list_make(&list, session);
    if (status == LK_OK && list.count > 0)
        status = LKI_NEW(&piece, LK_CHECKPOINT_PIECE, "a piece of a tensor");
    for (size_t i = 0; status == LK_OK && i < list.count; i++)
        status = visit_value(&list, i, piece, visit, context);
    lki_free(piece);
    lki_group_list_free(&list);
    return status;
}
