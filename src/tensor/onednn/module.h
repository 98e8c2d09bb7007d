/* tensor/onednn/module.h -- the interface of lockstep-onednn.so to the library.
 *
 * oneDNN computes the same products and convolutions with its own kernels, whose bits depend on its
 * version, the processor, the number of threads and sometimes the division of the rows.  Benchmarks
 * compare the library with oneDNN, and training uses oneDNN only on request.  The module depends
 * only on libc and oneDNN, so this header must not include the rest of the library.
 *
 * Errors:  a call returns NULL, or an error message that is valid until the next call.
 * Threads: one thread at a time, which starts oneDNN's OpenMP threads.
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

/* Computes c (m, n) = a (m, k) b (k, n), or c += a b with `accumulate`.  Matrices are row-major; a
 * transposed operand is stored as (k, m) or (n, k).  Row strides are in elements and never 0. */
typedef struct {
    bool   transpose_a, transpose_b, accumulate;
    bool   bf16_operands, bf16_result; /* false: FP32 */
    size_t m, n, k, lda, ldb, ldc;
} lki_onednn_shape;

/* A convolution in FP32, as for lki_conv() and its gradients: x (n, h, w, cin), weights (cout, cin,
 * kh, kw), y (n, oh, ow, cout).  The pass selects which of the three is the result. */
typedef enum { LKI_ONEDNN_Y, LKI_ONEDNN_X, LKI_ONEDNN_WEIGHTS } lki_onednn_pass;
typedef struct {
    lki_onednn_pass pass;
    bool            accumulate; /* not for y */
    size_t          n, h, w, cin, cout, kh, kw, stride, pad, oh, ow;
} lki_onednn_conv;

typedef struct {
    uint32_t revision; /* LKI_ONEDNN_REVISION; otherwise the rest of this struct is invalid */

    const char *(*open)(lki_onednn **out, uint32_t threads);

    /* Describes everything on which oneDNN's bits depend, such as "2.6.3, avx512_core_bf16, 2
     * threads". */
    const char *(*identity)(const lki_onednn *library);

    /* Computes a product.  The first product of each shape compiles its kernel. */
    const char *(*gemm)(lki_onednn *library, const lki_onednn_shape *shape, const void *a,
                        const void *b, void *c);

    /* Computes a convolution: reads two of the tensors and writes the third, which the pass
     * selects. */
    const char *(*conv)(lki_onednn *library, const lki_onednn_conv *conv, const float *x,
                        const float *weights, const float *y);

    void (*close)(lki_onednn *library); /* NULL is allowed */
} lki_onednn_module;

#endif
