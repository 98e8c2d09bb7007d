/* docs.c -- docs:PATH, a source of documents, each of which is a sample with its own length.
 *
 *     .jsonl             one JSON object per line; its member "text" is a document
 *     .tar               members .txt, each a document, and .json, each like a line of .jsonl;
 *                        a sample (see fileset.h) with both uses the .txt
 *     .u16 .u32 .bin     token ids (see tokens.c); the id given by ?end= separates documents
 *     others             one document per line
 *
 * Documents of text consist of bytes other than 0, and 0 is their separator.  With a tokenizer they
 * are encoded when they are opened, and its end of text or the id given by ?end= separates them.
 * Documents of ids are separated by the id given by ?end=. Empty documents are skipped.  Files are
 * mapped and scanned once when they are opened, to find the beginning of each document.  Text in
 * JSON is decoded when it is read.
 *
 * Memory: 24 bytes per document, and the ids of encoded text.
 */
#include "data/source.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/encoded.h"
#include "data/fileset.h"

typedef struct {
    uint64_t offset; /* offset of its bytes in the file, or index of its first id */
    uint32_t bytes;  /* number of bytes in the file; 0 for ids */
    uint32_t tokens; /* ids, or bytes of the text (JSON: of the decoded text) */
    uint32_t shard;
    bool     json;
} document;

typedef struct {
    lki_fileset  shards;
    lki_tokens *ids; /* one per shard; NULL: the documents are text */
    lki_encoded encoded;
    document   *documents;
    size_t      count, capacity;
    document    text, json; /* while scanning an archive: the documents of the current sample */
    uint32_t    shard;      /* while scanning: the current shard */
    uint64_t    end, width, vocabulary; /* settings of the spec; UINT64_MAX, 0 and 0 if not given */
} docs;

/* ---- Documents ------------------------------------------------------------------------------ */

static lk_status add_document(docs *self, document what)
{
    if (what.tokens == 0)
        return LK_OK;
    LK_TRY(lki_reserve((void **)&self->documents, &self->capacity, self->count,
                       sizeof *self->documents, "documents"));
    self->documents[self->count++] = what;
    return LK_OK;
}

/* A position in a file, for messages: a line, or a member of an archive. */
typedef struct {
    const char *path, *member;
    size_t      number; /* number of the line, or offset at which the member begins */
} place;

static lk_status damaged(const place *at, const char *why)
{
    if (at->member == NULL)
        return lk_fail(LK_EFORMAT, "'%s': line %zu %s", at->path, at->number, why);
    return lk_fail(LK_EFORMAT, "'%s': '%s' at byte %zu %s", at->path, at->member, at->number, why);
}

static lk_status check_text(const docs *self, const uint8_t *text, size_t bytes, const place *at)
{
    if (bytes > INT32_MAX)
        return damaged(at, "is longer than 2 GiB");
    if (bytes > 0 && self->encoded.tokenizer == NULL && memchr(text, 0, bytes) != NULL)
        return damaged(at, "holds a NUL byte, which no document may without a tokenizer: it stands "
                           "between them");
    return LK_OK;
}

/* Sets the number of tokens of a text, which becomes ids if there is a tokenizer. */
static lk_status encode(docs *self, document *out, const void *text, size_t bytes, const place *at)
{
    out->tokens = (uint32_t)bytes;
    if (self->encoded.tokenizer == NULL)
        return LK_OK;
    out->offset = self->encoded.ids.count;
    LK_TRY(lki_encoded_add(&self->encoded, text, bytes));
    if (self->encoded.ids.count - out->offset > INT32_MAX)
        return damaged(at, "has more than 2 billion tokens");
    out->tokens = (uint32_t)(self->encoded.ids.count - out->offset);
    return LK_OK;
}

/* Parses a JSON object and finds its member "text".  Returns NULL if the object is invalid, with
 * the reason in *error.  Integers are read as floating-point numbers, of which more are in range:
 * no number is used. */
static json_t *parse(const uint8_t *bytes, size_t count, const json_t **text, json_error_t *error)
{
    const size_t how    = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
    json_t      *object = json_loadb((const char *)bytes, count, how, error);
    *text = json_object_get(object, "text");
    return object;
}

/* Returns why a JSON object is invalid, maybe in `text`. */
static const char *reason(const json_error_t *error, char text[200])
{
    switch ((int)json_error_code(error)) {
    case json_error_numeric_overflow:
        return "has a number beyond 1.8e308, the largest that can be read";
    case json_error_null_byte_in_key:
        return "has a member whose name holds a NUL (\\u0000), and no name may";
    default:
        (void)snprintf(text, 200, "is no valid JSON: %s", error->text);
        return text;
    }
}

static lk_status measure_json(docs *self, document *out, const uint8_t *bytes, size_t count,
                              const place *at)
{
    json_error_t  error;
    char          why[200];
    const json_t *text;
    LK_TRY(check_text(self, bytes, count, at));
    json_t   *object = parse(bytes, count, &text, &error);
    lk_status status = LK_OK;
    if (object == NULL)
        status = damaged(at, reason(&error, why));
    else if (!json_is_string(text))
        status = damaged(at, "has no \"text\" that is a string; rename the member that has the "
                             "text (python -m lockstep prepare reads it by any name)");
    else
        status = check_text(self, (const uint8_t *)json_string_value(text),
                            json_string_length(text), at);
    if (status == LK_OK)
        status = encode(self, out, json_string_value(text), json_string_length(text), at);
    json_decref(object);
    return status;
}

/* ---- Files ---------------------------------------------------------------------------------- */

static lk_status add_line(docs *self, const lki_mapped *in, size_t first, size_t bytes, bool json,
                          size_t number)
{
    const place    at   = { .path = in->path, .number = number };
    const uint8_t *line = in->map.data + first;
    if (bytes > 0 && line[bytes - 1] == '\r')
        bytes--;
    LK_TRY(check_text(self, line, bytes, &at));
    document what = { .offset = first, .bytes = (uint32_t)bytes, .shard = self->shard,
                      .json = json };
    if (bytes > 0)
        LK_TRY(json ? measure_json(self, &what, line, bytes, &at)
                    : encode(self, &what, line, bytes, &at));
    return add_document(self, what);
}

static lk_status find_lines(docs *self, const lki_mapped *in, bool json)
{
    static const char mark[] = "\xef\xbb\xbf"; /* the byte order mark, which JSON may not have */
    size_t bytes = in->map.bytes, number = 1;
    bool   marked = json && bytes >= 3 && memcmp(in->map.data, mark, 3) == 0;
    for (size_t first = marked ? 3 : 0; first < bytes; number++) {
        const uint8_t *line = in->map.data + first, *end = memchr(line, '\n', bytes - first);
        size_t         count = end != NULL ? (size_t)(end - line) : bytes - first;
        LK_TRY(add_line(self, in, first, count, json, number));
        first += count + 1;
    }
    return LK_OK;
}

static lk_status see_member(void *context, const lki_tar *tar, const lki_tar_member *member,
                            const char *extension)
{
    docs       *self = context;
    bool        json = strcasecmp(extension, "json") == 0;
    document   *to   = json ? &self->json : &self->text;
    const place at   = { tar->path, member->name, member->start };
    if (!json && strcasecmp(extension, "txt") != 0)
        return LK_OK;
    if (to->bytes > 0)
        return damaged(&at, "is the second of its sample");
    LK_TRY(check_text(self, member->content, member->bytes, &at));
    *to = (document){ .offset = member->offset, .bytes = (uint32_t)member->bytes,
                      .shard = self->shard, .json = json };
    return LK_OK;
}

static lk_status end_sample(void *context, const lki_tar *tar, const char *key, size_t start)
{
    docs       *self = context;
    document    text = self->text, json = self->json;
    const place at   = { tar->path, key, start };
    self->text = self->json = (document){ .bytes = 0 };
    if (text.bytes > 0)
        LK_TRY(encode(self, &text, tar->data + text.offset, text.bytes, &at));
    if (text.bytes > 0 || json.bytes == 0)
        return add_document(self, text);
    LK_TRY(measure_json(self, &json, tar->data + json.offset, json.bytes, &at));
    return add_document(self, json);
}

/* Adds the documents of a file of ids.  A document ends at a separator or at the end of the
 * file. */
static lk_status find_ids(lk_dataset *dataset, const lki_mapped *in, uint32_t width)
{
    docs       *self = dataset->state;
    lki_tokens *ids  = &self->ids[self->shard];
    uint64_t    from = 0;
    LK_TRY(lki_tokens_parse(ids, in->map.data, in->map.bytes, width, self->vocabulary, in->path));
    for (uint64_t i = 0; i <= ids->count; i++) {
        int32_t id = dataset->separator;
        if (i < ids->count)
            lki_tokens_copy(ids, i, 1, &id);
        if (id != dataset->separator)
            continue;
        if (i - from > INT32_MAX)
            return lk_fail(LK_EFORMAT, "'%s': the document from id %llu on is longer than %d",
                           in->path, (unsigned long long)from, INT32_MAX);
        LK_TRY(add_document(self, (document){ .offset = from, .tokens = (uint32_t)(i - from),
                                              .shard = self->shard }));
        from = i + 1;
    }
    if (ids->max >= dataset->info.classes)
        dataset->info.classes = ids->max + 1;
    return LK_OK;
}

static bool holds_ids(const char *path)
{
    return lki_ends_with(path, ".u16") || lki_ends_with(path, ".u32") ||
           lki_ends_with(path, ".bin");
}

static lk_status find_documents(lk_dataset *dataset, const lki_mapped *in)
{
    docs                 *self    = dataset->state;
    const lki_tar_visitor visitor = { self, see_member, end_sample };
    if (holds_ids(in->path) != (self->ids != NULL))
        return lk_fail(LK_EFORMAT, "'%s' holds %s, but '%s' before it does not", in->path,
                       self->ids != NULL ? "text" : "token ids", self->shards.at[0].path);
    if (self->ids != NULL)
        return find_ids(dataset, in, lki_tokens_width(self->width, in->path));
    if (lki_ends_with(in->path, ".tar"))
        return lki_tar_visit(in, &visitor);
    return find_lines(self, in, lki_ends_with(in->path, ".jsonl"));
}

/* ---- Opening -------------------------------------------------------------------------------- */

static lk_status parse_spec(docs *self, char **path, const char *rest)
{
    const lki_setting table[] = {
        { "end", &self->end, 0, LKI_CLASSES_MAX - 1 },
        { "width", &self->width, 16, 32 },
        { "vocab", &self->vocabulary, 1, LKI_CLASSES_MAX },
        { NULL, NULL, 0, 0 },
    };
    const char *settings = strchr(rest, '?');
    self->end            = UINT64_MAX;
    LK_TRY(lki_path_join(path, "", rest));
    if (settings == NULL)
        return LK_OK;
    (*path)[settings - rest] = '\0';
    LK_TRY(lki_settings_parse(settings + 1, '&', table, rest));
    if (self->width != 0 && self->width != 16 && self->width != 32)
        return lk_fail(LK_EINVAL, "'%s': width is 16 or 32", rest);
    return LK_OK;
}

/* Sets the separator: the id in the spec, that of the tokenizer, or 0 for bytes. */
static lk_status choose_separator(lk_dataset *dataset, const char *rest)
{
    docs                *self      = dataset->state;
    const lk_tokenizer  *tokenizer = self->encoded.tokenizer;
    bool                 ids       = holds_ids(self->shards.at[0].path);
    uint64_t             number    = self->vocabulary;
    if (ids && tokenizer != NULL)
        return lk_fail(LK_EINVAL, "'%s' holds token ids, and `tokenizer` is for text", rest);
    if (ids && self->end == UINT64_MAX)
        return lk_fail(LK_EINVAL, "'%s' holds token ids: say which of them stands between two "
                                  "documents, ?end=ID (50256 with GPT-2's)", rest);
    if (!ids && ((self->end != UINT64_MAX && tokenizer == NULL) || self->width != 0 || number != 0))
        return lk_fail(LK_EINVAL, "'%s' is text, which has no end=, width= or vocab=: those are of "
                                  "token ids (.u16, .u32, .bin)", rest);
    if (tokenizer != NULL) {
        number = lk_tokenizer_describe(tokenizer)->vocabulary;
        if (self->end == UINT64_MAX && lk_tokenizer_describe(tokenizer)->end < 0)
            return lk_fail(LK_EINVAL, "'%s' has none of the tokens <|endoftext|>, <|end_of_text|> "
                                      "and </s>: say which stands between two documents, ?end=ID",
                           dataset->options.tokenizer);
        if (self->end == UINT64_MAX)
            self->end = (uint64_t)lk_tokenizer_describe(tokenizer)->end;
    }
    if (number > 0 && self->end >= number)
        return lk_fail(LK_EINVAL, "'%s': end=%llu is not among the ids that %s%llu has", rest,
                       (unsigned long long)self->end, tokenizer != NULL ? "a tokenizer of "
                                                                        : "vocab=",
                       (unsigned long long)number);
    dataset->bytes        = !ids && tokenizer == NULL;
    dataset->separator    = ids || tokenizer != NULL ? (int32_t)self->end : 0;
    dataset->info.classes = ids ? (uint32_t)self->end + 1 : tokenizer != NULL ? (uint32_t)number
                                                                             : 256;
    return ids ? LKI_NEW(&self->ids, self->shards.count, "token files") : LK_OK;
}

static lk_status open_documents(lk_dataset *dataset, const char *rest, const char *path)
{
    static const char *const endings[] = { ".txt", ".jsonl", ".tar", ".u16", ".u32", ".bin", NULL };
    docs                    *self      = dataset->state;
    LK_TRY(lki_encoded_open(&self->encoded, dataset->options.tokenizer));
    LK_TRY(lki_fileset_open(&self->shards, dataset, path, endings));
    LK_TRY(choose_separator(dataset, rest));
    for (size_t i = 0; i < self->shards.count; i++) {
        self->shard = (uint32_t)i;
        LK_TRY(find_documents(dataset, &self->shards.at[i]));
    }
    if (self->count == 0)
        return lk_fail(LK_EFORMAT, "'%s' has no documents: %zu files, all that is in them empty",
                       rest, self->shards.count);
    if (self->vocabulary > 0)
        dataset->info.classes = (uint32_t)self->vocabulary;
    lki_encoded_finish(&self->encoded, &dataset->info);
    dataset->info.tokens = true;
    dataset->total       = self->count;
    return LK_OK;
}

static lk_status docs_open(lk_dataset *dataset, const char *rest)
{
    docs *self = NULL;
    char *path = NULL, separator[33];
    LK_TRY(LKI_NEW(&self, 1, "documents"));
    dataset->state   = self;
    lk_status status = parse_spec(self, &path, rest);
    if (status == LK_OK)
        status = open_documents(dataset, rest, path);
    lki_free(path);
    LK_TRY(status);
    lki_xxh3_128(&dataset->separator, sizeof dataset->separator, separator);
    LK_TRY(lki_fileset_hash(&self->shards, separator, dataset->info.content_hash));
    return self->encoded.tokenizer == NULL
               ? LK_OK
               : lki_encoded_hash(&self->encoded, dataset->info.content_hash);
}

static void docs_close(lk_dataset *dataset)
{
    docs *self = dataset->state;
    lki_fileset_close(&self->shards);
    lki_encoded_close(&self->encoded);
    lki_free(self->ids);
    lki_free(self->documents);
    lki_free(self);
}

/* ---- Reading -------------------------------------------------------------------------------- */

static uint64_t docs_tokens(const lk_dataset *dataset, uint64_t index)
{
    const docs *self = dataset->state;
    return self->documents[index].tokens;
}

static void copy_bytes(const uint8_t *from, size_t count, int32_t *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = from[i];
}

/* Reads a document from its JSON line.  The line was valid at opening, but the file may have
 * changed. */
static lk_status read_json(const document *what, const lki_mapped *in, uint64_t first, size_t count,
                           int32_t *out)
{
    json_error_t  error;
    const json_t *text;
    json_t       *object = parse(in->map.data + what->offset, what->bytes, &text, &error);
    bool          good   = json_is_string(text) && json_string_length(text) == what->tokens;
    if (good)
        copy_bytes((const uint8_t *)json_string_value(text) + first, count, out);
    json_decref(object);
    if (good)
        return LK_OK;
    return lk_fail(LK_EIO, "'%s': the JSON at byte %llu is not what it was when it was opened (or "
                           "there is no memory to read it)", in->path,
                   (unsigned long long)what->offset);
}

static lk_status docs_read(const lk_dataset *dataset, uint64_t index, uint64_t first, size_t count,
                           int32_t *out)
{
    const docs      *self = dataset->state;
    const document  *what = &self->documents[index];
    const lki_mapped *in   = &self->shards.at[what->shard];
    LK_ASSERT(first + count <= what->tokens);
    if (self->ids != NULL)
        lki_tokens_copy(&self->ids[what->shard], what->offset + first, count, out);
    else if (self->encoded.tokenizer != NULL)
        lki_tokens_copy(&self->encoded.ids, what->offset + first, count, out);
    else if (what->json)
        return read_json(what, in, first, count, out);
    else
        copy_bytes(in->map.data + what->offset + first, count, out);
    return LK_OK;
}

static uint32_t docs_file_count(const lk_dataset *dataset)
{
    return (uint32_t)((const docs *)dataset->state)->shards.count;
}

static uint32_t docs_file_of(const lk_dataset *dataset, uint64_t index)
{
    return ((const docs *)dataset->state)->documents[index].shard;
}

const lki_source lki_source_docs = {
    .name            = "docs",
    .open            = docs_open,
    .close           = docs_close,
    .document_tokens = docs_tokens,
    .read_document   = docs_read,
    .file_count      = docs_file_count,
    .file_of         = docs_file_of,
};
