/* cli/text.h -- bytes of a model as UTF-8, and texts of files. */
#ifndef LKI_CLI_TEXT_H
#define LKI_CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The bytes of a character that is not complete. */
typedef struct {
    unsigned char held[4];
    size_t        count, wanted;
    bool          controls; /* control characters are written as they are; a terminal would obey
                             * them */
} lki_text;

/* Writes bytes as UTF-8.  Holds back the beginning of a character until the rest arrives.  Writes
 * U+FFFD for each byte that is in no character and, unless `controls` is set, for control
 * characters except newline and tab. */
void lki_text_write(lki_text *text, const char *bytes, size_t count, FILE *out);

/* Writes U+FFFD for what is still held back. */
void lki_text_end(lki_text *text, FILE *out);

/* Prints a text of a file, with `?` for each control character, which a terminal would obey. */
void lki_print_safely(const char *text);

#endif
