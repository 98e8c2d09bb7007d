/* documents.c -- makes samples of documents, each as long as its document.
 *
 * A document of n tokens has n + 1 targets: all its tokens, including the first, and then the
 * separator, a token that occurs in no document.
 *
 *     x   separator  t0  t1  ...  t(n-1)
 *     y          t0  t1  t2  ...  separator
 *
 * A sample has at most T of these targets.  A longer document is cut after every T targets.  Each
 * piece is a sample whose first x is the last target of the previous piece, so no target is lost.
 * The parts for training and validation are drawn from whole documents, so that no document is in
 * both.
 *
 * Memory: 8 bytes per sample.
 */
#include "base/memory.h"
#include "data/source.h"

/* Appends the pieces of document `d` to `to`, which has `count` pieces.  Returns the new number of
 * pieces.  If `to` is NULL, only counts the pieces. */
static uint64_t cut(const lk_dataset *dataset, uint64_t d, lki_piece *to, uint64_t count)
{
    uint64_t targets = dataset->source->document_tokens(dataset, d) + 1;
    uint64_t parts   = (targets + dataset->options.context - 1) / dataset->options.context;
    for (uint64_t i = 0; to != NULL && i < parts; i++)
        to[count + i] = (lki_piece){ (uint32_t)d, (uint32_t)i };
    return count + parts;
}

/* Marks the documents of the validation part, one byte per document. */
static void mark(const lk_dataset *dataset, uint8_t *held)
{
    for (uint64_t i = 0; i < dataset->info.validation_count; i++)
        held[lki_sample_place(dataset, true, i)] = 1;
}

static lk_status make_pieces(lk_dataset *dataset, const uint8_t *held)
{
    uint64_t count[2] = { 0, 0 };
    for (uint64_t d = 0; d < dataset->total; d++)
        count[held[d]] = cut(dataset, d, NULL, count[held[d]]);
    LK_TRY(LKI_NEW(&dataset->pieces, count[0] + count[1], "samples of documents"));
    uint64_t at[2] = { 0, count[0] };
    for (uint64_t d = 0; d < dataset->total; d++)
        at[held[d]] = cut(dataset, d, dataset->pieces, at[held[d]]);
    dataset->info.train_count      = count[0];
    dataset->info.validation_count = count[1];
    dataset->held_out              = count[1];
    return LK_OK;
}

lk_status lki_documents_cut(lk_dataset *dataset, const char *spec)
{
    uint8_t *held = NULL;
    if (dataset->total > UINT32_MAX)
        return lk_fail(LK_EUNSUPPORTED, "'%s' has %llu documents; up to %u are known", spec,
                       (unsigned long long)dataset->total, UINT32_MAX);
    dataset->info.documents = true;
    LK_TRY(LKI_NEW(&held, dataset->total, "documents held out"));
    mark(dataset, held);
    lk_status status = make_pieces(dataset, held);
    lki_free(held);
    return status;
}

static const lki_piece *piece_at(const lk_dataset *dataset, bool validation, uint64_t index)
{
    return &dataset->pieces[validation ? dataset->info.train_count + index : index];
}

uint32_t lk_dataset_length(const lk_dataset *dataset, bool validation, uint64_t index)
{
    uint32_t context = dataset->options.context;
    LK_ASSERT(index < (validation ? dataset->info.validation_count : dataset->info.train_count));
    if (!dataset->info.documents)
        return dataset->info.targets;
    const lki_piece *piece = piece_at(dataset, validation, index);
    uint64_t         left  = dataset->source->document_tokens(dataset, piece->document) + 1 -
                    (uint64_t)piece->part * context;
    return left < context ? (uint32_t)left : context;
}

/* Reads the first `length` ids and targets of a piece. `length` is at least the length of the
 * piece. */
static lk_status read_piece(const lk_dataset *dataset, bool validation, uint64_t index,
                            uint32_t length, int32_t *x, int32_t *y)
{
    const lki_source *source = dataset->source;
    const lki_piece  *piece  = piece_at(dataset, validation, index);
    uint64_t          tokens = source->document_tokens(dataset, piece->document);
    uint64_t          first  = (uint64_t)piece->part * dataset->options.context;
    uint32_t          count  = lk_dataset_length(dataset, validation, index);
    bool              ends   = first + count > tokens;

    LK_ASSERT(count <= length);
    x[0] = dataset->separator;
    if (first > 0)
        LK_TRY(source->read_document(dataset, piece->document, first - 1, 1, x));
    LK_TRY(source->read_document(dataset, piece->document, first, count - ends, y));
    if (ends)
        y[count - 1] = dataset->separator;
    for (uint32_t i = 1; i < count; i++)
        x[i] = y[i - 1];
    for (uint32_t i = count; i < length; i++) {
        x[i] = dataset->separator;
        y[i] = -1;
    }
    return LK_OK;
}

lk_status lki_documents_read(const lk_dataset *dataset, bool validation, const uint64_t *indices,
                             uint32_t count, uint32_t length, int32_t *x, int32_t *y)
{
    for (uint32_t i = 0; i < count; i++)
        LK_TRY(read_piece(dataset, validation, indices[i], length, x + (size_t)i * length,
                          y + (size_t)i * length));
    lki_ignore(dataset, (size_t)count * length, y);
    return LK_OK;
}
