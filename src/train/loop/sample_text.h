/* train/loop/sample_text.h -- the tokens of a prompt, and tokens as text. */
#ifndef LKI_TRAIN_LOOP_SAMPLE_TEXT_H
#define LKI_TRAIN_LOOP_SAMPLE_TEXT_H

#include "lockstep/tokenizer.h"
#include "lockstep/train.h"

typedef struct {
    lk_tokenizer *tokenizer; /* NULL: bytes are tokens */
    int32_t      *prompt;    /* [count] */
    size_t        count, capacity;
    int32_t       end;       /* the token between documents; -1: there is none */
    char          held[8]; /* the beginning of a character whose other bytes may follow */
    size_t        held_count;
} lki_sample_text;

/* Opens the tokenizer at `path`; NULL: bytes are tokens.  `vocabulary` becomes the number of tokens
 * that may be chosen.  After a failure the caller must still close the text. */
LK_NODISCARD lk_status lki_sample_text_open(lki_sample_text *text, const char *path,
                                            uint32_t *vocabulary);
void                   lki_sample_text_close(lki_sample_text *text);

/* Finds the tokenizer.json in a directory, or beside a checkpoint or a file, also one of a
 * checkpoint.  Returns false if there is none. */
bool lki_sample_text_find(char out[4096], const char *path);

/* Returns the prompt of the options, or the default. */
const char *lki_sample_prompt(const lk_sample_options *options);

/* Encodes the prompt. */
LK_NODISCARD lk_status lki_sample_text_prompt(lki_sample_text *text, const char *prompt);

/* Emits the bytes of a token; with a tokenizer only whole characters, and U+FFFD for a byte that is
 * in no character. */
void lki_sample_text_emit(lki_sample_text *text, const lk_sample_options *options, int32_t token);

/* Emits what is held back. */
void lki_sample_text_end(lki_sample_text *text, const lk_sample_options *options);

#endif
