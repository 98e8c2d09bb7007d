/* lockstep/data.h -- samples from files, in an order that is independent of the number of workers.
 *
 * A data set returns sample i of its training or validation part.  The order of an epoch is a keyed
 * permutation: the sample at position p of epoch e is a pure function of (seed, e, p, n).  The
 * global batch of a step is a run of positions, assigned to batch slots in order.  Virtual worker v
 * owns slots [v M b, (v+1) M b): M micro-batches of b samples.  A short batch fills the slots in
 * order.  So the state of a run is exactly one integer: the step.
 *
 * Threads: several threads may read a data set at once; only one thread may use a loader.
 */
#ifndef LK_DATA_H
#define LK_DATA_H

#include "lockstep/clients.h"
#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Data sets --------------------------------------------------------------------------- */

typedef struct lk_dataset lk_dataset;

/* Augmentation of training images, applied at each read and drawn by (seed, epoch, sample).  All
 * fields 0: none. */
typedef struct {
    uint32_t crop; /* pad and crop: width of the black padding on each side, in pixels */
    bool     flip; /* mirrors an image left to right with probability 1/2 */

    /* Above 0: resizes a random part of the image to the full size, like torchvision's
     * RandomResizedCrop.  The part has at least this share of the area, and an aspect ratio of 3:4
     * to 4:3.  Replaces `crop`. */
    double resized_crop;
} lk_augment;

/* The form of a table's targets.  AUTO: numbers, or classes if the column has text.  LABELS:
 * numbers from 0 to 1. */
typedef enum {
    LK_TARGETS_AUTO = 0,
    LK_TARGETS_CLASSES,
    LK_TARGETS_NUMBERS,
    LK_TARGETS_LABELS,
} lk_targets;

typedef struct {
    size_t     struct_size; /* see LK_DATASET_OPTIONS_INIT */
    uint32_t   context;    /* tokens: T, the length of a sample */
    double     validation; /* fraction of samples reserved for validation, 0 <= f < 1 */
    uint64_t   seed;       /* seed of text windows, augmentation and synthetic data */
    uint64_t   split_seed; /* seed that selects the samples of the validation part; default 0 */
    uint32_t   fold;       /* number of the validation fold, from 1; folds are disjoint; 0 = 1 */
    lk_augment augment;    /* images only: LK_EINVAL for other sources */

    /* A file with one number >= 0 per sample (in the order of the files, without CIFAR-10's test
     * batch): .npy, or text separated by white space.  NULL: none.  Used by LK_ORDER_WEIGHTED, and
     * part of the content hash. */
    const char *weights;

    /* If `ignores`, targets equal to `ignored`, which may be a class or not, become -1 and do not
     * contribute to the loss. */
    bool    ignores;
    int64_t ignored;

    /* A file in the format of `weights`, with numbers up to 256, in units of 1 / LK_WEIGHT_ONE.
     * They weight the labelled training samples in the loss.  NULL: none. */
    const char *loss_weights;

    /* How bytes of images become values, (v/255 - mean) / deviation.  NULL or "source": by
     * constants of the source.  "train": by mean and deviation of the training part, for each
     * channel.  "none": v/255.  "MEAN,.../DEVIATION,...": by these numbers.  "auto": "train" for
     * idx:, npy: and csv:, "source" for the others.  Numbers of a table become (v - mean) /
     * deviation by "train", and are unchanged by "source" and "none".  Other sources without bytes
     * take "source" and "auto" only. */
    const char *normalize;

    /* Tables only: the names of the target columns, with commas between them.  Required. */
    const char *target;
    lk_targets  targets;

    /* A tokenizer.json (lockstep/tokenizer.h), by which text: and docs: become token ids.  It is
     * part of the content hash.  NULL: text is bytes. */
    const char *tokenizer;
} lk_dataset_options;

#define LK_DATASET_OPTIONS_INIT LK_OPTIONS_INIT(lk_dataset_options)

enum { LK_WEIGHT_ONE = 65536 };

/* A column of a table.  A column of numbers has no levels, and mean 0 and deviation 1 if it is not
 * standardised.  A column of text has the levels of the training part, sorted by their bytes, and
 * as many numbers in a sample.  A target with levels has the classes, in their order. */
typedef struct {
    const char        *name;
    bool               target;
    double             mean, deviation;
    const char *const *levels;
    uint32_t           level_count;
} lk_column;

enum { LK_CHANNELS_MAX = 4 }; /* channels of an image with means of their own */

typedef struct {
    bool tokens;          /* true: a sample has `context` token ids and one target per token;
                           * false: a sample has floats, standardised as the source defines, and
                           * one label */
    bool documents;       /* tokens only: each sample has its own length, up to `context` */
    lk_shape x;           /* shape of a sample: (T), (H, W, C) or (features) */
    uint32_t classes;     /* labels, or the vocabulary size, or `targets` if they are numbers */
    uint32_t targets;     /* of a sample: T for tokens, else 1, or more if they are numbers */
    bool     numbers;     /* targets are FP32 numbers, whose bits are passed as int32_t */
    uint64_t train_count; /* n: samples per epoch */
    uint64_t validation_count;
    char     content_hash[33]; /* XXH3-128 of the content, in hex */
    uint32_t normalized;       /* number of the means and deviations below; 0: those of the source
                                * apply, or samples are not bytes */
    float    mean[LK_CHANNELS_MAX], deviation[LK_CHANNELS_MAX];
    const char *const *class_names; /* `classes` names; NULL: classes are numbers */
    const lk_column *columns; /* of a table, in the order of the file; NULL for other sources */
    uint32_t column_count;
    char     tokenizer_hash[33]; /* XXH3-128 of the tokenizer by which text became tokens, in hex;
                                  * "": none did */
    uint64_t left_out;           /* bytes of the text that are in no sample, because the tokenizer
                                  * has no token for them */
} lk_dataset_info;

/* Opens `spec` (docs/data.md describes the formats):
 *  text:FILE|DIR        bytes as tokens, vocabulary 256; or ids of `tokenizer`
 *  tokens:FILE          uint16 or uint32 ids, raw (.u16, .u32) or with llm.c's header;
 *                       FILE?vocab=N&width=16 supplies properties that the file lacks
 *  shards:DIR           the token files of a folder as one stream; takes ?vocab and ?width
 *  idx:IMAGES,LABELS    MNIST's format, also .gz; (H, W, 1)
 *  cifar10:DIR          the binary version; (32, 32, 3); without a validation fraction,
 *                       test_batch.bin is the validation part
 *  tar:FILE|DIR|RANGE   images (JPEG, PNG) and classes in tar archives, as WebDataset packs them;
 *                       ?h=, w= (32), c= (3): size after resizing; ?classes=: number of classes;
 *                       ?resize=: shorter side after resizing, of which the centre is taken
 *  folder:DIR           images in a folder for each class, in DIR or in DIR/train and DIR/val;
 *                       takes ?h=, w=, c= and resize=
 *  stream:FILE|-        bytes, tokens, images or tar archives from a pipe, read once; only
 *                       lk_train_run() can read it
 *  csv:FILE             a table with a header, and `target` columns (.tsv: with tabs); other
 *                       columns are numbers, or texts, which become one number for each level
 *  npy:X,Y              NumPy arrays of samples and of integer labels
 *  docs:FILE|DIR|RANGE  documents, each a sample of its own length: lines of a text, "text" of
 *                       JSON lines, .txt and .json in tar archives, token ids between ?end=
 *  synthetic:SPEC       images=N,h=,w=,c=,classes= or samples=N,features=,classes= or
 *                       tokens=N,vocab=; a function of (seed, index)
 * Opening detects all problems of the files: LK_EINVAL (spec), LK_EIO (missing, unreadable),
 * LK_EFORMAT (empty, truncated, mislabelled, oversized, too few for one sample). */
LK_API LK_NODISCARD lk_status lk_dataset_open(lk_dataset **out, const char *spec,
                                              const lk_dataset_options *options);

/* Returns the characters that end a path in a spec KIND:WHAT, for strcspn(): a comma in kinds with
 * pairs of files, `?` in those with settings.  In other kinds paths may have all characters. */
LK_API const char *lk_dataset_path_ends(const char *spec);
LK_API void                   lk_dataset_free(lk_dataset *dataset);

/* Returns LK_EIO, naming the file, if the size or modification time of a file has changed since it
 * was opened: later reads may mix the two versions.  Removing a file, or replacing it by another of
 * the same name, is harmless: the data set still reads the file that it opened.  The check takes a
 * few microseconds per file. */
LK_API LK_NODISCARD lk_status lk_dataset_check(const lk_dataset *dataset);

/* Returns the properties of the data set, valid until it is freed. */
LK_API const lk_dataset_info *lk_dataset_describe(const lk_dataset *dataset);

/* Returns the number of targets of a sample: T for a window of tokens, 1 for an array, and from 1
 * to T for a document. */
LK_API uint32_t lk_dataset_length(const lk_dataset *dataset, bool validation, uint64_t index);

/* Reads one sample; `index` is below the count of the part.  Tokens: x is int32_t[T], and y is x
 * shifted by one, int32_t[T]. Past the end of a document x repeats the separator and targets are
 * -1.  Arrays: x is float[count], y int32_t[targets].  In training `epoch` selects text windows and
 * augmentation; validation ignores it.  Returns LK_EFORMAT for an image that cannot be decoded, and
 * names its file, member and offset. */
LK_API LK_NODISCARD lk_status lk_dataset_read(const lk_dataset *dataset, bool validation,
                                              uint64_t epoch, uint64_t index, void *x, int32_t *y);

/* ---- The order --------------------------------------------------------------------------- */

/* Maps position p < n of epoch e to a sample < n: a Feistel network over Philox with cycle walking.
 * Positions 0 .. n-1 yield every sample once. n may be up to 2^64 - 1. */
LK_API uint64_t lk_sample_at(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t position);

/* Orders of an epoch; docs/data.md describes them. */
typedef enum {
    LK_ORDER_PERMUTED,          /* lk_sample_at() */
    LK_ORDER_SEQUENTIAL,        /* in the order of the files */
    LK_ORDER_TORCH_DISTRIBUTED, /* PyTorch's DistributedSampler and DataLoader, with one replica per
                                 * virtual worker; samples are repeated until replicas are equally
                                 * long, or left out with drop_last */
    LK_ORDER_TORCH_UNSHUFFLED,  /* as LK_ORDER_TORCH_DISTRIBUTED, with shuffle=False */
    LK_ORDER_WEIGHTED,          /* drawn with replacement, weighted by lk_dataset_options.weights */
} lk_order;

/* Returns the number of positions of an epoch: `n`, or for PyTorch's orders `n` rounded to a
 * multiple of `virtual_workers`.  The step functions below take this number as `n`. */
LK_API uint64_t lk_epoch_positions(lk_order order, uint64_t n, uint32_t virtual_workers,
                                   bool drop_last);

/* The part of an epoch that one step covers. */
typedef struct {
    uint64_t epoch;
    uint64_t first;   /* position of batch slot 0 in the epoch */
    uint64_t samples; /* <= G; fewer than G only in the last step of an epoch */
} lk_step_span;
/* Returns the part of an epoch that step `step` covers, for n samples and a global batch G >= 1.
 * lk_steps_per_epoch() must not be 0 (with drop_last, an epoch may have no step). */
LK_API lk_step_span lk_step_at(uint64_t n, uint64_t global_batch, bool drop_last, uint64_t step);
/* Returns the number of steps per epoch. */
LK_API uint64_t     lk_steps_per_epoch(uint64_t n, uint64_t global_batch, bool drop_last);

/* Returns the number of samples in micro-batch `micro_index` of virtual worker `v`, given `samples`
 * in the global batch.  Does not apply to documents, which are distributed by their number of
 * tokens. */
LK_API uint32_t lk_micro_samples(uint64_t samples, uint32_t micro_batch, uint32_t micro_count,
                                 uint32_t v, uint32_t micro_index);

/* ---- The loader -------------------------------------------------------------------------- */

typedef struct lk_loader lk_loader;

typedef struct {
    size_t struct_size; /* see LK_LOADER_OPTIONS_INIT */
    uint64_t seed;
    uint32_t global_batch, micro_batch, virtual_workers;
    uint32_t first, count; /* virtual workers to serve: `count` of them, first, first + stride
                            * ... */
    uint32_t stride;       /* 0 = 1 */
    const uint32_t *list;  /* (optional) the `count` virtual workers in an explicit order; replaces
                            * first and stride */
    bool     drop_last;
    lk_order order;
    uint64_t start_step, end_step; /* the loader prefetches steps [start, end) */
    uint32_t ahead;                /* micro-batches prefetched; 0 = 4 per thread, or up to 32 small
                                    * ones (32 times `borrowed`) that fit in 2 MiB */
    uint32_t threads;              /* prefetching threads; 0 = 1; does not affect the batches */
    bool     lock_step;            /* delivers micro-batch k of all virtual workers before
                                    * micro-batch k + 1 */
    uint32_t borrowed;             /* micro-batches that stay borrowed at a time; 0 = 1; not with
                                    * lock_step */
} lk_loader_options;

#define LK_LOADER_OPTIONS_INIT LK_OPTIONS_INIT(lk_loader_options)

/* A micro-batch. x: `samples` samples; y: lk_dataset_info.targets per sample.  `samples` may be 0.
 * The memory has room for micro_batch samples and is zero beyond `samples`.  With documents each
 * sample has `length` ids and targets instead of T.  `length` is that of the longest document in
 * the micro-batch; targets past the end of a shorter document are -1. */
typedef struct {
    uint64_t       step, epoch;
    uint32_t       virtual_worker, micro_index;
    uint32_t       samples;
    uint32_t       length;     /* 0 unless samples are documents */
    uint32_t       first_slot; /* batch slot of the first sample */
    const void    *x;
    const int32_t *y;
    const uint32_t *weights;   /* weights of the samples in the loss, LK_WEIGHT_ONE is 1; NULL: all
                                * 1 */
} lk_batch;

/* Starts the prefetching threads.  Borrows the data set.  Returns LK_EINVAL if the numbers are
 * inconsistent: global_batch must be a multiple of virtual_workers * micro_batch. */
LK_API LK_NODISCARD lk_status lk_loader_open(lk_loader **out, const lk_dataset *dataset,
                                             const lk_loader_options *options);
LK_API void                   lk_loader_free(lk_loader *loader);

/* Returns the next micro-batch in the order (step, virtual worker, micro index), borrowed until the
 * next call.  With `lock_step` the order is (step, micro index, virtual worker), and all batches of
 * one micro index are borrowed until the first batch of the next micro index.  With `borrowed`, a
 * batch stays borrowed for that many calls.  Batches k * borrowed to (k + 1) * borrowed - 1 are
 * then contiguous in memory, each with room for micro_batch samples.  Returns LK_EINVAL past
 * end_step.  A failure of lk_dataset_read() is returned after all samples before it. */
LK_API LK_NODISCARD lk_status lk_loader_next(lk_loader *loader, lk_batch *out);

#ifdef __cplusplus
}
#endif
#endif /* LK_DATA_H */
