/* methods.c -- all algorithms, in the order in which lists name them. */
#include "comm/algorithm/schedule.h"

const lki_method *const lki_methods[] = {
    &lki_method_direct,        &lki_method_linear,  &lki_method_tree,
    &lki_method_double_tree,   &lki_method_halving, &lki_method_ring,
    &lki_method_levels,        &lki_method_mirror,  &lki_method_dissemination,
    &lki_method_mail,          NULL,
};
