/* inspect_groups.c -- the norms of what groups keep, for `lockstep inspect`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/inspect.h"

/* Splits PARAMETER.WHAT.GROUP.  The error of servers is that of no group: PARAMETER.server_error.
 * Returns false if a name has another form. */
static bool split(const char *name, char what[64], size_t *group)
{
    static const char single[] = "server_error";
    const char *last = strrchr(name, '.'), *before = last;
    char       *end;
    if (last != NULL && strcmp(last + 1, single) == 0) {
        (void)snprintf(what, 64, "%s", single);
        *group = 0;
        return true;
    }
    if (last == NULL || last[1] < '0' || last[1] > '9')
        return false;
    *group = strtoul(last + 1, &end, 10);
    while (before > name && before[-1] != '.')
        before--;
    (void)snprintf(what, 64, "%.*s", (int)(last - before), before);
    return *end == '\0' && before > name && *group < 65536;
}

static double square_of(const lk_tensor *tensor)
{
    const float *values = tensor->data;
    double       sum    = 0;
    for (uint64_t i = 0; i < lk_shape_count(tensor->shape); i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

/* Adds a square to number `group` of the list `what`. */
static void add_square(json_t *all, const char *what, size_t group, double square)
{
    json_t *list = json_object_get(all, what);
    if (list == NULL) {
        list = json_array();
        json_object_set_new(all, what, list);
    }
    while (json_array_size(list) <= group)
        json_array_append_new(list, json_real(0));
    json_t *sum = json_array_get(list, group);
    if (isfinite(square + json_real_value(sum)))
        json_real_set(sum, json_real_value(sum) + square);
}

json_t *lki_inspect_groups(const lk_checkpoint *checkpoint)
{
    json_t          *all = json_object();
    const lk_tensor *tensor;
    const char      *what;
    json_t          *list;
    for (size_t i = 0; (tensor = lk_checkpoint_tensor(checkpoint, i)) != NULL; i++) {
        char   kept[64];
        size_t group;
        if (tensor->data != NULL && tensor->dtype == LK_F32 &&
            strcmp(lk_checkpoint_tensor_file(checkpoint, i), "groups.safetensors") == 0 &&
            split(tensor->name, kept, &group))
            add_square(all, kept, group, square_of(tensor));
    }
    json_object_foreach(all, what, list)
    {
        for (size_t g = 0; g < json_array_size(list); g++)
            json_real_set(json_array_get(list, g), sqrt(json_real_value(json_array_get(list, g))));
    }
    if (json_object_size(all) > 0)
        return all;
    json_decref(all);
    return NULL;
}

void lki_inspect_print_groups(const json_t *groups)
{
    const char *what;
    json_t     *list;
    if (groups != NULL)
        printf("groups\n");
    json_object_foreach((json_t *)(uintptr_t)groups, what, list)
    {
        if (json_array_size(list) == 1)
            printf("  %s, norm\n   ", what);
        else
            printf("  %s, norms of groups 0 to %zu\n   ", what, json_array_size(list) - 1);
        for (size_t g = 0; g < json_array_size(list); g++)
            printf(" %.4g%s", json_real_value(json_array_get(list, g)),
                   g % 8 == 7 && g + 1 < json_array_size(list) ? "\n   " : "");
        printf("\n");
    }
}
