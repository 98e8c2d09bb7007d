/* link/operation.h -- the kind and the fingerprint of an operation, and the text that names it.
 *
 * A fingerprint is sent with every message and published with every slot.  Ranks in different
 * operations therefore detect the mismatch before they use each other's data.
 */
#ifndef LKI_LINK_OPERATION_H
#define LKI_LINK_OPERATION_H

#include <string.h>

#include "device/reduce.h"
#include "lockstep/base.h"

typedef enum {
    LKI_OP_NONE,
    LKI_OP_BARRIER,
    LKI_OP_BROADCAST,
    LKI_OP_ALL_GATHER,
    LKI_OP_ALL_REDUCE,
    LKI_OP_TREE_REDUCE,
    LKI_OP_ARENA,
    LKI_OP_AGREE,
    LKI_OP_REDUCE,
    LKI_OP_REDUCE_SCATTER,
    LKI_OP_REDUCE_SCATTER_V,
    LKI_OP_ALL_GATHER_V,
    LKI_OP_GATHER,
    LKI_OP_SCATTER,
    LKI_OP_ALL_TO_ALL,
    LKI_OP_ALL_TO_ALL_V,
    LKI_OP_SEND,
    LKI_OP_RECV,
    LKI_OP_SPLIT,
    LKI_OP_ADASUM,
    LKI_OP_MIRROR,
    LKI_OP_MESSAGE, /* a message between hosts; its send and its receive have the same kind */
} lki_op_kind;

/* The algorithms that a user can select for an operation over hosts, as X(NAME).  Error messages
 * list them in this order.  A fingerprint contains the number of the selected algorithm, counted
 * from 1; 0 = none. */
#define LKI_METHOD_TABLE(X)                                                                        \
    X(direct)                                                                                      \
    X(linear)                                                                                      \
    X(tree)                                                                                        \
    X(double_tree)                                                                                 \
    X(halving)                                                                                     \
    X(ring)                                                                                        \
    X(levels)                                                                                      \
    X(mirror)                                                                                      \
    X(dissemination)                                                                               \
    X(mail)                                                                                        \
    X(native)

/* The fingerprint.  Ranks must agree on it before they access each other's memory. */
typedef struct lki_print {
    uint64_t what;  /* operation, dtype, kind of reduction, algorithm and root, as packed by
                     * lki_print_make() */
    uint64_t count; /* elements or bytes, depending on the operation */
    uint64_t hash;  /* hash of the remaining arguments: counts of all ranks, factors, slices,
                     * names */
} lki_print;

enum { LKI_OPERATION_BYTES = 160 }; /* size of a text of lki_print_text() */

/* Writes "all_reduce #12 (F32 sum, 100 elements)" for operation number `seq`.  `group` is 0 for the
 * first communicator.  For any other communicator `group` is size << 32 | lowest rank, and the text
 * names both. */
void lki_print_text(char *out, size_t bytes, lki_print print, uint64_t seq, uint64_t group);

/* Returns the number of bytes that each rank contributes (or receives from a root); 0 if
 * unknown. */
uint64_t lki_print_bytes(lki_print print);

static inline lki_print lki_print_make(lki_op_kind kind, lk_dtype dtype, uint32_t root,
                                       uint64_t count)
{
    return (lki_print){
        .what  = (uint64_t)kind | (uint64_t)dtype << 8 | (uint64_t)root << 32,
        .count = count,
        .hash  = 0,
    };
}

static inline lki_print lki_print_reduce(lki_op_kind kind, lk_dtype dtype, lk_reduce_op op,
                                         uint32_t root, uint64_t count)
{
    lki_print print = lki_print_make(kind, dtype, root, count);

    print.what |= (uint64_t)op.kind << 16;
    if (op.kind == LK_REDUCE_PREMUL_SUM)
        memcpy(&print.hash, &op.factor, sizeof print.hash);
    return print;
}

#endif
