/* cli/values.h -- reading one option's value from text into its field. */
#ifndef LKI_CLI_VALUES_H
#define LKI_CLI_VALUES_H

#include "cli/options.h"

/* Writes `text` into the option's field of `target`, or says in `error` what is allowed instead
 * ("must be a number above 0"), without naming the option. */
bool lki_value_read(const lki_option *option, const char *text, void *target, lki_message *error);

/* Fails, printf-like: writes the message and returns false. */
bool lki_refuse(lki_message *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A whole decimal integer or number and nothing else; no sign for integers, no nan, inf or hex. */
bool lki_parse_u64(const char *text, size_t length, uint64_t *out);
bool lki_parse_real(const char *text, size_t length, double *out);

#endif
