/* train/core/metrics.h -- the state of a run as OpenMetrics text, for the textfile collector of
 * node_exporter.  The file is replaced at most once per second, and at the end.  The writer holds a
 * lock on it, and on each file that replaces it. */
#ifndef LKI_TRAIN_METRICS_H
#define LKI_TRAIN_METRICS_H

#include "base/status.h"
#include "train/core/step_record.h"

typedef struct {
    const char *path; /* NULL: no file */
    int         lock;    /* the file, open and locked; -1: none */
    bool        made;    /* this run has made the file, and written nothing yet */
    double      written; /* by the monotonic clock */
    bool        has_validation;
    double      validation, accuracy, rmse, mae; /* of the last evaluation; NaN: not measured */
    char        exactness_id[33];
} lki_metrics;

typedef struct {
    const char            *model;
    const lki_step_record *step;
    uint64_t               steps;
    uint32_t               workers;
    bool                   done;
} lki_metrics_values;

void lki_metrics_open(lki_metrics *metrics, const char *path);

/* Locks the file, which is made if it is not there, until lki_metrics_close().  Fails with LK_EIO
 * if another run is writing it. */
LK_NODISCARD lk_status lki_metrics_begin(lki_metrics *metrics);
void                   lki_metrics_close(lki_metrics *metrics);

/* Replaces the file, if there is one and it is time. */
LK_NODISCARD lk_status lki_metrics_write(lki_metrics *metrics, lki_metrics_values values);

#endif
