/* report/log_lines.h -- the lines of a log, one by one, and what each is. */
#ifndef LKI_REPORT_LOG_LINES_H
#define LKI_REPORT_LOG_LINES_H

#include <jansson.h>

#include "lockstep/base.h"

/* Receives a line with its number, from 1. */
typedef lk_status (*lki_line_hook)(void *context, uint64_t number, json_t *line);

/* Calls a function with each line of a log that is complete.  Returns LK_EFORMAT if a line is no
 * JSON object or has a key twice. */
LK_NODISCARD lk_status lki_log_lines(const char *path, lki_line_hook hook, void *context);

/* Returns the step of a line; UINT64_MAX: it has none. */
uint64_t lki_line_step(const json_t *line);

/* Returns true if a line describes the run, and is not of a step. */
bool lki_line_is_first(const json_t *line);
/* Returns true if a line has the values of a step. */
bool lki_line_is_of_step(const json_t *line);
/* Returns true if a line has the values of an evaluation. */
bool lki_line_is_evaluation(json_t *line);
/* Returns true for a last line of a run, also if its hashes are gone. */
bool lki_line_is_end(const json_t *line);

/* Returns true for a key of an evaluation. */
bool lki_is_evaluation(const char *key);

#endif
