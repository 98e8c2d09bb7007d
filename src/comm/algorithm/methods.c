/* methods.c -- the table of all algorithms, in the order in which messages list them. */
#include "comm/algorithm/schedule.h"

#define METHOD_ADDRESS(name) &lki_method_##name,
const lki_method *const lki_methods[] = { LKI_METHOD_TABLE(METHOD_ADDRESS) NULL };
#undef METHOD_ADDRESS

uint32_t lki_method_number(const lki_method *method)
{
    uint32_t i = 0;

    while (method != NULL && lki_methods[i] != method)
        i++;
    return method == NULL ? 0 : i + 1;
}
