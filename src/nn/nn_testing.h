/* nn/nn_testing.h -- a model with memory for its parameters, gradients and state, for tests. */
#ifndef LKI_NN_NN_TESTING_H
#define LKI_NN_NN_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "nn/engine.h"

/* Fails the test with the library's error message. */
#define MUST(call)                                                                               \
    do {                                                                                         \
        if ((call) != LK_OK)                                                                     \
            fail_msg("%s: %s", #call, lk_error_last()->message);                                 \
    } while (0)

enum { CONTEXTS_MAX = 4 };

static inline lk_value add1(lk_model *model, const lk_block_type *type, const char *name,
                            const void *options, size_t bytes, lk_value x)
{
    lk_value out;
    MUST(lk_model_add(&out, model, type, name, options, bytes, &x, 1));
    return out;
}

static inline lk_value add2(lk_model *model, const lk_block_type *type, const char *name,
                            const void *options, size_t bytes, lk_value x0, lk_value x1)
{
    const lk_value inputs[] = { x0, x1 };
    lk_value       out;
    MUST(lk_model_add(&out, model, type, name, options, bytes, inputs, 2));
    return out;
}

typedef struct {
    lk_model    *model;
    lk_exec     *exec;
    lk_engine   *engine;
    uint32_t     param_count, state_count, term_count;
    const float **params, **state;            /* as in lk_walk */
    float       **grads[CONTEXTS_MAX];        /* as in lk_pass */
    float       **sums[CONTEXTS_MAX];
} net;

/* Returns a number in [-1, 1) that depends only on the two arguments. */
static inline float noise(uint32_t stream, uint32_t i)
{
    uint64_t z = ((uint64_t)stream << 32 | i) * 0x9E3779B97F4A7C15U + 0x632BE59BD9B4E019U;
    z          = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z          = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return (float)((z ^ (z >> 31)) >> 40) / (float)(1 << 23) - 1.0F;
}

static inline float *new_floats(size_t count)
{
    float *out;
    MUST(LKI_NEW(&out, count, "a test's values"));
    return out;
}

static inline float *noise_floats(uint32_t stream, size_t count)
{
    float *out = new_floats(count);
    for (size_t i = 0; i < count; i++)
        out[i] = noise(stream, (uint32_t)i);
    return out;
}

/* Opens a net and takes ownership of the model.  Parameters are set to noise, around 1 if their
 * initial value is 1. */
static inline net net_open_as(lk_dtype dtype, lk_model *model, uint32_t threads, const char *isa,
                              uint32_t micro_batch, uint32_t contexts)
{
    net n = { .model = model };
    MUST(lk_exec_open(&n.exec, threads, isa));
    MUST(lk_engine_open(&n.engine, model, n.exec, dtype, micro_batch, contexts));
    const lk_param     *params = lk_model_params(model, &n.param_count);
    const lk_state     *states = lk_model_states(model, &n.state_count);
    const lk_grad_term *terms  = lk_model_terms(model, &n.term_count);

    MUST(LKI_NEW(&n.params, n.param_count, "parameters"));
    MUST(LKI_NEW(&n.state, n.state_count, "states"));
    for (uint32_t i = 0; i < n.param_count; i++) {
        size_t count = lk_shape_count(params[i].shape);
        float *p     = noise_floats(100 + i, count);
        for (size_t k = 0; k < count; k++)
            p[k] = params[i].init == LK_INIT_ONE ? 1.0F + 0.3F * p[k] : 0.5F * p[k];
        n.params[i] = p;
    }
    for (uint32_t i = 0; i < n.state_count; i++) {
        float *s = new_floats(states[i].count);
        for (size_t k = 0; k < states[i].count; k++)
            s[k] = states[i].initial;
        n.state[i] = s;
    }
    for (uint32_t c = 0; c < contexts; c++) {
        MUST(LKI_NEW(&n.grads[c], n.term_count, "gradients"));
        MUST(LKI_NEW(&n.sums[c], n.state_count, "state sums"));
        for (uint32_t t = 0; t < n.term_count; t++)
            n.grads[c][t] = new_floats(lk_shape_count(params[terms[t].param].shape));
        for (uint32_t i = 0; i < n.state_count; i++)
            n.sums[c][i] = new_floats(states[i].count);
    }
    return n;
}

static inline net net_open(lk_model *model, uint32_t threads, const char *isa, uint32_t micro_batch,
                           uint32_t contexts)
{
    return net_open_as(LK_F32, model, threads, isa, micro_batch, contexts);
}

/* Returns a parameter of the net so that a test can change it. */
static inline float *net_param(const net *n, uint32_t param)
{
    return (float *)(uintptr_t)n->params[param];
}

static inline size_t net_term_count(const net *n, uint32_t term)
{
    uint32_t count;
    return lk_shape_count(
        lk_model_params(n->model, &count)[lk_model_terms(n->model, &count)[term].param].shape);
}

static inline void net_clear(net *n)
{
    uint32_t        count;
    const lk_state *states = lk_model_states(n->model, &count);
    for (uint32_t c = 0; c < CONTEXTS_MAX && n->grads[c] != NULL; c++) {
        for (uint32_t t = 0; t < n->term_count; t++)
            memset(n->grads[c][t], 0, net_term_count(n, t) * sizeof(float));
        for (uint32_t i = 0; i < n->state_count; i++)
            memset(n->sums[c][i], 0, states[i].count * sizeof(float));
    }
}

static inline lk_walk net_walk(const net *n, bool training)
{
    return (lk_walk){ .training = training, .seed = 7, .step = 3, .params = n->params,
                      .state = n->state };
}

static inline lk_pass net_pass(const net *n, uint32_t context, uint32_t samples, const void *x,
                               const int32_t *targets)
{
    return (lk_pass){ .samples = samples, .x = x, .targets = targets, .grads = n->grads[context],
                      .state_sums = n->sums[context] };
}

static inline void net_close(net *n)
{
    for (uint32_t i = 0; i < n->param_count; i++)
        lki_free(net_param(n, i));
    for (uint32_t i = 0; i < n->state_count; i++)
        lki_free((void *)(uintptr_t)n->state[i]);
    for (uint32_t c = 0; c < CONTEXTS_MAX && n->grads[c] != NULL; c++) {
        for (uint32_t t = 0; t < n->term_count; t++)
            lki_free(n->grads[c][t]);
        for (uint32_t i = 0; i < n->state_count; i++)
            lki_free(n->sums[c][i]);
        lki_free(n->grads[c]);
        lki_free(n->sums[c]);
    }
    lki_free(n->params);
    lki_free(n->state);
    lk_engine_free(n->engine);
    lk_exec_free(n->exec);
    lk_model_free(n->model);
}

#endif
