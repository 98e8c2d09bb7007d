/* tensor/onednn/onednn.h -- products and convolutions by oneDNN, where an exec was told to. */
#ifndef LKI_TENSOR_ONEDNN_H
#define LKI_TENSOR_ONEDNN_H

#include "tensor/exec.h"
#include "tensor/onednn/module.h"

/* What an exec has of it; all zero where it computes for itself. */
typedef struct {
    const lki_onednn_module *module;
    lki_onednn              *library;
    char                     failure[160]; /* the first, "" = none */
} lki_other;

/* Both return false where oneDNN is not asked or could not do it, and nothing was written.  It is
 * asked for FP32 alone. */
bool lki_other_gemm(lk_exec *exec, const lki_gemm_args *args);
bool lki_other_conv(lk_exec *exec, const lki_conv_shape *shape, lki_onednn_pass pass, bool add,
                    const float *x, const float *w, const float *y);

lki_other *lki_exec_other(lk_exec *exec);
void       lki_other_free(lki_other *other);

#endif
