/* lockstep/tokenizer.h -- text as token ids and back, as a tokenizer.json says.
 *
 * Reads byte-level BPE (byte pair encoding) in the format of Hugging Face's `tokenizers`: the
 * tokenizers of GPT-2, Llama 3, Qwen 2 and 3 and SmolLM, and others that split text by the same
 * rules.  Ids are those of that package's encode() with add_special_tokens=False.  Everything in a
 * file that would make other ids is refused by name; docs/data.md lists what is accepted.
 *
 * Text is UTF-8.  A byte that is in no character counts as a character of its own that is no
 * letter, number or space, and becomes the tokens of the byte.  Some tokenizers have no token for
 * some bytes, and leave these out of a text.
 *
 * Threads: a tokenizer does not change, so any number of threads may use it; an encoder belongs to
 * one thread at a time.
 */
#ifndef LK_TOKENIZER_H
#define LK_TOKENIZER_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_tokenizer lk_tokenizer;

typedef struct {
    uint32_t vocabulary; /* the largest id plus one */
    int32_t  end;        /* the token between documents: the first of <|endoftext|>,
                          * <|end_of_text|> and </s> that is an added token; -1: there is none */
    bool     nfc;        /* text is brought to Unicode's normalization form C */
    char     split[8];   /* the rule by which text is split: gpt2, llama3, qwen2 or digits */
    char     hash[33];   /* XXH3-128 of the file, in hex */
    uint32_t missing;    /* number of the 256 bytes without a token */
} lk_tokenizer_info;

/* Reads a tokenizer.json.  LK_EIO: it cannot be read; LK_EFORMAT: it is damaged;
 * LK_EUNSUPPORTED: it is a tokenizer of another kind. */
LK_API LK_NODISCARD lk_status lk_tokenizer_open(lk_tokenizer **out, const char *path);

/* Reads a tokenizer from memory; `name` is used in messages. */
LK_API LK_NODISCARD lk_status lk_tokenizer_parse(lk_tokenizer **out, const void *json, size_t bytes,
                                                 const char *name);
LK_API void                   lk_tokenizer_free(lk_tokenizer *tokenizer);

/* Returns the properties of the tokenizer, valid until it is freed. */
LK_API const lk_tokenizer_info *lk_tokenizer_describe(const lk_tokenizer *tokenizer);

/* Returns the bytes of a token, which may be a part of a character.  Ids without a token have none.
 * The concatenated bytes of the tokens of a text are the text, in form C if `nfc`, except bytes
 * that were left out. */
LK_API const char *lk_tokenizer_bytes(const lk_tokenizer *tokenizer, uint32_t id, size_t *bytes);

/* ---- Encoding ---------------------------------------------------------------------------- */

/* An encoder has threads, and remembers the tokens of frequent words. */
typedef struct lk_encoder lk_encoder;

/* Creates an encoder with `threads` threads, including the caller; 0 = 1.  Borrows the
 * tokenizer. */
LK_API LK_NODISCARD lk_status lk_encoder_open(lk_encoder **out, const lk_tokenizer *tokenizer,
                                              uint32_t threads);
LK_API void                   lk_encoder_free(lk_encoder *encoder);

/* Receives the next ids of a text, in order.  A failure ends the encoding. */
typedef lk_status (*lk_encoder_emit)(void *context, const int32_t *ids, size_t count);

/* Encodes a text.  Added tokens in the text, such as <|endoftext|>, become their ids.  Ids do not
 * depend on the number of threads.  Memory for ids is that of a few megabytes of text. */
LK_API LK_NODISCARD lk_status lk_encoder_encode(lk_encoder *encoder, const void *text, size_t bytes,
                                                lk_encoder_emit emit, void *context);

/* Returns the number of bytes that were left out of all texts so far, since they have no token. */
LK_API uint64_t lk_encoder_left_out(const lk_encoder *encoder);

#ifdef __cplusplus
}
#endif
#endif /* LK_TOKENIZER_H */
