/* record.c -- the command of a run, as DIR/command.json:
 *
 *   {"lockstep": VERSION, "directory": where it was started, "options": {"MODEL": "gpt", ...}}
 *
 * The options are those given or chosen, as text, by name.  Options that say how a run starts or
 * where it is kept (--resume, --changed-data, --config, --checkpoint, --chaos, --mpi) are not among
 * them.
 */
#include "cli/record.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/paths.h"
#include "cli/replace.h"
#include "cli/values.h"
#include "lockstep/checkpoint.h"
#include "lockstep/data.h"
#include "lockstep/report.h"

enum { PATH = 2048 };

static const char *const left_out[] = { "resume", "changed-data", "config", "checkpoint",
                                        "chaos",  "mpi",          NULL };

static bool is_left_out(const char *name)
{
    for (size_t i = 0; left_out[i] != NULL; i++)
        if (strcmp(left_out[i], name) == 0)
            return true;
    return false;
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* Writes all parameter groups as one value, since the option may have been repeated. */
static json_t *groups_text(const lk_train_config *c)
{
    char   text[LK_GROUPS_MAX * 160] = "";
    char   number[LK_NUMBER_BYTES];
    size_t used = 0;
    for (uint32_t i = 0; i < c->group_count && used < sizeof text; i++) {
        const lk_param_group *g = &c->groups[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:", i > 0 ? ";" : "",
                                 g->pattern);
        lk_number_text(number, g->lr);
        if (g->has_lr && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "lr=%s%s", number,
                                     g->has_decay ? "," : "");
        lk_number_text(number, g->weight_decay);
        if (g->has_decay && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "decay=%s", number);
    }
    return json_string(text);
}

/* Writes an option of the model that is not given, but taken from the folder of --init.  Returns
 * NULL if it has no value. */
static const char *taken(const train_options *o, const lki_option *row, char text[32])
{
    const unsigned char *at    = (const unsigned char *)o + row->offset;
    const unsigned char *model = (const unsigned char *)&o->config.model_options;
    uint32_t             number;
    float                real;
    memcpy(&number, at, sizeof number);
    memcpy(&real, at, sizeof real);
    if (o->config.init == NULL || at < model || at >= model + sizeof o->config.model_options)
        return NULL;
    if (row->type == LKI_OPTION_FLAG)
        return *(const bool *)at ? "true" : NULL;
    if (number == 0 || (row->type != LKI_OPTION_U32 && row->type != LKI_OPTION_FLOAT))
        return NULL;
    (void)(row->type == LKI_OPTION_U32 ? snprintf(text, 32, "%u", number)
                                       : snprintf(text, 32, "%.9g", (double)real));
    return text;
}

/* Makes the text of an option; null with a note if it is not UTF-8, as JSON is. */
static json_t *option_text(const train_options *o, const char *name, const char *value)
{
    json_t *text = json_string(value);
    if (text == NULL)
        fprintf(stderr, "lockstep %s: note: --%s %s is not UTF-8, so the run keeps its options "
                        "without it: give it to lockstep resume and lockstep verify, too\n",
                o->command->name, name, value);
    return text != NULL ? text : json_null();
}

static json_t *options_json(const train_options *o)
{
    json_t *list = json_object();
    for (const lki_option *row = o->command->options; row->type != LKI_OPTION_END; row++) {
        char        text[32];
        const char *given = o->file.given[row - o->command->options];
        given             = given != NULL ? given : taken(o, row, text);
        if (given == NULL || is_left_out(row->name) ||
            (strcmp(row->name, "threads") == 0 && getenv(LKI_THREADS_CHOSEN) != NULL))
            continue;
        if (strcmp(row->name, "param-group") == 0)
            (void)json_object_set_new(list, row->name, groups_text(&o->config));
        else if (strcmp(row->name, "data") == 0)
            (void)json_object_set_new(list, row->name,
                                      option_text(o, row->name, o->config.data.source));
        else
            (void)json_object_set_new(list, row->name, option_text(o, row->name, given));
    }
    return list;
}

/* Writes an object as a file.  Returns false with errno set. */
static bool write_json(const char *path, const json_t *object)
{
    char *text = json_dumps(object, JSON_INDENT(1));
    bool  good = text != NULL && lki_replace_file(path, text, strlen(text));
    free(text);
    return good;
}

/* Keeps the recorded --init of a run that continues, except that the base of adapters may have
 * moved. */
static void keep_init(const train_options *o, json_t *options)
{
    const lk_train_config *c        = &o->config;
    const bool             adapters = c->model_options.lora_rank > 0 || c->model_options.adapter;
    char                   path[PATH];
    bool                   exists = false;
    if (!c->checkpoint.resume || (c->init != NULL && adapters) ||
        lk_checkpoint_exists(c->checkpoint.folder, &exists) != LK_OK || !exists)
        return;
    if (lki_record_init(c->checkpoint.folder, path, sizeof path))
        (void)json_object_set_new(options, "init", json_string(path));
}

void lki_record_write(const train_options *o)
{
    const char *folder = o->config.checkpoint.folder;
    char        path[PATH], here[PATH];
    if (folder == NULL || snprintf(path, sizeof path, "%s/" LK_RUN_COMMAND, folder) >= PATH ||
        getcwd(here, sizeof here) == NULL)
        return;
    char   *whole   = realpath(folder, NULL);
    json_t *options = options_json(o);
    keep_init(o, options);
    json_t *object = json_pack("{s:s, s:s, s:s*, s:o}", "lockstep", LK_VERSION, "directory", here,
                               "checkpoint", whole, "options", options);
    free(whole);
    if (!write_json(path, object))
        fprintf(stderr, "lockstep %s: note: cannot write '%s': %s; lockstep resume will not find "
                        "the options of this run\n", o->command->name, path,
                object != NULL ? strerror(errno)
                               : "the path of the run, or of the current directory, is not UTF-8");
    json_decref(object);
}

/* ---- Reading ------------------------------------------------------------------------------- */

bool lki_record_exists(const char *run)
{
    return lki_has_file(run, LK_RUN_COMMAND);
}

typedef struct {
    char **argv;
    size_t count, room;
    bool   good;
} arguments;

/* Appends "A", or "A=B" if `b` is not NULL. */
static void add(arguments *a, const char *text, const char *b)
{
    size_t bytes = strlen(text) + (b != NULL ? strlen(b) + 1 : 0) + 1;
    char  *copy  = a->good && a->count + 1 < a->room ? malloc(bytes) : NULL;
    a->good      = copy != NULL;
    if (copy == NULL)
        return;
    (void)snprintf(copy, bytes, "%s%s%s", text, b != NULL ? "=" : "", b != NULL ? b : "");
    a->argv[a->count++] = copy;
}

static const lki_option *find(const char *name, size_t length)
{
    for (const lki_option *o = lki_train_table; o->type != LKI_OPTION_END; o++)
        if ((strlen(o->name) == length && strncmp(o->name, name, length) == 0) ||
            (o->alias != NULL && strlen(o->alias) == length &&
             strncmp(o->alias, name, length) == 0))
            return o;
    return NULL;
}

static void add_option(arguments *a, const char *name, const char *value)
{
    char              text[80];
    const lki_option *row = find(name, strlen(name));
    if (row == NULL || value == NULL) /* of another version */
        return;
    if (row->type == LKI_OPTION_POSITIONAL) {
        add(a, value, NULL);
        return;
    }
    bool off = row->type == LKI_OPTION_FLAG && strcmp(value, "false") == 0;
    (void)snprintf(text, sizeof text, "--%s%s", off ? "no-" : "", name);
    add(a, text, row->type == LKI_OPTION_FLAG || value[0] == '\0' ? NULL : value);
}

/* Writes a path as an absolute one. */
static void absolute(void *here, const char *path, size_t length, char *out, size_t bytes)
{
    bool whole = length > 0 && (*path == '/' || *path == '-');
    (void)snprintf(out, bytes, "%s%s%.*s", whole ? "" : (const char *)here,
                   whole ? "" : "/", (int)length, path);
}

/* Returns a recorded path as one from the directory in which the run was started or, if that is
 * gone, as it is.  To be freed; NULL without memory. */
static char *recorded_path(const json_t *object, const char *path)
{
    const char *directory = json_string_value(json_object_get(object, "directory"));
    char       *text      = NULL;
    if (*path == '/' || directory == NULL || access(directory, F_OK) != 0)
        return strdup(path);
    return asprintf(&text, "%s/%s", directory, path) < 0 ? NULL : text;
}

/* Reads the record of a run.  Sets *value to a recorded option, or NULL.  Returns the record, which
 * has the text; NULL if it cannot be read. */
static json_t *read_option(const char *run, const char *name, const char **value)
{
    char file[PATH];
    (void)snprintf(file, sizeof file, "%s/" LK_RUN_COMMAND, run);
    json_t *object = json_load_file(file, 0, NULL);
    *value = json_string_value(json_object_get(json_object_get(object, "options"), name));
    return object;
}

bool lki_record_init(const char *run, char *path, size_t bytes)
{
    const char *init;
    json_t     *object = read_option(run, "init", &init);
    char       *place  = init != NULL ? recorded_path(object, init) : NULL;
    const bool  exists = place != NULL;
    if (exists && lk_run_file(path, bytes, run, init) != LK_OK) /* nowhere */
        (void)snprintf(path, bytes, "%s", place);
    free(place);
    json_decref(object);
    return exists;
}

/* Returns true if the run's directory is a copy of one that still exists. */
static bool is_copy(const json_t *object, const char *run)
{
    struct stat mine, other;
    const char *original = json_string_value(json_object_get(object, "checkpoint"));
    return original != NULL && stat(original, &other) == 0 && stat(run, &mine) == 0 &&
           (mine.st_dev != other.st_dev || mine.st_ino != other.st_ino);
}

bool lki_record_log(const char *run, char *path, size_t bytes)
{
    const char *log;
    json_t     *object = read_option(run, "log", &log);
    const bool  known  = log != NULL && !is_copy(object, run) &&
                       lk_run_file(path, bytes, run, log) == LK_OK;
    json_decref(object);
    return known;
}

void lki_place_value(const lki_option *row, lki_place_hook place, void *context, const char *value,
                     char *out, size_t bytes)
{
    char        source[LKI_SOURCE_BYTES];
    lki_message error;
    if (row == NULL || row->scope != LKI_SCOPE_FILE ||
        (row->type != LKI_OPTION_STRING && row->type != LKI_OPTION_CONFIG)) {
        (void)snprintf(out, bytes, "%s", value);
        return;
    }
    if (strcmp(row->name, "data") != 0) {
        place(context, value, strlen(value), out, bytes);
        return;
    }
    const char *known = lki_source_of(value, source, &error);
    known             = known != NULL ? known : value;
    size_t head       = strcspn(known, ":") + 1;
    if (strncmp(known, "synthetic:", head) == 0 || known[head - 1] != ':') {
        (void)snprintf(out, bytes, "%s", known);
        return;
    }
    (void)snprintf(out, bytes, "%.*s", (int)head, known);
    const size_t first = strcspn(known + head, lk_dataset_path_ends(known));
    const char  *rest  = known + head + first;
    const bool   pair  = *rest == ',';
    size_t       used  = strlen(out);
    place(context, known + head, first, out + used, bytes - used);
    used += strlen(out + used);
    (void)snprintf(out + used, bytes - used, "%s", pair ? "," : rest);
    if (pair)
        place(context, rest + 1, strlen(rest + 1), out + used + 1, bytes - used - 1);
}

/* Appends the arguments of the user; paths become absolute.  Not inlined, because values are
 * large. */
__attribute__((noinline)) static void add_more(arguments *a, char *const *more, char *here)
{
    char text[2 * PATH];
    for (size_t i = 0; more[i] != NULL; i++) {
        const char       *name   = more[i] + 2;
        size_t            length = strncmp(more[i], "--", 2) == 0 ? strcspn(name, "=") : 0;
        const lki_option *row    = length > 0 ? find(name, length) : NULL;
        if (row != NULL && name[length] == '=') {
            char head[80];
            (void)snprintf(head, sizeof head, "--%.*s", (int)length, name);
            lki_place_value(row, absolute, here, name + length + 1, text, sizeof text);
            add(a, head, text);
            continue;
        }
        add(a, more[i], NULL);
        bool takes = row != NULL && row->type != LKI_OPTION_FLAG && !row->value_optional;
        if (takes && more[i + 1] != NULL) {
            lki_place_value(row, absolute, here, more[++i], text, sizeof text);
            add(a, text, NULL);
        }
    }
}

/* Returns true if a directory is the checkpoint of one step. */
static bool is_checkpoint(const char *run)
{
    char path[PATH];
    return snprintf(path, sizeof path, "%s/manifest.json", run) < PATH && access(path, F_OK) == 0;
}

static json_t *load(const char *command, const char *run)
{
    char         path[PATH];
    json_error_t why;
    const bool   verifies = strcmp(command, "verify") == 0;
    const char  *same = verifies ? "verify" : "train", *rest = verifies ? " --step N" : " --resume";
    (void)snprintf(path, sizeof path, "%s/" LK_RUN_COMMAND, run);
    json_t *object = json_load_file(path, 0, &why);
    if (object != NULL && json_is_object(json_object_get(object, "options")))
        return object;
    if (access(run, F_OK) != 0)
        fprintf(stderr, "lockstep %s: there is no directory '%s'; give the --checkpoint directory "
                        "of a run\n", command, run);
    else if (is_checkpoint(run))
        fprintf(stderr, "lockstep %s: '%s' is a checkpoint of a run; give the directory above it, "
                        "which has the options of the run\n", command, run);
    else if (!lki_record_exists(run))
        fprintf(stderr, "lockstep %s: '%s' has no " LK_RUN_COMMAND ", in which a run keeps its "
                        "options; is it the --checkpoint directory?  Else give them as before: "
                        "lockstep %s MODEL ... --checkpoint %s%s.  A program with lockstep.torch "
                        "has no such file: start the program again\n",
                command, run, same, run, rest);
    else if (object != NULL)
        fprintf(stderr, "lockstep %s: '%s' has no \"options\" of a run; give them as before: "
                        "lockstep %s MODEL ... --checkpoint %s%s\n", command, path, same, run,
                rest);
    else
        fprintf(stderr, "lockstep %s: '%s' line %d: %s; give the options as before: lockstep %s "
                        "MODEL ... --checkpoint %s%s\n", command, path, why.line > 0 ? why.line : 1,
                why.text, same, run, rest);
    json_decref(object);
    return NULL;
}

static bool has(char *const *list, const char *name)
{
    size_t length = strlen(name);
    for (; *list != NULL; list++)
        if (strncmp(*list, "--", 2) == 0 && strncmp(*list + 2, name, length) == 0 &&
            (list[0][2 + length] == '\0' || list[0][2 + length] == '='))
            return true;
    return false;
}

/* Returns true if one of the arguments takes the place of a recorded option that may not stand
 * twice, or says by another name what it says: how long the run is. */
static bool is_replaced(const char *name, char *const *more)
{
    const lki_option *row = find(name, strlen(name));
    if (row != NULL && row->once && has(more, name))
        return true;
    return (strcmp(name, "steps") == 0 && has(more, "epochs")) ||
           (strcmp(name, "epochs") == 0 && has(more, "steps"));
}

/* Returns true if an option names a file that a run adds to or replaces. */
static bool is_output(const char *name)
{
    static const char *const names[] = { "log", "metrics", "record", "tensorboard", "trace" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* ---- Where the files of a run are ---------------------------------------------------------- */

/* The files of a run that may have been moved, with those of its data that are nowhere. */
typedef struct {
    const json_t *object;
    const char   *run;
    bool          unfound; /* a relative path is used as it is, because nothing is there */
    char          missing[PATH]; /* the file that was placed last, if it is nowhere; else "" */
} places;

/* Writes the path of a file where it is now, or as it is if that is still its place, or if it is
 * nowhere.  Not inlined, because the paths are large. */
__attribute__((noinline)) static void place_recorded(void *context, const char *path,
                                                     size_t length, char *out, size_t bytes)
{
    places      *p = context;
    char         name[PATH], found[2 * PATH];
    (void)snprintf(name, sizeof name, "%.*s", (int)length, path);
    (void)snprintf(out, bytes, "%s", name);
    if (strcmp(name, "-") == 0)
        return;
    char      *place = recorded_path(p->object, name);
    const bool there = lk_run_file(found, sizeof found, p->run, name) == LK_OK;
    if (there && place != NULL && strcmp(found, place) != 0)
        (void)snprintf(out, bytes, "%s", found);
    if (!there)
        (void)snprintf(p->missing, sizeof p->missing, "%s", place != NULL ? place : name);
    p->unfound = p->unfound || (!there && name[0] != '/');
    free(place);
}

/* Appends a recorded option, with its files where they are now.  Sets *lacks if the data are
 * nowhere.  Not inlined, because the value is large. */
__attribute__((noinline)) static void add_placed(arguments *a, places *p, const char *name,
                                                 const char *value, bool *lacks)
{
    char text[2 * PATH];
    p->missing[0] = '\0';
    lki_place_value(find(name, strlen(name)), place_recorded, p, value, text, sizeof text);
    *lacks = *lacks || (strcmp(name, "data") == 0 && p->missing[0] != '\0');
    add_option(a, name, text);
}

/* Writes the path that a file in the directory of the run has now, though the file itself may not
 * be there.  Returns false for a file elsewhere.  Not inlined, because the path is large. */
__attribute__((noinline)) static bool place_inside(const places *p, const char *value, char *out,
                                                   size_t bytes)
{
    char        was[2 * PATH];
    const char *began     = json_string_value(json_object_get(p->object, "checkpoint"));
    const char *directory = json_string_value(json_object_get(p->object, "directory"));
    char       *whole     = realpath(p->run, NULL);
    const bool  absolute  = *value == '/' || directory == NULL;
    value += strncmp(value, "./", 2) == 0 ? 2 : 0;
    (void)snprintf(was, sizeof was, "%s%s%s", absolute ? "" : directory, absolute ? "" : "/",
                   value);
    const size_t length = began != NULL ? strlen(began) : 0;
    const bool   inside = length > 0 && whole != NULL && strncmp(was, began, length) == 0 &&
                        was[length] == '/';
    if (inside)
        (void)snprintf(out, bytes, "%s%s", whole, was + length);
    free(whole);
    return inside;
}

/* Appends the recorded tokenizer.  In place of one that is gone, or that was in the directory of
 * the run, it is the one that the run keeps.  Not inlined, because the path is large. */
__attribute__((noinline)) static void add_tokenizer(arguments *a, const places *p,
                                                    const char *value)
{
    char  text[2 * PATH];
    char *path = recorded_path(p->object, value), *own = NULL, *kept = NULL;
    if (place_inside(p, value, text, sizeof text))
        kept = realpath(text, NULL);
    else if (path != NULL && access(path, F_OK) != 0 &&
             asprintf(&own, "%s/tokenizer.json", p->run) >= 0) {
        kept = realpath(own, NULL);
        free(own);
    }
    add_option(a, "tokenizer", kept != NULL ? kept : value);
    free(kept);
    free(path);
}

/* Appends a recorded option that names a file which the run writes.  A file outside the directory
 * of a copied run is left to its original.  Not inlined, because the path is large. */
__attribute__((noinline)) static void add_output(arguments *a, places *p, const char *name,
                                                 const char *value, const char *asker, bool given)
{
    char text[2 * PATH];
    bool unused = false;
    if (place_inside(p, value, text, sizeof text))
        add_option(a, name, text);
    else if (!is_copy(p->object, p->run))
        add_placed(a, p, name, value, &unused);
    else if (!given && strcmp(asker, "resume") == 0) /* verify writes none */
        fprintf(stderr, "lockstep %s: note: '%s' is a copy of '%s', so it does not write to that "
                        "run's --%s %s: give it another one\n", asker, p->run,
                json_string_value(json_object_get(p->object, "checkpoint")), name, value);
}

/* Refuses a run whose data are nowhere. */
static bool refuse_lacking(const char *asker, const places *p, const char *data)
{
    fprintf(stderr, "lockstep %s: cannot find the data '%s' of the run '%s', neither where they "
                    "were nor beside the run; say where they are: --data %.*sPATH\n", asker, data,
            p->run, (int)(strcspn(data, ":") + 1), data);
    return false;
}

/* Appends the recorded options.  Returns false after an error, which is printed: the data are
 * nowhere, and `more` has no others. */
static bool add_recorded(arguments *a, places *p, const char *asker, char *const *more)
{
    const char *name;
    json_t     *value;
    bool        lacks = false;
    json_object_foreach(json_object_get(p->object, "options"), name, value)
    {
        const char *text = json_string_value(value);
        if (is_replaced(name, more))
            continue;
        if (text == NULL) {
            fprintf(stderr, "lockstep %s: note: the --%s of the run '%s' is not UTF-8, so the run "
                            "does not keep it%s\n", asker, name, p->run,
                    strcmp(asker, "attest") == 0 ? ", and cannot be attested" : ": give it again");
            continue;
        }
        if (strcmp(name, "tokenizer") == 0)
            add_tokenizer(a, p, text);
        else if (is_output(name))
            add_output(a, p, name, text, asker, has(more, name));
        else
            add_placed(a, p, name, text, &lacks);
        if (lacks && !has(more, "data") && strcmp(asker, "attest") != 0)
            return refuse_lacking(asker, p, text);
        lacks = false;
    }
    return true;
}

/* Changes to the directory in which a run was started. */
static void enter_directory(const places *p, const char *asker)
{
    const char *directory = json_string_value(json_object_get(p->object, "directory"));
    if (directory != NULL && chdir(directory) != 0 && p->unfound)
        fprintf(stderr, "lockstep %s: note: '%s', where the run was started, is not there; its "
                        "paths are read from here\n", asker, directory);
}

char **lki_record_arguments(const char *asker, const char *command, const char *run,
                            char *const *more, int *argc)
{
    char        here[PATH], whole[2 * PATH];
    json_t     *object = load(asker, run);
    arguments   a      = { .room = 16, .good = true };
    places      p      = { .object = object, .run = run };
    if (object == NULL)
        return NULL;
    while (more[a.count] != NULL)
        a.count++;
    a.room += a.count + json_object_size(json_object_get(object, "options"));
    a.count = 0;
    a.argv  = calloc(a.room, sizeof *a.argv);
    a.good  = a.argv != NULL && getcwd(here, sizeof here) != NULL;
    add(&a, command, NULL);
    const bool all = add_recorded(&a, &p, asker, more);
    absolute(here, run, strlen(run), whole, sizeof whole);
    add(&a, "--checkpoint", whole);
    if (a.good)
        add_more(&a, more, here);
    enter_directory(&p, asker);
    json_decref(object);
    *argc = (int)a.count;
    if (a.good && all)
        return a.argv;
    if (all)
        fprintf(stderr, "lockstep %s: out of memory\n", asker);
    lki_record_free(a.argv);
    return NULL;
}

void lki_record_free(char **argv)
{
    for (size_t i = 0; argv != NULL && argv[i] != NULL; i++)
        free(argv[i]);
    free(argv);
}
