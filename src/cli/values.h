/* cli/values.h -- converts the text of an option's value. */
#ifndef LKI_CLI_VALUES_H
#define LKI_CLI_VALUES_H

#include "cli/options.h"

/* Converts `text` and stores it in the option's field of `target`.  On failure writes the allowed
 * values to `error` ("must be a number above 0"), without the option's name. */
bool lki_value_read(const lki_option *option, const char *text, void *target, lki_message *error);

/* Writes a message, formatted as by printf.  Returns false. */
bool lki_refuse(lki_message *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Parses an unsigned decimal integer.  The whole text must be the number. */
bool lki_parse_u64(const char *text, size_t length, uint64_t *out);

/* The values of --weights. */
extern const lki_choice lki_weights_choices[];

/* Parses a finite decimal number.  The whole text must be the number. */
bool lki_parse_real(const char *text, size_t length, double *out);

/* Orders two doubles by value, for qsort(). */
int lki_compare_numbers(const void *a, const void *b);

#endif
