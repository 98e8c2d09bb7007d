/* data/table.h -- the cells of a table, and the numbers that samples have of them. */
#ifndef LKI_DATA_TABLE_H
#define LKI_DATA_TABLE_H

#include "data/files.h"
#include "data/source.h"

/* The largest number of different texts in a column. */
enum { LKI_LEVELS_MAX = 1000 };

typedef struct {
    char       *name;
    bool        is_text, is_target;
    uint64_t    numbers;   /* cells that are numbers */
    double      mean, deviation;
    char      **levels;    /* in the order of their first lines */
    size_t      level_count, level_capacity, sorted_capacity;
    uint32_t   *sorted;    /* [level_count]: numbers of the levels, sorted by their texts */
    uint32_t   *places;    /* [level_count]: 1 + the place of a level among `kept`; 0: not kept */
    const char **kept;     /* levels of the training part, or of a target, in their final order */
    uint32_t    kept_count;
} lki_table_column;

typedef struct {
    const char       *path;
    lki_table_column *columns;
    size_t            column_count, column_capacity;
    uint64_t          rows;
    double           *cells;   /* [rows][column_count]: numbers, or numbers of levels */
    size_t           *targets; /* [target_count]: columns in the order of the option */
    uint32_t          target_count;
    bool              has_classes;
} lki_table;

/* The columns that a table must have. */
typedef struct {
    const char      *target;  /* as in lk_dataset_options */
    lk_targets       targets; /* as in lk_dataset_options */
    const lk_column *columns; /* [column_count]: all columns, in their order; NULL: any */
    uint32_t         column_count;
} lki_table_form;

/* Reads a table.  Unless the form says which columns are numbers, those are of which at least half
 * of the cells are.  Messages name `path`, the line and the column. */
LK_NODISCARD lk_status lki_table_read(lki_table *table, const uint8_t *data, size_t bytes,
                                      char delimiter, const char *path,
                                      const lki_table_form *form);
void lki_table_close(lki_table *table);

/* Chooses the levels of the training part, and with `standardised` its means and deviations, in
 * FP64, by summing over its samples in order.  If the data set knows its columns, uses their
 * levels, means and deviations instead. */
LK_NODISCARD lk_status lki_table_fit(lki_table *table, const lk_dataset *dataset,
                                     bool standardised);

/* Returns the count of numbers that a column has in a sample. */
static inline size_t lki_table_width(const lki_table_column *column)
{
    return column->is_target ? 0 : column->is_text ? column->kept_count : 1;
}

#endif
