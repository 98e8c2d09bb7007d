/* tokenizer/tokenizer.h -- the parts of a tokenizer, and the memory of a thread that encodes. */
#ifndef LKI_TOKENIZER_TOKENIZER_H
#define LKI_TOKENIZER_TOKENIZER_H

#include "lockstep/tokenizer.h"
#include "tokenizer/unicode.h"

typedef struct {
    const uint8_t *bytes;
    size_t         count;
} lki_span;

/* ---- Splitting ----------------------------------------------------------------------------- */

typedef enum {
    LKI_SPLIT_GPT2,
    LKI_SPLIT_LLAMA3,
    LKI_SPLIT_QWEN2,
    LKI_SPLIT_DIGITS,
    LKI_SPLITS,
} lki_split;

extern const char *const lki_split_names[LKI_SPLITS];

/* The regular expressions as tokenizer.json has them; NULL for digits, which it names. */
extern const char *const lki_split_patterns[LKI_SPLITS];

/* Returns the end of the word that begins at `text` < `end`.  `followed`: after `end` comes a
 * character that is no white space. */
typedef const uint8_t *(*lki_splitter)(const uint8_t *classes, const uint8_t *text,
                                       const uint8_t *end, bool followed);
extern const lki_splitter lki_splitters[LKI_SPLITS];

/* ---- Added tokens -------------------------------------------------------------------------- */

typedef struct {
    lki_span text; /* points into `pieces` */
    int32_t  id;
} lki_added;

/* Added tokens in byte order. */
typedef struct {
    lki_added *list;
    size_t     count, capacity;
    bool       begins[256]; /* first bytes of the tokens */
} lki_added_set;

void lki_added_sort(lki_added_set *set);

/* Finds the first added token in a text, and of those that begin there the longest.  Returns NULL
 * if there is none. */
const lki_added *lki_added_find(const lki_added_set *set, const uint8_t *text, const uint8_t *end,
                                const uint8_t **at);

/* ---- The tokenizer ------------------------------------------------------------------------- */

/* A merge of two tokens; a place in the table is empty if `rank` is LKI_NO_RANK. */
typedef struct {
    int32_t  left, right, whole;
    uint32_t rank;
} lki_merge;

#define LKI_NO_RANK UINT32_MAX

struct lk_tokenizer {
    lk_tokenizer_info info;
    lki_splitter      split;
    bool              ignore_merges; /* a word that is a token is not split into smaller ones */
    int32_t           byte_ids[256]; /* -1: the byte has no token */
    lki_span         *pieces; /* [vocabulary]; those of added tokens follow in `memory` */
    uint8_t          *memory; /* the bytes of all pieces */
    lki_merge        *merges; /* hash table */
    size_t            merge_mask;
    int32_t          *words; /* hash table of the ids of pieces; -1: empty */
    size_t            word_mask;
    lki_added_set     raw, normal; /* added tokens that are matched before and after form C */
    lki_unicode       unicode;
};

/* Returns the token with these bytes, -1 if there is none. */
int32_t lki_word_find(const lk_tokenizer *tokenizer, const uint8_t *bytes, size_t count);

/* Returns the place of a merge in the table, which may be empty. */
lki_merge *lki_merge_find(const lk_tokenizer *tokenizer, int32_t left, int32_t right);

/* ---- Encoding ------------------------------------------------------------------------------ */

typedef struct lki_word   lki_word;   /* a frequent word and its ids (word.c) */
typedef struct lki_symbol lki_symbol; /* a part of a word while it is merged */
typedef struct lki_pair   lki_pair;   /* two parts that may be merged */

/* The memory of one thread. */
typedef struct {
    lki_word      *words; /* a table by hash */
    lki_normalized normalized;
    uint64_t       left_out; /* bytes without a token, in all texts */
    lki_symbol    *symbols;
    size_t         symbol_capacity;
    lki_pair      *heap;
    size_t         heap_capacity;
} lki_scratch;

/* Ids, which grow. */
typedef struct {
    int32_t *ids;
    size_t   count, capacity;
} lki_ids;

LK_NODISCARD lk_status lki_scratch_open(lki_scratch *scratch);
void                   lki_scratch_close(lki_scratch *scratch);

LK_NODISCARD lk_status lki_ids_room(lki_ids *out, size_t more);

/* Appends the ids of one word. */
LK_NODISCARD lk_status lki_word_encode(const lk_tokenizer *tokenizer, lki_scratch *scratch,
                                       const uint8_t *word, size_t bytes, lki_ids *out);

/* Encodes a text in chunks of about `chunk` bytes. */
LK_NODISCARD lk_status lki_encoder_run(lk_encoder *encoder, const void *text, size_t bytes,
                                       size_t chunk, lk_encoder_emit emit, void *context);

#endif
