/* spans.c -- pulls and pushes, span by span.
 *
 * Cost: a pull loads the word of a span twice.  A push needs one atomic operation for each span,
 * besides a load and a store of each element.
 */
#include <sched.h>
#include <string.h>

#include "base/hash.h"
#include "base/hint.h"
#include "parallel/shared/log.h"

enum {
    SPINS     = 64,  /* tries before a rank yields */
    YIELDS    = 64,  /* tries before it sleeps */
    NAP_MS    = 1,
    READS     = 64,  /* copies of a span that other ranks change, before a reader takes the span */
    READS_PER_CALL = 256
};

/* ---- Elements ---------------------------------------------------------------------------- */

static inline float load(const float *element)
{
    uint32_t bits;
    float    value;
    bits = __atomic_load_n((const uint32_t *)(const void *)element, __ATOMIC_ACQUIRE);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void add(float *element, float change)
{
    uint32_t bits;
    float    value = load(element) + change;
    memcpy(&bits, &value, sizeof bits);
    __atomic_store_n((uint32_t *)(void *)element, bits, __ATOMIC_RELEASE);
}

/* Two neighbours, which are aligned to 8 bytes. */
static void load_pair(const float *elements, float out[2])
{
    uint64_t bits = __atomic_load_n((const uint64_t *)(const void *)elements, __ATOMIC_ACQUIRE);
    memcpy(out, &bits, sizeof bits);
}

static void add_pair(float *elements, const float *values, float scale)
{
    uint64_t bits;
    float    pair[2];
    load_pair(elements, pair);
    pair[0] += scale * values[0];
    pair[1] += scale * values[1];
    memcpy(&bits, pair, sizeof bits);
    __atomic_store_n((uint64_t *)(void *)elements, bits, __ATOMIC_RELEASE);
}

void lki_span_part_copy(const lk_shared_vector *v, const lki_span_part *piece, const float *from,
                        float *out)
{
    const size_t base = piece->span << v->shift;
    if (piece->indices != NULL) {
        for (size_t i = 0; i < piece->count; i++)
            out[i] = load(from + (piece->indices[i] - base));
        return;
    }
    const float *at = from + (piece->first - base);
    size_t       i  = 0;
    if (piece->count > 0 && piece->first % 2 != 0)
        out[i++] = load(at);
    for (; i + 2 <= piece->count; i += 2)
        load_pair(at + i, out + i);
    if (i < piece->count)
        out[i] = load(at + i);
}

void lki_span_part_add(lk_shared_vector *v, const lki_span_part *piece, const float *values,
                       float scale)
{
    if (piece->indices != NULL) {
        for (size_t i = 0; i < piece->count; i++)
            add(v->data + piece->indices[i], scale * values[i]);
        return;
    }
    float *at = v->data + piece->first;
    size_t i  = 0;
    if (piece->count > 0 && piece->first % 2 != 0) {
        add(at, scale * values[0]);
        i = 1;
    }
    for (; i + 2 <= piece->count; i += 2)
        add_pair(at + i, values + i, scale);
    if (i < piece->count)
        add(at + i, scale * values[i]);
}

bool lki_span_part_next(const lk_shared_vector *v, lki_span_part *left, lki_span_part *out)
{
    if (left->count == 0)
        return false;
    *out = *left;
    if (left->indices != NULL) {
        const uint32_t *indices = left->indices;
        const size_t    span    = indices[0] >> v->shift;
        size_t          count   = 1;
        while (count < left->count && indices[count] >> v->shift == span)
            count++;
        out->span     = span;
        out->count    = count;
        left->indices = indices + count;
    } else {
        out->span    = left->first >> v->shift;
        out->count   = lki_min(left->count, ((out->span + 1) << v->shift) - left->first);
        left->first += out->count;
    }
    left->count -= out->count;
    return true;
}

/* ---- Taking a span ----------------------------------------------------------------------- */

static lk_status fail_held(lk_shared_vector *v, size_t span, uint32_t holder)
{
    const uint32_t rank = lk_comm_world_rank(v->comm, holder - 1);
    return lki_fail_group(v->comm, rank, LK_ETIMEOUT,
                          "rank %u has held span %zu of a shared vector for longer than the "
                          "timeout of %u ms; is it stopped?", rank, span,
                          lki_comm_timeout_ms(v->comm));
}

/* Sleeps while a rank holds a span.  The holder does not wake anybody, so naps are short. */
static lk_status wait_for_holder(lk_shared_vector *v, size_t span)
{
    const int64_t  since  = lki_now_ms();
    const uint64_t before = atomic_load(&v->words[span]);
    const uint32_t seen   = atomic_load(&v->common->changes);
    while (lki_holder(before) != 0 && atomic_load(&v->words[span]) == before) {
        LK_TRY(lki_comm_await_word(v->comm, &v->common->changes, seen, NAP_MS));
        if (lki_now_ms() - since > lki_comm_timeout_ms(v->comm))
            return fail_held(v, span, lki_holder(before));
    }
    return LK_OK;
}

static inline bool try_to_take(lk_shared_vector *v, size_t span, uint64_t *version)
{
    uint64_t word = atomic_load_explicit(&v->words[span], memory_order_relaxed);
    *version      = lki_version(word);
    return lki_holder(word) == 0 &&
           atomic_compare_exchange_weak(&v->words[span], &word, word + v->rank + 1);
}

lk_status lki_span_take(lk_shared_vector *v, size_t span, uint64_t *version)
{
    for (uint32_t tries = 0;; tries++) {
        if (try_to_take(v, span, version))
            return LK_OK;
        if (tries < SPINS)
            lki_relax();
        else if (tries < SPINS + YIELDS)
            (void)sched_yield();
        else
            LK_TRY(wait_for_holder(v, span));
    }
}

void lki_span_put(lk_shared_vector *v, size_t span, uint64_t version)
{
    atomic_store_explicit(&v->words[span], version << LKI_HOLDER_BITS, memory_order_release);
}

/* ---- Pulls ------------------------------------------------------------------------------- */

/* Copies a piece.  Returns false if another rank has changed the span meanwhile. */
static bool try_to_read(lk_shared_vector *v, const lki_span_part *piece, float *out,
                        uint64_t *version)
{
    const uint64_t word = atomic_load_explicit(&v->words[piece->span], memory_order_acquire);
    if (lki_holder(word) != 0)
        return false;
    lki_span_part_copy(v, piece, v->data + (piece->span << v->shift), out);
    *version = lki_version(word);
    return atomic_load_explicit(&v->words[piece->span], memory_order_relaxed) == word;
}

static lk_status read_piece(lk_shared_vector *v, const lki_span_part *piece, float *out)
{
    uint64_t version;
    int      tries = 0;
    while (!try_to_read(v, piece, out, &version)) {
        if (++tries < READS) {
            lki_relax();
            continue;
        }
        LK_TRY(lki_span_take(v, piece->span, &version));
        lki_span_part_copy(v, piece, v->data + (piece->span << v->shift), out);
        lki_span_put(v, piece->span, version);
        break;
    }
    return v->log.fd < 0 ? LK_OK : lki_span_versions_add(&v->reads, piece->span, version);
}

/* Pulls elements at indices.  A copy of few instructions for each element, because sparse rows
 * spend most of their time here.  The elements and words are fetched to the cache first, many at a
 * time. */
static lk_status pull_indices(lk_shared_vector *v, const uint32_t *indices, size_t count,
                              float *out)
{
    const uint32_t shift = v->shift;
    for (size_t i = 0; i < count; i++) {
        __builtin_prefetch(&v->data[indices[i]]);
        __builtin_prefetch(v->words + (indices[i] >> shift));
    }
    for (size_t i = 0, end; i < count; i = end) {
        const size_t   span = indices[i] >> shift;
        const uint64_t word = atomic_load_explicit(&v->words[span], memory_order_acquire);
        for (end = i; end < count && indices[end] >> shift == span; end++)
            out[end] = load(&v->data[indices[end]]);
        if (lki_holder(word) != 0 ||
            atomic_load_explicit(&v->words[span], memory_order_relaxed) != word) {
            const lki_span_part piece = { span, 0, end - i, indices + i };
            LK_TRY(read_piece(v, &piece, out + i));
        } else if (v->log.fd >= 0)
            LK_TRY(lki_span_versions_add(&v->reads, span, lki_version(word)));
    }
    return LK_OK;
}

static lk_status pull(lk_shared_vector *v, lki_span_part left, float *out)
{
    lki_span_part piece;
    if (v->pushes)
        return lk_fail(LK_EINVAL, "task %llu pulls after it has pushed; pull all elements of a "
                                  "task first", (unsigned long long)v->task);
    if (v->replay != NULL)
        return lki_shared_replay_pull(v, left, out);
    if (left.indices != NULL)
        return pull_indices(v, left.indices, left.count, out);
    while (lki_span_part_next(v, &left, &piece)) {
        LK_TRY(read_piece(v, &piece, out));
        out += piece.count;
    }
    return LK_OK;
}

/* ---- Pushes ------------------------------------------------------------------------------ */

lk_status lki_task_take_ticket(lk_shared_vector *v)
{
    v->pushes = true;
    if (v->log.fd < 0)
        return LK_OK;
    v->ticket = atomic_fetch_add(&v->common->tickets, 1);
    LK_TRY(lki_log_reserve(v, 1));
    lki_log_append(&v->log, LKI_LOG_TASK, v->task, v->ticket);
    for (size_t i = 0; i < v->reads.count; i += READS_PER_CALL) {
        const size_t count = lki_min(v->reads.count - i, READS_PER_CALL);
        LK_TRY(lki_log_reserve(v, count));
        lki_log_append_reads(&v->log, v->reads.at + i, count);
    }
    return LK_OK;
}

uint64_t lki_push_hash(const lk_shared_vector *v, const lki_span_part *all, const float *values,
                       float scale, const lki_span_version *writes, size_t count)
{
    uint64_t words[8] = { v->task, v->ticket, all->first, all->count };
    memcpy(&words[4], &scale, sizeof scale);
    words[5] = lki_xxh3(values, all->count * sizeof *values);
    words[6] = lki_xxh3(v->reads.at, v->reads.count * sizeof *v->reads.at);
    words[7] = lki_xxh3(writes, count * sizeof *writes);
    if (all->indices != NULL)
        words[2] = lki_xxh3(all->indices, all->count * sizeof *all->indices);
    return lki_xxh3(words, sizeof words);
}

static lk_status write_piece(lk_shared_vector *v, const lki_span_part *piece, const float *values,
                             float scale)
{
    const bool records = v->log.fd >= 0;
    uint64_t   version;
    if (records)
        LK_TRY(lki_log_reserve(v, 1));
    LK_TRY(lki_span_take(v, piece->span, &version));
    if (records)
        lki_log_append(&v->log, LKI_LOG_WRITE, piece->span, version);
    lki_span_part_add(v, piece, values, scale);
    lki_span_put(v, piece->span, version + 1);
    return records ? lki_span_versions_add(&v->writes, piece->span, version) : LK_OK;
}

/* Taking a span waits for its line, so the lines are fetched first, many at a time. */
static lk_status push_indices(lk_shared_vector *v, const uint32_t *indices, size_t count,
                              const float *values, float scale)
{
    const uint32_t shift   = v->shift;
    const bool     records = v->log.fd >= 0;
    uint64_t       version;
    for (size_t i = 0; i < count; i++) {
        lki_prefetch_to_write(v->words + (indices[i] >> shift));
        lki_prefetch_to_write(&v->data[indices[i]]);
    }
    for (size_t i = 0, end; i < count; i = end) {
        const size_t span = indices[i] >> shift;
        if (records)
            LK_TRY(lki_log_reserve(v, 1));
        if (!try_to_take(v, span, &version))
            LK_TRY(lki_span_take(v, span, &version));
        if (records)
            lki_log_append(&v->log, LKI_LOG_WRITE, span, version);
        for (end = i; end < count && indices[end] >> shift == span; end++)
            add(&v->data[indices[end]], scale * values[end]);
        lki_span_put(v, span, version + 1);
        if (records)
            LK_TRY(lki_span_versions_add(&v->writes, span, version));
    }
    return LK_OK;
}

static lk_status push_range(lk_shared_vector *v, lki_span_part left, const float *values,
                            float scale)
{
    lki_span_part piece;
    while (lki_span_part_next(v, &left, &piece)) {
        LK_TRY(write_piece(v, &piece, values, scale));
        values += piece.count;
    }
    return LK_OK;
}

static lk_status push(lk_shared_vector *v, lki_span_part all, const float *values, float scale)
{
    if (v->replay != NULL)
        return lki_shared_replay_push(v, all, values, scale);
    if (!v->pushes)
        LK_TRY(lki_task_take_ticket(v));
    v->writes.count = 0;
    LK_TRY(all.indices != NULL ? push_indices(v, all.indices, all.count, values, scale)
                               : push_range(v, all, values, scale));
    if (v->log.fd < 0)
        return LK_OK;
    LK_TRY(lki_log_reserve(v, 1));
    lki_log_append(&v->log, LKI_LOG_HASH, 0,
                   lki_push_hash(v, &all, values, scale, v->writes.at, v->writes.count));
    return LK_OK;
}

/* ---- Arguments --------------------------------------------------------------------------- */

static lk_status check_task(const lk_shared_vector *v, const char *what)
{
    return v->in_task ? LK_OK : lk_fail(LK_EINVAL, "%s without a task: call "
                                                   "lk_shared_vector_next() first", what);
}

static lk_status check_range(const lk_shared_vector *v, size_t first, size_t count,
                             const char *what)
{
    LK_TRY(check_task(v, what));
    if (first <= v->count && count <= v->count - first)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s of elements %zu to %zu of a shared vector of %zu", what, first,
                   first + count, v->count);
}

static lk_status check_indices(const lk_shared_vector *v, const uint32_t *indices, size_t count,
                               const char *what)
{
    bool ascend = true;
    LK_TRY(check_task(v, what));
    for (size_t i = 1; i < count; i++)
        ascend &= indices[i - 1] < indices[i];
    if (!ascend)
        return lk_fail(LK_EINVAL, "%s at indices that do not ascend; sort them, and add up values "
                                  "of the same index", what);
    if (count > 0 && indices[count - 1] >= v->count)
        return lk_fail(LK_EINVAL, "%s of element %u of a shared vector of %zu", what,
                       indices[count - 1], v->count);
    return LK_OK;
}

lk_status lk_shared_vector_pull(lk_shared_vector *v, size_t first, size_t count, float *out)
{
    LK_TRY(check_range(v, first, count, "pull"));
    return pull(v, (lki_span_part){ .first = first, .count = count }, out);
}

lk_status lk_shared_vector_pull_at(lk_shared_vector *v, const uint32_t *indices, size_t count,
                                   float *out)
{
    LK_TRY(check_indices(v, indices, count, "pull"));
    return pull(v, (lki_span_part){ .indices = indices, .count = count }, out);
}

lk_status lk_shared_vector_push(lk_shared_vector *v, size_t first, size_t count,
                                const float *values, float scale)
{
    LK_TRY(check_range(v, first, count, "push"));
    return push(v, (lki_span_part){ .first = first, .count = count }, values, scale);
}

lk_status lk_shared_vector_push_at(lk_shared_vector *v, const uint32_t *indices, size_t count,
                                   const float *values, float scale)
{
    LK_TRY(check_indices(v, indices, count, "push"));
    return push(v, (lki_span_part){ .indices = indices, .count = count }, values, scale);
}
