/* lockstep/report.h -- compares runs, and shows them on a page for a browser.
 *
 * Both read what runs leave behind: logs (JSON lines, lk_train_config.log or the log of
 * lockstep.torch), checkpoints, and flight records.  Nothing of this needs the run to be over.
 */
#ifndef LK_REPORT_H
#define LK_REPORT_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Where two runs differ --------------------------------------------------------------- */

typedef enum {
    LK_DIFFERENCE_CONFIG,  /* `name` is a key of the configuration, "data" for the hash of the data,
                            * or "first line of the log" if only one log has it */
    LK_DIFFERENCE_LOG,     /* `name` is a value of a step in the logs */
    LK_DIFFERENCE_END,     /* after `step` one log goes on, or has the hashes of the end, and the
                            * other does not */
    LK_DIFFERENCE_STEP,    /* the checkpoints are of different steps */
    LK_DIFFERENCE_RUN,     /* `name` is the seed, exactness id or a hash of a manifest */
    LK_DIFFERENCE_MISSING, /* only one checkpoint has the tensor `name` */
    LK_DIFFERENCE_SHAPE,   /* type or shape of the tensor `name` */
    LK_DIFFERENCE_TENSOR,  /* `name` is a tensor, `element` its first element that differs */
} lk_difference_kind;

/* One difference.  `a` and `b` are the values as text, floating-point numbers in decimal and in
 * hexadecimal; "" = the side has none. */
typedef struct {
    lk_difference_kind kind;
    uint64_t           step;
    uint32_t           first_worker, worker_count; /* the virtual workers that the value belongs to;
                                                    * worker_count 0: not known */
    const char        *file;    /* tensors: "model.safetensors" and others; else "" */
    const char        *name;
    const char        *index;   /* tensors: the element's index, such as "[3, 5]"; else "" */
    uint64_t           element; /* tensors: number of the first element that differs */
    uint64_t           count;   /* tensors: number of elements that differ */
    const char        *a, *b;
} lk_difference;

/* Receives a difference.  The strings are valid during the call. */
typedef void (*lk_difference_hook)(void *context, const lk_difference *difference);

/* Compares `a` with `b`.  Each is a log, a checkpoint (a step's directory), a run (a directory of
 * steps, with or without its log), or a safetensors file.  Values that depend on the machine, such
 * as times, are not compared.  Reports the differences in this order: the data, the configuration,
 * seed and exactness id; the first step in which the logs differ; hashes and tensors of the first
 * checkpoint that differs, of the steps that both have.  Checkpoints may have been written by any
 * numbers of workers and strategies.
 *
 * Sets *equal and returns LK_OK if both could be compared.  Returns LK_EINVAL if `a` and `b` have
 * nothing in common that can be compared; LK_EUNSUPPORTED if nothing differs, but not all values of
 * the logs were compared, because their steps have more than 4096; LK_EIO, LK_EFORMAT or
 * LK_ECORRUPT if one cannot be read. */
LK_API LK_NODISCARD lk_status lk_diff(const char *a, const char *b, lk_difference_hook report,
                                      void *context, bool *equal);

/* ---- The log of a run -------------------------------------------------------------------- */

/* Writes the path of the log of the run in the directory `run`: its file log.jsonl, or its only
 * file *.jsonl, or the log that `lockstep train` has noted in its command.json.  Returns LK_EINVAL
 * if it has none, or if the path does not fit into `bytes`. */
LK_API LK_NODISCARD lk_status lk_run_log(char *out, size_t bytes, const char *run);

/* Finds a file that the run in the directory `run` has read or written, by its path in the run's
 * command.json.  If the directory was moved, the file may have been moved with it: to the same
 * place relative to it, beside it, or into it.  Returns LK_EIO if it is nowhere; `out` then has the
 * path where it was. */
LK_API LK_NODISCARD lk_status lk_run_file(char *out, size_t bytes, const char *run,
                                          const char *path);

#define LK_NO_WORKER UINT32_MAX

/* A value of a log that a replay has not repeated, or that the log lacks.  The texts are JSON,
 * without the quotes of strings.  `config` is reported if its texts differ at all;
 * lk_train_compare() says whether that matters. */
typedef struct {
    uint64_t    line, step;       /* number of the line, from 1; its step.  0: the log has no line
                                   * of the step (`loss`), or no first line before it (`config`) */
    bool        governs;          /* a first line, of steps that were replayed */
    bool        resumed;          /* the run was resumed after these steps, and the replay has
                                   * another exactness id, so data and options may have changed */
    const char *key;              /* as in the log */
    const char *logged, *replayed; /* logged: NULL = the line has no such key */
    uint32_t    virtual_worker;   /* whose loss it is; LK_NO_WORKER: of the whole batch, or no
                                   * loss */
} lk_log_difference;

/* The meaning of a difference. */
typedef enum {
    LK_LOG_DIFFERS,    /* a value is not that of the replay */
    LK_LOG_SAME,       /* the values mean the same */
    LK_LOG_OTHER_BITS, /* the run has changed since, so these steps cannot be compared */
} lk_log_finding;

/* Receives a difference.  The strings are valid during the call. */
typedef lk_log_finding (*lk_log_difference_hook)(void                    *context,
                                                 const lk_log_difference *difference);

/* The extent of a comparison. */
typedef struct {
    uint64_t differences;         /* those that count */
    uint64_t headers;             /* first lines, with exactness id and data */
    uint64_t first, last, losses; /* the steps with losses, and their number */
    uint64_t evaluations;
    uint64_t left_out;       /* values that depend on an option which the run has changed since:
                              * evaluations (eval_weights) and the noise scale (noise_scale) */
    uint64_t other_from;     /* first step that was not compared, LK_LOG_OTHER_BITS; 0: none */
    bool     virtual_losses; /* losses of virtual workers in the last step */
    bool     hashes;         /* those of the last line of a run */
} lk_log_compared;

/* The log of a run that is to be compared with a replay up to a step. */
typedef struct lk_log_check lk_log_check;

/* Reads a log for a replay up to step `step`.  Returns LK_EIO if it cannot be read; LK_EFORMAT,
 * with the number of the line, if a line is no JSON object, has a key twice, has no usable step, or
 * has a step that stands twice or after a later one. */
LK_API LK_NODISCARD lk_status lk_log_check_open(lk_log_check **out, const char *log,
                                                uint64_t step);
LK_API void                   lk_log_check_free(lk_log_check *check);
/* Returns true if the log has the loss of the last step of the replay. */
LK_API bool lk_log_check_has_step(const lk_log_check *check);
/* Returns true if the log has lines of this step or of later ones. */
LK_API bool lk_log_check_reaches(const lk_log_check *check);
/* Returns the content hash of the data of the last step of the replay, if the run has made other
 * steps with other data; else NULL. */
LK_API const char *lk_log_check_data(const lk_log_check *check);
/* Returns true if the log has an evaluation after a step. */
LK_API bool lk_log_check_evaluates(const lk_log_check *check, uint64_t step);
/* Compares the log with that of a replay from step `from` (lk_replay.log): each value of the steps
 * after `from`, and of first lines.  A value that the log of a run always has may not be missing,
 * nor a step before the last one of the log, unless a first line says that the run continued from
 * that step or a later one without the log.  Each step is governed by the newest first line before
 * it.  Times and other values that depend on the machine are not compared.  Returns an error if a
 * log cannot be read. */
LK_API LK_NODISCARD lk_status lk_log_check_compare(const lk_log_check *check, const char *replay,
                                                   uint64_t from, lk_log_difference_hook hook,
                                                   void *context, lk_log_compared *out);

/* ---- Statements about runs ---------------------------------------------------------------- */

/* Writes a statement about the run in the directory `run`, which has checkpoints and a log: its
 * options, its data with SHA-256, the bits of each loss, and a chain of hashes over losses and
 * checkpoints.  Verifies all checkpoints first.  Compares their hashes of all losses with the log,
 * and the hash of the weights in its last line with the checkpoint.  Returns LK_EINVAL if something
 * of this is missing, if the exactness ids of the checkpoints differ, or if `file` exists and is no
 * statement of this run; LK_ECORRUPT or LK_EIO if a file is damaged, is not of this run, or cannot
 * be read or written.  An existing statement is one of this run if its losses are equal, as far as
 * both have them. */
LK_API LK_NODISCARD lk_status lk_attest(const char *run, const char *file);
/* Writes such a statement to `draft`, which the caller will sign and rename to `file`.  Returns the
 * same errors; `file` is not written. */
LK_API LK_NODISCARD lk_status lk_attest_draft(const char *run, const char *draft,
                                              const char *file);

typedef struct lk_statement lk_statement;

/* A checkpoint, as the statement has it. */
typedef struct {
    uint64_t    step;
    const char *weights;  /* the weights hash */
    const char *manifest; /* SHA-256 of the file manifest.json */
} lk_statement_checkpoint;

/* A step whose loss is not the stated one; step 0: none. */
typedef struct {
    uint64_t step;
    double   stated, loss; /* of the whole batch */
    uint32_t worker;       /* the first virtual worker whose loss is not the stated one;
                            * LK_NO_WORKER: not known, or all have the stated losses */
    double   worker_stated, worker_loss;
} lk_statement_step;

/* Reads a statement and verifies its chain.  Returns LK_EFORMAT if the file is none, LK_ECORRUPT if
 * the chain breaks. */
LK_API LK_NODISCARD lk_status lk_statement_open(lk_statement **out, const char *file);
LK_API void                   lk_statement_free(lk_statement *statement);
/* Returns the path of the run's directory when the statement was made. */
LK_API const char *lk_statement_run(const lk_statement *statement);
/* Returns the command of the run, in the form of command.json. */
LK_API const char *lk_statement_command(const lk_statement *statement);
/* Returns true if the recorded configuration has a key. */
LK_API bool lk_statement_has_key(const lk_statement *statement, const char *key);
/* Returns the index-th checkpoint, in ascending order of steps; NULL past the end. */
LK_API const lk_statement_checkpoint *lk_statement_checkpoint_at(const lk_statement *statement,
                                                                 size_t index);

/* Finds a file that the run has read, by its path in the statement's options, like lk_run_file(),
 * or else beside the statement.  `run` is where the run's directory is now.  Returns LK_EIO if the
 * file is nowhere. */
LK_API LK_NODISCARD lk_status lk_statement_file(const lk_statement *statement, const char *run,
                                                const char *path, char *out, size_t bytes);
/* Returns the number of data files of which the statement has the SHA-256.  Data in folders have
 * none. */
LK_API size_t lk_statement_file_count(const lk_statement *statement);
/* Compares these files with the statement.  They are found by lk_statement_file(), but paths[count]
 * replaces the paths in the statement, from the first on.  Returns LK_ECORRUPT if one differs, and
 * LK_EIO if one cannot be read. */
LK_API LK_NODISCARD lk_status lk_statement_check_files(const lk_statement *statement,
                                                       const char *run,
                                                       const char *const *paths, size_t count);
/* Compares the index-th checkpoint with that in the directory `run`, of which it reads all files,
 * and its hash of all losses with the losses.  Returns LK_ECORRUPT if it differs, LK_EIO if it is
 * not there. */
LK_API LK_NODISCARD lk_status lk_statement_check(const lk_statement *statement, size_t index,
                                                 const char *run);
/* Compares the losses of the steps after `from`, up to `to`, with those in a log.  Sets *step to
 * the first step that differs.  Returns LK_EFORMAT if the log does not have all of them. */
LK_API LK_NODISCARD lk_status lk_statement_compare_log(const lk_statement *statement,
                                                       uint64_t from, uint64_t to,
                                                       const char *log, lk_statement_step *step);

/* ---- A page for a browser ---------------------------------------------------------------- */

typedef struct lk_report lk_report;

/* The runs on a page. */
typedef struct {
    size_t             struct_size; /* see LK_REPORT_OPTIONS_INIT */
    const char *const *runs;        /* logs, or directories with a log; in the order of colours */
    size_t             run_count;
    const char        *flight;      /* (optional) a directory of flight records (flight.h) */
} lk_report_options;

#define LK_REPORT_OPTIONS_INIT LK_OPTIONS_INIT(lk_report_options)

/* Reads the logs, and the manifests beside them.  Returns LK_EINVAL if there are no runs or a
 * directory has no log; LK_EIO or LK_EFORMAT if a log cannot be read. */
LK_API LK_NODISCARD lk_status lk_report_open(lk_report **out, const lk_report_options *options);
LK_API void                   lk_report_free(lk_report *report);

/* Reads what runs have written since.  Sets *changed if there was anything. */
LK_API LK_NODISCARD lk_status lk_report_update(lk_report *report, bool *changed);

/* Makes a self-contained HTML page, which requests nothing from anywhere.  Its size depends on the
 * number of curves, and hardly on the number of steps.  The text belongs to the report until the
 * next call, and ends with a NUL, which `bytes` does not count. */
LK_API LK_NODISCARD lk_status lk_report_page(lk_report *report, const char **text, size_t *bytes);

/* ---- A page that follows runs ------------------------------------------------------------ */

typedef struct lk_watch lk_watch;

/* The address at which the page can be requested. */
typedef struct {
    size_t      struct_size; /* see LK_WATCH_OPTIONS_INIT */
    const char *address;     /* a numeric address of this machine; NULL: 127.0.0.1 */
    uint16_t    port;        /* 0: any that is free */
} lk_watch_options;

#define LK_WATCH_OPTIONS_INIT LK_OPTIONS_INIT(lk_watch_options)

/* Serves the page of a report over HTTP from a thread of its own, and with each request reads what
 * runs have written since.  Answers only requests that have the random token of the URL and name
 * this address in the header Host.  The report must not be used until lk_watch_free().  Returns
 * LK_EUNSUPPORTED if the library libmicrohttpd is not installed; LK_EINVAL for a text that is not
 * one address; LK_EIO if the address or the port cannot be used. */
LK_API LK_NODISCARD lk_status lk_watch_open(lk_watch **out, lk_report *report,
                                            const lk_watch_options *options);
/* Returns the address of the page, with its token. */
LK_API const char *lk_watch_url(const lk_watch *watch);
/* Ends all connections and the thread. */
LK_API void lk_watch_free(lk_watch *watch);

#ifdef __cplusplus
}
#endif
#endif /* LK_REPORT_H */
