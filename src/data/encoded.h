/* data/encoded.h -- text as token ids in memory. */
#ifndef LKI_DATA_ENCODED_H
#define LKI_DATA_ENCODED_H

#include "data/files.h"
#include "lockstep/data.h"
#include "lockstep/tokenizer.h"

typedef struct {
    lk_tokenizer *tokenizer; /* NULL: text is not encoded */
    lk_encoder   *encoder;
    lki_tokens    ids;       /* `values` is owned; ids have 16 bits if the vocabulary allows */
    size_t        capacity;  /* in ids */
} lki_encoded;

/* Opens a tokenizer.  A NULL `path` is no tokenizer.  After a failure the caller must still close
 * it. */
LK_NODISCARD lk_status lki_encoded_open(lki_encoded *encoded, const char *path);
void                   lki_encoded_close(lki_encoded *encoded);

/* Appends the ids of a text. */
LK_NODISCARD lk_status lki_encoded_add(lki_encoded *encoded, const void *text, size_t bytes);

/* Frees what is needed for adding text, and describes the tokenizer if there is one. */
void lki_encoded_finish(lki_encoded *encoded, lk_dataset_info *info);

/* Replaces the hash of a text by that of text and tokenizer. */
LK_NODISCARD lk_status lki_encoded_hash(const lki_encoded *encoded, char hex[33]);

#endif
