/* variables.c -- formats lists of environment variables for messages. */
#include "launch/variables.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static bool belongs(const char *name, lki_names_kind kind)
{
    return name != NULL && (getenv(name) == NULL) == (kind == LKI_NAMES_MISSING);
}

lki_names lki_names_list(const char *const *names, size_t count, lki_names_kind kind)
{
    lki_names list = { .text = "" };
    size_t    used = 0, total = 0;

    for (size_t i = 0; i < count; i++)
        total += belongs(names[i], kind);
    for (size_t i = 0; i < count && used < sizeof list.text; i++) {
        if (!belongs(names[i], kind))
            continue;
        const char *before = list.count == 0 ? "" : list.count + 1 == total ? " and " : ", ";
        bool        valued = kind == LKI_NAMES_VALUES;
        used += (size_t)snprintf(list.text + used, sizeof list.text - used, "%s%s%s%.30s", before,
                                 names[i], valued ? "=" : "", valued ? getenv(names[i]) : "");
        list.count++;
    }
    return list;
}
