/* cli/settings.h -- lists the options that must be equal on all hosts of a job. */
#ifndef LKI_CLI_SETTINGS_H
#define LKI_CLI_SETTINGS_H

#include "cli/options.h"

enum { LKI_SETTINGS_MOST = 64, LKI_SETTING_BYTES = 96 };

typedef struct {
    char        texts[LKI_SETTINGS_MOST][LKI_SETTING_BYTES]; /* "--lr 0.05"; truncated if long */
    const char *list[LKI_SETTINGS_MOST + 1]; /* pointers into `texts`; ends with NULL */
} lki_settings;

/* Lists the options given to `command` that concern the whole job.  Excludes options that may
 * differ between hosts: where workers and files are, and how the host handles events. */
void lki_settings_of(lki_settings *out, const lki_command *command, const lki_config_file *given);

/* Returns what the terminal can show, as bits of lk_terminal: from NO_COLOR, TERM and the
 * locale. */
unsigned lki_terminal_of(void);

/* Returns true if stderr is a terminal on which a line can be replaced, so progress is shown. */
bool lki_shows_progress(void);

/* Returns what a launcher of `command` prints before a message.  On a terminal it removes the line
 * of progress that a worker has drawn, and the ^C behind it.  Programs of `run` have lines of their
 * own. */
const char *lki_line_start(const char *command);

#endif
