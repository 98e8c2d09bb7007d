/* lockstep/data.h -- samples from files, in an order that no number of workers can change.
 *
 * A data set answers "sample i of the training (or validation) part".  The order of an epoch is
 * a keyed permutation: position p of epoch e is a pure function of (seed, e, n).  A step's
 * global batch is a run of positions, dealt to slots in order; virtual worker v owns slots
 * [v M b, (v+1) M b): M micro-batches of b.  A short batch fills slots in order.
 * So the exact position of a run is one integer: the step.
 *
 * Threads: a data set may be read by several threads at once; a loader belongs to one.
 */
#ifndef LK_DATA_H
#define LK_DATA_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Data sets --------------------------------------------------------------------------- */

typedef struct lk_dataset lk_dataset;

/* What images of the training part go through each time they are read, drawn for (seed, epoch,
 * sample).  All 0: nothing. */
typedef struct {
    uint32_t crop; /* up to so many pixels of black come in from each side: pad and crop */
    bool     flip; /* every other one is mirrored, left to right */

    /* Above 0: a part of the picture, of this share of its area to all of it and of 3:4 to 4:3, is
     * made to fit (torchvision's RandomResizedCrop).  In place of `crop`. */
    double resized_crop;
} lk_augment;

typedef struct {
    uint32_t   context;    /* tokens: T, the length of a sample */
    double     validation; /* the fraction kept for validation, 0 <= f < 1 */
    uint64_t   seed;       /* text window offsets; augmentation; synthetic data */
    uint64_t   split_seed; /* which images are the validation part; default 0 */
    uint32_t   fold;       /* which of the parts of that size, from 1; 0 = 1.  No two share any */
    lk_augment augment;    /* for sources of images: LK_EINVAL for others */

    /* A file with a number of at least 0 for every sample (of the files, in their order; CIFAR-10's
     * test batch has none): .npy, or text with white space between.  NULL: none.  For
     * LK_ORDER_WEIGHTED; the content hash counts it in. */
    const char *weights;

    /* A target that is this number, a class or none, counts for nothing: it becomes -1. */
    bool    ignores;
    int64_t ignored;

    /* A file as `weights` is, of numbers up to 256: what training samples with labels count for in
     * the loss, in steps of 1 / LK_WEIGHT_ONE.  NULL: none. */
    const char *loss_weights;
} lk_dataset_options;

enum { LK_WEIGHT_ONE = 65536 };

typedef struct {
    bool tokens;          /* samples are `context` token ids with a target each; otherwise
                           * floats, standardised as the source says, and one label */
    bool documents;       /* of tokens: samples have up to `context` of them, each its own number */
    lk_shape x;           /* of one sample: (T), or (H, W, C), or (features) */
    uint32_t classes;     /* labels, or the vocabulary size */
    uint64_t train_count; /* n: samples of an epoch */
    uint64_t validation_count;
    char     content_hash[33]; /* XXH3-128 of the content, hex */
} lk_dataset_info;

/* Opens `spec` (docs/data.md says what each may hold):
 *   text:FILE|DIR        bytes as tokens, vocabulary 256
 *   tokens:FILE          uint16 or uint32 ids, raw (.u16, .u32) or with llm.c's header;
 *                        FILE?vocab=N&width=16 says what the file does not
 *   shards:DIR           the token files of a folder as one stream; ?vocab and ?width too
 *   idx:IMAGES,LABELS    MNIST's format, also .gz; (H, W, 1)
 *   cifar10:DIR          the binary version; (32, 32, 3); without a validation fraction,
 *                        test_batch.bin is the validation part
 *   tar:FILE|DIR|RANGE   images (JPEG, PNG) and classes in tar archives, as WebDataset packs them;
 *                        ?h=, w= (32) and c= (3) say what they are made to fit, ?classes=
 *   stream:FILE|-        bytes, tokens, images or tar archives of a pipe, read once, which only
 *                        lk_train_run() does
 *   npy:X,Y              NumPy arrays of samples and of integer labels
 *   docs:FILE|DIR|RANGE  documents, each a sample of its own length: lines of a text, "text" of
 *                        JSON lines, .txt and .json in tar archives, token ids between ?end=
 *   synthetic:SPEC       images=N,h=,w=,c=,classes= or samples=N,features=,classes= or
 *                        tokens=N,vocab=; a function of (seed, index)
 * Everything that can be wrong with the files is found here: LK_EINVAL (spec), LK_EIO (missing,
 * unreadable), LK_EFORMAT (empty, truncated, mislabelled, oversized, too few for one sample). */
LK_API LK_NODISCARD lk_status lk_dataset_open(lk_dataset **out, const char *spec,
                                              const lk_dataset_options *options);
LK_API void                   lk_dataset_free(lk_dataset *dataset);

/* LK_EIO names a file that was changed in place since it was opened, by its size and time of
 * writing: what is read from now on may be of neither version.  A file that was removed, or
 * replaced by another of its name, does no harm: the data set keeps the one that it opened.  A few
 * microseconds a file. */
LK_API LK_NODISCARD lk_status lk_dataset_check(const lk_dataset *dataset);

LK_API const lk_dataset_info *lk_dataset_describe(const lk_dataset *dataset);

/* Targets of a sample: T of a window, 1 of an array, and from 1 to T of a document. */
LK_API uint32_t lk_dataset_length(const lk_dataset *dataset, bool validation, uint64_t index);

/* One sample, `index` below the part's count.  Tokens: x is int32_t[T], y int32_t[T], the same
 * shifted by one; behind the end of a document, whose end x repeats, targets are -1: none.
 * Arrays: x is float[count], y int32_t[1].
 * `epoch` matters for text windows and augmentation, in training; validation ignores it.
 * LK_EFORMAT for an image that cannot be decoded, with its file, member and offset. */
LK_API LK_NODISCARD lk_status lk_dataset_read(const lk_dataset *dataset, bool validation,
                                              uint64_t epoch, uint64_t index, void *x, int32_t *y);

/* ---- The order --------------------------------------------------------------------------- */

/* Position p < n of epoch e -> sample < n: a Feistel network over Philox with cycle walking.
 * For p = 0 .. n-1 every sample comes once.  n up to 2^64 - 1. */
LK_API uint64_t lk_sample_at(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t position);

/* Orders of an epoch; docs/data.md describes them. */
typedef enum {
    LK_ORDER_PERMUTED,          /* lk_sample_at() */
    LK_ORDER_SEQUENTIAL,        /* as the files have them */
    LK_ORDER_TORCH_DISTRIBUTED, /* of PyTorch's DistributedSampler and DataLoader, a replica for
                                 * each virtual worker; it repeats samples to have as many for each,
                                 * or with drop_last leaves some out */
    LK_ORDER_TORCH_UNSHUFFLED,  /* that with shuffle=False */
    LK_ORDER_WEIGHTED,          /* drawn with replacement, by lk_dataset_options.weights */
} lk_order;

/* Positions of an epoch: `n`, or for PyTorch's orders n made a multiple of virtual_workers.  This
 * is the n that the step functions below take. */
LK_API uint64_t lk_epoch_positions(lk_order order, uint64_t n, uint32_t virtual_workers,
                                   bool drop_last);

/* What step `step` consists of, given n samples and a global batch of G >= 1.  An epoch must have
 * a step: lk_steps_per_epoch() is 0 where drop_last leaves none, and there is none to ask for. */
typedef struct {
    uint64_t epoch;
    uint64_t first;   /* position in the epoch of slot 0 */
    uint64_t samples; /* <= G; less only in the last step of an epoch */
} lk_step_span;
LK_API lk_step_span lk_step_at(uint64_t n, uint64_t global_batch, bool drop_last, uint64_t step);
LK_API uint64_t     lk_steps_per_epoch(uint64_t n, uint64_t global_batch, bool drop_last);

/* Samples of micro-batch `micro_index` of virtual worker `v` when a batch has `samples`: not where
 * samples are documents, which are dealt by their tokens. */
LK_API uint32_t lk_micro_samples(uint64_t samples, uint32_t micro_batch, uint32_t micro_count,
                                 uint32_t v, uint32_t micro_index);

/* ---- The loader -------------------------------------------------------------------------- */

typedef struct lk_loader lk_loader;

typedef struct {
    uint64_t seed;
    uint32_t global_batch, micro_batch, virtual_workers;
    uint32_t first, count; /* serves `count` virtual workers: first, first + stride ... */
    uint32_t stride;       /* 0 = 1 */
    const uint32_t *list;  /* (optional) `count` virtual workers in another order than this */
    bool     drop_last;
    lk_order order;
    uint64_t start_step, end_step; /* the loader prefetches steps [start, end) */
    uint32_t ahead;                /* micro-batches prepared in advance; 0 = 4 a thread, of small
                                    * ones up to 32, as 2 MiB hold */
    uint32_t threads;              /* that prepare them; 0 = 1.  They change nothing else */
    bool     lock_step;            /* micro-batch k of all of them, then k + 1 */
} lk_loader_options;

/* A micro-batch.  x: `samples` samples; y: T targets or one label each.  `samples` may be 0.  Room
 * for micro_batch samples is there, and zero beyond `samples`.  Where samples are documents there
 * are `length` ids and targets of each in place of T, as many as the longest has; behind the end of
 * a shorter one targets are -1. */
typedef struct {
    uint64_t       step, epoch;
    uint32_t       virtual_worker, micro_index;
    uint32_t       samples;
    uint32_t       length;     /* 0 where samples are no documents */
    uint32_t       first_slot; /* slot in the global batch of its first sample */
    const void    *x;
    const int32_t *y;
    const uint32_t *weights;   /* of the samples in the loss, LK_WEIGHT_ONE is 1; NULL: 1 each */
} lk_batch;

/* Starts the prefetching threads.  Borrows the data set.  LK_EINVAL if the numbers do not fit one
 * another: global_batch must be a multiple of virtual_workers * micro_batch. */
LK_API LK_NODISCARD lk_status lk_loader_open(lk_loader **out, const lk_dataset *dataset,
                                             const lk_loader_options *options);
LK_API void                   lk_loader_free(lk_loader *loader);

/* The next micro-batch in order (step, virtual worker, micro index), borrowed until the
 * next call.  In lock step the order is (step, micro index, virtual worker), and all with one micro
 * index are borrowed together, until the first of the next.  LK_EINVAL past end_step; what
 * lk_dataset_read() says of a sample that it cannot read, once those before it are delivered. */
LK_API LK_NODISCARD lk_status lk_loader_next(lk_loader *loader, lk_batch *out);

#ifdef __cplusplus
}
#endif
#endif /* LK_DATA_H */
