/* decoder.c -- the operators of Llama's blocks: RMSNorm, rotary embeddings and SwiGLU.
 *
 * RMSNorm's work is divided by rows, and that on the gradient of its parameter by blocks of
 * columns, each of whose elements is one chain over the rows in order.  Rotations are divided by
 * positions, and SwiGLU by runs of elements.
 *
 * The table of cosines and sines is computed once per model, in doubles, without libm.  As in
 * Hugging Face's transformers, frequencies and angles are rounded to FP32 before cosine and sine
 * are computed: weights that were trained there see the same angles here.
 *
 * Source: Zhang and Sennrich 2019 (RMSNorm), Su et al. 2021, section 3.4.2 (rotary embeddings),
 * Shazeer 2020 (SwiGLU), Llama 3.1 (scaled frequencies).
 */
#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/ops.h"

enum { ROWS_PER_TASK = 32, COLUMNS_PER_TASK = 64 };

/* ---- RMSNorm ----------------------------------------------------------------------------- */

typedef struct {
    const lki_decoder_kernels *kernels;
    lki_rms_rows               all;   /* the whole width */
    size_t                     each;  /* rows of a task */
} rmsnorm;

static const void *on(const lki_rms_rows *t, const void *values, size_t elements)
{
    return values == NULL ? NULL : (const char *)values + elements * lk_dtype_bytes(t->type);
}

static void *writable_on(const lki_rms_rows *t, void *values, size_t elements)
{
    return values == NULL ? NULL : (char *)values + elements * lk_dtype_bytes(t->type);
}

/* Returns the rows of a task. */
static lki_rms_rows rows_of(const rmsnorm *n, size_t index)
{
    lki_rms_rows t     = n->all;
    size_t       first = index * n->each, at = first * t.stride;
    t.rows = lki_min(n->each, t.rows - first);
    t.x    = on(&t, t.x, at);
    t.dy   = on(&t, t.dy, at);
    t.y    = writable_on(&t, t.y, at);
    t.dx   = writable_on(&t, t.dx, at);
    t.rstd += first;
    return t;
}

static void rmsnorm_task(void *context, size_t index, uint32_t thread)
{
    const rmsnorm *n = context;
    lki_rms_rows   t = rows_of(n, index);
    (void)thread;
    n->kernels->rmsnorm(&t);
}

static void rmsnorm_dx_task(void *context, size_t index, uint32_t thread)
{
    const rmsnorm *n = context;
    lki_rms_rows   t = rows_of(n, index);
    (void)thread;
    n->kernels->rmsnorm_dx(&t);
}

static void rmsnorm_dgamma_task(void *context, size_t index, uint32_t thread)
{
    const rmsnorm *n     = context;
    lki_rms_rows   t     = n->all;
    size_t         first = index * COLUMNS_PER_TASK;
    (void)thread;
    t.columns = lki_min(COLUMNS_PER_TASK, t.columns - first);
    t.x       = on(&t, t.x, first);
    t.dy      = on(&t, t.dy, first);
    t.dgamma += first;
    n->kernels->rmsnorm_dgamma(&t);
}

/* Short rows, such as those of heads, are grouped so that a task has enough work. */
static rmsnorm rmsnorm_of(const lk_exec *exec, const lki_rmsnorm_args *a)
{
    return (rmsnorm){
        .kernels = lki_exec_kernels(exec)->decoder,
        .all     = { .type = a->type, .rows = a->rows, .columns = a->c, .stride = a->c,
                     .eps = a->eps, .x = a->x, .dy = a->dy, .gamma = a->gamma, .y = a->y,
                     .dx = a->dx, .rstd = a->rstd, .add = a->add, .dgamma = a->dgamma },
        .each    = lki_max(ROWS_PER_TASK, LKI_GRAIN / a->c),
    };
}

void lki_rmsnorm(lk_exec *exec, const lki_rmsnorm_args *args)
{
    rmsnorm n = rmsnorm_of(exec, args);
    lki_exec_run(exec, (args->rows + n.each - 1) / n.each, rmsnorm_task, &n);
}

void lki_rmsnorm_backward(lk_exec *exec, const lki_rmsnorm_args *args)
{
    rmsnorm n = rmsnorm_of(exec, args);
    /* dx may be dy, so the gradient that reads dy is computed first */
    if (args->dgamma != NULL)
        lki_exec_run(exec, (args->c + COLUMNS_PER_TASK - 1) / COLUMNS_PER_TASK,
                     rmsnorm_dgamma_task, &n);
    lki_exec_run(exec, (args->rows + n.each - 1) / n.each, rmsnorm_dx_task, &n);
}

/* ---- Rotary embeddings ------------------------------------------------------------------- */

/* Returns the angle between neighbouring positions of pair i. */
static float frequency(const lki_rope_scale *s, size_t size, size_t i)
{
    static const double two_pi = 0x1.921fb54442d18p+2;
    float  base = (float)lki_pow(1.0 / s->theta, (double)(2 * i) / (double)size);
    double f = (double)base, turns = (double)s->original * f / two_pi; /* in the old context */

    if (!(s->factor > 0) || turns > s->high)
        return base;
    if (turns < s->low)
        return (float)(f / s->factor);
    double smooth = (turns - s->low) / (s->high - s->low);
    return (float)((1.0 - smooth) * f / s->factor + smooth * f);
}

void lki_rope_table(const lki_rope_scale *scale, size_t t, size_t size, float *table)
{
    for (size_t i = 0; i < size / 2; i++) {
        float f = frequency(scale, size, i);
        for (size_t p = 0; p < t; p++) {
            double angle                   = (double)((float)p * f);
            table[p * size + i]            = (float)lki_cos(angle);
            table[p * size + size / 2 + i] = (float)lki_sin(angle);
        }
    }
}

typedef struct {
    const lki_decoder_kernels *kernels;
    lki_rope_row               row;
    size_t                     t, rows, each;
} rope;

static void rope_task(void *context, size_t index, uint32_t thread)
{
    const rope *r   = context;
    size_t      end = lki_min(r->rows, (index + 1) * r->each);
    (void)thread;
    for (size_t i = index * r->each; i < end; i++) {
        lki_rope_row row = r->row;
        row.at           = i * row.heads * row.size;
        row.table += i % r->t * row.size;
        r->kernels->rope(&row);
    }
}

void lki_rope(lk_exec *exec, const lki_rope_args *a)
{
    rope r = { .kernels = lki_exec_kernels(exec)->decoder,
               .row     = { .type = a->type, .heads = a->heads, .size = a->size, .table = a->table,
                            .back = a->back, .add = a->add, .x = a->x, .y = a->y },
               .t       = a->t,
               .rows    = a->b * a->t,
               .each    = lki_max(1, LKI_GRAIN / (a->heads * a->size)) };
    lki_exec_run(exec, (r.rows + r.each - 1) / r.each, rope_task, &r);
}

/* ---- SwiGLU ------------------------------------------------------------------------------ */

typedef struct {
    const lki_decoder_kernels *kernels;
    lki_swiglu_args            all;
    bool                       backward;
} swiglu;

static void swiglu_task(void *context, size_t index, uint32_t thread)
{
    const swiglu          *s  = context;
    const lki_swiglu_args *a  = &s->all;
    size_t                 at = index * LKI_GRAIN, bytes = at * lk_dtype_bytes(a->type);
    (void)thread;
    lki_swiglu_run run = { .type     = a->type,
                           .n        = lki_min(LKI_GRAIN, a->n - at),
                           .gate     = (const char *)a->gate + bytes,
                           .up       = (const char *)a->up + bytes,
                           .add_gate = a->add_gate,
                           .add_up   = a->add_up };
    if (!s->backward) {
        run.y = (char *)a->y + bytes;
        s->kernels->swiglu(&run);
        return;
    }
    run.dy    = (const char *)a->dy + bytes;
    run.dgate = a->dgate != NULL ? (char *)a->dgate + bytes : NULL;
    run.dup   = a->dup != NULL ? (char *)a->dup + bytes : NULL;
    s->kernels->swiglu_backward(&run);
}

void lki_swiglu(lk_exec *exec, const lki_swiglu_args *args)
{
    swiglu s = { lki_exec_kernels(exec)->decoder, *args, false };
    lki_exec_run(exec, (args->n + LKI_GRAIN - 1) / LKI_GRAIN, swiglu_task, &s);
}

void lki_swiglu_backward(lk_exec *exec, const lki_swiglu_args *args)
{
    swiglu s = { lki_exec_kernels(exec)->decoder, *args, true };
    lki_exec_run(exec, (args->n + LKI_GRAIN - 1) / LKI_GRAIN, swiglu_task, &s);
}
