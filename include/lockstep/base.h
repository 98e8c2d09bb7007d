/* lockstep/base.h -- what every other header stands on: statuses, errors, data types.
 *
 * A function that can fail returns an lk_status: LK_OK is zero, every failure is negative and
 * must be looked at.  Whoever decides that something is a failure leaves one line that says
 * what, where and what to do; lk_error_last() reads it.  Nothing in the library exits, prints
 * to a stream that it was not given, or reads the environment (only `launch` does, to join).
 *
 * Ownership:  what is returned is borrowed, what comes out through a pointer is owned.
 *             Outputs are set on success; an owned output is NULL on failure.
 *             Every ..._free() takes NULL and cannot fail.
 * Options:    structs whose zero means the default.
 */
#ifndef LK_BASE_H
#define LK_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LK_API __attribute__((visibility("default")))
#define LK_NODISCARD __attribute__((warn_unused_result))

#define LK_VERSION "0.1.0"

/* ---- Statuses ---------------------------------------------------------------------------- */

/* One row a status: X(name, value, what it means).  The enum and the texts are made from it. */
#define LK_STATUS_TABLE(X)                                                                       \
    X(OK, 0, "success")                                                                          \
    X(EINVAL, -1, "invalid argument")                                                            \
    X(ENOMEM, -2, "out of memory")                                                               \
    X(EUNSUPPORTED, -3, "not supported by this build or machine")                                \
    X(EIO, -4, "input or output failed")                                                         \
    X(EFORMAT, -5, "malformed file or message")                                                  \
    X(ETIMEOUT, -6, "timed out")                                                                 \
    X(EPEER, -7, "a peer rank failed")                                                           \
    X(EMISMATCH, -8, "ranks disagree")                                                           \
    X(ENONFINITE, -9, "the loss or a gradient is not finite")                                    \
    X(ECORRUPT, -10, "contents differ from their hash")                                          \
    X(ESTOPPED, -11, "stopped on request, state saved")

typedef enum {
#define LK_STATUS_ENUM(name, value, text) LK_##name = (value),
    LK_STATUS_TABLE(LK_STATUS_ENUM)
#undef LK_STATUS_ENUM
} lk_status;

typedef struct {
    lk_status   status;
    const char *where;        /* "ring.c:88" */
    char        message[480]; /* one line, no newline, always terminated */
} lk_error;

/* The last failure on this thread.  Meaningful only straight after a call that failed. */
LK_API const lk_error *lk_error_last(void);

/* The name ("EINVAL") and the meaning ("invalid argument") of a status; never NULL. */
LK_API const char *lk_status_name(lk_status status);
LK_API const char *lk_status_text(lk_status status);

/* ---- Data types -------------------------------------------------------------------------- */

/* One row a type: X(NAME, code, bytes, name in safetensors).  Codes are part of the weights
 * hash and never change. */
#define LK_DTYPE_TABLE(X)                                                                        \
    X(F32, 1, 4, "F32")                                                                          \
    X(F16, 2, 2, "F16")                                                                          \
    X(BF16, 3, 2, "BF16")                                                                        \
    X(F64, 4, 8, "F64")                                                                          \
    X(I8, 5, 1, "I8")                                                                            \
    X(U8, 6, 1, "U8")                                                                            \
    X(I16, 7, 2, "I16")                                                                          \
    X(U16, 8, 2, "U16")                                                                          \
    X(I32, 9, 4, "I32")                                                                          \
    X(U32, 10, 4, "U32")                                                                         \
    X(I64, 11, 8, "I64")                                                                         \
    X(U64, 12, 8, "U64")

typedef enum {
#define LK_DTYPE_ENUM(name, code, bytes, text) LK_##name = (code),
    LK_DTYPE_TABLE(LK_DTYPE_ENUM)
#undef LK_DTYPE_ENUM
    LK_I4 = 13 /* two in a byte: what sums are rounded to and travel as, of no vector or tensor */
} lk_dtype;

/* Bytes of one element; 0 for LK_I4, and for a value that is no lk_dtype. */
LK_API size_t lk_dtype_bytes(lk_dtype dtype);

/* "F32" and so on; "?" for a value that is no lk_dtype. */
LK_API const char *lk_dtype_name(lk_dtype dtype);

/* ---- Reductions -------------------------------------------------------------------------- */

/* One row a kind: X(NAME, code, name in messages). */
#define LK_REDUCE_TABLE(X)                                                                       \
    X(SUM, 0, "sum")                                                                             \
    X(PRODUCT, 1, "product")                                                                     \
    X(MIN, 2, "min")                                                                             \
    X(MAX, 3, "max")                                                                             \
    X(AVG, 4, "avg")                                                                             \
    X(PREMUL_SUM, 5, "premul_sum")                                                               \
    X(ADASUM, 6, "adasum")

typedef enum {
#define LK_REDUCE_ENUM(name, code, text) LK_REDUCE_##name = (code),
    LK_REDUCE_TABLE(LK_REDUCE_ENUM)
#undef LK_REDUCE_ENUM
} lk_reduce_kind;

/* How elements are combined.  Operands meet in the order of the canonical tree.  Integers wrap.
 * F16 and BF16 are computed in FP32 and rounded once, to nearest even, at the end.  A NaN among
 * the operands makes the result the one quiet NaN 0x7fc0..., in min and max too, where -0 is
 * less than +0.  AVG is the sum times 1/N (computed in the type of the sum); integers have none.
 *
 * ADASUM is not elementwise: of two vectors a and b it makes
 *     a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b)),
 * their average where they are parallel and their sum where they are orthogonal.  Dot products
 * are in FP64, in an order that nothing changes; elements are computed in FP64 and rounded to FP32
 * (FP64) at every node of the tree, to 16 bits at the end.  A vector of zeros adds nothing; where
 * a dot product is not finite (NaN, infinity, or FP64 overflow) the whole result is NaN.  It is for
 * floats, and for whole tensors: all_reduce, reduce and all_reduce_many, without `_start`. */
typedef struct {
    lk_reduce_kind kind;
    double         factor; /* PREMUL_SUM: every element times this, then the sum */
} lk_reduce_op;

static const lk_reduce_op LK_SUM     = { LK_REDUCE_SUM, 1 };
static const lk_reduce_op LK_PRODUCT = { LK_REDUCE_PRODUCT, 1 };
static const lk_reduce_op LK_MIN     = { LK_REDUCE_MIN, 1 };
static const lk_reduce_op LK_MAX     = { LK_REDUCE_MAX, 1 };
static const lk_reduce_op LK_AVG     = { LK_REDUCE_AVG, 1 };
static const lk_reduce_op LK_ADASUM  = { LK_REDUCE_ADASUM, 1 };

/* Integers take an integral factor of at most 2^53; floats one rounded to the type of the sum. */
static inline lk_reduce_op lk_premul_sum(double factor)
{
    lk_reduce_op op = { LK_REDUCE_PREMUL_SUM, factor };
    return op;
}

#ifdef __cplusplus
}
#endif
#endif /* LK_BASE_H */
