/* scan.c -- the selection of loops for this processor. */
#include "compress/scan.h"

const lki_scan *lki_scan_at(size_t index, bool *lacks)
{
    *lacks = false;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    *lacks = (index == 0 && !avx512) || (index == 1 && !__builtin_cpu_supports("avx2"));
    const lki_scan *tables[] = { &lki_scan_avx512, &lki_scan_avx2, &lki_scan_portable };
#else
    const lki_scan *tables[] = { &lki_scan_portable };
#endif
    return index < sizeof tables / sizeof tables[0] ? tables[index] : NULL;
}

const lki_scan *lki_scan_best(void)
{
    bool            lacks = false;
    const lki_scan *table = NULL;
    for (size_t i = 0; table == NULL || lacks; i++)
        table = lki_scan_at(i, &lacks);
    return table;
}
