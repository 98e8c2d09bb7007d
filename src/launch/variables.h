/* launch/variables.h -- environment variables: lists for messages, and a check. */
#ifndef LKI_LAUNCH_VARIABLES_H
#define LKI_LAUNCH_VARIABLES_H

#include <stddef.h>

#include "base/status.h"

typedef enum {
    LKI_NAMES_VALUES,  /* the variables that are set, with their values: "RANK=0 and
                        * WORLD_SIZE=4" */
    LKI_NAMES_SET,     /* set names: "RANK and WORLD_SIZE" */
    LKI_NAMES_MISSING, /* names that are not set */
} lki_names_kind;

typedef struct {
    char   text[240];
    size_t count; /* number of names in `text` */
} lki_names;

/* Lists names[0] to names[count - 1], skipping NULL entries. */
lki_names lki_names_list(const char *const *names, size_t count, lki_names_kind kind);

/* Refuses (LK_EINVAL) a variable that the environment has twice, with different values, since
 * programs disagree about which of the values counts.  `names` may have NULL entries.  `alone`
 * lists the variables to unset in order to run one process; "" stands for the variable itself. */
LK_NODISCARD lk_status lki_names_check_once(const char *const *names, size_t count,
                                            const char *alone);

#endif
