/* tensor/onednn/module.h -- what lockstep-onednn.so does for the library, and nothing else.
 *
 * oneDNN computes the same products and convolutions with kernels of its own, whose bits depend on
 * its version, the processor, the number of threads and sometimes the cut of the rows.  It is the
 * judge of our speed, and never what training uses unasked.  The module stands on libc and oneDNN
 * alone, so this header must do without the rest of the library.
 *
 * Errors:  a call returns NULL, or what went wrong; the text stays until the next call.
 * Threads: one at a time; oneDNN's own (OpenMP) run below it.
 */
#ifndef LKI_TENSOR_ONEDNN_MODULE_H
#define LKI_TENSOR_ONEDNN_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LKI_ONEDNN_REVISION = 2 };

/* The module's only symbol, of type `const lki_onednn_module`. */
#define LKI_ONEDNN_SYMBOL "lk_onednn_module"

typedef struct lki_onednn lki_onednn;

/* c (m, n) = a (m, k) b (k, n), or += with `accumulate`; row-major, a transposed operand is stored
 * (k, m) or (n, k).  Row strides are in elements, never 0. */
typedef struct {
    bool   transpose_a, transpose_b, accumulate;
    bool   bf16_operands, bf16_result; /* else FP32 */
    size_t m, n, k, lda, ldb, ldc;
} lki_onednn_shape;

/* A convolution in FP32 as lki_conv() and its gradients have it: x (n, h, w, cin), weights (cout,
 * cin, kh, kw), y (n, oh, ow, cout).  The pass says which of the three is the result. */
typedef enum { LKI_ONEDNN_Y, LKI_ONEDNN_X, LKI_ONEDNN_WEIGHTS } lki_onednn_pass;
typedef struct {
    lki_onednn_pass pass;
    bool            accumulate; /* the weights' gradient does always */
    size_t          n, h, w, cin, cout, kh, kw, stride, pad, oh, ow;
} lki_onednn_conv;

typedef struct {
    uint32_t revision; /* LKI_ONEDNN_REVISION: the rest is as below */

    const char *(*open)(lki_onednn **out, uint32_t threads);

    /* "2.6.3, avx512_core_bf16, 2 threads": what its bits depend on. */
    const char *(*identity)(const lki_onednn *library);

    /* The first product of a shape compiles its kernel; later ones find it. */
    const char *(*gemm)(lki_onednn *library, const lki_onednn_shape *shape, const void *a,
                        const void *b, void *c);

    /* Two are read and one, that of the pass, is written. */
    const char *(*conv)(lki_onednn *library, const lki_onednn_conv *conv, const float *x,
                        const float *weights, const float *y);

    void (*close)(lki_onednn *library); /* NULL is allowed */
} lki_onednn_module;

#endif
