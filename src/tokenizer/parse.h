/* tokenizer/parse.h -- reads tokenizer.json. */
#ifndef LKI_TOKENIZER_PARSE_H
#define LKI_TOKENIZER_PARSE_H

#include <jansson.h>

#include "tokenizer/tokenizer.h"

/* Fills in a tokenizer, whose classes of characters are there, from a file. */
LK_NODISCARD lk_status lki_tokenizer_read(lk_tokenizer *tokenizer, const void *json, size_t bytes,
                                          const char *name);

/* Reads how text is changed, split and written, and refuses what is not supported (rules.c). */
LK_NODISCARD lk_status lki_rules_read(lk_tokenizer *tokenizer, const json_t *root,
                                      const char *name);

#endif
