/* tensor/isa/kernels.h -- the table of kernels: one table per instruction set, one entry per family
 * of operators.
 *
 * Operators in tensor/ops/ divide their work into tiles by the problem's shape and call the
 * entries, which run on the calling thread.  A family is three files: its struct in NAME.h here,
 * its bodies in NAME.inc, written on simd.h and ending with `static const lki_NAME_kernels
 * NAME_kernels`, and its operators.
 */
#ifndef LKI_TENSOR_ISA_KERNELS_H
#define LKI_TENSOR_ISA_KERNELS_H

#include "tensor/isa/conv.h"
#include "tensor/isa/decoder.h"
#include "tensor/isa/elementwise.h"
#include "tensor/isa/gemm.h"
#include "tensor/isa/nn.h"
#include "tensor/isa/param.h"
#include "tensor/isa/pool.h"
#include "tensor/isa/scores.h"

/* The kernels that multiply bf16 values.  `short_parts` are for sums of products with few values of
 * k (lki_gemm_parts()), which differ from `gemm` if those are on tiles. */
typedef struct {
    const lki_gemm_kernels  *gemm, *short_parts;
    const lki_score_kernels *scores;
} lki_bf16_kernels;

typedef struct lki_kernels {
    const char                    *name;
    const lki_gemm_kernels        *gemm;
    const lki_bf16_kernels        *bf16;
    const lki_gemm_ends           *gemm_ends;
    const lki_elementwise_kernels *elementwise;
    const lki_param_kernels       *param;
    const lki_nn_kernels          *nn;
    const lki_conv_kernels        *conv;
    const lki_decoder_kernels     *decoder;
    const lki_pool_kernels        *pool;
} lki_kernels;

#if defined(__x86_64__)
extern const lki_kernels lki_kernels_avx512, lki_kernels_avx2;

/* The kernels that use the processor's bf16 instruction.  The other tables have emulations with the
 * same bits. */
extern const lki_bf16_kernels lki_bf16_avx512;

/* The products of bf16 values on AMX tiles. */
extern const lki_gemm_kernels *const lki_gemm_amx;
#endif
#if defined(__aarch64__)
extern const lki_kernels lki_kernels_neon;
#endif
extern const lki_kernels lki_kernels_portable;

/* The code of lki_gemm_amx, with the operations on tiles in C. */
extern const lki_gemm_kernels *const lki_gemm_amx_emulated;

#endif
