/* cmd_tokenize.c -- `lockstep tokenize`: makes a file of token ids of text files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/paths.h"
#include "cli/replace.h"
#include "cli/signals.h"
#include "cli/values.h"
#include "cli/words.h"
#include "lockstep/tokenizer.h"

typedef struct {
    char       **files;
    const char  *tokenizer, *out;
    uint32_t     threads;
    bool         documents;
} tokenize_options;

#define AT(field) offsetof(tokenize_options, field)

static const lki_option table[] = {
    { .name = "FILE", .type = LKI_OPTION_REST, .offset = AT(files), .required = true,
      .help = "text files, which are joined in this order" },
    { .name = "tokenizer", .type = LKI_OPTION_STRING, .value = "FILE", .offset = AT(tokenizer),
      .required = true, .once = true,
      .help = "a tokenizer.json of byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM)" },
    { .name = "out", .type = LKI_OPTION_STRING, .value = "FILE", .offset = AT(out),
      .required = true, .once = true, .help = "the token file to write, for --data tokens:FILE" },
    LKI_FLAG("documents", AT(documents),
             "write the tokenizer's end of text after each file, for --data docs:FILE?end=ID"),
    LKI_U32("threads", "N", AT(threads), 1, 1024, "the cores", "number of threads"),
    LKI_OPTIONS_END,
};

/* A token file that is being written. */
typedef struct {
    FILE       *file;
    const char *path;
    uint32_t    width;
    uint64_t    count, left_out; /* tokens, and bytes without one */
    sigset_t    before; /* the signals that were blocked before it was begun */
} sink;

enum { HEADER = 256, MAGIC_16 = 20240520, MAGIC_32 = 20240801 };

static lk_status fail_with(lk_status status, const char *what, const char *path, int error)
{
    char text[1100];
    (void)snprintf(text, sizeof text, "cannot %s '%.900s': %s", what, path, strerror(error));
    return lk_error_set(status, text);
}

/* Fails because a path is not that of a file. */
static lk_status refuse_kind(const char *path, bool folder)
{
    char text[1100];
    (void)snprintf(text, sizeof text, "'%.400s' is %s", path,
                   folder ? "a folder: give its files, such as FOLDER/*.txt"
                          : "no regular file, such as a pipe: write it to a file first");
    return lk_error_set(LK_EINVAL, text);
}

static lk_status write_ids(void *context, const int32_t *ids, size_t count)
{
    sink *to = context;
    if (lki_is_asked_to_end(&to->before))
        return fail_with(LK_EIO, "write", to->path, EINTR);
    to->count += count;
    if (to->width == 4)
        return fwrite(ids, sizeof *ids, count, to->file) == count
                   ? LK_OK
                   : fail_with(LK_EIO, "write", to->path, errno);
    for (size_t i = 0; i < count; i++) {
        uint16_t id = (uint16_t)ids[i];
        if (fwrite(&id, sizeof id, 1, to->file) != 1)
            return fail_with(LK_EIO, "write", to->path, errno);
    }
    return LK_OK;
}

/* Writes the header of llm.c's token files, which says the width and the number of the ids. */
static lk_status write_header(const sink *to)
{
    int32_t header[HEADER] = { to->width == 2 ? MAGIC_16 : MAGIC_32, to->width == 2 ? 1 : 7,
                               (int32_t)to->count };
    if (to->count > INT32_MAX)
        return lk_error_set(LK_EINVAL, "a token file has at most 2147483647 tokens; make several "
                                       "of them, for --data shards:DIR");
    if (fseek(to->file, 0, SEEK_SET) == 0 && fwrite(header, sizeof header, 1, to->file) == 1)
        return LK_OK;
    return fail_with(LK_EIO, "write", to->path, errno);
}

static lk_status encode_file(lk_encoder *encoder, const char *path, sink *to)
{
    struct stat info;
    void       *text = NULL;
    int         fd   = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* waits for no pipe */
    if (fd < 0)
        return fail_with(LK_EIO, "open", path, errno);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        (void)close(fd);
        return refuse_kind(path, S_ISDIR(info.st_mode));
    }
    size_t bytes = (size_t)info.st_size;
    if (bytes > 0)
        text = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int error = errno;
    (void)close(fd);
    if (text == MAP_FAILED)
        return fail_with(LK_EIO, "read", path, error);
    lk_status status = lk_encoder_encode(encoder, text, bytes, write_ids, to);
    if (text != NULL)
        (void)munmap(text, bytes);
    return status;
}

/* Returns true if a path is that of a device or a pipe, or of a file with contents that are not
 * those of a token file. */
static bool is_no_token_file(const char *path)
{
    struct stat info;
    int32_t     head[2];
    size_t      bytes = lki_read_beginning(path, head, sizeof head);
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return true;
    return bytes > 0 && (bytes < sizeof head || (head[0] != MAGIC_16 && head[0] != MAGIC_32));
}

/* Refuses to replace one of the texts, or a file of another kind. */
static lk_status check_output(const tokenize_options *options)
{
    struct stat out, text;
    char        why[1100];
    for (char **file = options->files; *file != NULL; file++)
        if (stat(options->out, &out) == 0 && stat(*file, &text) == 0 &&
            out.st_dev == text.st_dev && out.st_ino == text.st_ino) {
            (void)snprintf(why, sizeof why, "--out %.900s is one of the texts, and would be "
                           "overwritten: give another one", options->out);
            return lk_error_set(LK_EINVAL, why);
        }
    if (is_no_token_file(options->out)) {
        (void)snprintf(why, sizeof why, "--out %.900s is a file of another kind, and would be "
                       "overwritten: give another one, or remove it", options->out);
        return lk_error_set(LK_EINVAL, why);
    }
    return LK_OK;
}

static lk_status encode_files(const tokenize_options *options, const lk_tokenizer *tokenizer,
                              sink *to)
{
    int32_t     end     = lk_tokenizer_describe(tokenizer)->end;
    lk_encoder *encoder = NULL;
    uint32_t    threads = options->threads > 0 ? options->threads : lk_allowance_read().cores;
    if (options->documents && end < 0)
        return lk_error_set(LK_EINVAL, "--documents: the tokenizer has none of <|endoftext|>, "
                                       "<|end_of_text|> and </s>");
    lk_status status = lk_encoder_open(&encoder, tokenizer, threads);
    for (char **file = options->files; status == LK_OK && *file != NULL; file++) {
        status = encode_file(encoder, *file, to);
        if (status == LK_OK && options->documents)
            status = write_ids(to, &end, 1);
    }
    if (status == LK_OK)
        to->left_out = lk_encoder_left_out(encoder);
    lk_encoder_free(encoder);
    if (status == LK_OK && to->count == 0)
        return lk_error_set(LK_EINVAL, "the texts are empty, and no token file was written");
    return status;
}

/* Writes the token file under another name, which it has once it is complete. */
static lk_status write_tokens(const tokenize_options *options, const lk_tokenizer *tokenizer,
                              sink *to)
{
    static const int32_t empty[HEADER] = { 0 };
    lki_draft            names;
    lk_status            status = LK_OK;
    to->width = lk_tokenizer_describe(tokenizer)->vocabulary > 65536 ? 4 : 2;
    to->file  = lki_open_draft(&names, options->out);
    if (to->file == NULL)
        return fail_with(LK_EIO, "write", options->out, errno);
    if (fwrite(empty, sizeof empty, 1, to->file) != 1)
        status = fail_with(LK_EIO, "write", options->out, errno);
    if (status == LK_OK)
        status = encode_files(options, tokenizer, to);
    if (status == LK_OK)
        status = write_header(to);
    if (fclose(to->file) != 0 && status == LK_OK)
        status = fail_with(LK_EIO, "write", options->out, errno);
    if (status == LK_OK && rename(names.draft, names.file) != 0)
        status = fail_with(LK_EIO, "write", options->out, errno);
    if (status != LK_OK)
        (void)unlink(names.draft);
    return status;
}

/* Writes the token file while signals that end the command are held, so that none leaves its
 * draft. */
static lk_status write_held(const tokenize_options *options, const lk_tokenizer *tokenizer,
                            sink *to)
{
    lki_hold_signals(&to->before);
    lk_status status = write_tokens(options, tokenizer, to);
    lki_release_signals(&to->before);
    return status;
}

/* Returns true if the argument after an option is its value. */
static bool takes_next(const char *option)
{
    const size_t      length = strlen(option);
    const lki_option *row    = length < 2 || strncmp(option, "--", 2) != 0
                                   ? NULL
                                   : lki_option_find(&lki_command_tokenize, option + 2, length - 2);
    return row != NULL && row->type != LKI_OPTION_FLAG;
}

/* Moves files behind the options, which may stand between them and after them. */
static void files_last(int argc, char **argv)
{
    bool done = false; /* all arguments after -- are files */
    int  end;
    for (int i = 1, files = 0; i < argc && !done; i = end) {
        const bool option = argv[i][0] == '-' && argv[i][1] != '\0';
        done              = strcmp(argv[i], "--") == 0;
        end               = i + (i + 1 < argc && takes_next(argv[i]) ? 2 : 1);
        files += !option;
        for (int at = i; option && at < end; at++) {
            char *moved = argv[at];
            memmove(argv + at - files + 1, argv + at - files, (size_t)files * sizeof *argv);
            argv[at - files] = moved;
        }
    }
}

static int tokenize_main(int argc, char **argv)
{
    tokenize_options options = { .threads = 0 };
    sink             to      = { .count = 0 };
    lk_tokenizer    *tokenizer = NULL;
    int              done;
    files_last(argc, argv);
    done = lki_options_parse(&lki_command_tokenize, argc, argv, &options);
    if (done >= 0)
        return done;
    to.path          = options.out;
    lk_status status = check_output(&options);
    if (status == LK_OK)
        status = lk_tokenizer_open(&tokenizer, options.tokenizer);
    if (status == LK_OK)
        status = write_held(&options, tokenizer, &to);
    if (status == LK_OK) {
        const lk_tokenizer_info *info = lk_tokenizer_describe(tokenizer);
        printf("%s: %llu tokens of %u bits; use --data 'tokens:%s?vocab=%u'\n", options.out,
               (unsigned long long)to.count, 8 * to.width, options.out, info->vocabulary);
        if (to.left_out > 0)
            fprintf(stderr, "note: bytes without a token are left out of the text, as Hugging "
                    "Face's tokenizers do: %llu in all\n", (unsigned long long)to.left_out);
    }
    lk_tokenizer_free(tokenizer);
    if (status == LK_OK)
        return 0;
    lki_print_error("tokenize");
    return status == LK_EINVAL ? LKI_EXIT_USAGE : LKI_EXIT_FAILURE;
}

const lki_command lki_command_tokenize = {
    .name     = "tokenize",
    .summary  = "make a file of token ids of text files",
    .usage    = "--tokenizer FILE --out FILE [--documents] FILE...",
    .about    = "Encodes text by a tokenizer.json of byte-level BPE.  Ids are those of Hugging\n"
                "Face's tokenizers, without the tokens that its post-processor adds.",
    .examples = "  lockstep tokenize --tokenizer tokenizer.json --out book.bin book.txt",
    .options  = table,
    .main     = tokenize_main,
};
