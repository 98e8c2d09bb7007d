/* source.c -- recognises the kind of a data source; see source.h. */
#include "cli/source.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/paths.h"
#include "cli/values.h"
#include "cli/words.h"

static const char *const kinds[] = { "text", "tokens", "shards", "idx", "cifar10",
                                     "csv",  "npy",    "tar",    "folder", "docs",
                                     "stream", "synthetic" };

enum { KIND_COUNT = sizeof kinds / sizeof kinds[0], HEAD = 1024, PATH = 1024 };

static bool ends(const char *path, const char *ending)
{
    size_t length = strlen(path), most = strlen(ending);
    return length > most && strcasecmp(path + length - most, ending) == 0;
}

static bool ends_in(const char *path, const char *const *endings)
{
    for (; *endings != NULL; endings++)
        if (ends(path, *endings))
            return true;
    return false;
}

static bool say(char out[LKI_SOURCE_BYTES], lki_message *error, const char *kind, const char *path)
{
    if (snprintf(out, LKI_SOURCE_BYTES, "%s:%s", kind, path) < LKI_SOURCE_BYTES)
        return true;
    return lki_refuse(error, "is longer than %d bytes", LKI_SOURCE_BYTES - 16);
}

/* ---- Pairs of files ------------------------------------------------------------------------ */

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

/* Writes `path` with the last `from` replaced by `to`.  Returns false if it does not occur. */
static bool exchange(const char *path, const char *from, const char *to, char out[PATH])
{
    const char *at = NULL;
    for (const char *next = strstr(path, from); next != NULL; next = strstr(next + 1, from))
        at = next;
    return at != NULL && snprintf(out, PATH, "%.*s%s%s", (int)(at - path), path, to,
                                  at + strlen(from)) < PATH;
}

/* Finds the labels beside a file of images of MNIST's format: the names differ in images-idx3 and
 * labels-idx1. */
static bool pair_idx(const char *path, char out[LKI_SOURCE_BYTES], lki_message *error)
{
    char half[PATH] = "", other[PATH] = "";
    bool images     = exchange(path, "images", "labels", half);
    bool labels     = !images && exchange(path, "labels", "images", half);
    if (images && !exchange(half, "idx3", "idx1", other))
        (void)snprintf(other, sizeof other, "%s", half);
    if (labels && !exchange(half, "idx1", "idx3", other))
        (void)snprintf(other, sizeof other, "%s", half);
    if ((!images && !labels) || !exists(other))
        return lki_refuse(error, "is one half of MNIST's format, and the other was not found; "
                                 "write idx:IMAGES,LABELS");
    char both[LKI_SOURCE_BYTES - 8];
    if (snprintf(both, sizeof both, "%s,%s", images ? path : other, images ? other : path) >=
        (int)sizeof both)
        return lki_refuse(error, "is too long");
    return say(out, error, "idx", both);
}

/* Recognises IMAGES,LABELS and X,Y. */
static bool recognise_two(const char *given, char out[LKI_SOURCE_BYTES], lki_message *error)
{
    if (ends(given, ".npy"))
        return say(out, error, "npy", given);
    if (strstr(given, "idx") != NULL)
        return say(out, error, "idx", given);
    return lki_refuse(error, "is two files of a kind that their names do not tell; write "
                             "idx:IMAGES,LABELS or npy:X,Y");
}

/* ---- A file -------------------------------------------------------------------------------- */

static uint32_t little(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Returns "docs" if the first member of an archive is a text, else "tar". */
static const char *kind_of_tar(const unsigned char *head, size_t bytes)
{
    static const char *const texts[] = { ".txt", ".json", NULL };
    char                     name[101] = "";
    (void)snprintf(name, sizeof name, "%.*s", (int)(bytes < 100 ? bytes : 100), (const char *)head);
    return ends_in(name, texts) ? "docs" : "tar";
}

/* Returns what to do with a file that is no source; NULL if its ending does not tell. */
static const char *advice_for(const char *path)
{
    static const struct {
        const char *ending, *advice;
    } list[] = {
        { ".safetensors", "holds weights, which --init FILE reads; --data is what to train on" },
        { ".parquet", "is Parquet, which is not read; `python -m lockstep prepare` makes token "
                      "files of it, and other programs JSON lines (docs:FILE)" },
        { ".arrow", "is Arrow, which is not read; write its texts as JSON lines (docs:FILE)" },
        { ".pt", "is a PyTorch file, which is not read; save X and Y with NumPy, for npy:X,Y" },
        { ".pkl", "is a Python file, which is not read; save X and Y with NumPy, for npy:X,Y" },
        { ".npz", "holds several arrays; save X and Y alone, for npy:X.npy,Y.npy" },
        { ".npy", "is one array; write npy:X.npy,Y.npy, the samples and their labels" },
        { ".zip", "is packed; unpack it, and give the folder" },
        { ".tgz", "is packed; unpack it, and give the folder" },
        { ".tar.gz", "is packed; unpack it (gunzip), and give the .tar file" },
        { ".jsonl.gz", "is packed; `python -m lockstep prepare` makes token files of it, or unpack "
                       "it (gunzip), and give the .jsonl file" },
        { ".gz", "is packed; unpack it first (gunzip)" },
        { ".xz", "is packed; unpack it first" },
        { ".zst", "is packed; unpack it first" },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (ends(path, list[i].ending))
            return list[i].advice;
    return NULL;
}

static bool is_idx(const char *path, const unsigned char *head, size_t bytes)
{
    bool magic = bytes >= 4 && head[0] == 0 && head[1] == 0 && head[2] == 8 &&
                 (head[3] == 1 || head[3] == 3);
    return magic || strstr(path, "idx3-ubyte") != NULL || strstr(path, "idx1-ubyte") != NULL;
}

static bool recognise_file(const char *path, char out[LKI_SOURCE_BYTES], lki_message *error)
{
    static const char *const ids[] = { ".u16", ".u32", NULL };
    unsigned char            head[HEAD];
    FILE                    *file = fopen(path, "re");
    if (file == NULL)
        return say(out, error, "text", path); /* opening it again reports the reason */
    size_t bytes = fread(head, 1, sizeof head, file);
    (void)fclose(file);
    const char *advice = advice_for(path);
    bool        magic  = bytes >= 8 && ((little(head) == 20240520 && little(head + 4) == 1) ||
                                 (little(head) == 20240801 && little(head + 4) == 7));
    if (is_idx(path, head, bytes))
        return pair_idx(path, out, error);
    if (advice != NULL)
        return lki_refuse(error, "%s", advice);
    if (ends(path, ".jsonl"))
        return say(out, error, "docs", path);
    if (ends(path, ".csv") || ends(path, ".tsv"))
        return say(out, error, "csv", path);
    if (ends(path, ".tar"))
        return say(out, error, kind_of_tar(head, bytes), path);
    if (magic || ends_in(path, ids))
        return say(out, error, "tokens", path);
    if (ends(path, ".bin"))
        return lki_refuse(error, "may be token ids or pictures; write tokens:FILE?width=16 for ids "
                                 "(nanoGPT), or cifar10:DIR for the folder of CIFAR-10");
    if (memchr(head, '\0', bytes) != NULL)
        return lki_refuse(error, "is not text (it has NUL bytes), and its ending is not known; "
                                 "write its kind before it, such as tokens:FILE (docs/data.md)");
    return say(out, error, "text", path);
}

/* ---- A folder ------------------------------------------------------------------------------ */

enum { TEXTS, SHARDS, CIFAR, IDX, ARCHIVES, LINES, ARRAYS, OTHERS, SORTS };

/* The files of a folder by sort: how many, and the name of one. */
typedef struct {
    unsigned count[SORTS];
    char     name[SORTS][256];
} listing;

static int sort_of(const char *name)
{
    static const char *const ids[] = { ".u16", ".u32", ".bin", NULL };
    if (strncmp(name, "data_batch_", 11) == 0 && ends(name, ".bin"))
        return CIFAR;
    if (strcmp(name, "test_batch.bin") == 0)
        return OTHERS;
    if (strstr(name, "idx3-ubyte") != NULL)
        return IDX;
    if (strstr(name, "idx1-ubyte") != NULL)
        return OTHERS;
    return ends_in(name, ids)       ? SHARDS
           : ends(name, ".tar")     ? ARCHIVES
           : ends(name, ".jsonl")   ? LINES
           : ends(name, ".npy")     ? ARRAYS
           : ends(name, ".txt")     ? TEXTS
                                    : OTHERS;
}

static bool list(const char *path, listing *out)
{
    DIR           *folder = opendir(path);
    struct dirent *entry;
    memset(out, 0, sizeof *out);
    if (folder == NULL)
        return false;
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        int  sort  = sort_of(entry->d_name);
        bool train = strncmp(entry->d_name, "train", 5) == 0;
        if (out->count[sort]++ == 0 || train) /* MNIST's folder has two sets */
            (void)snprintf(out->name[sort], sizeof out->name[sort], "%s", entry->d_name);
    }
    (void)closedir(folder);
    return true;
}

static const char *kind_of_sort(int sort, const char *path, const listing *files)
{
    static const char *const by_sort[SORTS] = { "text", "shards", "cifar10", "idx", "tar", "docs",
                                                "npy", "text" };
    unsigned char            head[HEAD];
    char                     name[PATH];
    if (sort != ARCHIVES || snprintf(name, sizeof name, "%s/%s", path, files->name[sort]) >= PATH)
        return by_sort[sort];
    return kind_of_tar(head, lki_read_beginning(name, head, sizeof head));
}

static bool refuse_several(const char *path, const listing *files, lki_message *error)
{
    size_t used = (size_t)snprintf(error->text, sizeof error->text,
                                   "has files of several kinds; write ");
    bool   more = false;
    for (int sort = 0; sort < OTHERS && used < sizeof error->text; sort++) {
        if (files->count[sort] == 0)
            continue;
        used += (size_t)snprintf(error->text + used, sizeof error->text - used,
                                 "%s%s:%.40s (for %.30s)", more ? " or " : "",
                                 kind_of_sort(sort, path, files), path, files->name[sort]);
        more = true;
    }
    return false;
}

/* Returns true unless a folder is the directory of a run, or has a model, as a checkpoint does.
 * Their texts are configurations. */
static bool may_have_data(const char *path, lki_message *error)
{
    static const char *const weights[] = { "model.safetensors", "model.safetensors.index.json",
                                           "adapter_model.safetensors", "pytorch_model.bin",
                                           "adapter_model.bin" };
    if (lki_is_run(path))
        return lki_refuse(error, "is the directory of a run, not data; give data, such as those of "
                                 "the run, or write text:DIR to read its files as texts");
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        if (lki_has_file(path, weights[i]))
            return lki_refuse(error, "has the weights of a model (%s), not data; give data, or "
                                     "write text:DIR to read its files as texts", weights[i]);
    return true;
}

/* Returns true if a folder `levels` below `path` has a JPEG or PNG.  Looks at a few entries
 * only. */
static bool has_images(const char *path, int levels)
{
    static const char *const images[] = { ".jpg", ".jpeg", ".png", NULL };
    char                     below[PATH];
    struct dirent           *entry;
    bool                     found  = false;
    DIR                     *folder = opendir(path);
    for (int looks = 0; folder != NULL && !found && looks < 32; looks++) {
        entry = readdir(folder);
        if (entry == NULL)
            break;
        if (entry->d_name[0] != '.' &&
            snprintf(below, sizeof below, "%s/%s", path, entry->d_name) < PATH)
            found = levels > 0 ? has_images(below, levels - 1) : ends_in(entry->d_name, images);
    }
    if (folder != NULL)
        (void)closedir(folder);
    return found;
}

static bool recognise_folder(const char *path, char out[LKI_SOURCE_BYTES], lki_message *error)
{
    listing  files;
    unsigned sorts = 0;
    int      found = OTHERS;
    if (!may_have_data(path, error))
        return false;
    if (!list(path, &files))
        return say(out, error, "text", path); /* opening it again reports the reason */
    for (int sort = 0; sort < OTHERS; sort++)
        if (files.count[sort] > 0) {
            found = sort;
            sorts++;
        }
    if (sorts > 1)
        return refuse_several(path, &files, error);
    if (sorts == 0 && (has_images(path, 1) || has_images(path, 2)))
        return say(out, error, "folder", path);
    if (found == ARRAYS)
        return lki_refuse(error, "has arrays; write npy:X.npy,Y.npy, the samples and their labels");
    if (found == IDX) {
        char name[PATH];
        if (snprintf(name, sizeof name, "%s/%s", path, files.name[IDX]) >= PATH)
            return lki_refuse(error, "is too long");
        return pair_idx(name, out, error);
    }
    return say(out, error, kind_of_sort(found, path, &files), path);
}

/* ---- Any source ---------------------------------------------------------------------------- */

static bool has_word(const char *given)
{
    size_t length = strcspn(given, ":");
    for (size_t i = 0; given[length] == ':' && i < KIND_COUNT; i++)
        if (strlen(kinds[i]) == length && memcmp(kinds[i], given, length) == 0)
            return true;
    return false;
}

static bool refuse_download(lki_message *error)
{
    return lki_refuse(error, "nothing is downloaded: download it first, and give the file or "
                             "folder");
}

/* Checks what follows a kind: it must be no URL, and documents must not be packed. */
static bool check_rest(const char *given, lki_message *error)
{
    const char *path = strchr(given, ':') + 1;
    if (lki_is_url(path) && !exists(path))
        return refuse_download(error);
    if (strncmp(given, "docs:", 5) == 0 && ends(path, ".gz"))
        return lki_refuse(error, "%s", advice_for(path));
    return true;
}

static bool refuse_unknown(const char *given, lki_message *error)
{
    char        word[24] = "";
    size_t      length = strcspn(given, ":");
    bool        colon  = given[length] == ':' && length < sizeof word;
    const char *meant  = NULL;
    if (lki_is_url(given))
        return refuse_download(error);
    if (!colon)
        return lki_refuse(error, "there is no such file or folder; correct the path");
    (void)snprintf(word, sizeof word, "%.*s", (int)length, given);
    meant = lki_suggest(word, kinds, KIND_COUNT);
    return lki_refuse(error, "there is no kind '%s'%s%s; there are text, tokens, shards, idx, "
                             "cifar10, csv, npy, tar, folder, docs, stream and synthetic", word,
                      meant != NULL ? ", did you mean " : "", meant != NULL ? meant : "");
}

static bool recognise(const char *given, char out[LKI_SOURCE_BYTES], lki_message *error)
{
    struct stat info;
    char        plain[PATH];
    if (strlen(given) >= PATH)
        return lki_refuse(error, "is longer than %d bytes; write its kind before it, such as text:",
                          PATH - 1);
    if (strcmp(given, "-") == 0)
        return say(out, error, "stream", given);
    if (stat(given, &info) != 0) {
        if (strchr(given, ',') != NULL && strchr(given, ':') == NULL)
            return recognise_two(given, out, error);
        (void)snprintf(plain, sizeof plain, "%.*s", (int)strcspn(given, "?"), given);
        if (strchr(given, '?') != NULL && stat(plain, &info) == 0)
            return lki_refuse(error, "has settings, which need a kind before them, such as "
                                     "tokens:");
        return refuse_unknown(given, error);
    }
    if (S_ISDIR(info.st_mode))
        return recognise_folder(given, out, error);
    if (!S_ISREG(info.st_mode))
        return lki_refuse(error, "is a pipe or a device; write stream:PATH, which only "
                                 "training reads");
    return recognise_file(given, out, error);
}

const char *lki_source_of(const char *given, char out[LKI_SOURCE_BYTES], lki_message *error)
{
    if (has_word(given))
        return check_rest(given, error) ? given : NULL;
    return recognise(given, out, error) ? out : NULL;
}
