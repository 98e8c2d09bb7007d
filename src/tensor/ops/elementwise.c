/* elementwise.c -- sums, activations and dropout, divided into spans, which are runs of LKI_GRAIN
 * elements. */
#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"

typedef struct {
    const lki_elementwise_kernels *kernels;
    lk_dtype                       type;
    size_t                         n;
    const char                    *a, *b;
    char                          *y;
    float                          value;
    lki_activation                 act;
    bool                           add;
    const lki_dropout_key         *key;
    size_t                         spans; /* spans of one sample */
} spans;

static size_t bytes_of(const spans *s, size_t elements)
{
    return elements * lk_dtype_bytes(s->type);
}

static void run_spans(lk_exec *exec, spans *s, lki_task task)
{
    s->kernels = lki_exec_kernels(exec)->elementwise;
    lki_exec_run(exec, (s->n + LKI_GRAIN - 1) / LKI_GRAIN, task, s);
}

static void fill_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const spans *s = context;
    size_t       i = index * LKI_GRAIN;
    s->kernels->fill(lki_min(LKI_GRAIN, s->n - i), s->value, (float *)(void *)s->y + i);
}

void lki_fill(lk_exec *exec, size_t n, float value, float *y)
{
    spans s = { .type = LK_F32, .n = n, .value = value, .y = (char *)y };
    run_spans(exec, &s, fill_task);
}

typedef struct {
    const lki_elementwise_kernels *kernels;
    size_t                         n;
    lk_dtype                       from, to;
    const char                    *x;
    char                          *y;
} conversion;

static void convert_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const conversion *c = context;
    size_t            i = index * LKI_GRAIN;
    c->kernels->convert(lki_min(LKI_GRAIN, c->n - i), c->from, c->x + i * lk_dtype_bytes(c->from),
                        c->to, c->y + i * lk_dtype_bytes(c->to));
}

void lki_convert(lk_exec *exec, size_t n, lk_dtype from, const void *x, lk_dtype to, void *y)
{
    conversion c = { lki_exec_kernels(exec)->elementwise, n, from, to, x, y };
    lki_exec_run(exec, (n + LKI_GRAIN - 1) / LKI_GRAIN, convert_task, &c);
}

static void add_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const spans *s = context;
    size_t       i = index * LKI_GRAIN, at = bytes_of(s, i);
    s->kernels->add(s->type, lki_min(LKI_GRAIN, s->n - i), s->a + at, s->b + at, s->y + at);
}

void lki_add(lk_exec *exec, lk_dtype type, size_t n, const void *a, const void *b, void *y)
{
    spans s = { .type = type, .n = n, .a = a, .b = b, .y = y };
    run_spans(exec, &s, add_task);
}

void lki_accumulate(lk_exec *exec, lk_dtype type, size_t n, const void *x, void *y)
{
    lki_add(exec, type, n, y, x, y);
}

static void activate_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const spans *s = context;
    size_t       i = index * LKI_GRAIN, at = bytes_of(s, i);
    s->kernels->activate(s->type, s->act, lki_min(LKI_GRAIN, s->n - i), s->a + at, s->y + at);
}

void lki_activate(lk_exec *exec, lk_dtype type, lki_activation act, size_t n, const void *x,
                  void *y)
{
    spans s = { .type = type, .n = n, .act = act, .a = x, .y = y };
    run_spans(exec, &s, activate_task);
}

static void activate_backward_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const spans *s = context;
    size_t       i = index * LKI_GRAIN, at = bytes_of(s, i);
    s->kernels->activate_backward(s->type, s->act, lki_min(LKI_GRAIN, s->n - i), s->a + at,
                                  s->b + at, s->y + at, s->add);
}

void lki_activate_backward(lk_exec *exec, lk_dtype type, lki_activation act, size_t n,
                           const void *x, const void *dy, void *dx, bool add)
{
    spans s = { .type = type, .n = n, .act = act, .a = x, .b = dy, .y = dx, .add = add };
    run_spans(exec, &s, activate_backward_task);
}

typedef struct {
    const lki_elementwise_kernels *kernels;
    lki_bias_columns               all;
    size_t                         each; /* columns of a task */
} bias_columns;

static void bias_task(void *context, size_t index, uint32_t thread)
{
    const bias_columns *b     = context;
    size_t              first = index * b->each;
    lki_bias_columns    t     = b->all;
    (void)thread;
    size_t at = first * lk_dtype_bytes(t.type);
    t.columns = lki_min(b->each, t.columns - first);
    t.dy      = (const char *)t.dy + at;
    t.db += first;
    if (t.act != LKI_ACT_NONE) {
        t.x  = (const char *)t.x + at;
        t.dz = (char *)t.dz + at;
    }
    b->kernels->bias_backward(&t);
}

/* Divides the columns among the threads. */
static bias_columns divide_columns(const lk_exec *exec, const lki_bias_columns *all)
{
    size_t tasks = 2 * (size_t)lk_exec_threads(exec);
    return (bias_columns){
        .kernels = lki_exec_kernels(exec)->elementwise,
        .all     = *all,
        .each    = lki_max(64, lki_round_up((all->columns + tasks - 1) / tasks, 128)),
    };
}

void lki_bias_backward(lk_exec *exec, lk_dtype type, lki_activation act, size_t m, size_t n,
                       const void *x, const void *dy, void *dz, float *db)
{
    lki_bias_columns all = { .type = type, .act = act, .m = m, .columns = n, .stride = n, .x = x,
                             .dy = dy, .dz = dz, .db = db };
    bias_columns     b   = divide_columns(exec, &all);
    lki_exec_run(exec, (n + b.each - 1) / b.each, bias_task, &b);
}

typedef struct {
    const bias_columns *columns;
    const lki_parts    *parts;
    lk_exec            *exec;
} bias_parts;

/* Computes the columns of a task, part after part, and merges the sums of the parts like a binary
 * counter. */
static void bias_parts_task(void *context, size_t index, uint32_t thread)
{
    const bias_parts       *b     = context;
    const lki_bias_columns *all   = &b->columns->all;
    size_t                  first = index * b->columns->each, bytes = lk_dtype_bytes(all->type);
    size_t                  n     = lki_min(b->columns->each, all->columns - first);
    size_t                  begin = 0, depth = 0;
    float                  *sums = lki_exec_private(b->exec, thread);

    for (uint32_t i = 0; i < b->parts->count; begin = b->parts->ends[i++]) {
        lki_bias_columns t  = *all;
        size_t           at = (begin * t.stride + first) * bytes;
        t.m                 = b->parts->ends[i] - begin;
        t.columns           = n;
        t.dy                = (const char *)t.dy + at;
        t.db                = sums + depth++ * n;
        if (t.act != LKI_ACT_NONE) {
            t.x  = (const char *)t.x + at;
            t.dz = (char *)t.dz + at;
        }
        memset(t.db, 0, n * sizeof *t.db);
        b->columns->kernels->bias_backward(&t);
        for (uint32_t pairs = i; (pairs & 1) != 0; pairs >>= 1, depth--)
            lki_merge_f32(LK_F32, n, sums + (depth - 2) * n, sums + (depth - 1) * n);
    }
    memcpy(all->db + first, sums, n * sizeof *sums);
}

void lki_bias_backward_parts(lk_exec *exec, lk_dtype type, lki_activation act, size_t n,
                             const void *x, const void *dy, void *dz, float *db,
                             const lki_parts *parts)
{
    const size_t     most = LKI_EXEC_PRIVATE / 8 / 128 * 128; /* log2(64) + 1 sums fit */
    lki_bias_columns all  = { .type = type, .act = act, .columns = n, .stride = n, .x = x,
                              .dy = dy, .dz = dz, .db = db };
    bias_columns     columns = divide_columns(exec, &all);
    bias_parts       b       = { &columns, parts, exec };
    columns.each             = lki_min(most, columns.each);
    lki_exec_run(exec, (n + columns.each - 1) / columns.each, bias_parts_task, &b);
}

static void dropout_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const spans *s      = context;
    size_t       sample = index / s->spans, first = index % s->spans * LKI_GRAIN;
    size_t       at     = bytes_of(s, sample * s->n + first);
    s->kernels->dropout(s->type, s->key, s->key->first_slot + (uint32_t)sample, first,
                        lki_min(LKI_GRAIN, s->n - first), s->a + at, s->y + at, s->add);
}

void lki_dropout(lk_exec *exec, lk_dtype type, lki_dropout_key key, size_t samples,
                 size_t per_sample, const void *x, void *y, bool add)
{
    spans s = { .kernels = lki_exec_kernels(exec)->elementwise,
                .type = type, .n = per_sample, .a = x, .y = y, .add = add, .key = &key,
                .spans = (per_sample + LKI_GRAIN - 1) / LKI_GRAIN };
    lki_exec_run(exec, samples * s.spans, dropout_task, &s);
}
