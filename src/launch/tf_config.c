/* tf_config.c -- parses the value of TF_CONFIG, as in tf.distribute:
 *
 *    {"cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]}, "task": {"type": "worker",
 *     "index": 0}}
 *
 * The chief is rank 0 and computes, and the workers follow in their listed order.  Tasks on one
 * host have the same host name, and must be adjacent in the lists.  Tasks of other types have no
 * rank: the chief and the workers ignore them in the cluster, and such a task itself is refused.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "comm/roster.h"
#include "launch/foreign.h"

/* The tasks that compute, in the order of ranks. */
typedef struct {
    const char *address[LKI_RANKS_MAX];
    uint32_t    count, chiefs;
} tasks;

static lk_status refuse(const char *why)
{
    return lk_fail(LK_EINVAL, "%s", why);
}

static lk_status add_tasks(tasks *all, const json_t *cluster, const char *type)
{
    const json_t *list = json_object_get(cluster, type), *entry;
    size_t        i;

    if (list != NULL && !json_is_array(list))
        return refuse("chief and worker must be lists of HOST:PORT");
    json_array_foreach(list, i, entry) {
        const char *address = json_string_value(entry);
        if (address == NULL || strrchr(address, ':') == NULL)
            return refuse("chief and worker must be lists of HOST:PORT");
        if (all->count == LKI_RANKS_MAX)
            return refuse("there are more workers than are possible");
        all->address[all->count++] = address;
    }
    return LK_OK;
}

static bool same_host(const char *a, const char *b)
{
    size_t length = (size_t)(strrchr(a, ':') - a);
    return (size_t)(strrchr(b, ':') - b) == length && memcmp(a, b, length) == 0;
}

/* Finds the tasks on the host of out->rank.  These tasks must be adjacent. */
static lk_status find_neighbours(lki_foreign *out, const tasks *all)
{
    uint32_t first = out->rank, end = out->rank + 1;

    while (first > 0 && same_host(all->address[first - 1], all->address[out->rank]))
        first--;
    while (end < all->count && same_host(all->address[end], all->address[out->rank]))
        end++;
    for (uint32_t i = 0; i < all->count; i++)
        if ((i < first || i >= end) && same_host(all->address[i], all->address[out->rank]))
            return refuse("the tasks of one host must stand side by side");
    out->local_rank = out->rank - first;
    out->local_size = end - first;
    return LK_OK;
}

static lk_status refuse_type(const char *type)
{
    if (strcmp(type, "ps") == 0)
        return refuse("a ps task has nothing to do, because the workers apply the gradients; "
                      "start only the chief and the workers, with the options in "
                      "docs/parameter-server.md");
    if (strcmp(type, "evaluator") == 0)
        return refuse("an evaluator has nothing to do, because the workers evaluate "
                      "(`eval_every`); start only the chief and the workers");
    return refuse("only tasks of the types chief and worker compute");
}

static lk_status read_task(lki_foreign *out, const tasks *all, const json_t *task)
{
    const char   *type  = json_string_value(json_object_get(task, "type"));
    const json_t *place = json_object_get(task, "index");
    json_int_t    index = json_integer_value(place);
    bool          chief = type != NULL && strcmp(type, "chief") == 0;

    if (type == NULL || !json_is_integer(place) || index < 0)
        return refuse("task must have a type and an index");
    if (!chief && strcmp(type, "worker") != 0)
        return refuse_type(type);
    if (index >= (json_int_t)(chief ? all->chiefs : all->count - all->chiefs))
        return refuse("the task is not in the cluster");
    out->rank = (uint32_t)index + (chief ? 0 : all->chiefs);
    return LK_OK;
}

/* Checks that a TF_CONFIG without a cluster describes a single task. */
static lk_status check_alone(const json_t *root)
{
    const json_t *task = json_object_get(root, "task"), *place = json_object_get(task, "index");

    if (!json_is_object(root))
        return refuse("it must be an object with cluster and task");
    if (place != NULL && (!json_is_integer(place) || json_integer_value(place) != 0))
        return refuse("it has the index of a task, but no cluster");
    return LK_OK;
}

static lk_status read_root(lki_foreign *out, const json_t *root)
{
    const json_t *cluster = json_object_get(root, "cluster");
    tasks         all     = { .count = 0 };

    if (cluster == NULL)
        return check_alone(root);
    if (!json_is_object(cluster))
        return refuse("cluster must be an object with lists of HOST:PORT");
    LK_TRY(add_tasks(&all, cluster, "chief"));
    all.chiefs = all.count;
    LK_TRY(add_tasks(&all, cluster, "worker"));
    LK_TRY(read_task(out, &all, json_object_get(root, "task")));
    LK_TRY(find_neighbours(out, &all));
    out->by   = "TF_CONFIG";
    out->size = all.count;
    if (strlen(all.address[0]) + sizeof "tcp://" > sizeof out->rendezvous)
        return refuse("an address is too long");
    (void)snprintf(out->rendezvous, sizeof out->rendezvous, "tcp://%s", all.address[0]);
    char *text = json_dumps(cluster, JSON_SORT_KEYS | JSON_COMPACT);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "no memory for TF_CONFIG");
    const uint64_t words[2] = { lki_xxh3(text, strlen(text)), getuid() };
    out->job                = lki_xxh3(words, sizeof words);
    free(text);
    return LK_OK;
}

lk_status lki_tf_config_read(lki_foreign *out, const char *json)
{
    json_error_t error;
    json_t      *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);

    lk_status    st   = root != NULL ? read_root(out, root)
                                     : lk_fail(LK_EINVAL, "it is not JSON: %.100s", error.text);
    json_decref(root);
    if (st != LK_EINVAL)
        return st;
    return lk_fail(st, "TF_CONFIG=%.160s in the environment: %s; set it right for every process, "
                       "or unset TF_CONFIG to run alone", json, lk_error_last()->message);
}
