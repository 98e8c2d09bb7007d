/* cli/damage.h -- for tests: damages copies of a folder, and expects that `train` refuses them. */
#ifndef LKT_DAMAGE_H
#define LKT_DAMAGE_H

#include "command.h"

/* A case: the commands that damage the folder `bad`, the options that are given besides, and words
 * of the message.  With the damage "true" the options contradict the folder. */
typedef struct {
    const char *damage, *options, *says;
} damage_case;

/* Runs `train ARGUMENTS OPTIONS` with every `stride`-th case, in which `bad` is a damaged copy of
 * `folder`.  None of the runs may succeed, or create the checkpoint directory `none`. */
static inline void refuse_damage(void **state, const char *folder, const char *arguments,
                                 const damage_case *cases, size_t count, size_t stride)
{
    static command_result result;
    char                  line[2048];
    for (size_t i = 0; i < count; i += stride) {
        (void)snprintf(line, sizeof line, "rm -rf bad; cp -r %s bad; %s; " LK_TEST_COMMAND
                       " train %s --checkpoint none %s", folder, cases[i].damage, arguments,
                       cases[i].options);
        (void)run_shell(&result, *state, line);
        if (result.status == 0 || strstr(result.err, cases[i].says) == NULL)
            fail_msg("%s, %s: \"%s\" is not in: %s", cases[i].damage, cases[i].options,
                     cases[i].says, result.err);
    }
    shell(&result, state, "ls none/*", 2); /* nothing */
}

#endif
