/* lockstep/tensor.h -- tensors as views, parameters as descriptions, and where operators run.
 *
 * A tensor here is memory that somebody else owns plus its shape; rows are contiguous, the last
 * dimension is innermost.  An lk_exec says how operators run: on how many threads and with which
 * instruction set.  Neither changes a single bit of any result: work is cut into tiles by the
 * problem's shape, sums inside kernels run on 16 virtual lanes with a fixed tree, and every
 * instruction set computes the same chain of IEEE operations.
 *
 * Threads: one thread at a time per lk_exec.
 */
#ifndef LK_TENSOR_H
#define LK_TENSOR_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LK_RANK_MAX 4
#define LK_NAME_MAX 96

/* ---- Views ------------------------------------------------------------------------------- */

/* Dimensions, outermost first.  rank 0 is a scalar of one element. */
typedef struct {
    uint32_t rank;
    uint64_t dims[LK_RANK_MAX];
} lk_shape;

LK_API size_t lk_shape_count(lk_shape shape); /* elements; the product of the dimensions */

/* A named view: what checkpoints, hashes and exports are made of.  Borrows everything. */
typedef struct {
    const char *name;
    lk_dtype    dtype;
    lk_shape    shape;
    const void *data;
} lk_tensor;

/* ---- Parameters -------------------------------------------------------------------------- */

/* How a parameter starts.  Every value comes from its own counter (seed, parameter, element). */
typedef enum {
    LK_INIT_ZERO = 0,
    LK_INIT_ONE,
    LK_INIT_NORMAL,  /* mean 0, standard deviation `scale` */
    LK_INIT_UNIFORM, /* in [-scale, scale) */
} lk_init;

/* One trainable FP32 parameter.  `uses` counts the places of the model that contribute a
 * gradient term (2 for a tied embedding); the terms' sums are added in order of use. */
typedef struct {
    char     name[LK_NAME_MAX];
    lk_shape shape;
    uint32_t uses;     /* 0 counts as 1 */
    bool     no_decay; /* norms and biases: weight decay passes them by */
    lk_init  init;
    float    scale;
    bool     bf16;     /* all who read it take it as bf16, too: lk_parallel_options.gather_dtype */
} lk_param;

/* ---- Execution --------------------------------------------------------------------------- */

typedef struct lk_exec lk_exec;

/* Memory for a weight in the order in which a product reads it. */
typedef struct lk_pack lk_pack;

/* `threads` counts the caller; 0 means 1.  `isa` is "avx512_bf16", "avx512", "avx2", "neon",
 * "portable" or NULL or "auto" for the widest that this processor has.  LK_EINVAL for an unknown
 * name, LK_EUNSUPPORTED for one that this processor or build lacks. */
LK_API LK_NODISCARD lk_status lk_exec_open(lk_exec **out, uint32_t threads, const char *isa);
LK_API void                   lk_exec_free(lk_exec *exec);
LK_API const char            *lk_exec_isa(const lk_exec *exec);
LK_API uint32_t               lk_exec_threads(const lk_exec *exec);

/* From here on products and convolutions of FP32 values are computed by oneDNN, through the module
 * lockstep-onednn.so at `path` (lk_module_find() of launch.h knows where it is).  Their bits depend
 * on oneDNN's version, the processor and the number of threads: nothing about them is exact.
 * LK_EUNSUPPORTED where the module or oneDNN cannot be loaded. */
LK_API LK_NODISCARD lk_status lk_exec_use_onednn(lk_exec *exec, const char *path);

/* What oneDNN is ("2.6.3, avx2, 1 threads"); NULL where it is not used.  *failure: the first of its
 * failures, after which the own kernels computed what it could not; NULL if there was none. */
LK_API const char *lk_exec_onednn(lk_exec *exec, const char **failure);

/* Runs task(context, i) for every i < count on the threads of `exec`; returns when all are done.
 * A task's result must depend on `i` alone.  Not from inside a task. */
LK_API void lk_parallel_for(lk_exec *exec, size_t count, void (*task)(void *context, size_t i),
                            void *context);

/* c (m, n) = a (m, k) times b (k, n); with `accumulate`, c continues from what it holds.  With a
 * transpose, the operand is stored as (k, m) or (n, k).  Every element is one chain of fma over
 * k in ascending order. */
LK_API void lk_gemm(lk_exec *exec, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                    const float *a, const float *b, float *c, bool accumulate);

#ifdef __cplusplus
}
#endif
#endif /* LK_TENSOR_H */
