/* csv.c -- a table: its records, and the cells of its columns. */
#include "fuzz.h"

#include <math.h>
#include <string.h>

#include "data/table.h"

static void read_records(const uint8_t *data, size_t bytes, char delimiter)
{
    lki_csv csv;
    size_t  text = 0;
    bool    more;
    lki_csv_begin(&csv, data, bytes, delimiter, "input");
    while (lki_csv_next(&csv, &more) == LK_OK && more)
        for (size_t i = 0; i < csv.count; i++)
            text += strlen(lki_csv_field(&csv, i));
    LK_ASSERT(text <= bytes);
    lki_csv_end(&csv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const lki_table_form form = { .target = "y" };
    lki_table            table;
    read_records(data, bytes, '\t');
    lk_status status = lki_table_read(&table, data, bytes, ',', "input", &form);
    for (uint64_t i = 0; status == LK_OK && i < table.rows * table.column_count; i++) {
        const lki_table_column *column = &table.columns[i % table.column_count];
        LK_ASSERT(isfinite(table.cells[i]));
        LK_ASSERT(column->level_count == 0 || table.cells[i] < (double)column->level_count);
    }
    lki_table_close(&table);
    return 0;
}
