/* report/page.h -- the page of a report: its data as JSON, its script and its style. */
#ifndef LKI_REPORT_PAGE_H
#define LKI_REPORT_PAGE_H

#include <stdio.h>

#include "lockstep/report.h"
#include "report/run_log.h"
#include "report/target.h"

/* Texts of src/report/page, which the build embeds.  They end with a NUL. */
extern const char lki_page_script[], lki_page_style[];

/* The weights of a checkpoint of a run. */
typedef struct {
    uint64_t step;
    char     weights[65];
} lki_saved_weights;

typedef struct {
    char              *path;      /* as it was given */
    char              *directory; /* directory of checkpoints; NULL: none */
    lki_run_log       *log;
    lki_saved_weights *saved; /* by step, ascending */
    size_t             saved_count;
    json_t            *config; /* of the newest manifest; NULL: none */
} lki_report_run;

struct lk_report {
    lki_report_run *runs;
    size_t          run_count;
    char           *flight; /* directory of flight records; NULL: none */
    uint64_t        number; /* counts changes of the data */
    char           *text;   /* the last page */
};

/* Writes the data of a page as one JSON object, with every < escaped, so that it can stand in a
 * script element.  `live`: a page that follows the runs. */
lk_status lki_page_data(const lk_report *report, bool live, FILE *out);

/* Makes a page.  The caller frees *text with free(). */
lk_status lki_page_make(const lk_report *report, bool live, char **text, size_t *bytes);

/* Makes the data of a page alone.  The caller frees *text with free(). */
lk_status lki_page_make_data(const lk_report *report, char **text, size_t *bytes);

/* Returns the Content-Security-Policy of a page: nothing but its own script and style, and with
 * `live` requests to the server that it came from. */
void lki_page_policy(bool live, char policy[512]);

/* ---- Parts of the data ------------------------------------------------------------------- */

/* Writes a string or a value as JSON, with every < escaped. */
void lki_json_string(FILE *out, const char *text);
void lki_json_value(FILE *out, const json_t *value);

/* Writes the members "xs" and "series" of a run: its columns as levels of buckets. */
lk_status lki_json_series(FILE *out, const lki_run_log *log);

#endif
