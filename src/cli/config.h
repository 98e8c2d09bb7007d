/* cli/config.h -- parses the config file, a small and strict subset of TOML.
 *
 *   # a comment
 *   model = "gpt"
 *   steps = 200
 *   lr = 1e-3
 *   drop-last = true
 *   hidden = [512, 512]
 *
 * Keys are bare (letters, digits, - and _) or quoted.  Values are basic and literal strings on one
 * line, integers in all of TOML's bases, floats, booleans, and arrays of numbers on one line.
 * Other parts of TOML (tables, dates, nested arrays, multi-line strings, inf and nan) and repeated
 * keys are errors.  The message has file and line.
 */
#ifndef LKI_CLI_CONFIG_H
#define LKI_CLI_CONFIG_H

#include "cli/options.h"

typedef enum {
    LKI_CONFIG_STRING,
    LKI_CONFIG_INTEGER,
    LKI_CONFIG_REAL,
    LKI_CONFIG_BOOLEAN,
    LKI_CONFIG_INTEGERS, /* array of integers; text: "512,512" */
    LKI_CONFIG_REALS,    /* array with at least one float */
} lki_config_type;

typedef struct {
    const char     *key;
    const char     *text; /* the value in the form of the command line */
    lki_config_type type;
    unsigned        line;
} lki_config_item;

typedef struct {
    lki_config_item *items;
    size_t           count, capacity;
    char            *text; /* memory of all keys and texts */
} lki_config;

/* Parses `bytes` bytes, which need not end with NUL.  `name` is the file's name for messages.  On
 * failure `out` is empty and `error` is "NAME:LINE: reason". */
bool lki_config_parse(lki_config *out, const char *text, size_t bytes, const char *name,
                      lki_message *error);
void lki_config_free(lki_config *config);

/* Reads and parses a file of at most 1 MiB. */
bool lki_config_open(lki_config *out, const char *path, lki_message *error);

#endif
