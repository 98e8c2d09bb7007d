/* cli/difference.h -- prints differences, for `diff` and for `verify` of a statement. */
#ifndef LKI_CLI_DIFFERENCE_H
#define LKI_CLI_DIFFERENCE_H

#include "lockstep/report.h"

/* Counts differences of which only the first is printed. */
typedef struct {
    uint64_t tensors, elements, missing;
} lki_difference_totals;

/* Prints a difference, of tensors only the first; `context` is a lki_difference_totals. */
void lki_print_difference(void *context, const lk_difference *difference);
/* Prints how many tensors differ. */
void lki_print_difference_totals(const lki_difference_totals *totals);

#endif
