/* cli/config.h -- the config file: a strict small subset of TOML, parsed from memory.
 *
 *     # a comment
 *     model        = "gpt"
 *     steps        = 200
 *     lr           = 1e-3
 *     drop-last    = true
 *     hidden       = [512, 512]
 *
 * Keys are bare (letters, digits, - and _) or quoted.  Values: basic and literal strings on one
 * line, integers in all of TOML's bases, floats, booleans, arrays of numbers on one line.  What
 * TOML has besides (tables, dates, nested arrays, multi-line strings, inf and nan) is refused by
 * name, with file and line; so is a key that stands twice.
 */
#ifndef LKI_CLI_CONFIG_H
#define LKI_CLI_CONFIG_H

#include "cli/options.h"

typedef enum {
    LKI_CONFIG_STRING,
    LKI_CONFIG_INTEGER,
    LKI_CONFIG_REAL,
    LKI_CONFIG_BOOLEAN,
    LKI_CONFIG_INTEGERS, /* an array of integers, text "512,512" */
    LKI_CONFIG_REALS,    /* an array with at least one float in it */
} lki_config_type;

typedef struct {
    const char     *key;
    const char     *text; /* the value as the command line would have it */
    lki_config_type type;
    unsigned        line;
} lki_config_item;

typedef struct {
    lki_config_item *items;
    size_t           count, capacity;
    char            *text; /* what keys and texts point into */
} lki_config;

/* Parses `bytes` bytes, which need no NUL; `name` is what errors call the file.  On failure `out`
 * is empty and `error` says "NAME:LINE: what". */
bool lki_config_parse(lki_config *out, const char *text, size_t bytes, const char *name,
                      lki_message *error);
void lki_config_free(lki_config *config);

/* Reads a whole file, at most 1 MiB, and parses it. */
bool lki_config_open(lki_config *out, const char *path, lki_message *error);

#endif
