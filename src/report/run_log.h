/* report/run_log.h -- the log of a run, as a table: one row for each step, one column for each
 * number.
 *
 * A log has one JSON object per line.  Lines of the same step become one row.  Lists of numbers
 * become columns such as error_norms[3], and times of ranks columns such as rank_ms[1].  Lines that
 * describe an event, such as a loss of a worker, are kept whole.  A log of a resumed run may repeat
 * steps; the later lines count.
 *
 * A log can be read while the run writes to it: lki_run_log_update() reads the new lines.  A file
 * that was replaced or cut, as by a resumed run, is read again from its beginning.
 */
#ifndef LKI_REPORT_RUN_LOG_H
#define LKI_REPORT_RUN_LOG_H

#include <jansson.h>

#include "base/status.h"

enum { LKI_COLUMNS_MAX = 4096, LKI_EVENTS_MAX = 100000 };
enum { LKI_COLUMN_SLOTS = 2 * LKI_COLUMNS_MAX };
enum { LKI_LOSS_DIGITS = 16 }; /* hexadecimal digits of the bits of a loss */

typedef struct {
    char   *name;
    double *values; /* by row; absent where lki_is_absent() */
} lki_column;

typedef struct {
    uint64_t step;
    json_t  *line;
} lki_run_log_event;

/* The place of the line of a row that has virtual_losses (UINT64_MAX: the log has none), and a hash
 * of these losses. */
typedef struct {
    uint64_t at, hash;
} lki_losses_line;

typedef struct {
    char              *path;
    uint64_t           planned; /* steps of the run, from the line with `config`; 0 = unknown */
    uint64_t           end;     /* the same, of the last such line that steps follow */
    uint64_t          *steps; /* by row, ascending */
    lki_losses_line   *lines; /* by row */
    lki_column        *columns;
    uint16_t slots[LKI_COLUMN_SLOTS]; /* numbers of columns, from 1, by the hashes of their names;
                                       * 0 = free */
    lki_run_log_event *events;
    json_t            *config;    /* configuration of the run; NULL: the log has none */
    json_t            *last;      /* the newest line with the hash of the weights; NULL: none yet */
    char               data[65];  /* hash of the data, from the first line; "" = none */
    char               label[16]; /* of the last line that has one; "" = none */
    bool               has_bits;  /* lines have exact values (loss_bits) */
    size_t   rows, row_capacity, column_count, column_capacity, event_count, event_capacity;
    size_t   events_lost;  /* number of events beyond LKI_EVENTS_MAX */
    size_t   results_lost; /* number of results (lki_is_result()) beyond LKI_COLUMNS_MAX */
    size_t   line_count;
    bool     begun;  /* a step was seen */
    uint64_t step;   /* the step of the last line */
    uint64_t offset; /* bytes read, up to the end of a line */
    uint64_t device, inode;
    char    *tail; /* the last line read, to recognise a file that was replaced */
    size_t   tail_bytes;
    bool     unfinished; /* the file ends with part of a line */
} lki_run_log;

/* Reads a log.  Returns LK_EIO if it cannot be read; LK_EFORMAT with the number of the line if a
 * line is no JSON object. */
LK_NODISCARD lk_status lki_run_log_open(lki_run_log **out, const char *path);
void                   lki_run_log_free(lki_run_log *log);

/* Reads what was added to the file; sets *changed if there was anything. */
LK_NODISCARD lk_status lki_run_log_update(lki_run_log *log, bool *changed);

/* Returns a column, or NULL. */
const lki_column *lki_run_log_column(const lki_run_log *log, const char *name);

/* Reads the losses of single virtual workers in a row, LKI_LOSS_DIGITS for each.  The caller
 * frees the text.  Returns NULL if the log has none there. */
char *lki_run_log_losses(const lki_run_log *log, size_t row);

/* Returns the first virtual worker whose losses in two such texts differ; SIZE_MAX if there is none
 * or the texts cannot be compared, because one is NULL or they are of different lengths. */
size_t lki_first_of_losses(const char *a, const char *b);

/* Returns the loss of a virtual worker in such a text. */
double lki_loss_of_worker(const char *losses, size_t worker);

/* Returns true if the values of a column are a function of configuration, seed and data. */
bool lki_is_result(const char *column);

/* Returns the value that marks a row without a number in a column. */
double lki_absent(void);
bool   lki_is_absent(double value);

/* Returns the bits of a double, the double of bits, and that of 16 hexadecimal digits. */
uint64_t lki_bits_of(double value);
double   lki_double_of(uint64_t bits);
bool     lki_value_of_bits(const char *hex, double *value);

#endif
