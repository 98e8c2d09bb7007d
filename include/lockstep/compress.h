/* lockstep/compress.h -- gradient compressors, which say most of a gradient in few bytes.
 *
 * A *group* is a fixed range of neighbouring virtual workers.  In a step, each group's gradient of
 * a tensor is encoded to messages, in one or more rounds:
 *
 *     each group       encode()    its values to a message
 *     all groups       combine     their messages (lk_combine)
 *     once             settle()    prepares the combined message for its readers
 *     anybody          decode()    after the last round: any elements of the sum over all groups
 *                      conclude()  makes a sum of gradients of the sum over all groups, if needed
 *
 * In the last round encode() overwrites the values with the residual: what the group's messages do
 * not say.  With error feedback the group adds the residual to its gradient of the next step; there
 * are other rules (lk_feedback).
 *
 * A compressor sees no rank, no number of workers and no time.  Its results depend only on the
 * options, the key and the values.  So the result of a run depends on the number of groups, but not
 * on who computes what.  Every instruction set gives the same bits.
 *
 * lk_compressors() lists the compressors of the library.  Programs can write others.
 *
 * Threads: functions keep no state, so different tensors and groups may be computed at once.
 */
#ifndef LK_COMPRESS_H
#define LK_COMPRESS_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the messages of the groups are combined.  TREE: they are vectors of floats, and are summed by
 * the canonical tree over the groups.  GATHER: the combined message is the list of all messages, in
 * the order of groups. */
typedef enum { LK_COMBINE_TREE = 0, LK_COMBINE_GATHER } lk_combine;

/* The rule by which a group keeps values of a tensor between steps.  See docs/compression.md. */
typedef enum {
    LK_FEEDBACK_DEFAULT = 0, /* the compressor's own */
    LK_FEEDBACK_EF14,        /* error feedback: the residual is added to the next gradient */
    LK_FEEDBACK_OFF,         /* residuals are dropped */
    LK_FEEDBACK_DGC,         /* momentum correction, with compressors that select elements */
    LK_FEEDBACK_SIGNUM,      /* the group's momentum is sent, and residuals are dropped */
    LK_FEEDBACK_EF21,        /* changes of an estimate of the gradient are sent */
    LK_FEEDBACK_EF21_SGDM,   /* changes of an estimate of the group's momentum are sent */
} lk_feedback;

/* Options of all compressors.  Zero means the default, which the comment gives. */
typedef struct {
    size_t   struct_size; /* LK_COMPRESSION_INIT */
    uint32_t rank;        /* powersgd: number of columns of its factors; 4 */
    double   min_rate;    /* powersgd: a tensor is left whole if its factors are not this many times
                           * smaller; 2 */
    bool     cold_start;  /* powersgd: new random factors in every step */
    double   ratio;       /* topk, randomk: the fraction of elements that are sent; 0.01 */
    uint64_t seed;        /* of random factors, choices and rounding */
    uint32_t levels;      /* qsgd: magnitudes above 0, at most 127; 7 */
    uint32_t bucket;      /* qsgd: elements with one norm, a multiple of 32; 512 */
    double   clip;        /* terngrad: magnitudes are cut off at this many standard deviations; 2.5.
                           * INFINITY: never */
} lk_compression;

#define LK_COMPRESSION_INIT LK_OPTIONS_INIT(lk_compression)

/* A tensor in a step.  A tensor of several dimensions is a matrix: its first dimension has `rows`,
 * the others together have `cols`.  Other tensors have one column. */
typedef struct {
    size_t   rows, cols;
    uint32_t tensor; /* number of the tensor in the model */
    uint32_t group;  /* number of the group */
    uint64_t step;
} lk_compress_key;

/* A part of a tensor: `rows` runs of `count` neighbouring elements.  The first run begins at
 * element `first`, and each other run `stride` elements after the one before it. */
typedef struct {
    size_t first, rows, count, stride;
} lk_compress_part;

typedef struct {
    const char *name, *text; /* in options and in help */
    lk_combine  combine;
    uint32_t    rounds; /* messages of a group in a step; at most LK_ROUNDS_MAX */
    lk_feedback feedback; /* the rule if the user names none; 0 = LK_FEEDBACK_EF14 */
    bool selects; /* some elements are sent as they are, with the residual 0, and the others not at
                   * all */

    /* Returns the bytes of a message, a multiple of 4; 0 if the tensor is left whole. */
    size_t (*bytes)(const lk_compression *options, const lk_compress_key *key, uint32_t round);

    /* Prepares `before` of the first round, before each step.  It has zeros before the first step.
     * NULL: the first round reads nothing. */
    void (*begin)(const lk_compression *options, const lk_compress_key *key, void *before);

    /* Finds part `index` of a round, from 0.  Returns false after the last part.  The parts of a
     * round have every element once.  NULL: the only part is the tensor. */
    bool (*part)(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                 uint32_t index, lk_compress_part *out);

    /* Writes what a part of a group's tensor adds to the message of a round.  `values` and
     * `message` are those of the whole tensor.  `before` is the combined message of the previous
     * round or, in the first round, of the last round of the previous step.  In the last round the
     * part's `values` are overwritten with the residual.  Several parts may be encoded at once, in
     * any order. */
    void (*encode)(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values,
                   void *message);

    /* Prepares the combined message of a round.  NULL: it is read as it is. */
    void (*settle)(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   void *combined);

    /* Writes elements [first, first + count) to `out`.  TREE: of the sum over all groups, from the
     * combined messages of all rounds.  GATHER: of one group, from its message. */
    void (*decode)(const lk_compression *options, const lk_compress_key *key,
                   const void *const *messages, size_t first, size_t count, float *out);

    /* Changes elements of the sum over all groups to those of a sum of gradients over `samples`,
     * the number by which it is divided later.  With this function messages say no amounts, so
     * encode() leaves no residual, and rules that need one are refused.  NULL: the sum is not
     * changed. */
    void (*conclude)(const lk_compression *options, const lk_compress_key *key, uint64_t samples,
                     size_t count, float *sums);
} lk_compressor;

enum { LK_ROUNDS_MAX = 2 };

/* Returns a compressor by its number, from 0; NULL after the last. */
LK_API const lk_compressor *lk_compressors(uint32_t index);

/* Finds a compressor by name.  LK_EINVAL lists the names. */
LK_API LK_NODISCARD lk_status lk_compressor_find(const lk_compressor **out, const char *name);

/* Fills in the defaults.  LK_EINVAL names an invalid value. */
LK_API LK_NODISCARD lk_status lk_compression_resolve(lk_compression *out,
                                                     const lk_compression *options);

/* ---- Feedback ---------------------------------------------------------------------------- */

/* Returns the name of a rule, as in options; NULL for LK_FEEDBACK_DEFAULT. */
LK_API const char *lk_feedback_name(lk_feedback feedback);

/* Finds a rule by name.  LK_EINVAL lists the names. */
LK_API LK_NODISCARD lk_status lk_feedback_find(lk_feedback *out, const char *name);

/* Errors are in units of a mean gradient, and gradients are sums over `samples` (Karimireddy et
 * al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, 2019, algorithm 2). */

/* Computes values += samples x error. */
LK_API void lk_feedback_add(size_t count, const float *error, uint64_t samples, float *values);

/* Computes error = residual / samples.  Keeps the error if `samples` is 0. */
LK_API void lk_feedback_keep(size_t count, const float *residual, uint64_t samples, float *error);

#ifdef __cplusplus
}
#endif
#endif
