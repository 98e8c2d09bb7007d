/* methods.c -- all algorithms, in the order in which lists name them. */
#include "comm/algorithm/schedule.h"

const lki_method *const lki_methods[] = {
    &lki_method_direct,        &lki_method_linear,  &lki_method_tree,
    &lki_method_double_tree,   &lki_method_halving, &lki_method_ring,
    &lki_method_levels,        &lki_method_mirror,  &lki_method_dissemination,
    &lki_method_mail,          &lki_method_native,  NULL,
};

uint32_t lki_method_number(const lki_method *method)
{
    uint32_t i = 0;

    while (method != NULL && lki_methods[i] != method)
        i++;
    return method == NULL ? 0 : i + 1;
}
