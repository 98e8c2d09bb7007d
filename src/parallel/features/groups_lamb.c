/* groups_lamb.c -- the ratios of tensors with onebit-lamb (optim/lamb.h).
 *
 * They are functions of the norms of tensors, so all ranks compute the same.  Each host has them in
 * its arena, in two copies if ranks may be lost: a step reads one and writes the other, like what
 * groups keep (groups_survive.c).  So `now` changes in every step.
 *
 * A copy has the number of its step.  If a rank is lost in the next step, which has overwritten the
 * norms, the step is completed once more.  Then the ratios are those of the copy.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "optim/lamb.h"
#include "parallel/features/groups.h"
#include "parallel/state.h"

struct lki_lamb {
    _Atomic uint64_t *steps;     /* [copies]: 1 + the step whose ratios a copy has; in the arena */
    lki_lamb_ratio   *stored[2]; /* [copies][param_count]; in the arena */
    lki_lamb_ratio   *own;       /* [param_count]: those after the last step, of this rank */
    double           *trusts;    /* [param_count] */
};

static size_t bytes_of(const lk_parallel *parallel)
{
    return parallel->layout->param_count * sizeof(lki_lamb_ratio);
}

lk_status lki_lamb_open(const lk_parallel *parallel, lki_groups *self)
{
    const uint32_t params = parallel->layout->param_count;
    LK_TRY(LKI_NEW(&self->lamb, 1, "ratios of tensors"));
    LK_TRY(LKI_NEW(&self->lamb->own, params, "ratios of tensors"));
    return LKI_NEW(&self->lamb->trusts, params, "ratios of tensors");
}

void lki_lamb_close(lki_lamb *lamb)
{
    if (lamb == NULL)
        return;
    lki_free(lamb->own);
    lki_free(lamb->trusts);
    lki_free(lamb);
}

size_t lki_lamb_lay_out(const lk_parallel *parallel, lki_groups *self, char *base, size_t at)
{
    if (self->lamb == NULL)
        return at;
    self->lamb->steps = lki_carve(base, &at, self->copies * sizeof *self->lamb->steps);
    for (uint32_t c = 0; c < self->copies; c++)
        self->lamb->stored[c] = lki_carve(base, &at, bytes_of(parallel));
    return at;
}

void lki_lamb_attach(const lk_parallel *parallel, lki_groups *self)
{
    if (self->lamb != NULL) /* the arena may be that of ranks before this one */
        memcpy(self->lamb->own, self->lamb->stored[self->now], bytes_of(parallel));
}

static lki_lamb_norms norms_of(const lk_parallel *parallel, uint32_t param)
{
    const double  *of    = parallel->norms.of + param;
    const uint32_t count = parallel->layout->param_count;
    return (lki_lamb_norms){ of[LKI_OF_VALUES * count], of[LKI_OF_MOVES * count],
                             of[LKI_OF_MOMENTUM * count], of[LKI_OF_LARGEST * count] };
}

void lki_groups_ratios(lk_parallel *parallel, void *context, const lk_update *update)
{
    lki_groups *self = context;
    lki_lamb   *lamb = self->lamb;
    if (lamb == NULL)
        return;
    if (self->copies == 2) /* `now` is the copy of the step that is about to end */
        memcpy(lamb->own, lamb->stored[lki_groups_next(self)], bytes_of(parallel));
    for (uint32_t p = 0; p < parallel->layout->param_count; p++) {
        const lk_update      mine  = lki_update_of(parallel, update, p);
        const lki_lamb_norms norms = norms_of(parallel, p);
        lamb->trusts[p] = lki_lamb_trust(&parallel->optimizer, &mine, &norms, &lamb->own[p]);
    }
    parallel->norms.trusts = lamb->trusts;
    if (self->copies == 2 && atomic_load(&lamb->steps[self->now]) == parallel->step + 1)
        memcpy(lamb->own, lamb->stored[self->now], bytes_of(parallel));
    else if (parallel->local == 0) {
        memcpy(lamb->stored[self->now], lamb->own, bytes_of(parallel));
        atomic_store(&lamb->steps[self->now], parallel->step + 1);
    }
}

/* ---- Checkpoints ------------------------------------------------------------------------- */

size_t lki_lamb_count(const lk_parallel *parallel, const lki_groups *self)
{
    return self->lamb == NULL ? 0 : bytes_of(parallel) / sizeof(float);
}

void lki_lamb_store(const lk_parallel *parallel, const lki_groups *self, float *out)
{
    if (self->lamb != NULL)
        memcpy(out, self->lamb->own, bytes_of(parallel));
}

void lki_lamb_load(const lk_parallel *parallel, const lki_groups *self, const float *from)
{
    if (self->lamb == NULL)
        return;
    memcpy(self->lamb->own, from, bytes_of(parallel));
    if (parallel->local > 0)
        return;
    memcpy(self->lamb->stored[self->now], from, bytes_of(parallel));
    for (uint32_t c = 0; c < self->copies; c++)
        atomic_store(&self->lamb->steps[c], 0);
}
