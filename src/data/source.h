/* data/source.h -- what a kind of data source provides, and what all kinds share.
 *
 * A source is a row of functions found by the word before the colon of a spec.  It comes in three
 * families.  Token sources offer one long stream of token ids; dataset.c cuts it into windows
 * and splits off its tail for validation.  Array sources offer samples with a label each, by
 * their index in the files; dataset.c splits them by a keyed permutation.  Document sources offer
 * token ids of many lengths; they are split in the same way, and documents.c cuts those that are
 * too long.  So no source knows
 * of epochs, windows or splits, and dataset.c knows of no file format.
 */
#ifndef LKI_DATA_SOURCE_H
#define LKI_DATA_SOURCE_H

#include "base/rng.h"
#include "base/status.h"
#include "lockstep/data.h"

/* Labels and token ids are int32_t, and their count must be one too. */
#define LKI_CLASSES_MAX ((uint64_t)INT32_MAX)

/* What augmentation is drawn for, and a part of a picture. */
typedef struct {
    uint64_t epoch, index;
} lki_draw;

typedef struct {
    uint32_t left, top, width, height;
} lki_rectangle;

typedef struct {
    const char *name;

    /* Opens what stands behind the colon: sets dataset->state, ->total and, in ->info, `tokens`,
     * `classes`, `content_hash` and for arrays the shape `x`.  May leave a half-made state. */
    lk_status (*open)(lk_dataset *dataset, const char *rest);

    /* Frees dataset->state, which may be half-made but is not NULL. */
    void (*close)(lk_dataset *dataset);

    /* Tokens [first, first + count) of the stream.  NULL if the source has none. */
    void (*read_tokens)(const lk_dataset *dataset, uint64_t first, size_t count, int32_t *out);

    /* How many tokens document `index` of the files has; and tokens [first, first + count) of it.
     * NULL if the source has none. */
    uint64_t (*document_tokens)(const lk_dataset *dataset, uint64_t index);
    lk_status (*read_document)(const lk_dataset *dataset, uint64_t index, uint64_t first,
                               size_t count, int32_t *out);

    /* Sample `index` of the files.  NULL if the source is one of tokens. */
    lk_status (*read_sample)(const lk_dataset *dataset, uint64_t index, float *x, int32_t *label);

    /* (optional) That of which only the part is made to fit that lki_part_of() draws from all that
     * there is of it. */
    lk_status (*read_part)(const lk_dataset *dataset, uint64_t index, const lki_draw *draw,
                           float *x, int32_t *label);

    /* What a black pixel is to the model, in a channel.  NULL (optional): 0. */
    float (*blank)(const lk_dataset *dataset, uint32_t channel);
} lki_source;

typedef struct lki_watched lki_watched; /* watch.c */

/* What of a document is a sample: its `part`th T targets. */
typedef struct {
    uint32_t document, part;
} lki_piece;

struct lk_dataset {
    const lki_source  *source;
    void              *state;
    lk_dataset_options options;
    lk_dataset_info    info;
    uint64_t           total;    /* tokens of the stream, or samples or documents of the files */
    uint64_t           held_out; /* for validation, at the end: tokens, or samples of files that
                                  * the source itself holds out */
    size_t             elements; /* of x in one sample */
    lki_piece         *pieces;   /* of documents: those to train on, behind them the others */
    int32_t            separator; /* the token at both ends of a document */
    double            *cumulative; /* weights up to each training sample and with it, or NULL */
    uint32_t          *loss_weights; /* of each sample of the files, or NULL */
    lki_watched       *watched;  /* files whose content is read where it lies */
    size_t             watched_count, watched_capacity;
};

/* Remembers what the file at `path`, just mapped and not read yet, is like: lk_dataset_check() says
 * when that changes. */
LK_NODISCARD lk_status lki_data_watch(lk_dataset *dataset, const char *path);
void                   lki_data_watch_end(lk_dataset *dataset);

extern const lki_source lki_source_text, lki_source_tokens, lki_source_shards, lki_source_idx,
    lki_source_cifar10, lki_source_npy, lki_source_tar, lki_source_docs, lki_source_stream,
    lki_source_synthetic;

/* Augmentation, see augment.c: LK_EINVAL where the options ask for it and it makes no sense; what a
 * sample of the training part, just read, looks like: one of which a part was read, with `part`. */
LK_NODISCARD lk_status lki_augment_check(const lk_dataset *dataset, const char *spec);
LK_NODISCARD lk_status lki_augment_apply(const lk_dataset *dataset, const lki_draw *draw, bool part,
                                         float *x);

/* Parts that are made to fit, see part.c: which one of a picture of that size it is; and making
 * it of the sample itself. */
lki_rectangle lki_part_of(const lk_dataset *dataset, const lki_draw *draw, uint32_t height,
                          uint32_t width);
LK_NODISCARD lk_status lki_part_fit(const lk_dataset *dataset, const lki_draw *draw, float *x);

/* Documents, see documents.c: makes samples of those of both parts, once these are counted; and
 * reads some, the first `length` ids and targets of each, at least as many as it has. */
LK_NODISCARD lk_status lki_documents_cut(lk_dataset *dataset, const char *spec);
LK_NODISCARD lk_status lki_documents_read(const lk_dataset *dataset, bool validation,
                                          const uint64_t *indices, uint32_t count, uint32_t length,
                                          int32_t *x, int32_t *y);

/* Where sample `index` of a part lies in the files. */
uint64_t lki_sample_place(const lk_dataset *dataset, bool validation, uint64_t index);

/* Whether the options have a target left out; leaves those out. */
static inline bool lki_is_ignored(const lk_dataset *dataset, int64_t target)
{
    return dataset->options.ignores && target == dataset->options.ignored;
}
void lki_ignore(const lk_dataset *dataset, size_t count, int32_t *y);

/* Weights, see weights.c: reads the files that the options name, if they do; the sample that is
 * drawn at a position. */
LK_NODISCARD lk_status lki_weights_open(lk_dataset *dataset, const char *spec);
uint64_t lki_weighted_at(const lk_dataset *dataset, uint64_t seed, uint64_t epoch,
                         uint64_t position);

/* What torch.randperm(n) gives after torch.manual_seed(seed), for n below this end. */
#define LKI_TORCH_RANDPERM_END (UINT32_MAX / 20)
void lki_torch_randperm(uint64_t seed, uint32_t *out, size_t n);

/* A keyed permutation of [0, n): see order.c. */
uint64_t lki_permute(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t position);
/* The same of `count` positions from `first` on, in less time than one after the other. */
void lki_permute_run(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t first, size_t count, uint64_t *out);

/* The offset of an epoch's text windows, in [0, context). */
uint32_t lki_window_offset(uint64_t seed, uint64_t epoch, uint32_t context);

/* ---- Settings in a spec: key=value,key=value ------------------------------------------- */

typedef struct {
    const char *key;
    uint64_t   *value; /* left alone when the key is not given */
    uint64_t    min, max;
} lki_setting;

/* Parses `text` by the table, which ends with a NULL key.  LK_EINVAL names `spec`, and what is
 * wrong with it: an unknown key, a key given twice, a value that is no number or out of range. */
LK_NODISCARD lk_status lki_settings_parse(const char *text, char separator,
                                          const lki_setting *table, const char *spec);

/* Copies of the two paths of "FIRST,SECOND", to be freed by lki_free() whatever is returned.
 * LK_EINVAL says that `form` is what must be written. */
LK_NODISCARD lk_status lki_split_pair(char *path[2], const char *text, const char *form);

/* ---- Pixels ------------------------------------------------------------------------------- */

/* What a pixel byte v stands for: (v/255 - mean) / deviation, in this order, in FP32. */
static inline void lki_pixel_table(float table[256], float mean, float deviation)
{
    for (int v = 0; v < 256; v++)
        table[v] = ((float)v / 255.0f - mean) / deviation;
}

/* ---- Folders ------------------------------------------------------------------------------ */

typedef struct {
    char  **paths; /* relative to the folder, in byte order */
    size_t  count, capacity;
} lki_listing;

/* Lists the regular files of a folder; links and hidden names are left out.  With `deep`, those
 * of its sub-folders too, except in folders named build. */
LK_NODISCARD lk_status lki_listing_open(lki_listing *out, const char *folder, bool deep);
void lki_listing_close(lki_listing *listing);

/* "folder/name", to be freed by lki_free(). */
LK_NODISCARD lk_status lki_path_join(char **out, const char *folder, const char *name);

/* The hash of a list of hashes, for content that lies in several files. */
LK_NODISCARD lk_status lki_hash_of_hashes(char hex[33], char (*hashes)[33], size_t count);

#endif
