/* lockstep/tensor.h -- tensors as views, parameters as descriptions, and the executor of operators.
 *
 * A tensor is a shape and borrowed memory.  Rows are contiguous, and the last dimension is
 * innermost.  An lk_exec holds the number of threads and the instruction set that operators use.
 * Neither changes a bit of any result.  Work is divided into tiles by the problem's shape.  Sums in
 * kernels use 16 virtual lanes and a fixed tree.  Every instruction set computes the same chain of
 * IEEE operations.
 *
 * Threads: one thread at a time may use an lk_exec.
 */
#ifndef LK_TENSOR_H
#define LK_TENSOR_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LK_RANK_MAX 8
#define LK_NAME_MAX 256

/* ---- Views ------------------------------------------------------------------------------- */

/* Dimensions, outermost first.  Rank 0 is a scalar of one element. */
typedef struct {
    uint32_t rank;
    uint64_t dims[LK_RANK_MAX];
} lk_shape;

LK_API size_t lk_shape_count(lk_shape shape); /* the number of elements */

/* A named view, the unit of checkpoints, hashes and exports.  Borrows its name and memory. */
typedef struct {
    const char *name;
    lk_dtype    dtype;
    lk_shape    shape;
    const void *data;
} lk_tensor;

/* ---- Parameters -------------------------------------------------------------------------- */

/* The initial value of a parameter.  Every random value has its own counter (seed, parameter,
 * element). */
typedef enum {
    LK_INIT_ZERO = 0,
    LK_INIT_ONE,
    LK_INIT_NORMAL,  /* mean 0, standard deviation `scale` */
    LK_INIT_UNIFORM, /* in [-scale, scale) */
} lk_init;

/* One trainable FP32 parameter.  `uses` is the number of gradient terms (2 for a tied embedding),
 * which are added in order of use. */
typedef struct {
    char     name[LK_NAME_MAX];
    lk_shape shape;
    uint32_t uses;     /* 0 counts as 1 */
    bool     no_decay; /* norms and biases: weight decay does not apply */
    lk_init  init;
    float    scale;
    bool     bf16;     /* every block that reads this parameter also accepts bf16; see
                        * lk_parallel_options.gather_dtype */
} lk_param;

/* ---- Execution --------------------------------------------------------------------------- */

typedef struct lk_exec lk_exec;

/* A copy of a weight in the order in which a matrix product reads it. */
typedef struct lk_pack lk_pack;

/* Creates an executor.  `threads` includes the caller; 0 means 1.  `isa` is "amx", "avx512_bf16",
 * "avx512", "avx2", "neon" or "portable"; NULL or "auto" measures which kernels are the fastest on
 * this processor.  "amx_emulated" computes what "amx" does in C on any processor, for tests.
 * LK_EINVAL for an unknown name, LK_EUNSUPPORTED for a set that this processor or build lacks. */
LK_API LK_NODISCARD lk_status lk_exec_open(lk_exec **out, uint32_t threads, const char *isa);
LK_API void                   lk_exec_free(lk_exec *exec);
/* Returns the name of the instruction set in use. */
LK_API const char            *lk_exec_isa(const lk_exec *exec);
/* Returns the number of threads, including the caller. */
LK_API uint32_t               lk_exec_threads(const lk_exec *exec);

/* Returns the name of instruction set `index`, for lk_exec_open(), starting with the widest.
 * Includes sets that this processor lacks.  Returns NULL after the last. */
LK_API const char *lk_isa_name(uint32_t index);

/* Measures the peak floating-point operations per second of all threads together.  The threads run
 * independent multiply-adds of `operands` (F32 or BF16) in registers for about `seconds`.  No
 * kernel can exceed this rate. */
LK_API double lk_exec_peak(lk_exec *exec, lk_dtype operands, double seconds);

/* Uses oneDNN for all further products and convolutions of FP32 values, through the module
 * lockstep-onednn.so at `path` (lk_module_find() in launch.h finds it).  The bits of their results
 * depend on oneDNN's version, the processor and the number of threads, so results are no longer
 * exact.  LK_EUNSUPPORTED if the module or oneDNN cannot be loaded. */
LK_API LK_NODISCARD lk_status lk_exec_use_onednn(lk_exec *exec, const char *path);

/* Returns oneDNN's version and setting ("2.6.3, avx2, 1 threads"); NULL if it is not used.  Sets
 * *failure to oneDNN's first failure, after which Lockstep's kernels compute the product, or to
 * NULL. */
LK_API const char *lk_exec_onednn(lk_exec *exec, const char **failure);

/* Runs task(context, i) for every i < count on the threads of `exec`, and waits for all.  The
 * result of a task must depend only on `i`.  Must not be called from within a task. */
LK_API void lk_parallel_for(lk_exec *exec, size_t count, void (*task)(void *context, size_t i),
                            void *context);

/* Computes c (m, n) = a (m, k) times b (k, n).  With `accumulate` the product is added to c.  A
 * transposed operand is stored as (k, m) or (n, k).  Every element is one chain of fma over k in
 * ascending order. */
LK_API void lk_gemm(lk_exec *exec, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                    const float *a, const float *b, float *c, bool accumulate);

#ifdef __cplusplus
}
#endif
#endif /* LK_TENSOR_H */
