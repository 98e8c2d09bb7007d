/* lockstep/trained.h -- using a trained model: texts that it generates, and evaluation.
 *
 * The model and its options are those that the checkpoint records, or those of a folder as Hugging
 * Face's transformers writes it.
 */
#ifndef LK_TRAINED_H
#define LK_TRAINED_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The weights that evaluation or sampling uses.  Default: the moving means (lk_optimizer.ema) if
 * the run has them, else the model's weights. */
typedef enum { LK_WEIGHTS_DEFAULT = 0, LK_WEIGHTS_MODEL, LK_WEIGHTS_EMA } lk_weights;

/* ---- Texts ------------------------------------------------------------------------------- */

/* Options for generating text with a trained gpt or llama. */
typedef struct {
    size_t      struct_size; /* see LK_SAMPLE_OPTIONS_INIT */
    const char *path;        /* a checkpoint, a directory of checkpoints, a safetensors file, or a
                              * Hugging Face folder */
    const char *prompt;      /* NULL = a newline */
    uint32_t    tokens;      /* number of tokens to generate */
    double      temperature; /* 0 = always the most likely token */
    uint32_t    top_k;       /* samples from the k most likely tokens; 0 = all tokens */
    uint64_t    seed;
    lk_weights  weights;
    uint32_t    heads;   /* of a gpt in a safetensors file; not used with a checkpoint */
    uint32_t    threads; /* 0 = 1 */
    const char *isa;     /* as in lk_exec_open() */

    /* Receives the prompt, and then what is generated: each byte or, with a tokenizer, valid
     * UTF-8. */
    void (*emit)(void *context, const char *bytes, size_t count);
    void *context;

    /* A tokenizer.json, which must be equal to the one beside the weights if there is one
     * (LK_EINVAL).  NULL: that one; tokens of a model with a vocabulary of 256 are bytes. */
    const char *tokenizer;
    double      top_p;      /* samples from the most likely tokens that together have this share of
                             * the probability, after top_k; 0 or 1 = all tokens */
    uint32_t    count;      /* texts, each with random numbers of its own; 0 = 1 */
    bool        ignore_end; /* goes on after the token between documents, where a text would
                             * otherwise end */
    bool        no_cache;   /* computes the whole window for every token; the text is the same */
    lk_dtype    precision;  /* of values and matrix products: LK_F32 (0 = LK_F32) or LK_BF16 */
    void (*finished)(void *context, uint32_t text); /* (optional) called after text 0, 1 ... */
    const char *adapter; /* a folder of PEFT's, with adapters for the Hugging Face folder `path` */
} lk_sample_options;

#define LK_SAMPLE_OPTIONS_INIT LK_OPTIONS_INIT(lk_sample_options)

/* Generates text.  Token i of text t uses a random number of its own, keyed by (seed, t, i), so the
 * text depends only on weights and options, not on threads or instruction sets. */
LK_API LK_NODISCARD lk_status lk_sample(const lk_sample_options *options);

/* ---- Evaluation -------------------------------------------------------------------------- */

/* Options for evaluating a trained model. */
typedef struct {
    size_t      struct_size; /* see LK_EVALUATE_OPTIONS_INIT */
    const char *path;      /* as in lk_sample_options */
    const char *source;    /* as lk_train_config.data.source, except streams.  A table must have the
                            * columns of the table on which the model was trained. */
    bool        own_part;  /* `source` is that of the run, of which only the validation part is
                            * evaluated, and LK_EINVAL if its content is not that of the checkpoint;
                            * else all samples are, or the part for tests that the source itself has
                            * (cifar10) */
    const char *tokenizer; /* as in lk_sample_options.  NULL: the tokenizer.json beside the weights,
                            * if there is one */
    lk_weights  weights;
    uint32_t    heads;     /* as in lk_sample_options */
    uint32_t    workers;   /* threads with samples of their own; 0 = 1 */
    uint32_t    threads;   /* of each worker; 0 = 1 */
    const char *isa;       /* as in lk_exec_open() */
    const char *adapter;   /* as in lk_sample_options */
    uint32_t    context;   /* tokens of a sample, for a Hugging Face folder; 0 = its positions, at
                            * most 1024.  For all others it is that of the run. */

    /* (optional) Called with the samples evaluated so far, and all of them, now and then, by the
     * thread that called lk_evaluate(). */
    void (*progress)(void *context, uint64_t done, uint64_t samples);
    void  *progress_context;
} lk_evaluate_options;

#define LK_EVALUATE_OPTIONS_INIT LK_OPTIONS_INIT(lk_evaluate_options)

typedef struct {
    uint64_t samples, count; /* count: targets that have a loss */
    uint64_t bytes;          /* of the text of these targets; 0: they are no text */
    double   loss;           /* the mean; that of classes and labels is in nats */
    double   accuracy;       /* share of the targets that are the most likely ones; NaN: they are
                              * numbers */
    double   bits_per_byte;  /* 0: they are no text */
    bool     tokens;
    double   rmse, mae;      /* root of the mean square of the errors, and mean of their absolute
                              * values, if the targets are numbers to be approximated; else NaN */
    uint64_t left_out;       /* lk_dataset_info.left_out of the data; not in `bytes` */
} lk_evaluation;

/* Evaluates a model on data, each sample once, in the precision of the run.  The bits do not depend
 * on workers, threads or instruction sets, and for the run's own validation part they are those of
 * the evaluation in the run.  The end of a text that does not fill a window is left out. */
LK_API LK_NODISCARD lk_status lk_evaluate(const lk_evaluate_options *options, lk_evaluation *out);

#ifdef __cplusplus
}
#endif
#endif /* LK_TRAINED_H */
