/* draw.c -- chooses the next token of a text; see draw.h.
 *
 * A token has the weight exp((logit - max) / temperature).  The weight is 0 if the token is not
 * among the top k, or not among the most likely tokens that together have the share p of the sum.
 * Of equally likely tokens the lowest come first.  Weights are summed in FP64 in the order of
 * tokens.  The chosen token is the first at which the running sum exceeds a random number, which is
 * keyed by seed, text and place.  The exp function is that of the kernels, so every machine draws
 * the same token.
 *
 * Cost: linear in the vocabulary, times log k with top k.  For p only the tokens are sorted whose
 * weights are large enough to matter.
 */
#include "train/loop/draw.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/status.h"
#include "tensor/ops.h"

static uint32_t likeliest(const float *logits, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Returns true if `a` comes after `b`. */
static bool is_after(lki_candidate a, lki_candidate b)
{
    return a.logit < b.logit || (!(a.logit > b.logit) && a.token > b.token);
}

static int in_order(const void *a, const void *b)
{
    const lki_candidate *x = a, *y = b;
    return is_after(*x, *y) ? 1 : is_after(*y, *x) ? -1 : 0;
}

/* Moves the root of a heap of `count` candidates, whose root is the last in order, to its place. */
static void sift(lki_candidate *heap, uint32_t count)
{
    for (uint32_t i = 0, child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && is_after(heap[child + 1], heap[child]))
            child++;
        if (!is_after(heap[child], heap[i]))
            return;
        lki_candidate moved = heap[i];
        heap[i]             = heap[child];
        heap[child]         = moved;
    }
}

/* Sets the weights of the k most likely tokens to 1, and all others to 0. */
static void choose_top(const lki_draw *d, const float *logits)
{
    uint32_t       k    = d->top_k;
    bool           all  = k == 0 || k >= d->count;
    lki_candidate *heap = d->candidates;
    for (uint32_t i = 0; i < d->count; i++)
        d->weights[i] = all ? 1 : 0;
    if (all)
        return;
    for (uint32_t i = 0; i < k; i++)
        heap[i] = (lki_candidate){ logits[i], i };
    qsort(heap, k, sizeof *heap, in_order); /* in reverse order it is a heap */
    for (uint32_t i = 0; i < k / 2; i++) {
        lki_candidate moved = heap[i];
        heap[i]             = heap[k - 1 - i];
        heap[k - 1 - i]     = moved;
    }
    for (uint32_t i = k; i < d->count; i++) {
        lki_candidate next = { logits[i], i };
        if (!is_after(heap[0], next))
            continue;
        heap[0] = next;
        sift(heap, k);
    }
    for (uint32_t i = 0; i < k; i++)
        d->weights[heap[i].token] = 1;
}

static double sum_of(const lki_draw *d)
{
    double sum = 0;
    for (uint32_t i = 0; i < d->count; i++)
        sum += (double)d->weights[i];
    return sum;
}

/* Sets the weights of the tokens to 0 that are not needed for the share p of `sum`.  Tokens whose
 * weights are so small that all such tokens together are not needed are not sorted. */
static void choose_share(const lki_draw *d, const float *logits, double sum)
{
    double   small = (1 - d->top_p) * sum / (double)d->count, share = 0;
    uint32_t count = 0, used = 0;
    for (uint32_t i = 0; i < d->count; i++)
        if ((double)d->weights[i] > small)
            d->candidates[count++] = (lki_candidate){ logits[i], i };
        else
            d->weights[i] = 0;
    qsort(d->candidates, count, sizeof *d->candidates, in_order);
    while (used < count && share < d->top_p * sum)
        share += (double)d->weights[d->candidates[used++].token];
    for (uint32_t i = used > 0 ? used : 1; i < count; i++)
        d->weights[d->candidates[i].token] = 0;
}

uint32_t lki_draw_token(const lki_draw *d, const float *logits, uint32_t text, uint32_t index)
{
    uint32_t best = likeliest(logits, d->count);
    double   past = 0;
    if (d->temperature <= 0)
        return best;

    choose_top(d, logits);
    for (uint32_t i = 0; i < d->count; i++) {
        double x      = (double)(logits[i] - logits[best]) / d->temperature;
        d->weights[i] = d->weights[i] > 0 ? lki_expf((float)x) : 0;
    }
    double sum = sum_of(d);
    if (d->top_p < 1) {
        choose_share(d, logits, sum);
        sum = sum_of(d);
    }
    lki_random random = lki_philox(d->seed, LKI_RNG_SAMPLE, index, text, 0, 0);
    double     mark   = sum * (double)lki_random_unit(random.word[0]);
    for (uint32_t i = 0; i < d->count; i++) {
        past += (double)d->weights[i];
        if (mark < past)
            return i;
    }
    return best;
}

lk_status lki_draw_open(lki_draw *d)
{
    LK_TRY(LKI_NEW(&d->candidates, d->count, "tokens of a draw"));
    return LKI_NEW(&d->weights, d->count, "weights of a draw");
}

void lki_draw_close(lki_draw *d)
{
    lki_free(d->candidates);
    lki_free(d->weights);
}
