/* cli/words.h -- translates messages of the library into terms of the command, and hints. */
#ifndef LKI_CLI_WORDS_H
#define LKI_CLI_WORDS_H

#include <stdbool.h>
#include <stddef.h>

enum { LKI_WORDS_BYTES = 1024 };

/* Copies a message of the library.  Replaces a field of a public struct, which is in backquotes
 * (`global_batch`), by the option that sets it (--global-batch).  Truncates a message longer than
 * `bytes`. */
void lki_words(char *out, size_t bytes, const char *message);

/* Prints "lockstep COMMAND: " and a message of the library, in terms of the command. */
void lki_print_message(const char *command, const char *message);

/* Prints "lockstep COMMAND: " and the last error of this thread, in terms of the command. */
void lki_print_error(const char *command);

/* Prints the same, and if `path` is not that of weights, says what would be: a run, or `others`,
 * such as "or a .safetensors file".  Also prints lki_hub_hint(). */
void lki_print_error_about(const char *command, const char *path, const char *others);

/* Returns why a worker was probably killed, if the exit status of its job is that of a signal which
 * the kernel sends (128 + SIGKILL or SIGBUS); else NULL.  `cause` is lk_launch_result.cause: a
 * worker that was stopped was killed by the launcher. */
const char *lki_why_killed(int status, const char *cause);

/* Says what to do about a URL in place of a folder. */
#define LKI_DOWNLOAD_FIRST                                                                       \
    "nothing is downloaded; download the folder first, as in hf download NAME --local-dir DIR, " \
    "and give its path"

/* Returns true if a path is a URL, such as https://host/file. */
bool lki_is_url(const char *path);

/* Writes what to do if a path is that of a model on the Hugging Face hub, such as gpt2 or
 * HuggingFaceTB/SmolLM2-135M.  Returns false if it cannot be, or is there. */
bool lki_hub_hint(char out[LKI_WORDS_BYTES], const char *path);

#endif
