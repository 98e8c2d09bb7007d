/* spill.c -- stores the values of checkpointed segments, except the last three, in a file.
 *
 * Value i is in buffer i mod 3 while a block reads it.  After its last reader, forward writes value
 * i to the file, and reuses the buffer for value i + 3.  The last three values stay in their
 * buffers.  When backward has finished with value i, it starts to read value i - 3 into the same
 * buffer, and needs it two segments later.  A value read from the file is compared with its hash.
 *
 *      forward     make 0 - leave 0 (write) - ... make 3 (waits for the write)
 *      backward    drop 3 (read 0) - need 2, drop 2 - need 1, drop 1 - need 0 (waits for the read)
 *
 * A disk failure cannot be returned within a pass, so it is stored for lk_engine_status().  After a
 * failure no transfer is started, and transfers in progress are still awaited.
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

lk_status lki_spill_init(lki_spill *self, const char *dir, uint32_t count, size_t each,
                         uint32_t contexts)
{
    uint64_t file;
    size_t   bytes = lki_spill_bytes(count, each, contexts, &file);

    *self = (lki_spill){ .dir = dir, .count = count, .each = each };
    self->bytes = padded(each, contexts);
    if (count == 0)
        return LK_OK;
    LK_TRY(lki_alloc(&self->memory, bytes, "activations; a smaller micro-batch needs less"));
    LK_TRY(LKI_NEW(&self->hashes, count, "activations in a file"));
    LK_TRY(LKI_NEW(&self->coming, count, "activations in a file"));
    unsigned char *first = self->memory;
    first += lki_round_up((uintptr_t)first, LKI_STORE_ALIGN) - (uintptr_t)first;
    for (uint32_t b = 0; b < LKI_SPILL_RING; b++)
        self->ring[b] = first + b * self->bytes;
    lk_status status = lki_store_open(&self->store, dir, file);
    lk_error  error  = *lk_error_last();
    if (status != LK_EIO)
        return status;
    return lk_fail(status, "activations: %.300s; make room there for every rank's, or choose "
                           "another directory", error.message);
}

void lki_spill_deinit(lki_spill *self)
{
    lki_store_free(self->store);
    lki_free(self->memory);
    lki_free(self->hashes);
    lki_free(self->coming);
    *self = (lki_spill){ 0 };
}

static unsigned char *buffer_of(const lki_spill *self, uint32_t i)
{
    return self->ring[i % LKI_SPILL_RING];
}

void *lki_spill_at(const lki_spill *self, uint32_t i, uint32_t context)
{
    return buffer_of(self, i) + context * self->each;
}

/* ---- Transfers --------------------------------------------------------------------------- */

static bool has_failed(const lki_spill *self)
{
    return self->failure.status != LK_OK;
}

static void fail(lki_spill *self, lk_status status)
{
    lk_error error = *lk_error_last();
    if (lk_fail(status, "activations: %.300s; continue from the last checkpoint, with another "
                        "directory or all in memory", error.message) != LK_OK)
        self->failure = *lk_error_last();
}

static void wait_for(lki_spill *self, uint32_t i)
{
    double    asked  = lki_seconds();
    lk_status status = lki_store_wait(self->store, i % LKI_SPILL_RING);
    self->stalled += lki_seconds() - asked;
    if (status != LK_OK && !has_failed(self))
        fail(self, status);
}

static void start(lki_spill *self, uint32_t i, bool write)
{
    lki_store_start(self->store, i % LKI_SPILL_RING, write, buffer_of(self, i), self->bytes,
                    (uint64_t)i * self->bytes);
}

void lki_spill_make(lki_spill *self, uint32_t i)
{
    wait_for(self, i);
}

void lki_spill_leave(lki_spill *self, uint32_t i)
{
    if (has_failed(self) || i >= written(self->count))
        return;
    self->hashes[i] = lki_xxh3(buffer_of(self, i), self->bytes);
    start(self, i, true);
}

void lki_spill_need(lki_spill *self, uint32_t i)
{
    if (!self->coming[i])
        return;
    wait_for(self, i);
    self->coming[i] = false;
    if (has_failed(self) || lki_xxh3(buffer_of(self, i), self->bytes) == self->hashes[i])
        return;
    fail(self, lk_fail(LK_ECORRUPT, "what came back from the file in '%.200s' is not what was "
                                 "written: the disk is faulty, or something else wrote there",
                    self->dir));
}

void lki_spill_drop(lki_spill *self, uint32_t i)
{
    if (has_failed(self) || i < LKI_SPILL_RING)
        return;
    wait_for(self, i);
    self->coming[i - LKI_SPILL_RING] = true;
    start(self, i - LKI_SPILL_RING, false);
}

/* ---- Queries to an engine ---------------------------------------------------------------- */

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
