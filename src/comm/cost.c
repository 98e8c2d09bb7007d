/* cost.c -- which algorithm: the cheapest that may be taken, by a model of three constants.
 *
 *      time = rounds * alpha + messages * omega + bytes sent * beta + bytes summed * gamma
 *
 * All ranks must take the same one, so nothing goes into the model that they do not share.  An
 * algorithm that is not exact is never taken for a reduction unless it is asked for by name.
 */
#include "comm/span.h"

/* Seconds: a small message on its way, one more at the same time, a byte sent, a byte summed.  A
 * local network of 10 Gbit/s. */
static const double alpha = 40e-6, omega = 4e-6, beta = 1e-9, gamma_ = 0.25e-9;

static bool sums(lki_op_kind kind)
{
    return kind == LKI_OP_ALL_REDUCE || kind == LKI_OP_REDUCE || kind == LKI_OP_REDUCE_SCATTER ||
           kind == LKI_OP_REDUCE_SCATTER_V;
}

static double seconds(lki_work w)
{
    return w.rounds * alpha + w.messages * omega + w.bytes * beta + w.combined * gamma_;
}

const lki_method *lki_span_choose(const lk_comm *comm, const lki_problem *problem)
{
    const lki_method *best = NULL;
    double            least = 0;

    (void)comm;
    for (size_t i = 0; lki_methods[i] != NULL; i++) {
        const lki_method *method = lki_methods[i];
        if (!method->can(problem) || (!method->exact && sums(problem->kind)))
            continue;
        double cost = seconds(method->work(problem));
        if (best == NULL || cost < least) {
            best  = method;
            least = cost;
        }
    }
    LK_ASSERT(best != NULL);
    return best;
}
