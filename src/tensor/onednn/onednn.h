/* tensor/onednn/onednn.h -- products and convolutions by oneDNN, if an exec enables it. */
#ifndef LKI_TENSOR_ONEDNN_H
#define LKI_TENSOR_ONEDNN_H

#include "tensor/exec.h"
#include "tensor/onednn/module.h"

/* The state of oneDNN in an exec; all zero if it is not used. */
typedef struct {
    const lki_onednn_module *module;
    lki_onednn              *library;
    char                     failure[160]; /* the first failure; "": none */
} lki_other;

/* Computes a product with oneDNN, in FP32 only.  Returns false and writes nothing if oneDNN is
 * disabled or cannot compute it. */
bool lki_other_gemm(lk_exec *exec, const lki_gemm_args *args);

/* Computes a convolution with oneDNN, in FP32 only.  Returns false under the conditions of
 * lki_other_gemm(). */
bool lki_other_conv(lk_exec *exec, const lki_conv_shape *shape, lki_onednn_pass pass, bool add,
                    const float *x, const float *w, const float *y);

lki_other *lki_exec_other(lk_exec *exec);
void       lki_other_free(lki_other *other);

#endif
