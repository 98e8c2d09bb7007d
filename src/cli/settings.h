/* cli/settings.h -- what must be the same on all hosts of a job, as it was written. */
#ifndef LKI_CLI_SETTINGS_H
#define LKI_CLI_SETTINGS_H

#include "cli/options.h"

enum { LKI_SETTINGS_MOST = 64, LKI_SETTING_BYTES = 96 };

typedef struct {
    char        texts[LKI_SETTINGS_MOST][LKI_SETTING_BYTES]; /* "--lr 0.05", cut if it is long */
    const char *list[LKI_SETTINGS_MOST + 1];                 /* of them; ends with NULL */
} lki_settings;

/* Of all that was given to `command` what is the job's, and not a host's own affair: where its
 * workers and files are, and what it does when something happens. */
void lki_settings_of(lki_settings *out, const lki_command *command, const lki_config_file *given);

#endif
