/* usage.c -- errors about options, in terms of the command line and of the config file. */
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "cli/options.h"
#include "cli/train.h"
#include "cli/words.h"
#include "lockstep/checkpoint.h"

void lki_name_lines(lki_message *out, const lki_command *command, const lki_config_file *file,
                    const char *text)
{
    static const char in_names[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t            used       = 0;

    while (*text != '\0' && used + 1 < sizeof out->text) {
        const lki_option *option = NULL;
        size_t            length = 0;
        if (file != NULL && strncmp(text, "--", 2) == 0) {
            length = strspn(text + 2, in_names);
            option = lki_option_find(command, text + 2, length);
        }
        unsigned line = option != NULL ? file->lines[option - command->options] : 0;
        if (line == 0) {
            out->text[used++] = *text++;
            continue;
        }
        int wrote = snprintf(out->text + used, sizeof out->text - used, "%.150s:%u: %s",
                             file->path, line, option->name);
        used += wrote > 0 ? (size_t)wrote : 0;
        text += 2 + length;
    }
    out->text[used < sizeof out->text ? used : sizeof out->text - 1] = '\0';
}

/* Prints how to list the options of a command.  Those that it shares with train are listed by
 * train. */
static void say_help(const lki_command *command)
{
    const char *all = lki_options_are_many(command) ? "=all" : "", *name = command->name;
    const bool  as_train = command->options == lki_train_table && strcmp(name, "train") != 0;
    if (command->inherits != NULL)
        fprintf(stderr, "(lockstep %s --help lists its options, and lockstep %s --help=all those "
                        "that it shares)\n", name, command->inherits);
    else
        fprintf(stderr, "(lockstep %s --help%s lists the options)\n", as_train ? "train" : name,
                all);
}

__attribute__((format(printf, 3, 0))) static int
say_usage_error(const lki_command *command, const lki_config_file *file, const char *format,
                va_list args)
{
    lki_message plain, named;
    char        words[LKI_WORDS_BYTES];

    (void)vsnprintf(plain.text, sizeof plain.text, format, args);
    lki_words(words, sizeof words, plain.text);
    lki_name_lines(&named, command, file, words);
    fprintf(stderr, "lockstep %s: %s\n", command->name, named.text);
    say_help(command);
    return LKI_EXIT_USAGE;
}

int lki_usage_error(const lki_command *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int status = say_usage_error(command, NULL, format, args);
    va_end(args);
    return status;
}

int lki_take_init(const lki_command *command, const char **path, const char *init)
{
    if (*path != NULL && init != NULL)
        return lki_usage_error(command, "RUN '%.300s' and --init %.300s are both given, but one "
                                        "takes the place of the other", *path, init);
    *path = *path != NULL ? *path : init;
    return -1;
}

/* Returns true if a path is that of a folder with a configuration, and not of a run. */
static bool is_pretrained(const char *path)
{
    char config[4096];
    bool run = false;
    return snprintf(config, sizeof config, "%s/config.json", path) < (int)sizeof config &&
           access(config, F_OK) == 0 && lk_checkpoint_exists(path, &run) == LK_OK && !run;
}

int lki_check_trained(const lki_command *command, const char *path)
{
    const char      *model   = NULL;
    lk_model_options options = { .struct_size = sizeof options };
    if (lki_is_url(path) && access(path, F_OK) != 0)
        return lki_usage_error(command, "%.300s: " LKI_DOWNLOAD_FIRST, path);
    if (!is_pretrained(path) || (lk_folder_model(&model, path) == LK_OK &&
                                 lk_folder_options(&options, path) == LK_OK))
        return -1;
    lki_print_error(command->name);
    return LKI_EXIT_USAGE;
}

int lki_usage_error_of(const lki_command *command, const lki_config_file *file, const char *format,
                       ...)
{
    va_list args;
    va_start(args, format);
    int status = say_usage_error(command, file, format, args);
    va_end(args);
    return status;
}
