/* relay.c -- the legs of an operation over hosts with several ranks, as in algorithm/levels.c.
 *
 * A vector is cut into parts, which pass through the legs one after the other: while one part is on
 * the network another one is summed in shared memory.  A leg is one or more requests of one group.
 * All ranks of a group must start the same operations in the same order.  Parts are therefore
 * numbered, over all relays of a communicator, and start each leg in the order of their numbers.
 *
 *      part 0   | host | hosts | host |
 *      part 1          | host  | hosts | host |
 *      part 2                  | host  | hosts | host |
 */
#include "comm/span/relay.h"

#include <string.h>

#include "base/memory.h"
#include "comm/span/span.h"
#include "device/partial.h"

enum { PART_BYTES = 4 << 20, OPEN = 3 }; /* tuning.segment_bytes, if not 0, replaces PART_BYTES */

/* A part: elements [first, first + count) of the vector, or the whole operation if it is not
 * cut. */
typedef struct {
    size_t       first, count;
    uint32_t     leg; /* next leg to start */
    uint32_t     open; /* open requests of the last leg started */
    lk_request **requests;
    bool         over;
} part;

struct lki_relay {
    lk_request       *request;
    lki_levels       *levels;
    uint32_t          here, hosts, host; /* this rank's local rank; the number of hosts; this
                                          * host */
    lk_dtype          dtype;             /* type of the accumulators */
    lk_reduce_op      within, across, last;
    bool              wide, finishes; /* elements are sent as FP32; the result is converted at the
                                       * end */
    size_t            width;          /* number of bytes in which an element is sent */
    unsigned char    *room;           /* owned: data to send that is not in the user's buffers */
    size_t           *sizes;          /* owned: sizes of the slices of this host's ranks */
    part             *parts;
    size_t            part_count;
    uint64_t          base; /* number of the first part */
    bool              moving;
};

/* ---- The groups -------------------------------------------------------------------------- */

void lki_levels_free(lki_levels *levels)
{
    if (levels == NULL)
        return;
    for (uint32_t i = 0; i < LKI_LEGS; i++)
        lk_comm_free(levels->groups[i]);
    lki_free(levels);
}

/* Returns true if ranks are in the order of hosts and all hosts have the same number of ranks, at
 * least two. */
static bool is_regular(const lki_span *span, uint32_t size)
{
    for (uint32_t rank = 0; rank < size; rank++)
        if (span->map.local_sizes[span->map.host_of[rank]] != span->map.local_sizes[0] ||
            span->map.host_of[rank] != rank / span->map.local_sizes[0])
            return false;
    return span->map.local_sizes[0] > 1 && span->map.hosts > 1;
}

lk_status lki_levels_open(lki_levels **out, lk_comm *comm)
{
    lki_span   *span = comm->span;
    lki_levels *levels;

    *out = NULL;
    if (!is_regular(span, comm->size))
        return LK_OK;
    LK_TRY(LKI_NEW(&levels, 1, "levels of hosts"));
    levels->each     = span->map.local_sizes[0];
    uint32_t  here   = span->map.local_ranks[comm->rank];
    lk_status st     = lk_comm_split(&levels->groups[0], span->local, 0, here);
    if (st == LK_OK)
        st = lk_comm_split(&levels->groups[2], span->local, 0, here);
    if (st == LK_OK)
        st = lk_comm_split(&levels->groups[1], comm, here, span->map.host_of[comm->rank]);
    if (st != LK_OK) {
        lki_levels_free(levels);
        return st;
    }
    comm->users--; /* removes the group's reference: `comm` owns the group, so the group must not
                    * keep `comm` open */
    levels->groups[1]->parent = span->local;
    span->local->users++;
    *out = levels;
    return LK_OK;
}

/* ---- Data as sent ------------------------------------------------------------------------ */

static lki_op_kind kind_of(const lki_relay *y)
{
    return (lki_op_kind)(y->request->op.print.what & 0xff);
}

static bool sums(const lki_relay *y)
{
    return y->request->reduce.width != 0;
}

/* Chooses the types of the legs.  16-bit elements are sent as FP32.  Other work of a reduction on
 * its leaves is done in the first leg, and work on the root after the last leg. */
static void plan_types(lki_relay *y)
{
    const lki_reduction *v = &y->request->reduce;
    bool plain = v->op.kind != LK_REDUCE_AVG && v->op.kind != LK_REDUCE_PREMUL_SUM;

    y->width = 1;
    if (!sums(y))
        return;
    y->wide     = lki_partial_width(v->dtype) != v->width;
    y->dtype    = y->wide ? LK_F32 : v->dtype;
    y->width    = lki_partial_width(v->dtype);
    y->across   = plain ? v->op : LK_SUM;
    y->within   = !y->wide && v->op.kind == LK_REDUCE_PREMUL_SUM ? v->op : y->across;
    y->last     = v->op;
    y->finishes = y->wide || v->op.kind == LK_REDUCE_AVG;
}

/* Converts elements to accumulators or, with `root`, accumulators to the result. */
static void convert(const lki_relay *y, bool root, const void *from, size_t count, void *to)
{
    const lki_partial_node node = { 0, root ? y->request->comm->size : 1, !root, from };
    const lki_partial      p    = { .dtype      = y->request->reduce.dtype,
                                    .op         = y->last,
                                    .leaves     = y->request->comm->size,
                                    .first      = 0,
                                    .count      = node.count,
                                    .root       = root,
                                    .nodes      = &node,
                                    .node_count = 1 };
    if (count > 0)
        lki_partial_combine(&p, count, to);
}

/* ---- all_reduce -------------------------------------------------------------------------- */

/* Computes the sizes of a part's slices in sizes[].  Returns the offset of this rank's slice. */
static size_t slices_of(lki_relay *y, const part *p, size_t unit)
{
    size_t each = p->count / y->levels->each, more = p->count % y->levels->each, mine = 0;

    for (uint32_t i = 0; i < y->levels->each; i++) {
        y->sizes[i] = (each + (i < more)) * unit;
        mine += i < y->here ? y->sizes[i] : 0;
    }
    return mine;
}

/* Returns the part's data in the form in which it is sent. */
static unsigned char *travels(const lki_relay *y, const part *p)
{
    return (y->wide ? y->room : y->request->recv) + p->first * y->width;
}

static lk_status reduce_leg(lki_relay *y, part *p)
{
    const lk_request *r    = y->request;
    unsigned char    *data = travels(y, p);
    const void       *send = r->send + p->first * r->reduce.width;
    size_t            mine = slices_of(y, p, 1);
    lki_levels       *l    = y->levels;

    if (p->leg == 0 && y->wide) {
        convert(y, false, send, p->count, data);
        send = data;
    }
    p->open = 1;
    if (p->leg == 0)
        return lk_reduce_scatter_v_start(p->requests, l->groups[0], send, data + mine * y->width,
                                         y->sizes, y->dtype, y->within);
    if (p->leg == 1)
        return lk_all_reduce_start(p->requests, l->groups[1], data + mine * y->width,
                                   data + mine * y->width, y->sizes[y->here], y->dtype, y->across);
    mine = slices_of(y, p, y->width);
    return lk_all_gather_v_start(p->requests, l->groups[2], data + mine, data, y->sizes);
}

/* ---- Other operations -------------------------------------------------------------------- */

static lk_status broadcast_leg(lki_relay *y, part *p)
{
    const lk_request *r = y->request;
    unsigned char    *data = r->recv + p->first;

    p->open = 0;
    if (p->leg == 0 || (p->leg == 1 && r->root % y->levels->each != y->here))
        return LK_OK;
    p->open = 1;
    if (p->leg == 1)
        return lk_broadcast_start(p->requests, y->levels->groups[1], data, p->count,
                                  r->root / y->levels->each);
    return lk_broadcast_start(p->requests, y->levels->groups[2], data, p->count,
                              r->root % y->levels->each);
}

/* Gathers the parts of the ranks with this local rank in `room`.  Then copies them to recv and
 * shares them with the other ranks of this host. */
static lk_status gather_leg(lki_relay *y, part *p)
{
    const lk_request *r     = y->request;
    size_t            bytes = p->count, row = y->levels->each * bytes;
    lk_status         st    = LK_OK;

    p->open = 0;
    if (p->leg == 0)
        return LK_OK;
    if (p->leg == 1) {
        p->open = 1;
        return lk_all_gather_start(p->requests, y->levels->groups[1], r->send, y->room, bytes);
    }
    for (uint32_t host = 0; host < y->hosts && st == LK_OK; host++) {
        unsigned char *mine = r->recv + host * row + y->here * bytes;
        if (bytes > 0 && mine != r->send)
            memcpy(mine, y->room + host * bytes, bytes);
        st = lk_all_gather_start(&p->requests[p->open++], y->levels->groups[2], mine,
                                 r->recv + host * row, bytes);
    }
    return st;
}

/* Collects the data for the ranks with this local rank in `room`, in order of hosts.  With `wide`
 * the converted input follows in `room`. */
static lk_status scatter_leg(lki_relay *y, part *p)
{
    const lk_request    *r    = y->request;
    size_t               one = p->count * y->width, row = y->levels->each * one;
    const unsigned char *send = y->wide ? y->room + y->hosts * one : r->send;
    lk_status            st   = LK_OK;

    p->open = 0;
    if (p->leg == 0 && y->wide)
        convert(y, false, r->send, p->count * r->comm->size, y->room + y->hosts * one);
    if (p->leg == 2)
        return LK_OK;
    if (p->leg == 1) {
        p->open = 1;
        return lk_reduce_scatter_start(p->requests, y->levels->groups[1], y->room,
                                       y->wide ? y->room + y->host * one : r->recv, p->count,
                                       y->dtype, y->across);
    }
    for (uint32_t host = 0; host < y->hosts && st == LK_OK; host++)
        st = lk_reduce_scatter_start(&p->requests[p->open++], y->levels->groups[0],
                                     send + host * row, y->room + host * one, p->count, y->dtype,
                                     y->within);
    return st;
}

static lk_status run_leg(lki_relay *y, part *p)
{
    switch ((int)kind_of(y)) {
    case LKI_OP_ALL_REDUCE: return reduce_leg(y, p);
    case LKI_OP_BROADCAST: return broadcast_leg(y, p);
    case LKI_OP_ALL_GATHER: return gather_leg(y, p);
    default: return scatter_leg(y, p);
    }
}

static lk_status start_leg(lki_relay *y, part *p)
{
    lk_comm *group = y->levels->groups[p->leg];

    LK_ASSERT(group->caller == NULL);
    group->caller = y->request;
    lk_status st  = run_leg(y, p);
    group->caller = NULL;
    return st;
}

static void finish(const lki_relay *y, const part *p)
{
    const lk_request    *r  = y->request;
    const unsigned char *at = y->wide ? y->room : r->recv;

    if (!y->finishes)
        return;
    if (kind_of(y) == LKI_OP_ALL_REDUCE)
        convert(y, true, at + p->first * y->width, p->count, r->recv + p->first * r->reduce.width);
    else
        convert(y, true, y->wide ? at + y->host * p->count * y->width : at, p->count, r->recv);
}

/* ---- Moving ------------------------------------------------------------------------------ */

static bool leg_is_over(part *p)
{
    while (p->open > 0 && p->requests[p->open - 1]->complete) {
        lk_request_free(p->requests[--p->open]);
        p->requests[p->open] = NULL;
    }
    return p->open == 0;
}

static lk_status move_part(lki_relay *y, part *p, uint64_t number, bool *moved)
{
    lki_levels *l = y->levels;

    while (!p->over && leg_is_over(p)) {
        if (p->leg == LKI_LEGS) {
            finish(y, p);
            p->over = true;
            l->done++;
            *moved = true;
            return LK_OK;
        }
        if (l->turn[p->leg] != number || (p->leg == 0 && number >= l->done + OPEN))
            return LK_OK;
        *moved = true;
        LK_TRY(start_leg(y, p)); /* may wait for a slot and advance other relays, but not in this
                                  * leg */
        LK_ASSERT(l->turn[p->leg] == number);
        l->turn[p->leg]++;
        p->leg++;
    }
    return LK_OK;
}

lk_status lki_relay_move(lki_relay *y, bool *moved, bool *done)
{
    lk_status st = LK_OK;

    *done = false;
    if (y->moving) /* starting a request may wait, and a wait advances all requests */
        return LK_OK;
    y->moving = true;
    *done     = true;
    for (size_t i = 0; i < y->part_count && st == LK_OK; i++) {
        st    = move_part(y, &y->parts[i], y->base + i, moved);
        *done = *done && y->parts[i].over;
    }
    y->moving = false;
    return st;
}

/* ---- Life -------------------------------------------------------------------------------- */

void lki_relay_free(lki_relay *y)
{
    if (y == NULL)
        return;
    for (size_t i = 0; i < y->part_count && y->parts != NULL; i++) {
        while (y->parts[i].open > 0)
            lk_request_free(y->parts[i].requests[--y->parts[i].open]);
        lki_free(y->parts[i].requests);
    }
    lki_free(y->parts);
    lki_free(y->room);
    lki_free(y->sizes);
    lki_free(y);
}

/* Computes the number of elements of the largest part and of the whole operation, and the size of
 * `room`. */
static void measure(const lki_relay *y, size_t *most, size_t *count, size_t *room)
{
    const lk_request *r     = y->request;
    size_t            bytes = r->comm->self->tuning.segment_bytes;

    bytes = bytes == 0 ? PART_BYTES : bytes;
    *most = SIZE_MAX;
    switch ((int)kind_of(y)) {
    case LKI_OP_ALL_REDUCE:
        *most  = bytes / y->width;
        *count = r->reduce.count;
        *room  = y->wide ? r->reduce.count : 0;
        return;
    case LKI_OP_BROADCAST:
        *most  = bytes;
        *count = r->bytes;
        *room  = 0;
        return;
    case LKI_OP_ALL_GATHER:
        *count = r->bytes;
        *room  = y->hosts * r->bytes;
        return;
    default:
        *count = r->longest / r->reduce.width;
        *room  = *count * (y->hosts + (y->wide ? r->comm->size : 0));
    }
}

static lk_status fill(lki_relay *y)
{
    size_t most, count, room;

    measure(y, &most, &count, &room);
    y->part_count = count == 0 ? 1 : (count - 1) / most + 1;
    LK_TRY(LKI_NEW(&y->parts, y->part_count, "parts of an operation over hosts"));
    LK_TRY(LKI_NEW(&y->sizes, (size_t)y->levels->each, "slices of an operation over hosts"));
    LK_TRY(lki_alloc((void **)&y->room, room * y->width + 1, "an operation over hosts"));
    for (size_t i = 0; i < y->part_count; i++) {
        y->parts[i].first = i * (y->part_count == 1 ? 0 : most);
        y->parts[i].count = lki_min(count - y->parts[i].first, most);
        LK_TRY(LKI_NEW(&y->parts[i].requests, (size_t)y->hosts + 1, "legs of an operation"));
    }
    y->base = y->levels->next;
    y->levels->next += y->part_count;
    return LK_OK;
}

lk_status lki_relay_new(lki_relay **out, lk_request *r)
{
    const lki_span *span = r->comm->span;
    lki_relay      *y;

    *out = NULL;
    LK_TRY(LKI_NEW(&y, 1, "operation over hosts"));
    y->request   = r;
    y->levels    = span->levels;
    y->here      = span->map.local_ranks[r->comm->rank];
    y->host      = span->map.host_of[r->comm->rank];
    y->hosts     = span->map.hosts;
    plan_types(y);
    lk_status st = fill(y);
    if (st != LK_OK) {
        lki_relay_free(y);
        return st;
    }
    *out = y;
    return LK_OK;
}
