/* comm/group/slot.h -- the steps of an operation: get a number, publish, wait for all ranks, close.
 *
 * Everything is inline, because a small call consists of these steps only.  Separate functions
 * would pass structures through memory.  This would take as long as the transfer of a cache line
 * between two ranks.
 */
#ifndef LKI_COMM_GROUP_SLOT_H
#define LKI_COMM_GROUP_SLOT_H

#include "base/hint.h"
#include "comm/flight.h"
#include "comm/group/group.h"

static inline size_t lki_op_index(const lki_op *op)
{
    return op->slot;
}

/* Waits until the slot of the next operation is free. */
LK_NODISCARD lk_status lki_op_make_room(lk_comm *comm);

/* Gets the next sequence number.  Waits until there is room in the ring. */
LK_NODISCARD static inline lk_status lki_op_open(lki_op *op, lk_comm *comm, lki_print print)
{
    const uint64_t seq = comm->seq;

    *op = (lki_op){ .seq = seq, .print = print, .slot = (uint32_t)seq & (comm->ring - 1) };
    if (lki_failed(comm))
        return lki_group_failure(comm);
    if (seq >= comm->room + comm->ring)
        LK_TRY(lki_op_make_room(comm));
    LK_ASSERT(comm->seq == seq); /* the wait may have advanced requests, but none of them opens an
                                  * operation in this group */
    comm->seq++;
    lki_slot *slot = &comm->seat->slots[lki_op_index(op)];
    atomic_store_explicit(&slot->what, print.what, memory_order_relaxed);
    atomic_store_explicit(&slot->count, print.count, memory_order_relaxed);
    atomic_store_explicit(&slot->hash, print.hash, memory_order_relaxed);
    return LK_OK;
}

/* Returns the address at which `rank` publishes `bytes` bytes of an operation's data; `bytes` <=
 * LKI_BODY_BYTES. */
static inline void *lki_op_payload(const lk_comm *comm, const lki_op *op, uint32_t rank,
                                   size_t bytes)
{
    lki_seat *seat  = lki_seat_of(comm, rank);
    size_t    index = lki_op_index(op);
    LK_ASSERT(bytes <= LKI_BODY_BYTES);
    return bytes <= LKI_WORD_BYTES ? seat->slots[index].word : seat->bodies[index].bytes;
}

/* Records the operation in this rank's record, for error messages, and in the flight recorder. */
static inline void lki_op_note(lk_comm *comm, lki_op *op)
{
    lki_rank *me = comm->me;
    atomic_store_explicit(&me->what, op->print.what, memory_order_relaxed);
    atomic_store_explicit(&me->count, op->print.count, memory_order_relaxed);
    atomic_store_explicit(&me->group, comm->group, memory_order_relaxed);
    atomic_store_explicit(&me->started, op->seq + 1, memory_order_relaxed);
    if (comm->self->flight != NULL)
        op->flight = lki_flight_begin(comm, op->print, op->seq);
}

/* Publishes the fingerprint and the data in the slot and the body. */
static inline void lki_op_show(lk_comm *comm, const lki_op *op)
{
    lki_slot *slot = &comm->seat->slots[lki_op_index(op)];
    atomic_store_explicit(&slot->seq, op->seq + 1, memory_order_release);
    comm->unrung = true;
}

static inline void lki_op_publish(lk_comm *comm, lki_op *op)
{
    lki_op_note(comm, op);
    lki_op_show(comm, op);
}

/* Returns the goal "all ranks have published". */
static inline lki_goal lki_op_goal(const lk_comm *comm, const lki_op *op)
{
    size_t offset = offsetof(lki_seat, slots) + lki_op_index(op) * sizeof(lki_slot);
    return lki_goal_all(comm, offset + offsetof(lki_slot, seq), op->seq + 1);
}

/* Returns the first rank whose fingerprint differs from this rank's, or the number of ranks if all
 * fingerprints are equal.  All ranks must have published. */
static inline uint32_t lki_op_dissenter(const lk_comm *comm, const lki_op *op)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        const lki_slot *slot = &lki_seat_of(comm, rank)->slots[lki_op_index(op)];
        if (atomic_load_explicit(&slot->what, memory_order_relaxed) != op->print.what
            || atomic_load_explicit(&slot->count, memory_order_relaxed) != op->print.count
            || atomic_load_explicit(&slot->hash, memory_order_relaxed) != op->print.hash)
            return rank;
    }
    return comm->size;
}

/* Compares the fingerprints of all ranks.  Returns LK_EMISMATCH if any differs.  All ranks must
 * have published. */
LK_NODISCARD static inline lk_status lki_op_compare(lk_comm *comm, const lki_op *op)
{
    uint32_t dissenter = lki_op_dissenter(comm, op);

    if (dissenter < comm->size)
        return lki_fail_mismatch(comm, op, dissenter);
    if (op->flight != 0)
        lki_flight_met(comm->self->flight, op->flight);
    return LK_OK;
}

/* Waits until all ranks have published, and compares fingerprints.  Must not be used for an
 * operation that lki_progress() may close during the wait, because other ranks could then reuse
 * their slots. */
LK_NODISCARD static inline lk_status lki_op_meet(lk_comm *comm, const lki_op *op)
{
    LK_TRY(lki_await(comm, lki_op_goal(comm, op)));
    return lki_op_compare(comm, op);
}

/* ---- Payload ----------------------------------------------------------------------------- */

/* Returns the number of cells that a payload of `bytes` bytes needs.  The first bytes of a payload
 * are in the slot. */
static inline size_t lki_cells(size_t bytes)
{
    return bytes <= LKI_WORD_BYTES ? 0 : (bytes - LKI_WORD_BYTES - 1) / LKI_CELL_BYTES + 1;
}

/* Returns the goal "all ranks have written cell `i`".  All cells before `i` are then also
 * written. */
static inline lki_goal lki_op_cell_goal(const lk_comm *comm, const lki_op *op, size_t i)
{
    size_t cell = lki_op_index(op) * LKI_CELLS + i;
    return lki_goal_all(comm, offsetof(lki_seat, cells) + cell * sizeof(lki_cell)
                                  + offsetof(lki_cell, seq), op->seq + 1);
}

/* Writes the first bytes of the payload, before the slot is published. */
static inline void lki_op_write_word(const lk_comm *comm, const lki_op *op, const void *data,
                                     size_t bytes)
{
    unsigned char *word = comm->seat->slots[lki_op_index(op)].word;

    if (bytes >= LKI_WORD_BYTES)
        memcpy(word, data, LKI_WORD_BYTES);
    else if (bytes > 0)
        memcpy(word, data, bytes);
}

static inline void lki_cell_write(lki_cell *cell, const lki_op *op, const void *data, size_t bytes)
{
    memcpy(cell->bytes, data, bytes);
    atomic_store_explicit(&cell->seq, op->seq + 1, memory_order_release);
}

/* Writes the bytes of the payload that do not fit in the slot.  The slot may already be published.
 * `total` is the largest payload of all ranks.  The flag of the last cell means that all cells are
 * written, so it is set even if this rank has fewer `bytes`. */
static inline void lki_op_write_cells(const lk_comm *comm, const lki_op *op, const void *data,
                                      size_t bytes, size_t total)
{
    lki_cell            *cell = comm->seat->cells[lki_op_index(op)], *end = cell + lki_cells(total);
    size_t               rest = bytes > LKI_WORD_BYTES ? bytes - LKI_WORD_BYTES : 0;
    const unsigned char *from = rest > 0 ? (const unsigned char *)data + LKI_WORD_BYTES : NULL;

    LK_ASSERT(bytes <= total && total <= LKI_PAYLOAD_BYTES);
    for (; rest >= LKI_CELL_BYTES; rest -= LKI_CELL_BYTES, from += LKI_CELL_BYTES)
        lki_cell_write(cell++, op, from, LKI_CELL_BYTES);
    if (rest > 0)
        lki_cell_write(cell++, op, from, rest);
    if (cell < end)
        atomic_store_explicit(&end[-1].seq, op->seq + 1, memory_order_release);
}

/* Waits until `rank` has written cell `i`. */
LK_NODISCARD static inline lk_status lki_op_await_cell(lk_comm *comm, const lki_op *op,
                                                       uint32_t rank, size_t i)
{
    const lki_cell *cell = &lki_seat_of(comm, rank)->cells[lki_op_index(op)][i];
    if (__builtin_expect(atomic_load_explicit(&cell->seq, memory_order_acquire) > op->seq, 1))
        return LK_OK;
    lki_goal goal = lki_op_cell_goal(comm, op, i);
    goal.first    = (uint16_t)rank;
    goal.end      = (uint16_t)(rank + 1);
    return lki_await(comm, goal);
}

/* Copies bytes [at, at + bytes) of the data in the cells from `cell` on to `out`. */
static inline void lki_cells_copy(const lki_cell *cell, size_t at, size_t bytes, unsigned char *out)
{
    size_t in = at % LKI_CELL_BYTES;

    cell += at / LKI_CELL_BYTES;
    if (in > 0) {
        size_t n = bytes < LKI_CELL_BYTES - in ? bytes : LKI_CELL_BYTES - in;
        memcpy(out, cell++->bytes + in, n);
        out   += n;
        bytes -= n;
    }
    for (; bytes >= LKI_CELL_BYTES; bytes -= LKI_CELL_BYTES, out += LKI_CELL_BYTES)
        memcpy(out, cell++->bytes, LKI_CELL_BYTES);
    if (bytes > 0)
        memcpy(out, cell->bytes, bytes);
}

/* Copies bytes [first, first + bytes) of a rank's payload. */
LK_NODISCARD static inline lk_status lki_op_read(lk_comm *comm, const lki_op *op, uint32_t rank,
                                                 size_t first, size_t bytes, void *to)
{
    const lki_seat *seat  = lki_seat_of(comm, rank);
    size_t          index = lki_op_index(op);
    unsigned char  *out   = to;

    LK_ASSERT(first + bytes <= LKI_PAYLOAD_BYTES);
    if (first < LKI_WORD_BYTES && bytes > 0) {
        size_t room = LKI_WORD_BYTES - first, n = bytes < room ? bytes : room;
        memcpy(out, seat->slots[index].word + first, n);
        out   += n;
        bytes -= n;
        first  = LKI_WORD_BYTES;
    }
    if (bytes == 0)
        return LK_OK;
    if (comm->spins == 0) { /* ranks share cores, so the other ranks have probably arrived: waits
                             * only for the last cell */
        LK_TRY(lki_op_await_cell(comm, op, rank, lki_cells(first + bytes) - 1));
        lki_cells_copy(seat->cells[index], first - LKI_WORD_BYTES, bytes, out);
        return LK_OK;
    }
    size_t in = (first - LKI_WORD_BYTES) % LKI_CELL_BYTES;
    for (size_t i = (first - LKI_WORD_BYTES) / LKI_CELL_BYTES; bytes > 0; i++, in = 0) {
        const unsigned char *cell = seat->cells[index][i].bytes;
        size_t               room = LKI_CELL_BYTES - in, n = bytes < room ? bytes : room;
        LK_TRY(lki_op_await_cell(comm, op, rank, i));
        if (n == LKI_CELL_BYTES)
            memcpy(out, cell, LKI_CELL_BYTES);
        else
            memcpy(out, cell + in, n);
        out   += n;
        bytes -= n;
    }
    return LK_OK;
}

/* Prefetches the cache lines that the next operation will write if its payload has the same size.
 * Until then these lines are in the caches of other ranks. */
static inline void lki_op_foresee(const lk_comm *comm, size_t total)
{
    size_t          index = (size_t)(comm->seq & (comm->ring - 1));
    const lki_cell *cells = comm->seat->cells[index];

    lki_prefetch_to_write(&comm->seat->slots[index]);
    for (size_t i = 0; i < lki_cells(total); i++)
        lki_prefetch_to_write(&cells[i]);
}

/* Publishes `bytes` of payload, waits until all ranks have published, and compares fingerprints.
 * With lki_op_read() and lki_op_finish() this is a complete small collective, without a request. */
LK_NODISCARD static inline lk_status lki_op_exchange(lki_op *op, lk_comm *comm, lki_print print,
                                                     const void *data, size_t bytes)
{
    LK_TRY(lki_op_open(op, comm, print));
    bool crowded = comm->spins == 0; /* ranks share cores: writes the cells before the slot, so that
                                      * a rank that sees the slot need not yield again */
    lki_op_write_word(comm, op, data, bytes);
    if (crowded)
        lki_op_write_cells(comm, op, data, bytes, bytes);
    lki_op_publish(comm, op);
    if (!crowded)
        lki_op_write_cells(comm, op, data, bytes, bytes);
    return lki_op_meet(comm, op);
}

/* Publishes that this rank has finished `rounds` rounds of the operation.  Returns the goal "all
 * ranks have finished this number of rounds". */
static inline lki_goal lki_op_round(lk_comm *comm, const lki_op *op, uint64_t rounds)
{
    size_t   index  = lki_op_index(op);
    size_t   offset = offsetof(lki_seat, bodies) + index * sizeof(lki_body);
    uint64_t all    = comm->rounds[index] + rounds;

    atomic_store_explicit(&comm->seat->bodies[index].rounds, all, memory_order_release);
    comm->unrung = true;
    return lki_goal_all(comm, offset + offsetof(lki_body, rounds), all);
}

/* Retires an operation: from now on this rank does not read the slots of the operation. */
static inline void lki_op_close(lk_comm *comm, const lki_op *op)
{
    uint64_t retired = atomic_load_explicit(&comm->seat->retired, memory_order_relaxed);

    LK_ASSERT(op->seq >= retired && op->seq - retired < comm->ring);
    comm->done |= UINT64_C(1) << (op->seq - retired);
    while ((comm->done & 1) != 0) {
        comm->done >>= 1;
        retired++;
    }
    atomic_store_explicit(&comm->seat->retired, retired, memory_order_release);
    comm->unrung = true;
    if (op->flight != 0)
        lki_flight_end(comm->self->flight, op->flight, LKI_FATE_COMPLETE);
}

/* Ends a collective that lki_op_exchange() began. */
static inline void lki_op_finish(lk_comm *comm, const lki_op *op, size_t bytes)
{
    lki_op_close(comm, op);
    lki_ring(comm);
    if (comm->spins > 0)
        lki_op_foresee(comm, bytes);
}

/* ---- Staging buffers --------------------------------------------------------------------- */

/* Returns the staging buffer that `rank` uses for chunk number `chunk`. */
static inline void *lki_stage(const lk_comm *comm, uint32_t rank, uint64_t chunk)
{
    return lki_seat_of(comm, rank)->stages[chunk % LKI_STAGES];
}

/* Claims this rank's staging buffer for chunk number `chunk`.  Must be called before writing to the
 * buffer.  If any rank has not staged its first chunk before publishing, all ranks stage their
 * first chunks again. */
static inline void *lki_stage_claim(const lk_comm *comm, uint64_t chunk)
{
    _Atomic uint64_t *staged = &comm->seat->staged[chunk % LKI_STAGES];

    LK_ASSERT(atomic_load_explicit(staged, memory_order_relaxed) <= chunk + 1);
    atomic_store_explicit(staged, chunk + 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    return lki_stage(comm, comm->rank, chunk);
}

/* Aborts the program unless the staging buffer of `rank` holds chunk number `chunk`.  A reader
 * calls this before and after it reads.  Data of a buffer that was overwritten too early is thus
 * never used. */
static inline void lki_stage_check(const lk_comm *comm, uint32_t rank, uint64_t chunk)
{
    const _Atomic uint64_t *staged = &lki_seat_of(comm, rank)->staged[chunk % LKI_STAGES];

    atomic_signal_fence(memory_order_seq_cst);
    LK_ASSERT(atomic_load_explicit(staged, memory_order_relaxed) == chunk + 1);
}

#endif
