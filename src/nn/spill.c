/* spill.c -- of what checkpointed segments keep, all but the last few values lie in a file.
 *
 * Value i lies in buffer i mod 3 while somebody reads it.  Forward writes it once its last reader
 * is done, and takes the buffer again three values later; the last three stay where they are.
 * Backward, which is done with value i, reads value i - 3 into its buffer, and needs it two
 * segments later.  What comes back is compared with its hash.
 *
 *      forward     make 0 - leave 0 (write) - ... make 3 (waits for that)
 *      backward    drop 3 (read 0) - need 2, drop 2 - need 1, drop 1 - need 0 (waits for that)
 *
 * A disk that fails has nobody to tell in the middle of a pass: that is kept (lk_engine_status()).
 * Nothing is started after it, and what had been is still waited for.
 *
 * Memory: three values of all contexts.
 */
#include "nn/engine.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"

static size_t padded(size_t each, uint32_t contexts)
{
    return lki_round_up(each * contexts, LKI_STORE_ALIGN);
}

static uint32_t written(uint32_t count)
{
    return count > LKI_SPILL_RING ? count - LKI_SPILL_RING : 0;
}

size_t lki_spill_bytes(uint32_t count, size_t each, uint32_t contexts, uint64_t *file)
{
    *file = (uint64_t)written(count) * padded(each, contexts);
    return count == 0 ? 0 : LKI_SPILL_RING * padded(each, contexts) + LKI_STORE_ALIGN;
}

lk_status lki_spill_init(lki_spill *a, const char *dir, uint32_t count, size_t each,
                         uint32_t contexts)
{
    uint64_t file;
    size_t   bytes = lki_spill_bytes(count, each, contexts, &file);

    *a = (lki_spill){ .dir = dir, .count = count, .each = each, .bytes = padded(each, contexts) };
    if (count == 0)
        return LK_OK;
    LK_TRY(lki_alloc(&a->memory, bytes, "activations; a smaller micro-batch needs less"));
    LK_TRY(LKI_NEW(&a->hashes, count, "activations in a file"));
    LK_TRY(LKI_NEW(&a->coming, count, "activations in a file"));
    unsigned char *first = a->memory;
    first += lki_round_up((uintptr_t)first, LKI_STORE_ALIGN) - (uintptr_t)first;
    for (uint32_t b = 0; b < LKI_SPILL_RING; b++)
        a->ring[b] = first + b * a->bytes;
    lk_status status = lki_store_open(&a->store, dir, file);
    lk_error  error  = *lk_error_last();
    if (status != LK_EIO)
        return status;
    return lk_fail(status, "activations: %.300s; make room there for every rank's, or choose "
                           "another directory", error.message);
}

void lki_spill_deinit(lki_spill *a)
{
    lki_store_free(a->store);
    lki_free(a->memory);
    lki_free(a->hashes);
    lki_free(a->coming);
    *a = (lki_spill){ 0 };
}

static unsigned char *buffer_of(const lki_spill *a, uint32_t i)
{
    return a->ring[i % LKI_SPILL_RING];
}

void *lki_spill_at(const lki_spill *a, uint32_t i, uint32_t context)
{
    return buffer_of(a, i) + context * a->each;
}

/* ---- On its way -------------------------------------------------------------------------- */

static bool has_failed(const lki_spill *a)
{
    return a->failure.status != LK_OK;
}

static void fail(lki_spill *a, lk_status status)
{
    lk_error error = *lk_error_last();
    if (lk_fail(status, "activations: %.300s; go on from the last checkpoint, with another "
                        "directory or all in memory", error.message) != LK_OK)
        a->failure = *lk_error_last();
}

static void wait_for(lki_spill *a, uint32_t i)
{
    double    asked  = lki_seconds();
    lk_status status = lki_store_wait(a->store, i % LKI_SPILL_RING);
    a->stalled += lki_seconds() - asked;
    if (status != LK_OK && !has_failed(a))
        fail(a, status);
}

static void start(lki_spill *a, uint32_t i, bool write)
{
    lki_store_start(a->store, i % LKI_SPILL_RING, write, buffer_of(a, i), a->bytes,
                    (uint64_t)i * a->bytes);
}

void lki_spill_make(lki_spill *a, uint32_t i)
{
    wait_for(a, i);
}

void lki_spill_leave(lki_spill *a, uint32_t i)
{
    if (has_failed(a) || i >= written(a->count))
        return;
    a->hashes[i] = lki_xxh3(buffer_of(a, i), a->bytes);
    start(a, i, true);
}

void lki_spill_need(lki_spill *a, uint32_t i)
{
    if (!a->coming[i])
        return;
    wait_for(a, i);
    a->coming[i] = false;
    if (has_failed(a) || lki_xxh3(buffer_of(a, i), a->bytes) == a->hashes[i])
        return;
    fail(a, lk_fail(LK_ECORRUPT, "what came back from the file in '%.200s' is not what was "
                                 "written: the disk is faulty, or something else wrote there",
                    a->dir));
}

void lki_spill_drop(lki_spill *a, uint32_t i)
{
    if (has_failed(a) || i < LKI_SPILL_RING)
        return;
    wait_for(a, i);
    a->coming[i - LKI_SPILL_RING] = true;
    start(a, i - LKI_SPILL_RING, false);
}

/* ---- What an engine tells of it ---------------------------------------------------------- */

lk_status lk_engine_status(const lk_engine *engine)
{
    return engine->spill.failure.status == LK_OK ? LK_OK : lki_fail_again(&engine->spill.failure);
}

double lk_engine_stalled(lk_engine *engine)
{
    double stalled        = engine->spill.stalled;
    engine->spill.stalled = 0;
    return stalled;
}

const char *lk_engine_offload_how(const lk_engine *engine)
{
    return engine->spill.store == NULL ? "" : lki_store_how(engine->spill.store);
}
