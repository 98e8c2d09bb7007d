/* comm/slot.h -- the life of an operation: take a number, publish, meet, close.
 *
 * Inline, because a small call does nothing else: as functions of their own, which hand each
 * other structures through memory, these few moves take as long as the cache line on its way
 * from one rank to the other.
 */
#ifndef LKI_COMM_SLOT_H
#define LKI_COMM_SLOT_H

#include "comm/flight.h"
#include "comm/group.h"

/* Asks for a line, not to be shared. */
static inline void lki_prefetch_to_write(const void *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

static inline size_t lki_op_index(const lki_op *op)
{
    return (size_t)(op->seq % LKI_IN_FLIGHT);
}

/* Waits until the slot of the next operation may be used. */
LK_NODISCARD lk_status lki_op_make_room(lk_comm *comm);

/* Takes the next sequence number, waiting for room in the ring if need be. */
LK_NODISCARD static inline lk_status lki_op_open(lki_op *op, lk_comm *comm, lki_print print)
{
    *op = (lki_op){ .seq = comm->seq, .print = print };
    if (lki_failed(comm))
        return lki_group_failure(comm);
    if (comm->seq >= comm->room + LKI_IN_FLIGHT)
        LK_TRY(lki_op_make_room(comm));
    comm->seq++;
    lki_slot *slot = &comm->seat->slots[lki_op_index(op)];
    atomic_store_explicit(&slot->what, print.what, memory_order_relaxed);
    atomic_store_explicit(&slot->count, print.count, memory_order_relaxed);
    atomic_store_explicit(&slot->hash, print.hash, memory_order_relaxed);
    return LK_OK;
}

/* Where `rank` keeps this operation's `bytes` <= LKI_BODY_BYTES of what it tells. */
static inline void *lki_op_payload(const lk_comm *comm, const lki_op *op, uint32_t rank,
                                   size_t bytes)
{
    lki_seat *seat  = lki_seat_of(comm, rank);
    size_t    index = lki_op_index(op);
    LK_ASSERT(bytes <= LKI_BODY_BYTES);
    return bytes <= LKI_WORD_BYTES ? seat->slots[index].word : seat->bodies[index].bytes;
}

/* Notes, for the messages of all and in the flight record, what this rank does now. */
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

/* Lets the others see the fingerprint, and what is in the slot and the body. */
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

/* Reached when all have published. */
static inline lki_goal lki_op_goal(const lk_comm *comm, const lki_op *op)
{
    size_t offset = offsetof(lki_seat, slots) + lki_op_index(op) * sizeof(lki_slot);
    return lki_goal_all(comm, offset + offsetof(lki_slot, seq), op->seq + 1);
}

/* The first rank that is in something else, or the size, once all have published. */
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

/* Compares all fingerprints, once all have published. */
LK_NODISCARD static inline lk_status lki_op_compare(lk_comm *comm, const lki_op *op)
{
    uint32_t dissenter = lki_op_dissenter(comm, op);

    if (dissenter < comm->size)
        return lki_fail_mismatch(comm, op, dissenter);
    if (op->flight != 0)
        lki_flight_met(comm->self->flight, op->flight);
    return LK_OK;
}

/* Waits until all have published, and compares.  Not for what lki_progress() may close meanwhile:
 * the others are then free to use their slots again. */
LK_NODISCARD static inline lk_status lki_op_meet(lk_comm *comm, const lki_op *op)
{
    LK_TRY(lki_await(comm, lki_op_goal(comm, op)));
    return lki_op_compare(comm, op);
}

/* ---- Payload ----------------------------------------------------------------------------- */

/* The cells that `bytes` of payload take; its first bytes lie in the slot. */
static inline size_t lki_cells(size_t bytes)
{
    return bytes <= LKI_WORD_BYTES ? 0 : (bytes - LKI_WORD_BYTES - 1) / LKI_CELL_BYTES + 1;
}

/* Reached when all have written cell `i`, and with it those before. */
static inline lki_goal lki_op_cell_goal(const lk_comm *comm, const lki_op *op, size_t i)
{
    size_t cell = lki_op_index(op) * LKI_CELLS + i;
    return lki_goal_all(comm, offsetof(lki_seat, cells) + cell * sizeof(lki_cell)
                                  + offsetof(lki_cell, seq), op->seq + 1);
}

/* Before the slot is published. */
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

/* The rest of `bytes` of payload, also after that.  `total` is the same on every rank: the last
 * cell tells that all are written, also where this rank has less to say. */
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

/* Copies bytes [at, at + bytes) of what is in cells. */
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
    if (comm->spins == 0) { /* it has had to wait for its turn, and will find all there */
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

/* Has the lines that the next operation will write its slot and payload to, if it is as this one,
 * fetched while the caller computes: the others had them last. */
static inline void lki_op_foresee(const lk_comm *comm, size_t total)
{
    size_t          index = (size_t)(comm->seq % LKI_IN_FLIGHT);
    const lki_cell *cells = comm->seat->cells[index];

    lki_prefetch_to_write(&comm->seat->slots[index]);
    for (size_t i = 0; i < lki_cells(total); i++)
        lki_prefetch_to_write(&cells[i]);
}

/* Publishes `bytes` of payload, waits until all have published, and compares: with lki_op_read(),
 * lki_op_finish() the whole of a small call, without a request around it. */
LK_NODISCARD static inline lk_status lki_op_exchange(lki_op *op, lk_comm *comm, lki_print print,
                                                     const void *data, size_t bytes)
{
    LK_TRY(lki_op_open(op, comm, print));
    bool crowded = comm->spins == 0; /* then nobody who has seen the slot shall have to yield */
    lki_op_write_word(comm, op, data, bytes);
    if (crowded)
        lki_op_write_cells(comm, op, data, bytes, bytes);
    lki_op_publish(comm, op);
    if (!crowded)
        lki_op_write_cells(comm, op, data, bytes, bytes);
    return lki_op_meet(comm, op);
}

/* This rank has finished the first `rounds` rounds of the operation.  Reached when all have. */
static inline lki_goal lki_op_round(lk_comm *comm, const lki_op *op, uint64_t rounds)
{
    size_t   index  = lki_op_index(op);
    size_t   offset = offsetof(lki_seat, bodies) + index * sizeof(lki_body);
    uint64_t all    = comm->rounds[index] + rounds;

    atomic_store_explicit(&comm->seat->bodies[index].rounds, all, memory_order_release);
    comm->unrung = true;
    return lki_goal_all(comm, offset + offsetof(lki_body, rounds), all);
}

/* This rank will read nothing more of the operation's slots. */
static inline void lki_op_close(lk_comm *comm, const lki_op *op)
{
    uint64_t retired = atomic_load_explicit(&comm->seat->retired, memory_order_relaxed);

    LK_ASSERT(op->seq >= retired && op->seq - retired < LKI_IN_FLIGHT);
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

/* The end of what lki_op_exchange() began. */
static inline void lki_op_finish(lk_comm *comm, const lki_op *op, size_t bytes)
{
    lki_op_close(comm, op);
    lki_ring(comm);
    if (comm->spins > 0)
        lki_op_foresee(comm, bytes);
}

/* The staging buffer of a rank for chunk number `chunk`. */
static inline void *lki_stage(const lk_comm *comm, uint32_t rank, uint64_t chunk)
{
    return lki_seat_of(comm, rank)->stages[chunk % LKI_STAGES];
}

#endif
