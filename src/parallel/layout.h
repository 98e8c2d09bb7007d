/* parallel/layout.h -- the places of parameters and gradients, and the ranks that own them.
 *
 * There are two spaces of FP32 elements.  The gradient space holds the gradient terms in the order
 * in which backward finishes them, so that a bucket is one contiguous range.  The parameter space
 * holds each parameter once, in the order of its use 0.  Every tensor starts at a multiple of 16
 * elements or, if gradients are quantised, of a quantised block's size (device/quantise.h).
 * A span is one block of at most 4096 elements of one parameter.  Ownership, norms and attestation
 * work on whole spans, so a slice never ends inside the block of a norm.
 *
 * Ownership: the spans of a bucket are assigned to the owners in equal contiguous parts.  For a
 * parameter with several uses, the owner of a span's use 0 also reduces its other uses.  If hosts
 * store shards of the model, an owner belongs to one shard, and the elements of a shard are stored
 * without gaps in a separate space.
 */
#ifndef LKI_PARALLEL_LAYOUT_H
#define LKI_PARALLEL_LAYOUT_H

#include "lockstep/parallel.h"

typedef struct {
    uint32_t param, owner, count; /* count: elements, at most LKI_NORM_BLOCK */
    size_t   at;                  /* offset in the parameter space */
    size_t   inside;              /* offset in its parameter */
    /* byte offset in the copy of all parameters in the type in which they are read */
    size_t   read_at;
    size_t   shard_at;            /* offset in its shard's space */
    size_t   turn;                /* the span's number among all spans, in order of owner */
} lki_param_span;

/* An owner: the rank with local number `local` on every host that stores `shard`. */
typedef struct {
    uint32_t shard, local;
} lki_owner;

/* The possible owners, sorted by shard. */
typedef struct {
    lki_owner    *owners;
    uint32_t      count, shards;
    /* a bucket ends only where a block's terms end, even if it becomes too large */
    bool          whole_blocks;
    bool          bf16;         /* parameters with lk_param.bf16 are read as bf16 */
    size_t        align;   /* alignment of tensors in both spaces, in elements; 0 = 16 */
    bool          counted; /* only sizes are computed: spans and slices are counted, not listed */
    /* [param_count]: given offsets of parameters; NULL: the layout places them */
    const size_t *param_at;
} lki_deal;

/* A run of neighbouring spans of one owner in a bucket. */
typedef struct {
    uint32_t param, owner;
    size_t   inside, count; /* elements of the parameter: offset of the first, and number */
    size_t   done;          /* number of elements of the bucket before the run */
    size_t   times;         /* number of consecutive, equal buckets that contain an equal run */
} lki_param_run;

/* A contiguous range of the gradient space that is sent as one message. */
typedef struct {
    size_t    first, count; /* in elements */
    size_t    dealt;        /* number of these elements that belong to a parameter's first use */
    size_t    alike; /* 1; with `counted`, the number of consecutive, equal buckets in one term */
    lk_slice *slices;       /* offsets are relative to `first`; NULL if only counted */
    size_t    slice_count;
    uint32_t  terms; /* number of gradient terms that overlap the bucket */
} lki_bucket;

typedef struct {
    uint32_t          param_count, term_count;
    lk_param         *params;
    size_t           *sizes;    /* elements of each parameter */
    size_t           *param_at; /* [param_count]: offset in the parameter space */
    lk_parallel_term *terms;
    size_t           *term_at; /* [term_count]: offset in the gradient space */
    uint32_t         *term_of; /* [first_use[p] + u]: the term of use u of parameter p */
    uint32_t         *first_use;
    uint32_t         *named; /* [term_count]: the layout's number of each term of the options */
    /* [term_count + 1]: number of the term's first span among all terms' spans */
    size_t           *first_piece;
    bool              whole_blocks, bf16;
    size_t            align; /* alignment of tensors in both spaces, in elements */
    uint32_t         *first_bucket, *last_bucket; /* [term_count] */
    lki_param_span   *spans; /* sorted by parameter, then position; NULL if only counted */
    size_t            span_count;
    /* [param_count + 1]: each parameter's first span; the last entry is span_count */
    size_t           *first_span;
    lki_bucket       *buckets;
    uint32_t          bucket_count;
    size_t            elements, grad_elements;
    /* [param_count]: byte offset in the copy of all parameters in the type in which they are
     * read */
    size_t           *read_at;
    size_t            read_bytes; /* bytes of all parameters in the type in which they are read */
    lki_owner        *owners;     /* [owner_count] */
    uint32_t          owner_count, shards;
    size_t           *owned; /* [owner_count]: elements of the gradient space that each owner has */
    size_t           *shard_elements; /* [shards] */
} lki_layout;

/* Computes the layout.  LK_EINVAL names the parameter or term that is invalid. */
LK_NODISCARD lk_status lki_layout_open(lki_layout **out, const lk_param *params,
                                       uint32_t param_count, const lk_parallel_options *options,
                                       const lki_deal *deal);
void                   lki_layout_free(lki_layout *layout);

/* Writes the bytes of gradients that fill the first bucket, and those that fill another one. */
void lki_bucket_limits(const lk_parallel_options *options, size_t limits[2]);

/* Returns how many uses a parameter has, at least 1. */
uint32_t lki_layout_uses(const lki_layout *layout, uint32_t param);

/* Returns the offset of use `use` of a span in the gradient space. */
size_t   lki_layout_grad_at(const lki_layout *layout, const lki_param_span *span, uint32_t use);

/* Returns the number of use `use` of a span among the spans of all terms, in the order of the
 * gradient space. */
size_t lki_layout_piece(const lki_layout *layout, const lki_param_span *span, uint32_t use);

/* Returns the number of spans in all terms. */
size_t lki_layout_pieces(const lki_layout *layout);

/* Returns the width of a span in both spaces, in elements.  The last span of a tensor includes the
 * padding. */
size_t lki_layout_width(const lki_layout *layout, const lki_param_span *span);

/* Visits the runs of all first uses in the order of the gradient space, even if the layout was only
 * counted.  The time depends on the number of owners, not of spans. */
typedef void (*lki_run_visit)(void *context, const lki_param_run *run);
void lki_layout_walk(const lki_layout *layout, lki_run_visit visit, void *context);

/* Returns the width of a run in both spaces, in elements, within one bucket. */
size_t lki_layout_run_width(const lki_layout *layout, const lki_param_run *run);

/* Returns the type in which a parameter is read without quantisation: LK_F32 or LK_BF16. */
lk_dtype lki_layout_read_dtype(const lki_layout *layout, uint32_t param);

/* Returns the bytes of a span in the type in which its parameter is read, including the padding up
 * to the next span. */
size_t   lki_layout_read_bytes(const lki_layout *layout, const lki_param_span *span);

/* Returns the bytes of a run in the type in which its parameter is read. */
size_t   lki_layout_run_bytes(const lki_layout *layout, const lki_param_run *run);
size_t   lki_layout_param_bytes(const lki_layout *layout, uint32_t param); /* all spans */

#endif
