/* lockstep/base.h -- statuses, errors, data types and reductions, used by all other headers.
 *
 * A function that can fail returns an lk_status.  LK_OK is zero, every failure is negative, and
 * callers must check the result.  The function that detects a failure records one line that says
 * what failed, where, and what to do; lk_error_last() returns it.  The library never exits and
 * never prints to a stream that it was not given.  Only `launch` reads environment variables, to
 * join a job.
 *
 * Ownership:  a returned pointer is borrowed, a pointer stored through an `out` argument is owned.
 *             Outputs are set on success; an owned output is NULL on failure.
 *             Every ..._free() accepts NULL and cannot fail.
 * Arguments:  calls that open, find or compare something by a path or name return LK_EINVAL if it
 *             is NULL, unless a comment allows that.  Objects and outputs must not be NULL.
 * Options:    structs in which zero means the default.  They begin with their size: see
 *             LK_OPTIONS_INIT().
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

/* One row per status: X(name, value, meaning).  Generates the enum and the texts. */
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

/* Returns the last failure on this thread.  Valid only directly after a call that failed. */
LK_API const lk_error *lk_error_last(void);
/* Records a failure of the program as this thread's last failure and returns `status`.  Meant to
 * precede lk_comm_abort(), which sends the message to the other ranks.  Newlines become spaces. */
LK_API lk_status lk_error_set(lk_status status, const char *message);

/* Returns the name of a status ("EINVAL"); never NULL. */
LK_API const char *lk_status_name(lk_status status);
/* Returns the meaning of a status ("invalid argument"); never NULL. */
LK_API const char *lk_status_text(lk_status status);

/* ---- The machine ------------------------------------------------------------------------- */

/* The share of the machine that this process may use now. */
typedef struct {
    uint32_t bound_cores;   /* cores that its affinity allows */
    double   granted_cores; /* cores whose time its cgroup (container) grants; 0 = no limit */
    uint32_t cores;         /* the smaller one, rounded up: a sensible number of threads */
    uint64_t granted_bytes; /* memory that its cgroup still grants; UINT64_MAX = no limit */
} lk_allowance;

/* Reads the allowance from the kernel.  Limits of cgroup versions 1 and 2 count, and those of the
 * groups above.  What cannot be read limits nothing; without an affinity there is one core. */
LK_API lk_allowance lk_allowance_read(void);

/* ---- Options ----------------------------------------------------------------------------- */

/* The initial value of an options struct.  struct_size tells the library how many bytes of the
 * struct the program was compiled with:
 *
 *     lk_comm_options a = LK_COMM_OPTIONS_INIT;
 *     lk_comm_options b = { .struct_size = sizeof(lk_comm_options), .timeout_ms = 5000 };
 *
 * A later version may append options without breaking programs compiled before.  Options that a
 * smaller struct lacks count as zero.  Bytes of a larger struct that this library does not know
 * must be zero, otherwise the call fails with LK_EUNSUPPORTED.  A struct_size below sizeof(size_t)
 * or above 64 KiB is LK_EINVAL.  Structs inside other structs do not grow, and their struct_size is
 * ignored.  Options of blocks have no struct_size, because lk_model_add() takes their size. */
#ifdef __cplusplus
extern "C++" {
template <typename lk_options> lk_options lk_options_init()
{
    lk_options options  = lk_options();
    options.struct_size = sizeof options;
    return options;
}
}
#define LK_OPTIONS_INIT(type) lk_options_init<type>()
#else
#define LK_OPTIONS_INIT(type) { .struct_size = sizeof(type) }
#endif

/* ---- Labels ------------------------------------------------------------------------------ */

/* The promise about the bits of a run, from the strongest to the weakest.  A run has the weakest
 * label of its options and of the checkpoint that it continues from. */
typedef enum {
    LK_LABEL_EXACT,     /* the bits of one worker that sums whole gradients */
    LK_LABEL_INVARIANT, /* another update; the same bits for any workers, hosts and failures */
    LK_LABEL_RECORDED,  /* the bits of a schedule that the run records, for any workers */
    LK_LABEL_TIMED,     /* no promise: bits may depend on time, on N, or on another library */
} lk_label;

/* Returns "exact", "invariant", "recorded" or "timed"; "?" for values outside of lk_label. */
LK_API const char *lk_label_name(lk_label label);

/* ---- Data types -------------------------------------------------------------------------- */

/* One row per type: X(NAME, code, bytes, name in safetensors).  Codes are part of the weights hash
 * and never change. */
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

/* The encodings: types to which sums are rounded and in which they are sent (lk_tree_op.rounded).
 * One row per encoding, with its name in options:
 *
 *     TYPE(NAME, text, LABEL)          one of the types above
 *     WIRE(NAME, code, text, LABEL)    a format for sending, never the type of a tensor
 *
 * LABEL is the label of a run with this encoding: EXACT or INVARIANT. */
#define LK_ENCODING_TABLE(TYPE, WIRE)                                                            \
    TYPE(BF16, "bf16", EXACT)                                                                    \
    TYPE(F16, "fp16", EXACT)                                                                     \
    TYPE(I8, "int8", INVARIANT)                                                                  \
    WIRE(I4, 13, "int4", INVARIANT)

/* Skips a row. */
#define LK_NO_ENCODING(...)

typedef enum {
#define LK_DTYPE_ENUM(name, code, bytes, text) LK_##name = (code),
#define LK_WIRE_ENUM(name, code, text, label) LK_##name = (code),
    LK_DTYPE_TABLE(LK_DTYPE_ENUM)
    LK_ENCODING_TABLE(LK_NO_ENCODING, LK_WIRE_ENUM)
#undef LK_DTYPE_ENUM
#undef LK_WIRE_ENUM
} lk_dtype;

/* Returns the bytes of one element; 0 for formats that are only sent (LK_I4), and for values
 * outside of lk_dtype. */
LK_API size_t lk_dtype_bytes(lk_dtype dtype);

/* Returns the name of a type, e.g. "F32"; "?" for values outside of lk_dtype. */
LK_API const char *lk_dtype_name(lk_dtype dtype);

/* ---- Numbers as text ------------------------------------------------------------------------ */

enum { LK_NUMBER_BYTES = 32 };

/* Writes a number as the shortest decimal that reads back to the same bits, such as 0.9. */
LK_API void lk_number_text(char text[LK_NUMBER_BYTES], double value);

/* ---- Reductions -------------------------------------------------------------------------- */

/* One row per kind: X(NAME, code, name in messages). */
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

/* A reduction.  Operands are combined in the order of the canonical tree.  Integers wrap.  F16 and
 * BF16 are computed in FP32 and rounded once, to nearest even, at the end.  If any operand is NaN,
 * the result is the quiet NaN 0x7fc0..., also in min and max.  Min and max order -0 below +0.  AVG
 * is the sum times 1/N, computed in the type of the sum; it is not defined for integers.
 *
 * ADASUM is not elementwise.  It combines two vectors a and b into
 *    a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b)),
 * which is their average if they are parallel and their sum if they are orthogonal.  Dot products
 * are computed in FP64, in a fixed order.  Elements are computed in FP64.  They are rounded to FP32
 * (unless the vectors are FP64) at every node of the tree, and 16-bit types are rounded to 16 bits
 * at the end.  A vector of zeros adds nothing.  If a dot product is not finite (NaN, infinity, or
 * FP64 overflow) the whole result is NaN.  ADASUM applies to floating-point types and whole tensors
 * only: all_reduce, reduce and all_reduce_many, without `_start`. */
typedef struct {
    lk_reduce_kind kind;
    double         factor; /* PREMUL_SUM: multiplies every element before the sum */
} lk_reduce_op;

static const lk_reduce_op LK_SUM     = { LK_REDUCE_SUM, 1 };
static const lk_reduce_op LK_PRODUCT = { LK_REDUCE_PRODUCT, 1 };
static const lk_reduce_op LK_MIN     = { LK_REDUCE_MIN, 1 };
static const lk_reduce_op LK_MAX     = { LK_REDUCE_MAX, 1 };
static const lk_reduce_op LK_AVG     = { LK_REDUCE_AVG, 1 };
static const lk_reduce_op LK_ADASUM  = { LK_REDUCE_ADASUM, 1 };

/* Returns a PREMUL_SUM.  For integers `factor` must be an integer of at most 2^53.  For
 * floating-point types `factor` is rounded to the type of the sum. */
static inline lk_reduce_op lk_premul_sum(double factor)
{
    lk_reduce_op op = { LK_REDUCE_PREMUL_SUM, factor };
    return op;
}

#ifdef __cplusplus
}
#endif
#endif /* LK_BASE_H */
