/* tensor/isa/choose.h -- the kernels that an executor uses on this processor. */
#ifndef LKI_TENSOR_ISA_CHOOSE_H
#define LKI_TENSOR_ISA_CHOOSE_H

#include "tensor/isa/kernels.h"

typedef struct {
    const char        *name; /* of the instruction set */
    const lki_kernels *kernels;
    lki_bf16_kernels   bf16; /* instead of those in `kernels` */
} lki_choice;

/* Finds the kernels of the instruction set `isa` (see lk_exec_open()).  If it is NULL or "auto",
 * measures for less than a millisecond which are the fastest. */
LK_NODISCARD lk_status lki_choose_kernels(lki_choice *out, const char *isa);

#endif
