/* csv.c -- csv:FILE: tables with a header, numbers and texts, and target columns.
 *
 * A sample has the numbers of its row, in the order of the columns: (v - mean) / deviation in FP64,
 * rounded to FP32, and for a column of text one number for each of its levels, which is 1 for the
 * level of the row and otherwise 0.  A level that the training part does not have is all 0.
 *
 * All cells are kept in memory, as FP64.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/sort.h"
#include "data/table.h"

typedef struct {
    char      *path;
    lki_table  table;
    lk_column *described;
} csv;

/* ---- The training part --------------------------------------------------------------------- */

/* Orders a class by its number, if it is one, and then by its bytes. */
static int compare_classes(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    double      of_x = strtod(x, NULL), of_y = strtod(y, NULL);
    return of_x < of_y ? -1 : of_x > of_y ? 1 : strcmp(x, y);
}

/* Keeps the levels that are marked in `places`, and sets their places. */
static lk_status keep_levels(lki_table_column *column)
{
    LK_TRY(LKI_NEW(&column->kept, column->level_count, "levels of a column"));
    for (size_t i = 0; i < column->level_count; i++)
        if (column->places[i] != 0)
            column->kept[column->kept_count++] = column->levels[i];
    qsort(column->kept, column->kept_count, sizeof *column->kept,
          column->is_text ? lki_by_bytes : compare_classes);
    for (size_t i = 0; i < column->level_count; i++)
        for (uint32_t k = 0; column->places[i] != 0 && k < column->kept_count; k++)
            if (column->kept[k] == column->levels[i])
                column->places[i] = k + 1;
    return LK_OK;
}

static double cell(const lki_table *table, uint64_t row, size_t column)
{
    return table->cells[row * table->column_count + column];
}

static lk_status fit_levels(lki_table *table, const lk_dataset *dataset, size_t at)
{
    lki_table_column *column = &table->columns[at];
    LK_TRY(LKI_NEW(&column->places, column->level_count, "levels of a column"));
    for (size_t i = 0; i < column->level_count; i++)
        column->places[i] = column->is_target;
    for (uint64_t i = 0; i < dataset->info.train_count; i++)
        column->places[(size_t)cell(table, lki_sample_place(dataset, false, i), at)] = 1;
    return keep_levels(column);
}

/* Computes mean and deviation of the training part.  The deviation of equal numbers is 0, which
 * divides nothing, so it becomes 1. */
static void fit_numbers(lki_table *table, const lk_dataset *dataset, size_t at)
{
    lki_table_column *column = &table->columns[at];
    const uint64_t    n      = dataset->info.train_count;
    double            sum = 0, squares = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += cell(table, lki_sample_place(dataset, false, i), at);
    column->mean = sum / (double)n;
    for (uint64_t i = 0; i < n; i++) {
        double d = cell(table, lki_sample_place(dataset, false, i), at) - column->mean;
        squares += d * d;
    }
    column->deviation = sqrt(squares / (double)n);
    if (!(column->deviation > 0))
        column->deviation = 1;
}

/* Copies the levels of a known column.  Another text is no level, and another class an error. */
static lk_status adopt_levels(const lki_table *table, lki_table_column *column,
                              const lk_column *known)
{
    LK_TRY(LKI_NEW(&column->places, column->level_count, "levels of a column"));
    LK_TRY(LKI_NEW(&column->kept, known->level_count, "levels of a column"));
    memcpy((void *)column->kept, known->levels, known->level_count * sizeof *column->kept);
    column->kept_count = known->level_count;
    for (size_t i = 0; i < column->level_count; i++) {
        for (uint32_t k = 0; column->places[i] == 0 && k < known->level_count; k++)
            if (strcmp(column->levels[i], known->levels[k]) == 0)
                column->places[i] = k + 1;
        if (column->is_target && column->places[i] == 0)
            return lk_fail(LK_EINVAL, "'%s', column '%.60s': the table of the training has no "
                                      "class '%.60s'", table->path, column->name,
                           column->levels[i]);
    }
    return LK_OK;
}

lk_status lki_table_fit(lki_table *table, const lk_dataset *dataset, bool standardised)
{
    for (size_t i = 0; i < table->column_count; i++) {
        lki_table_column *column = &table->columns[i];
        if (dataset->known != NULL && column->level_count > 0)
            LK_TRY(adopt_levels(table, column, &dataset->known[i]));
        else if (dataset->known != NULL && !column->is_target) {
            column->mean      = dataset->known[i].mean;
            column->deviation = dataset->known[i].deviation;
        } else if (column->level_count > 0)
            LK_TRY(fit_levels(table, dataset, i));
        else if (standardised && !column->is_target)
            fit_numbers(table, dataset, i);
    }
    return LK_OK;
}

/* ---- The description ----------------------------------------------------------------------- */

static lk_status describe(lk_dataset *dataset, csv *self)
{
    const lki_table *table    = &self->table;
    uint64_t         features = 0;
    LK_TRY(LKI_NEW(&self->described, table->column_count, "columns of a table"));
    for (size_t i = 0; i < table->column_count; i++) {
        const lki_table_column *column = &table->columns[i];
        self->described[i] = (lk_column){ column->name, column->is_target, column->mean,
                                          column->deviation, column->kept, column->kept_count };
        features += lki_table_width(column);
    }
    const lki_table_column *target = &table->columns[table->targets[0]];
    dataset->info.x       = (lk_shape){ .rank = 1, .dims = { features } };
    dataset->info.targets = table->target_count;
    dataset->info.columns = self->described;
    dataset->info.column_count = (uint32_t)table->column_count;
    dataset->info.numbers = !table->has_classes;
    dataset->info.class_names = target->kept;
    dataset->info.classes = table->has_classes ? target->kept_count : table->target_count;
    return LK_OK;
}

/* Adds what the values of samples depend on to the content hash: the columns, and their targets. */
static lk_status add_hash(lk_dataset *dataset, const csv *self)
{
    const lki_table *table = &self->table;
    char             hashes[3][33];
    double          *numbers = NULL;
    LK_TRY(LKI_NEW(&numbers, 3 * table->column_count, "numbers of a table"));
    for (size_t i = 0; i < table->column_count; i++) {
        numbers[3 * i]     = table->columns[i].mean;
        numbers[3 * i + 1] = table->columns[i].deviation;
        numbers[3 * i + 2] = (double)lki_table_width(&table->columns[i]);
    }
    memcpy(hashes[0], dataset->info.content_hash, sizeof hashes[0]);
    lki_xxh3_128(numbers, 3 * table->column_count * sizeof *numbers, hashes[1]);
    lki_xxh3_128(dataset->options.target, strlen(dataset->options.target), hashes[2]);
    lki_free(numbers);
    return lki_hash_of_hashes(dataset->info.content_hash, hashes, 3);
}

static lk_status csv_fit(lk_dataset *dataset, const char *spec)
{
    csv        *self = dataset->state;
    const char *how  = dataset->options.normalize;
    bool        plain = how == NULL || strcmp(how, "source") == 0 || strcmp(how, "none") == 0;
    if (!plain && strcmp(how, "train") != 0 && strcmp(how, "auto") != 0)
        return lk_fail(LK_EINVAL, "`normalize` %s of '%s': the columns of a table have means and "
                                  "deviations of their own; write train, or none", how, spec);
    LK_TRY(lki_table_fit(&self->table, dataset, !plain));
    LK_TRY(describe(dataset, self));
    return add_hash(dataset, self);
}

/* ---- The source ---------------------------------------------------------------------------- */

static lk_status csv_open(lk_dataset *dataset, const char *rest)
{
    const lki_table_form form = { dataset->options.target, dataset->options.targets,
                                  dataset->known, dataset->known_count };
    csv    *self = NULL;
    lki_map map;
    size_t  length = strlen(rest);
    bool    tabs   = length > 4 && strcasecmp(rest + length - 4, ".tsv") == 0;
    LK_TRY(LKI_NEW(&self, 1, "a table"));
    dataset->state = self;
    LK_TRY(LKI_NEW(&self->path, length + 1, "a path"));
    memcpy(self->path, rest, length);
    LK_TRY(lki_map_open(&map, rest));
    lk_status status = lki_table_read(&self->table, map.data, map.bytes, tabs ? '\t' : ',',
                                      self->path, &form);
    lki_xxh3_128(map.data, map.bytes, dataset->info.content_hash);
    lki_map_close(&map);
    dataset->total = self->table.rows;
    return status;
}

static void csv_close(lk_dataset *dataset)
{
    csv *self = dataset->state;
    lki_table_close(&self->table);
    lki_free(self->described);
    lki_free(self->path);
    lki_free(self);
}

static void read_targets(const lki_table *table, uint64_t row, int32_t *y)
{
    for (uint32_t i = 0; i < table->target_count; i++) {
        double v = cell(table, row, table->targets[i]);
        float  number = (float)v;
        if (table->has_classes)
            y[i] = (int32_t)table->columns[table->targets[i]].places[(size_t)v] - 1;
        else
            memcpy(&y[i], &number, sizeof number);
    }
}

static lk_status csv_read_sample(const lk_dataset *dataset, uint64_t index, float *x, int32_t *y)
{
    const csv       *self  = dataset->state;
    const lki_table *table = &self->table;
    for (size_t i = 0; i < table->column_count; i++) {
        const lki_table_column *column = &table->columns[i];
        const double            v      = cell(table, index, i);
        const size_t            width  = lki_table_width(column);
        if (width > 0 && !column->is_text)
            x[0] = (float)((v - column->mean) / column->deviation);
        else if (width > 0) {
            memset(x, 0, width * sizeof *x);
            if (column->places[(size_t)v] != 0)
                x[column->places[(size_t)v] - 1] = 1;
        }
        x += width;
    }
    read_targets(table, index, y);
    return LK_OK;
}

const lki_source lki_source_csv = {
    .name        = "csv",
    .open        = csv_open,
    .close       = csv_close,
    .fit         = csv_fit,
    .read_sample = csv_read_sample,
};
