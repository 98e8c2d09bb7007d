/* report/diff.h -- the parts of lk_diff(). */
#ifndef LKI_REPORT_DIFF_H
#define LKI_REPORT_DIFF_H

#include <jansson.h>

#include "lockstep/checkpoint.h"
#include "lockstep/report.h"
#include "report/run_log.h"

/* Receives the differences of a comparison. */
typedef struct {
    lk_difference_hook report;
    void              *context;
    uint64_t           found;                   /* number of differences so far */
    uint32_t           virtual_workers, groups; /* of the runs; 0: not known */
    bool               data_compared;           /* the hashes of both runs' data were */
} lki_diff;

/* Reports a difference.  NULL strings count as "". */
void lki_diff_report(lki_diff *diff, const lk_difference *difference);

/* Compares two configurations, key by key.  NULL: unknown, and not compared. */
void lki_diff_config(lki_diff *diff, const json_t *a, const json_t *b);

/* Describes the first step in which two logs differ. */
typedef struct {
    bool     parts;        /* they differ */
    bool     ends;         /* one ends before the other, and they are equal up to `step` */
    bool     compared;     /* both have a value of the same step and name */
    uint64_t step;         /* of the difference; if there is none, the last step of both */
    size_t   row_a, row_b; /* SIZE_MAX: that log has no row of this step */
} lki_run_log_parting;

/* Finds the first step in which two logs differ. */
lki_run_log_parting lki_run_log_part(const lki_run_log *a, const lki_run_log *b);

/* Compares two logs.  Reports all values of the first step in which they differ, or that one of
 * them ends before the other.  Returns false if they have nothing in common that can be compared.
 */
bool lki_diff_logs(lki_diff *diff, const lki_run_log *a, const lki_run_log *b);

/* Returns the tensor at an index, its file ("model.safetensors") in *file; NULL past the last. */
typedef const lk_tensor *(*lki_tensor_at)(const void *of, size_t index, const char **file);

/* Compares the tensors of two checkpoints or files after step `step`. */
lk_status lki_diff_tensors(lki_diff *diff, uint64_t step, lki_tensor_at at_a, const void *a,
                           lki_tensor_at at_b, const void *b);

#endif
