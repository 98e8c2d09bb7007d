/* parallel/layout.h -- where parameters and gradients live, and who owns what.
 *
 * Two spaces of FP32 elements.  The gradient space holds the gradient terms in the order in
 * which backward finishes them, so that a bucket is one contiguous range.  The parameter space
 * holds each parameter once, in the order of its use 0.  Every tensor starts at a multiple of 16
 * elements, or, where gradients are quantised, of a block (device/quantise.h).  A span is one block
 * of at most 4096 elements of one parameter: the unit of ownership, of norms and of attestation, so
 * that no border of ours can cut a norm block.
 *
 * Ownership: the spans of a bucket are dealt to the owners in equal contiguous parts; the further
 * uses of a shared parameter are reduced by whoever owns the span's use 0.  Where hosts keep parts
 * of the model, shards, an owner belongs to one of them, and what a shard keeps lies without gaps
 * in a space of its own.
 */
#ifndef LKI_PARALLEL_LAYOUT_H
#define LKI_PARALLEL_LAYOUT_H

#include "lockstep/parallel.h"

typedef struct {
    uint32_t param, owner, count; /* count: elements, at most LKI_NORM_BLOCK */
    size_t   at;                  /* in the parameter space */
    size_t   inside;              /* in its parameter */
    size_t   read_at;             /* bytes, among all parameters as they are read */
    size_t   kept;                /* in its shard's space */
    size_t   turn;                /* among all spans, in order of owner */
} lki_param_span;

/* An owner: a rank of every host that has this shard, counted over those of the host. */
typedef struct {
    uint32_t shard, local;
} lki_owner;

/* Who may own something.  Owners of one shard stand side by side, shards in order. */
typedef struct {
    lki_owner    *owners;
    uint32_t      count, shards;
    bool          whole_blocks; /* a bucket ends where a block's terms do, whatever its size */
    bool          bf16;         /* parameters are read as bf16 that may be */
    bool          counted;      /* nothing will run: spans and slices are counted, not listed */
    const size_t *param_at;     /* where parameters lie already; NULL: nowhere yet */
} lki_deal;

/* Neighbouring spans of one owner in a bucket. */
typedef struct {
    uint32_t param, owner;
    size_t   inside, count; /* elements of the parameter: the first, how many */
    size_t   done;          /* of its bucket, before it */
    size_t   times;         /* in so many buckets that are alike, one behind the other */
} lki_param_run;

/* A contiguous range of the gradient space that travels as one. */
typedef struct {
    size_t    first, count; /* elements */
    size_t    dealt;        /* of these, those of first uses */
    size_t    alike;        /* 1; or, counted, such buckets one behind the other in one term */
    lk_slice *slices;       /* relative to `first`; NULL where they are but counted */
    size_t    slice_count;
    uint32_t  terms; /* gradient terms that touch it */
} lki_bucket;

typedef struct {
    uint32_t          param_count, term_count;
    lk_param         *params;
    size_t           *sizes;    /* elements of each parameter */
    size_t           *param_at; /* in the parameter space */
    lk_parallel_term *terms;
    size_t           *term_at; /* in the gradient space */
    uint32_t         *term_of; /* [first_use[p] + u] = the term of use u of parameter p */
    uint32_t         *first_use;
    size_t           *first_piece; /* of each term, among the spans of all terms */
    bool              whole_blocks, bf16;
    size_t            align; /* of tensors in both spaces, elements */
    uint32_t         *first_bucket, *last_bucket; /* of each term */
    lki_param_span   *spans; /* by parameter, then position; NULL where they are but counted */
    size_t            span_count;
    size_t           *first_span; /* of each parameter; [param_count] = span_count */
    lki_bucket       *buckets;
    uint32_t          bucket_count;
    size_t            elements, grad_elements;
    size_t           *read_at;    /* of each parameter among all as they are read, bytes */
    size_t            read_bytes; /* of all */
    lki_owner        *owners;     /* [owner_count] */
    uint32_t          owner_count, shards;
    size_t           *owned; /* elements of the gradient space, of each owner */
    size_t           *kept;  /* elements of each shard */
} lki_layout;

/* LK_EINVAL names the parameter or term that makes no sense. */
LK_NODISCARD lk_status lki_layout_open(lki_layout **out, const lk_param *params,
                                       uint32_t param_count, const lk_parallel_options *options,
                                       const lki_deal *deal);
void                   lki_layout_free(lki_layout *layout);

/* Uses of a parameter, at least 1; where use `use` of a span lies in the gradient space. */
uint32_t lki_layout_uses(const lki_layout *layout, uint32_t param);
size_t   lki_layout_grad_at(const lki_layout *layout, const lki_param_span *span, uint32_t use);

/* The number of a span's use `use` among the spans of all terms in the order of the gradient space,
 * of which there are lki_layout_pieces(). */
size_t lki_layout_piece(const lki_layout *layout, const lki_param_span *span, uint32_t use);
size_t lki_layout_pieces(const lki_layout *layout);

/* The width of a span in both spaces: the last one of a tensor takes the padding along. */
size_t lki_layout_width(const lki_layout *layout, const lki_param_span *span);

/* Goes over all first uses in the order of the gradient space, whether there is a table of spans or
 * not: by owner, so that it takes no longer where there are more spans. */
typedef void (*lki_run_visit)(void *context, const lki_param_run *run);
void lki_layout_walk(const lki_layout *layout, lki_run_visit visit, void *context);

/* The width of a run in both spaces, in one bucket. */
size_t lki_layout_run_width(const lki_layout *layout, const lki_param_run *run);

/* What a parameter is read as where nothing is quantised: LK_F32 or LK_BF16; and the bytes of one
 * of its spans then, to where the next begins. */
lk_dtype lki_layout_read_dtype(const lki_layout *layout, uint32_t param);
size_t   lki_layout_read_bytes(const lki_layout *layout, const lki_param_span *span);
size_t   lki_layout_run_bytes(const lki_layout *layout, const lki_param_run *run);
size_t   lki_layout_param_bytes(const lki_layout *layout, uint32_t param); /* of all its spans */

#endif
