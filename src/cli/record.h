/* cli/record.h -- the command of a run, kept in its checkpoint directory, so that `resume` and
 * `verify` need only the directory. */
#ifndef LKI_CLI_RECORD_H
#define LKI_CLI_RECORD_H

#include "cli/train.h"

/* Writes the options of a run, given or chosen, to DIR/command.json in its checkpoint directory.
 * Called when the run has locked the directory and its log (lk_train_calls.begun), so that a run
 * that is refused, or that makes no step, changes no record.  Does nothing without a directory.
 * Prints a note if the file cannot be written. */
void lki_record_write(const train_options *options);

/* The variable of the environment that tells workers that their --threads was not given, but suits
 * this machine.  It is not recorded, since the run may continue on another one. */
#define LKI_THREADS_CHOSEN "LOCKSTEP_THREADS_CHOSEN"

/* Returns true if `run` is a directory with the command of a run. */
bool lki_record_exists(const char *run);

/* Writes the path of the --init with which the run in the directory `run` began; it is absolute
 * unless the directory in which the run was started is gone.  Returns false if the run began
 * without --init, or if there is no such file. */
bool lki_record_init(const char *run, char *path, size_t bytes);

/* Writes the path of the log that the run in the directory `run` has written so far, as
 * lki_record_init() does.  Returns false if it has none, or if the directory is a copy of one that
 * still exists. */
bool lki_record_log(const char *run, char *path, size_t bytes);

/* Makes the arguments of `command` that continue or repeat the run in the directory `run`: the
 * recorded options, then --checkpoint and `more`, a list that ends with NULL, in which paths are
 * relative to the current directory.  Files of a run that was moved are looked for where it is now.
 * A recorded tokenizer that is gone, or was in the directory of the run, is replaced by the one
 * that the run keeps.  Changes to the directory in which the run was started, if it is there.
 * Returns NULL after an error, which is printed and names the command `asker`.  Free with
 * lki_record_free(). */
char **lki_record_arguments(const char *asker, const char *command, const char *run,
                            char *const *more, int *argc);
void   lki_record_free(char **argv);

/* Writes a path of `length` bytes as it is to be used. */
typedef void (*lki_place_hook)(void *context, const char *path, size_t length, char *out,
                               size_t bytes);

/* Copies the value of an option.  If it names files, `place` writes each path in it; settings of
 * data after `?` are kept. */
void lki_place_value(const lki_option *row, lki_place_hook place, void *context, const char *value,
                     char *out, size_t bytes);

#endif
