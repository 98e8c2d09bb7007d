/* options.h -- the fields of a configuration by name, from the table in options.def.
 *
 * Checkpoints, the log and messages identify a field by its key.  The key is the first name that
 * the field's option had.  A renamed option keeps its key, so old checkpoints remain readable.
 */
#ifndef LKI_TRAIN_OPTIONS_H
#define LKI_TRAIN_OPTIONS_H

#include <jansson.h>

#include "lockstep/train.h"

typedef enum {
    LKI_FIELD_FLAG,
    LKI_FIELD_STRING,
    LKI_FIELD_POSITIONAL,
    LKI_FIELD_NAME,
    LKI_FIELD_U32,
    LKI_FIELD_U32_SPAN,
    LKI_FIELD_SECONDS,
    LKI_FIELD_U64,
    LKI_FIELD_MEBIBYTES,
    LKI_FIELD_REAL,
    LKI_FIELD_FLOAT,
    LKI_FIELD_REAL_PAIR,
    LKI_FIELD_U32_LIST,
    LKI_FIELD_U64_LIST,
    LKI_FIELD_CHOICE,
    LKI_FIELD_CUSTOM,
} lki_field_type;

/* The influence of a field on a run; see options.def. */
typedef enum {
    LKI_FIELD_RESULT,
    LKI_FIELD_RULE,
    LKI_FIELD_JOB,
    LKI_FIELD_HOST,
    LKI_FIELD_FILE,
} lki_field_scope;

typedef struct {
    const char *name;
    int         value;
    lk_label    label;   /* of a run with this choice */
    bool        refused; /* only the command refuses it; a program may set it */
} lki_field_choice;

enum { LKI_FIELD_VALUES_MAX = 8 };

/* A condition: the field `name` has one of `values` or, if there are none, is not at its default.
 * If `name` is NULL, the condition is always true. */
typedef struct {
    const char *name;
    const char *values[LKI_FIELD_VALUES_MAX + 1];
} lki_field_need;

typedef struct {
    const char             *name;  /* the option's name */
    const char             *path;  /* in lk_train_config, such as "model_options.width" */
    const char             *alias; /* the option's first name; NULL: never renamed */
    lki_field_type          type;
    lki_field_scope         scope;
    size_t                  offset, count_offset; /* in lk_train_config */
    const lki_field_choice *choices;              /* ends with an entry without a name */
    lk_label                label; /* of any value but the default, if there are no choices */
    const lki_field_need   *needs;                /* when the field has an effect; NULL: always */
    const lki_field_need   *recorded; /* condition under which it is recorded; NULL: `needs` */
    const char             *unset;    /* the default as text; NULL: the option is not given */
    const char             *into;     /* the field that records its value; NULL: itself */
    bool                    may_change, may_come, logged;
    bool                    all_ranks; /* either all ranks give it or none; values may differ */
    const char             *identity; /* text before its value in the exactness id; NULL: none */
    const char             *noted;    /* text before its value in a note; NULL: no note */
    json_t *(*write)(const lk_train_config *config); /* with LKI_FIELD_CUSTOM */
} lki_field;

extern const lki_field lki_fields[]; /* ends with an entry without a name */

/* Returns the key of a field in checkpoints. */
const char *lki_field_key(const lki_field *field);

/* Returns the field with this key or option name; NULL if there is none. */
const lki_field *lki_field_find(const char *key);

/* Returns the value of a field as checkpoints record it; NULL if it has no recorded form. */
json_t *lki_field_json(const lki_field *field, const lk_train_config *config);

/* Returns true if a value is that of a field that was not set. */
bool lki_value_is_unset(const json_t *value);

/* Returns true if a field has the value that it has in a configuration of the model alone. */
bool lki_field_is_default(const lki_field *field, const lk_train_config *config);

/* Returns true if a checkpoint of this run records the field. */
bool lki_field_is_recorded(const lki_field *field, const lk_train_config *config);

/* Returns true if a resumed run may change the field.  `stored`: the checkpoint records it. */
bool lki_field_is_free(const lki_field *field, bool stored);

/* Returns the configuration with defaults that depend on the model filled in. */
lk_train_config lki_config_resolve(const lk_train_config *config);

/* Checks that the fields with choices have one of them, or 0 for the default.  LK_EINVAL names a
 * field with another value. */
LK_NODISCARD lk_status lki_fields_check(const lk_train_config *config);

/* Returns the label of a run with this configuration: the weakest label of its fields. */
lk_label lki_fields_label(const lk_train_config *config);

/* Writes the part of the exactness id that fields define by their row. */
void lki_fields_identity(const lk_train_config *config, char *text, size_t bytes);

/* Writes a note about the effect of a field on the bits of the run.  Returns false if there is
 * nothing to note. */
bool lki_field_note(const lki_field *field, const lk_train_config *config, char *text,
                    size_t bytes);

/* Writes `, "key": value` for each field that log lines repeat and that has a value, if any of
 * these fields is not at its default.  Otherwise writes an empty string. */
void lki_fields_log(const lk_train_config *config, char *text, size_t bytes);

enum { LKI_FIELDS_MAX = 192 };

/* Hashes each field whose value must be equal on all ranks, in the order of the table.  The hash of
 * any other field is 0.  For a field with `all_ranks`, only whether it is given is hashed.  Defined
 * in options_hash.c. */
void lki_fields_hash(const lk_train_config *config, uint64_t hashes[LKI_FIELDS_MAX]);

#endif
