/* tokenizer/unicode.h -- classes of characters, and normalization form C. */
#ifndef LKI_TOKENIZER_UNICODE_H
#define LKI_TOKENIZER_UNICODE_H

#include "base/status.h"

enum { LKI_UNICODE_END = 0x110000 };

/* The class of a character.  LKI_UNSTABLE is added if form C may replace the character, compose it
 * with the one before it, or move it. */
enum { LKI_OTHER = 0, LKI_LETTER, LKI_NUMBER, LKI_SPACE, LKI_UNSTABLE };

/* ---- Tables, written by tools/unicode ------------------------------------------------------ */

typedef struct {
    uint32_t first, last, value;
} lki_class_run;

/* A canonical decomposition; `second` is 0 if there is only one character. */
typedef struct {
    uint32_t whole, first, second;
} lki_form;

extern const lki_class_run lki_class_runs[], lki_mark_runs[]; /* in order */
extern const lki_form      lki_composed[], lki_changed[];     /* in order of `whole` */
extern const size_t        lki_class_runs_count, lki_mark_runs_count, lki_composed_count,
    lki_changed_count;

/* ---- Characters ---------------------------------------------------------------------------- */

typedef struct {
    uint8_t  *classes;  /* [LKI_UNICODE_END] */
    lki_form *composed; /* lki_composed in order of (first, second) */
} lki_unicode;

LK_NODISCARD lk_status lki_unicode_open(lki_unicode *unicode);
void                   lki_unicode_close(lki_unicode *unicode);

/* Reads the character at `text`, which ends at `end` > text.  Returns its length; 0 if the first
 * byte begins no character. */
size_t lki_character(const uint8_t *text, const uint8_t *end, uint32_t *character);

/* ---- Normalization form C ------------------------------------------------------------------ */

typedef struct {
    uint32_t character, combining; /* combining class */
    size_t   place;
} lki_part;

/* Memory for a text in form C. */
typedef struct {
    uint8_t  *bytes;
    size_t    count, capacity;
    lki_part *parts;
    size_t    part_count, part_capacity;
} lki_normalized;

/* Returns the first unstable character at or after `text`; `end` if there is none. */
const uint8_t *lki_unstable(const lki_unicode *unicode, const uint8_t *text, const uint8_t *end);

/* Brings a text to form C.  Bytes that are in no character are copied, and nothing composes with
 * them. */
LK_NODISCARD lk_status lki_normalize(const lki_unicode *unicode, lki_normalized *out,
                                     const uint8_t *text, const uint8_t *end);
void                   lki_normalized_close(lki_normalized *normalized);

#endif
