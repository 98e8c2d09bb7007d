/* bench_kinds.c -- the table of collectives: the call of each, and the check of its result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"

enum { MANY = 16 /* tensors of an all_reduce_many */ };

/* ---- Numbers ----------------------------------------------------------------------------- */

/* Converts a whole number to a 16-bit float with `bits` bits of mantissa.  Rounds to nearest
 * even. */
static uint16_t half_of(uint32_t value, uint32_t bits, uint32_t bias)
{
    uint32_t top = 0;

    if (value == 0)
        return 0;
    while (value >> top > 1)
        top++;
    uint64_t scaled = (uint64_t)value << 24 >> top; /* fixed point, 1.24 */
    uint64_t down   = UINT64_C(1) << (24 - bits), rest = scaled % down;
    scaled          = scaled / down + (rest > down / 2 || (rest == down / 2 && scaled / down % 2));
    return (uint16_t)(((top + bias - 1) << bits) + scaled);
}

static void store(const bench *b, char *row, size_t element, uint32_t value)
{
    void    *at      = row + element * b->width;
    float    single  = (float)value;
    double   wide    = value;
    uint64_t whole   = value;
    uint16_t half    = b->dtype == LK_F16 ? half_of(value, 10, 15) : half_of(value, 7, 127);
    uint16_t shorter = (uint16_t)value;
    uint8_t  byte    = (uint8_t)value;

    switch ((int)b->dtype) {
    case LK_F32: memcpy(at, &single, sizeof single); return;
    case LK_F64: memcpy(at, &wide, sizeof wide); return;
    case LK_F16:
    case LK_BF16: memcpy(at, &half, sizeof half); return;
    case LK_I8:
    case LK_U8: memcpy(at, &byte, sizeof byte); return;
    case LK_I16:
    case LK_U16: memcpy(at, &shorter, sizeof shorter); return;
    case LK_I32:
    case LK_U32: memcpy(at, &value, sizeof value); return;
    case LK_I64:
    case LK_U64: memcpy(at, &whole, sizeof whole); return;
    default: return; /* no operation is measured with other types */
    }
}

static const char *piece_of(const bench *b, const char *row, size_t element)
{
    return row + (element + b->round) % BENCH_PERIOD * b->width;
}

static bool is(const bench *b, const char *result, size_t at, const char *wanted, size_t count)
{
    return count == 0 || memcmp(result + at * b->width, wanted, count * b->width) == 0;
}

/* Returns true if `result` contains, from index `at`, the input of `rank` from index `element`. */
static bool is_copy(const bench *b, const char *result, size_t at, size_t count, uint32_t rank,
                    size_t element)
{
    return is(b, result, at, piece_of(b, b->row, element + 3 * (size_t)rank), count);
}

static bool is_sum(const bench *b, size_t at, size_t count, size_t element)
{
    return is(b, b->recv, at, piece_of(b, b->sums, element), count);
}

/* ---- Reductions -------------------------------------------------------------------------- */

static lk_status call_all_reduce(const bench *b)
{
    return lk_all_reduce(b->comm, b->input, b->recv, b->count, b->dtype, LK_SUM);
}

static bool right_all_reduce(const bench *b)
{
    return is_sum(b, 0, b->count, 0);
}

static lk_status call_all_reduce_many(const bench *b)
{
    lk_reduce_part parts[MANY];

    for (size_t i = 0; i < MANY; i++) {
        size_t from = b->count * i / MANY, end = b->count * (i + 1) / MANY;
        parts[i] = (lk_reduce_part){ b->input + from * b->width, b->recv + from * b->width,
                                     end - from, b->dtype };
    }
    return lk_all_reduce_many(b->comm, parts, MANY, LK_SUM);
}

static lk_status call_reduce(const bench *b)
{
    return lk_reduce(b->comm, b->input, b->recv, b->count, b->dtype, LK_SUM, 0);
}

static bool right_reduce(const bench *b)
{
    return b->rank != 0 || is_sum(b, 0, b->count, 0);
}

static lk_status call_reduce_scatter(const bench *b)
{
    return lk_reduce_scatter(b->comm, b->input, b->recv, b->counts[0], b->dtype, LK_SUM);
}

static lk_status call_reduce_scatter_v(const bench *b)
{
    return lk_reduce_scatter_v(b->comm, b->input, b->recv, b->counts, b->dtype, LK_SUM);
}

static bool right_reduce_scatter(const bench *b)
{
    return is_sum(b, 0, b->counts[b->rank], b->first[b->rank]);
}

static lk_status call_tree_reduce(const bench *b)
{
    const lk_tree_node node = { b->rank, 1, (const float *)(const void *)b->input };
    const lk_tree_op   op   = { .leaves      = b->ranks,
                                .elements    = b->count,
                                .nodes       = &node,
                                .node_count  = 1,
                                .slices      = b->slices,
                                .slice_count = b->ranks,
                                .out         = (float *)(void *)b->recv };
    return lk_tree_reduce(b->comm, &op);
}

static bool right_tree_reduce(const bench *b)
{
    uint32_t here = lk_comm_local_size(b->comm, lk_comm_host(b->comm, b->rank));

    for (uint32_t r = 0; r < b->ranks; r++)
        if (r % here == lk_comm_local_rank(b->comm, b->rank) &&
            !is_sum(b, b->first[r], b->counts[r], b->first[r]))
            return false;
    return true;
}

/* ---- Moves ------------------------------------------------------------------------------- */

static lk_status call_all_gather(const bench *b)
{
    return lk_all_gather(b->comm, b->input, b->recv, b->bytes[0]);
}

static lk_status call_all_gather_v(const bench *b)
{
    return lk_all_gather_v(b->comm, b->input, b->recv, b->bytes);
}

static bool all_parts(const bench *b, const char *result)
{
    for (uint32_t r = 0; r < b->ranks; r++)
        if (!is_copy(b, result, b->first[r], b->counts[r], r, 0))
            return false;
    return true;
}

static bool right_all_gather(const bench *b)
{
    return all_parts(b, b->recv);
}

static lk_status call_arena_mirror(const bench *b)
{
    size_t offset = (size_t)(b->shared - (char *)lk_arena_data(b->arena));
    return lk_arena_mirror(b->comm, b->arena, offset, b->bytes);
}

static bool right_arena_mirror(const bench *b)
{
    return all_parts(b, b->shared);
}

static lk_status call_gather(const bench *b)
{
    return lk_gather(b->comm, b->input, b->recv, b->bytes[0], 0);
}

static bool right_gather(const bench *b)
{
    return b->rank != 0 || all_parts(b, b->recv);
}

static lk_status call_scatter(const bench *b)
{
    return lk_scatter(b->comm, b->input, b->recv, b->bytes[0], 0);
}

static bool right_scatter(const bench *b)
{
    return is_copy(b, b->recv, 0, b->counts[b->rank], 0, b->first[b->rank]);
}

static lk_status call_all_to_all(const bench *b)
{
    return lk_all_to_all(b->comm, b->input, b->recv, b->bytes[0]);
}

static bool right_all_to_all(const bench *b)
{
    for (uint32_t r = 0; r < b->ranks; r++)
        if (!is_copy(b, b->recv, b->first[r], b->counts[r], r, b->first[b->rank]))
            return false;
    return true;
}

/* Returns the number of elements that ranks r and s send to each other: part (r + s) mod N. */
static size_t shared_count(const bench *b, uint32_t r, uint32_t s)
{
    return b->counts[(r + s) % b->ranks];
}

/* Returns the offset, in rank r's input, of the data for rank s.  The data from rank s have the
 * same offset in rank r's output. */
static size_t shared_first(const bench *b, uint32_t r, uint32_t s)
{
    size_t first = 0;
    for (uint32_t before = 0; before < s; before++)
        first += shared_count(b, r, before);
    return first;
}

static lk_status call_all_to_all_v(const bench *b)
{
    return lk_all_to_all_v(b->comm, b->input, b->from_bytes, b->recv, b->from_bytes);
}

static bool right_all_to_all_v(const bench *b)
{
    for (uint32_t r = 0; r < b->ranks; r++)
        if (!is_copy(b, b->recv, shared_first(b, b->rank, r), shared_count(b, b->rank, r), r,
                     shared_first(b, r, b->rank)))
            return false;
    return true;
}

static lk_status call_broadcast(const bench *b)
{
    return lk_broadcast(b->comm, b->input, b->count * b->width, 0);
}

static bool right_broadcast(const bench *b)
{
    return is_copy(b, b->input, 0, b->count, 0, 0);
}

/* Sends to the next rank, and receives from the previous rank. */
static lk_status call_send_recv(const bench *b)
{
    uint32_t    to = (b->rank + 1) % b->ranks, from = (b->rank + b->ranks - 1) % b->ranks;
    size_t      bytes = b->count * b->width;
    lk_request *send  = NULL;
    lk_status   st    = lk_send_start(&send, b->comm, b->input, bytes, to);

    if (st == LK_OK)
        st = lk_recv(b->comm, b->recv, bytes, from);
    if (st == LK_OK)
        st = lk_request_wait(send);
    lk_request_free(send);
    return st;
}

static bool right_send_recv(const bench *b)
{
    return is_copy(b, b->recv, 0, b->count, (b->rank + b->ranks - 1) % b->ranks, 0);
}

static lk_status call_barrier(const bench *b)
{
    return lk_barrier(b->comm);
}

static bool right_barrier(const bench *b)
{
    (void)b;
    return true;
}

/* ---- The table --------------------------------------------------------------------------- */

/* clang-format off */
const bench_kind bench_kinds[] = {
    { .name = "all_reduce", .moves = BENCH_OTHERS_TWICE,
      .call = call_all_reduce, .right = right_all_reduce },
    { .name = "all_reduce_many", .moves = BENCH_OTHERS_TWICE, .way = "fused",
      .call = call_all_reduce_many, .right = right_all_reduce },
    { .name = "reduce", .moves = BENCH_ONCE, .call = call_reduce, .right = right_reduce },
    { .name = "reduce_scatter", .moves = BENCH_OTHERS, .divided = true,
      .call = call_reduce_scatter, .right = right_reduce_scatter },
    { .name = "reduce_scatter_v", .moves = BENCH_OTHERS, .divided = true, .uneven = true,
      .call = call_reduce_scatter_v, .right = right_reduce_scatter },
    { .name = "tree_reduce", .moves = BENCH_OTHERS, .tree = true,
      .call = call_tree_reduce, .right = right_tree_reduce },
    { .name = "all_gather", .moves = BENCH_OTHERS, .divided = true, .gives_part = true,
      .call = call_all_gather, .right = right_all_gather },
    { .name = "all_gather_v", .moves = BENCH_OTHERS, .divided = true, .gives_part = true,
      .uneven = true, .call = call_all_gather_v, .right = right_all_gather },
    { .name = "arena_mirror", .moves = BENCH_OTHERS, .divided = true, .gives_part = true,
      .mirrors = true, .way = "mirror", .call = call_arena_mirror, .right = right_arena_mirror },
    { .name = "gather", .moves = BENCH_OTHERS, .divided = true, .gives_part = true,
      .call = call_gather, .right = right_gather },
    { .name = "scatter", .moves = BENCH_OTHERS, .divided = true,
      .call = call_scatter, .right = right_scatter },
    { .name = "all_to_all", .moves = BENCH_OTHERS, .divided = true,
      .call = call_all_to_all, .right = right_all_to_all },
    { .name = "all_to_all_v", .moves = BENCH_OTHERS, .divided = true, .uneven = true,
      .call = call_all_to_all_v, .right = right_all_to_all_v },
    { .name = "broadcast", .moves = BENCH_ONCE, .call = call_broadcast,
      .right = right_broadcast },
    { .name = "send_recv", .moves = BENCH_ONCE, .pairs = true, .way = "mail",
      .call = call_send_recv, .right = right_send_recv },
    { .name = "barrier", .moves = BENCH_NOTHING, .call = call_barrier, .right = right_barrier },
    { .name = NULL },
};
/* clang-format on */

const bench_kind *bench_kind_find(const char *name)
{
    for (const bench_kind *kind = bench_kinds; kind->name != NULL; kind++)
        if (strcmp(kind->name, name) == 0)
            return kind;
    return NULL;
}

double bench_factor(const bench *b)
{
    double n = b->ranks;

    switch (b->kind->moves) {
    case BENCH_OTHERS_TWICE: return 2 * (n - 1) / n;
    case BENCH_OTHERS: return (n - 1) / n;
    case BENCH_ONCE: return 1;
    case BENCH_NOTHING: break;
    }
    return 0;
}

/* ---- Buffers ----------------------------------------------------------------------------- */

static lk_status out_of_memory(const bench *b)
{
    fprintf(stderr, "lockstep bench: rank %u: no memory for buffers of %zu bytes\n", b->rank,
            b->each);
    return LK_ENOMEM;
}

/* Allocates two buffers per rank, in one arena or in ordinary memory. */
static lk_status open_buffers(bench *b, bool foreign)
{
    if (foreign) {
        b->memory = aligned_alloc(64, 2 * b->each);
        if (b->memory == NULL)
            return out_of_memory(b);
        memset(b->memory, 0, 2 * b->each);
        b->input = b->memory;
    } else {
        lk_status st = lk_comm_arena(&b->arena, b->comm, "bench", 2 * b->each * b->ranks);
        if (st != LK_OK)
            return st;
        b->input  = (char *)lk_arena_data(b->arena) + 2 * b->each * b->rank;
        b->shared = (char *)lk_arena_data(b->arena) + b->each;
    }
    b->recv = b->input + b->each;
    return LK_OK;
}

lk_status bench_open(bench *b, uint64_t widest, bool foreign)
{
    b->each      = (size_t)(widest + b->width * b->ranks + 63) / 64 * 64;
    lk_status st = open_buffers(b, foreign);
    if (st != LK_OK)
        return st;
    size_t elements = b->each / b->width + BENCH_PERIOD;
    b->row          = malloc(elements * b->width);
    b->sums         = malloc(elements * b->width);
    b->counts       = calloc(b->ranks, sizeof *b->counts);
    b->first        = calloc(b->ranks, sizeof *b->first);
    b->bytes        = calloc(b->ranks, sizeof *b->bytes);
    b->from_bytes   = calloc(b->ranks, sizeof *b->from_bytes);
    b->slices       = calloc(b->ranks, sizeof *b->slices);
    if (b->row == NULL || b->sums == NULL || b->counts == NULL || b->first == NULL ||
        b->bytes == NULL || b->from_bytes == NULL || b->slices == NULL)
        return out_of_memory(b);
    for (size_t i = 0; i < elements; i++) {
        uint32_t sum = 0;
        for (uint32_t r = 0; r < b->ranks; r++)
            sum += (uint32_t)((i + 3 * (size_t)r) % BENCH_PERIOD);
        store(b, b->row, i, (uint32_t)(i % BENCH_PERIOD));
        store(b, b->sums, i, sum);
    }
    return LK_OK;
}

void bench_close(bench *b)
{
    free(b->memory);
    free(b->row);
    free(b->sums);
    free(b->counts);
    free(b->first);
    free(b->bytes);
    free(b->from_bytes);
    free(b->slices);
}

/* Returns the number of elements in rank r's part.  Uneven parts of ranks 0 to N - 1 are
 * proportional to 1 to N. */
static size_t part_of(const bench *b, size_t count, uint32_t r)
{
    size_t n = b->ranks, part = count / n;

    if (b->kind->divided && !b->kind->uneven)
        return part > 0 ? part : 1;
    if (!b->kind->uneven)
        return count * (r + 1) / n - count * r / n;
    return count * (r + 1) * (r + 2) / (n * (n + 1)) - count * r * (r + 1) / (n * (n + 1));
}

void bench_resize(bench *b, uint64_t bytes)
{
    size_t first = 0;

    b->count = (size_t)bytes / b->width;
    b->count = b->count == 0 && bytes > 0 ? 1 : b->count;
    for (uint32_t r = 0; r < b->ranks; r++) {
        b->first[r]  = first;
        b->counts[r] = part_of(b, b->count, r);
        b->bytes[r]  = b->counts[r] * b->width;
        b->slices[r] = (lk_slice){ .first = first, .count = b->counts[r], .owner = r };
        first += b->counts[r];
    }
    for (uint32_t r = 0; r < b->ranks; r++)
        b->from_bytes[r] = shared_count(b, b->rank, r) * b->width;
    if (b->kind->mirrors)
        b->input = b->shared + b->first[b->rank] * b->width;
    if (b->kind->divided)
        b->count = first;
}

void bench_write_input(const bench *b)
{
    size_t count = b->kind->gives_part ? b->counts[b->rank] : b->count;

    if (count > 0)
        memcpy(b->input, piece_of(b, b->row, 3 * (size_t)b->rank), count * b->width);
}
