/* data/source.h -- the interface of data sources, and their shared helpers.
 *
 * A source is a table of functions, selected by the word before the colon of a spec.  There are
 * three families of sources:
 *
 * Token sources     provide one long stream of token ids.  dataset.c cuts it into windows and
 *                   splits off its tail for validation.
 * Array sources     provide samples with one label each, by their index in the files.  dataset.c
 *                   splits them by a keyed permutation.
 * Document sources  provide token ids of varying length, split like arrays.  documents.c cuts
 *                   long documents.
 *
 * So no source knows epochs, windows or splits, and dataset.c knows no file format.
 */
#ifndef LKI_DATA_SOURCE_H
#define LKI_DATA_SOURCE_H

#include "base/rng.h"
#include "base/status.h"
#include "lockstep/data.h"

/* Labels and token ids are int32_t, so their count must fit in int32_t, too. */
#define LKI_CLASSES_MAX ((uint64_t)INT32_MAX)

/* The key of an augmentation's random draws. */
typedef struct {
    uint64_t epoch, index;
} lki_draw;

typedef struct {
    uint32_t left, top, width, height;
} lki_rectangle;

typedef struct {
    const char *name;

    /* Opens the data that `rest`, the spec's text after the colon, describes.  Sets dataset->state,
     * ->total and, in ->info, `tokens`, `classes`, `content_hash` and for arrays the shape `x`.
     * May leave a partial state on failure. */
    lk_status (*open)(lk_dataset *dataset, const char *rest);

    /* Frees dataset->state, which may be partial but is not NULL. */
    void (*close)(lk_dataset *dataset);

    /* Reads tokens [first, first + count) of the stream.  NULL in other sources. */
    void (*read_tokens)(const lk_dataset *dataset, uint64_t first, size_t count, int32_t *out);

    /* Returns the number of tokens of document `index` of the files.  NULL in other sources. */
    uint64_t (*document_tokens)(const lk_dataset *dataset, uint64_t index);
    /* Reads tokens [first, first + count) of a document.  NULL in other sources. */
    lk_status (*read_document)(const lk_dataset *dataset, uint64_t index, uint64_t first,
                               size_t count, int32_t *out);

    /* Reads sample `index` of the files.  NULL in token sources, and if there is read_part. */
    lk_status (*read_sample)(const lk_dataset *dataset, uint64_t index, float *x, int32_t *label);

    /* (optional) Called once the samples of the training part are known: sets what depends on them,
     * the shape `x` and the targets in ->info, and replaces the content hash.  Applies the option
     * `normalize`. */
    lk_status (*fit)(lk_dataset *dataset, const char *spec);

    /* (optional) Reads a sample from an image of any size, resized to the model's size: the part
     * that lki_part_of() draws, or the centre if `draw` is NULL. */
    lk_status (*read_part)(const lk_dataset *dataset, uint64_t index, const lki_draw *draw,
                           float *x, int32_t *label);

    /* (optional) Returns the number of files with training samples, and the file of sample or
     * document `index` of the files. */
    uint32_t (*file_count)(const lk_dataset *dataset);
    uint32_t (*file_of)(const lk_dataset *dataset, uint64_t index);
} lki_source;

typedef struct lki_watched_file lki_watched_file; /* file_watch.c */

/* How bytes become values (pixels.c). */
typedef struct {
    uint32_t channels;    /* channels with numbers of their own; 0: samples are not bytes */
    bool     by_training; /* `auto` means `train` */
    float    mean[LK_CHANNELS_MAX], deviation[LK_CHANNELS_MAX];
    float    value[LK_CHANNELS_MAX][256];
} lki_pixels;

/* A sample of a document: run number `part` of T targets. */
typedef struct {
    uint32_t document, part;
} lki_piece;

struct lk_dataset {
    const lki_source  *source;
    void              *state;
    lk_dataset_options options;
    lk_dataset_info    info;
    bool               bytes;    /* token ids are the bytes of a text */
    bool               whole;    /* all tokens are for validation */
    bool               fixed;    /* `context` cannot be changed, so messages do not advise it */
    char               content[33]; /* info.content_hash without the weights of samples */
    uint64_t           total;    /* number of tokens of the stream, or samples or documents of the
                                  * files */
    uint64_t           held_out; /* size of the validation part at the end of the data: number of
                                  * tokens, or of samples that the source itself reserves */
    size_t             elements; /* number of elements of x in one sample */
    lki_pixels         pixels;
    uint32_t           resize;   /* of images: shorter side after resizing, before the centre is
                                  * taken; 0: the centre is as large as the image allows */
    uint32_t           all_channels; /* of images; 1 for samples with more than LK_CHANNELS_MAX */
    lki_piece         *pieces;   /* with documents: training samples, then validation samples */
    int32_t            separator; /* the token before and after each document */
    double            *cumulative; /* inclusive prefix sums of the training samples' weights; NULL:
                                    * none */
    uint32_t          *loss_weights; /* one per sample of the files; NULL: none */
    const lk_column   *known;       /* [known_count]: the columns that a table must have; NULL: its
                                    * own */
    uint32_t           known_count;
    lki_watched_file  *watched;      /* files that are read through a mapping */
    size_t             watched_count, watched_capacity;
};

/* Records size and modification time of the file at `path`, which was just mapped and not read yet.
 * lk_dataset_check() reports changes. */
LK_NODISCARD lk_status lki_file_watch(lk_dataset *dataset, const char *path);
void                   lki_file_watch_end(lk_dataset *dataset);

extern const lki_source lki_source_text, lki_source_tokens, lki_source_shards, lki_source_idx,
    lki_source_cifar10, lki_source_csv, lki_source_npy, lki_source_tar, lki_source_folder,
    lki_source_docs,
    lki_source_stream, lki_source_synthetic;

/* Checks the augmentation options (augment.c).  Returns LK_EINVAL if they do not apply to this
 * source. */
LK_NODISCARD lk_status lki_augment_check(const lk_dataset *dataset, const char *spec);
/* Augments a training sample in place. `part` is true if the sample is already a random part of its
 * image. */
LK_NODISCARD lk_status lki_augment_apply(const lk_dataset *dataset, const lki_draw *draw, bool part,
                                         float *x);

/* Draws a part of an image of this size (part.c). */
lki_rectangle lki_part_of(const lk_dataset *dataset, const lki_draw *draw, uint32_t height,
                          uint32_t width);
/* Replaces a sample by its resized part. */
LK_NODISCARD lk_status lki_part_fit(const lk_dataset *dataset, const lki_draw *draw, float *x);

/* Cuts the documents of the training and validation parts into samples (documents.c).  The numbers
 * of documents in both parts must be set. */
LK_NODISCARD lk_status lki_documents_cut(lk_dataset *dataset, const char *spec);
/* Reads samples: the first `length` ids and targets of each. `length` is at least that of the
 * longest of these samples. */
LK_NODISCARD lk_status lki_documents_read(const lk_dataset *dataset, bool validation,
                                          const uint64_t *indices, uint32_t count, uint32_t length,
                                          int32_t *x, int32_t *y);

/* Reads the sample at a place in the files: its random part if `draw` is not NULL, for sources with
 * read_part only. */
LK_NODISCARD lk_status lki_sample_read(const lk_dataset *dataset, uint64_t place,
                                       const lki_draw *draw, float *x, int32_t *label);

/* Returns the index that sample `index` of the training or validation part has in the files. */
uint64_t lki_sample_place(const lk_dataset *dataset, bool validation, uint64_t index);

/* Returns true if the options exclude this target. */
static inline bool lki_is_ignored(const lk_dataset *dataset, int64_t target)
{
    return dataset->options.ignores && target == dataset->options.ignored;
}
void lki_ignore(const lk_dataset *dataset, size_t count, int32_t *y);

/* Reads the weight files named in the options, if any (weights.c). */
LK_NODISCARD lk_status lki_weights_open(lk_dataset *dataset, const char *spec);
/* Returns the sample drawn at a position of the weighted order. */
uint64_t lki_weighted_at(const lk_dataset *dataset, uint64_t seed, uint64_t epoch,
                         uint64_t position);

/* Computes torch.randperm(n) after torch.manual_seed(seed), for n below LKI_TORCH_RANDPERM_END. */
#define LKI_TORCH_RANDPERM_END (UINT32_MAX / 20)
void lki_torch_randperm(uint64_t seed, uint32_t *out, size_t n);

/* Computes a keyed permutation of [0, n): see order.c. */
uint64_t lki_permute(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t position);
/* Permutes `count` positions from `first` on, faster than one at a time. */
void lki_permute_run(uint64_t seed, lki_rng_purpose purpose, uint64_t epoch, uint64_t n,
                     uint64_t first, size_t count, uint64_t *out);

/* Returns the offset of an epoch's text windows, in [0, context). */
uint32_t lki_window_offset(uint64_t seed, uint64_t epoch, uint32_t context);

/* ---- Settings in a spec: key=value,key=value ------------------------------------------- */

typedef struct {
    const char *key;
    uint64_t   *value; /* not changed if the key is not given */
    uint64_t    min, max;
} lki_setting;

/* Parses `text` by the table, which ends with a NULL key.  LK_EINVAL names `spec` and the mistake:
 * an unknown key, a key given twice, a value that is not a number or out of range. */
LK_NODISCARD lk_status lki_settings_parse(const char *text, char separator,
                                          const lki_setting *table, const char *spec);

/* Copies the two paths of "FIRST,SECOND".  The caller frees them with lki_free(), also on failure.
 * LK_EINVAL names `form` as the required syntax. */
LK_NODISCARD lk_status lki_split_pair(char *path[2], const char *text, const char *form);

/* ---- Folders ------------------------------------------------------------------------------ */

typedef struct {
    char  **paths; /* relative to the folder, in byte order */
    size_t  count, capacity;
} lki_listing;

/* Lists the regular files of a folder without links and hidden files.  With `deep`, includes its
 * subfolders, except folders named build. */
LK_NODISCARD lk_status lki_listing_open(lki_listing *out, const char *folder, bool deep);
void lki_listing_close(lki_listing *listing);

/* Returns "folder/name", to be freed by lki_free(). */
LK_NODISCARD lk_status lki_path_join(char **out, const char *folder, const char *name);

/* Hashes a list of hashes, for content in several files. */
LK_NODISCARD lk_status lki_hash_of_hashes(char hex[33], char (*hashes)[33], size_t count);

#endif
