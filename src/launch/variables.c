/* variables.c -- formats lists of environment variables for messages. */
#include "launch/variables.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Refuses two entries of the environment for `name` with different values. */
static lk_status check_once(const char *name, const char *alone)
{
    const char *first  = NULL;
    size_t      length = strlen(name);

    for (char **entry = environ; *entry != NULL; entry++) {
        if (strncmp(*entry, name, length) != 0 || (*entry)[length] != '=')
            continue;
        const char *value = *entry + length + 1;
        if (first != NULL && strcmp(first, value) != 0)
            return lk_fail(LK_EINVAL, "the environment has %s twice, as %.40s and as %.40s: set it "
                           "once; unset %s to run alone", name, first, value,
                           *alone != '\0' ? alone : name);
        first = value;
    }
    return LK_OK;
}

lk_status lki_names_check_once(const char *const *names, size_t count, const char *alone)
{
    for (size_t i = 0; i < count; i++)
        if (names[i] != NULL)
            LK_TRY(check_once(names[i], alone));
    return LK_OK;
}
