/* names.c -- finds strategies by name. */
#include <string.h>

#include "parallel/state.h"

const char *lk_strategy_name(const char *name)
{
    static const char *const others[][2] = { { "NO_SHARD", "ddp" },
                                             { "SHARD_GRAD_OP", "zero2" },
                                             { "FULL_SHARD", "zero3" },
                                             { "HYBRID_SHARD", "hybrid" } };
    for (size_t i = 0; name != NULL && i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i][0]) == 0)
            return others[i][1];
    return name;
}

lk_status lki_strategy_find(const lki_strategy_ops **out, const char *name)
{
    static const lki_strategy_ops *const all[] = { &lki_strategy_ddp, &lki_strategy_zero1,
                                                   &lki_strategy_zero2, &lki_strategy_zero3,
                                                   &lki_strategy_hybrid, &lki_strategy_single };
    const char *known = lk_strategy_name(name);

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (known == NULL || strcmp(known, all[i]->name) == 0) {
            *out = all[i];
            return LK_OK;
        }
    return lk_fail(LK_EINVAL,
                   "unknown strategy '%s'; there are ddp, zero1, zero2, zero3, hybrid and single",
                   name);
}
