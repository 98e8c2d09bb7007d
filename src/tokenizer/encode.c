/* encode.c -- encodes texts, in chunks that several threads take.
 *
 * A text is cut only where the pieces on both sides are encoded as they would be together: after a
 * line end and before a character that is no white space, no number if the rule is `digits`, begins
 * no added token, and is not touched by form C.  No word goes on there, because no rule of split.c
 * continues after a line end with anything but white space.  With `digits`, white space before a
 * number is one word, which a cut would divide.
 */
#include "base/memory.h"
#include "base/pool.h"
#include "tokenizer/tokenizer.h"

enum { CHUNK = 1 << 18, CHUNKS_PER_THREAD = 4 };

typedef struct {
    const uint8_t *text, *end;
    bool           followed; /* by a character that is no white space */
    lki_ids        ids;
    lk_status      status;
    lk_error       error;
} text_chunk;

struct lk_encoder {
    const lk_tokenizer *tokenizer;
    lki_pool           *pool;
    lki_scratch        *scratch; /* [threads] */
    text_chunk         *chunks;  /* [chunk_count] */
    uint32_t            threads, chunk_count;
};

lk_status lk_encoder_open(lk_encoder **out, const lk_tokenizer *tokenizer, uint32_t threads)
{
    lk_encoder *encoder = NULL;
    LK_ASSERT(out != NULL && tokenizer != NULL);
    *out = NULL;
    LK_TRY(LKI_NEW(&encoder, 1, "an encoder"));
    encoder->tokenizer   = tokenizer;
    encoder->threads     = threads > 0 ? threads : 1;
    encoder->chunk_count = encoder->threads > 1 ? encoder->threads * CHUNKS_PER_THREAD : 1;
    lk_status status     = LKI_NEW(&encoder->scratch, encoder->threads, "memory of threads");
    if (status == LK_OK)
        status = LKI_NEW(&encoder->chunks, encoder->chunk_count, "chunks of text");
    for (uint32_t i = 0; status == LK_OK && i < encoder->threads; i++)
        status = lki_scratch_open(&encoder->scratch[i]);
    if (status == LK_OK)
        status = lki_pool_open(&encoder->pool, encoder->threads);
    if (status != LK_OK) {
        lk_encoder_free(encoder);
        return status;
    }
    *out = encoder;
    return LK_OK;
}

void lk_encoder_free(lk_encoder *encoder)
{
    if (encoder == NULL)
        return;
    lki_pool_free(encoder->pool);
    for (uint32_t i = 0; encoder->scratch != NULL && i < encoder->threads; i++)
        lki_scratch_close(&encoder->scratch[i]);
    for (uint32_t i = 0; encoder->chunks != NULL && i < encoder->chunk_count; i++)
        lki_free(encoder->chunks[i].ids.ids);
    lki_free(encoder->scratch);
    lki_free(encoder->chunks);
    lki_free(encoder);
}

/* ---- A chunk ------------------------------------------------------------------------------- */

typedef struct {
    const lk_tokenizer *tokenizer;
    lki_scratch        *scratch;
    lki_ids            *out;
} chunk_work;

typedef lk_status (*encode_part)(const chunk_work *work, const uint8_t *text, const uint8_t *end,
                                 bool followed);

/* Returns the number of bytes that have no token. */
static uint64_t count_left_out(const lk_tokenizer *tokenizer, const uint8_t *text,
                               const uint8_t *end)
{
    uint64_t count = 0;
    if (tokenizer->info.missing > 0)
        for (; text < end; text++)
            count += tokenizer->byte_ids[*text] < 0;
    return count;
}

/* Encodes a text in which no added token is looked for. */
static lk_status encode_words(const chunk_work *work, const uint8_t *text, const uint8_t *end,
                              bool followed)
{
    const lk_tokenizer *t = work->tokenizer;
    work->scratch->left_out += count_left_out(t, text, end);
    while (text < end) {
        const uint8_t *next = t->split(t->unicode.classes, text, end, followed);
        LK_TRY(lki_word_encode(t, work->scratch, text, (size_t)(next - text), work->out));
        text = next;
    }
    return LK_OK;
}

/* Encodes a text: the added tokens of a set become their ids, and `encode` does what is between
 * them. */
static lk_status encode_around(const chunk_work *work, const lki_added_set *set, encode_part encode,
                               const uint8_t *text, const uint8_t *end, bool followed)
{
    const uint8_t   *at    = end;
    const lki_added *found = NULL;
    while ((found = lki_added_find(set, text, end, &at)) != NULL) {
        if (at > text)
            LK_TRY(encode(work, text, at, false));
        LK_TRY(lki_ids_room(work->out, 1));
        work->out->ids[work->out->count++] = found->id;
        text                               = at + found->text.count;
    }
    return text < end ? encode(work, text, end, followed) : LK_OK;
}

static lk_status encode_segment(const chunk_work *work, const uint8_t *text, const uint8_t *end,
                                bool followed)
{
    const lk_tokenizer *t = work->tokenizer;
    if (t->info.nfc && lki_unstable(&t->unicode, text, end) < end) {
        lki_normalized *normalized = &work->scratch->normalized;
        LK_TRY(lki_normalize(&t->unicode, normalized, text, end));
        text = normalized->bytes;
        end  = text + normalized->count;
    }
    return encode_around(work, &t->normal, encode_words, text, end, followed);
}

static void encode_chunk(void *context, size_t index, uint32_t thread)
{
    lk_encoder *encoder = context;
    text_chunk *chunk   = &encoder->chunks[index];
    chunk_work  work    = { encoder->tokenizer, &encoder->scratch[thread], &chunk->ids };
    chunk->ids.count    = 0;
    chunk->status = encode_around(&work, &work.tokenizer->raw, encode_segment, chunk->text,
                                  chunk->end, chunk->followed);
    if (chunk->status != LK_OK)
        chunk->error = *lk_error_last();
}

/* ---- Texts --------------------------------------------------------------------------------- */

/* Returns true if a text may be cut before `at`, which is after its beginning and before its
 * end. */
static bool may_cut(const lk_tokenizer *tokenizer, const uint8_t *at, const uint8_t *end)
{
    uint32_t      first, second;
    const uint8_t *classes = tokenizer->unicode.classes;
    const bool     digits  = tokenizer->split == lki_splitters[LKI_SPLIT_DIGITS];
    if (at[-1] != '\n' || tokenizer->raw.begins[*at] || tokenizer->normal.begins[*at])
        return false;
    size_t  length = lki_character(at, end, &first);
    uint8_t class  = length > 0 ? classes[first] & (LKI_UNSTABLE - 1) : LKI_OTHER;
    if (length == 0 || class == LKI_SPACE || (digits && class == LKI_NUMBER))
        return false;
    if (!tokenizer->info.nfc)
        return true;
    if (classes[first] >= LKI_UNSTABLE)
        return false;
    at += length;
    return at == end || (lki_character(at, end, &second) > 0 && classes[second] < LKI_UNSTABLE);
}

/* Returns the first place at or after `at` where a text may be cut; its end if there is none. */
static const uint8_t *find_cut(const lk_tokenizer *tokenizer, const uint8_t *at, const uint8_t *end)
{
    while (at < end && !may_cut(tokenizer, at, end))
        at++;
    return at;
}

lk_status lki_encoder_run(lk_encoder *encoder, const void *text, size_t bytes, size_t chunk_bytes,
                          lk_encoder_emit emit, void *context)
{
    const uint8_t *at = text, *end = at + bytes;
    while (at < end) {
        uint32_t count = 0;
        for (; count < encoder->chunk_count && at < end; count++) {
            text_chunk *chunk    = &encoder->chunks[count];
            chunk->text     = at;
            at              = (size_t)(end - at) > chunk_bytes
                                  ? find_cut(encoder->tokenizer, at + chunk_bytes, end)
                                  : end;
            chunk->end      = at;
            chunk->followed = at < end;
        }
        lki_pool_run(encoder->pool, count, encode_chunk, encoder);
        for (uint32_t i = 0; i < count; i++) {
            text_chunk *chunk = &encoder->chunks[i];
            if (chunk->status != LK_OK)
                return lki_fail_again(&chunk->error);
            LK_TRY(emit(context, chunk->ids.ids, chunk->ids.count));
        }
    }
    return LK_OK;
}

lk_status lk_encoder_encode(lk_encoder *encoder, const void *text, size_t bytes,
                            lk_encoder_emit emit, void *context)
{
    LK_ASSERT(encoder != NULL && emit != NULL);
    LK_TRY(lki_check_given("lk_encoder_encode", "text", text, bytes));
    return lki_encoder_run(encoder, text, bytes, CHUNK, emit, context);
}

uint64_t lk_encoder_left_out(const lk_encoder *encoder)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < encoder->threads; i++)
        count += encoder->scratch[i].left_out;
    return count;
}
