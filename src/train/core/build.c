/* build.c -- builds a session: model, tables, strategy and this rank's virtual workers. */
#include <stdio.h>

#include "base/memory.h"
#include "parallel/joint.h"
#include "parallel/state.h"
#include "train/core/client_rounds.h"
#include "train/core/delays.h"
#include "train/core/feed.h"

/* Computes the index of each block's first term.  Terms are ordered from the last block to the
 * first. */
static lk_status list_terms(lki_session *s)
{
    uint32_t            count, blocks = lk_model_block_count(s->model), t = 0;
    const lk_grad_term *terms = lk_model_terms(s->model, &count);
    LK_TRY(LKI_NEW(&s->turn.first_terms, (size_t)blocks + 1, "terms of blocks"));
    for (uint32_t i = 0; i < blocks; i++) {
        while (t < count && terms[t].block == blocks - 1 - i)
            t++;
        s->turn.first_terms[i + 1] = t;
    }
    LK_ASSERT(t == count);
    return LK_OK;
}

/* Lists the states that checkpoints contain.  The moving mean of a state NAME is called
 * NAME.ema. */
static lk_status list_kept(lki_session *s)
{
    s->kept_count = s->state_count * (s->config->optimizer.ema > 0 ? 2 : 1);
    LK_TRY(LKI_NEW(&s->state_data, s->state_count + 1, "state table"));
    LK_TRY(LKI_NEW(&s->kept, s->kept_count + 1, "state table"));
    for (uint32_t i = 0; i < s->kept_count; i++) {
        s->kept[i] = s->states[i % s->state_count];
        if (i >= s->state_count)
            (void)snprintf(s->kept[i].name, sizeof s->kept[i].name, "%.*s.ema", LK_NAME_MAX - 5,
                           s->states[i % s->state_count].name);
    }
    return LK_OK;
}

lk_status lki_session_model(lki_session *s)
{
    lk_model_options options = lki_model_options(s->config, lk_dataset_describe(s->dataset));

    LK_TRY(lk_model_build(&s->model, s->config->model, &options));
    s->params = lk_model_params(s->model, &s->param_count);
    s->states = lk_model_states(s->model, &s->state_count);
    LK_TRY(list_kept(s));
    (void)lk_model_terms(s->model, &s->term_count);
    LK_TRY(lk_exec_open(&s->exec, s->config->threads, s->config->isa));
    if (s->comm != NULL)
        LK_TRY(lki_set_affinity(s));
    if (s->config->onednn != NULL)
        LK_TRY(lk_exec_use_onednn(s->exec, s->config->onednn));
    LK_TRY(LKI_NEW(&s->param_data, s->param_count, "parameter table"));
    LK_TRY(LKI_NEW(&s->param_bf16, s->param_count, "parameter table"));
    return list_terms(s);
}

lk_status lki_session_turns(lki_session *s)
{
    lki_turn *turn = &s->turn;

    lk_parallel_share(s->parallel, &s->first, &s->count, &s->stride);
    turn->together = lk_model_lock_step(s->model) ? s->count : 1;
    LK_TRY(LKI_NEW(&turn->batches, turn->together, "micro-batches"));
    LK_TRY(LKI_NEW(&turn->passes, turn->together, "micro-batches"));
    LK_TRY(LKI_NEW(&turn->grads, (size_t)turn->together * s->term_count, "gradient table"));
    LK_TRY(LKI_NEW(&turn->empty, (size_t)turn->together * s->term_count, "gradient table"));
    LK_TRY(LKI_NEW(&turn->state_sums, (size_t)turn->together * s->state_count + 1, "state table"));
    const lk_train_config *c    = s->config;
    uint32_t               most = s->joint;
    if (most > 1 && !lki_turns_join(s->parallel, most))
        most = 1;
    LK_TRY(lki_clients_open(s));
    LK_TRY(lki_joint_init(&turn->joint, lk_dataset_describe(s->dataset), most, c->micro_batch));
    if (most > 1)
        return lki_engine_open_parts(&s->engine, s->model, s->exec, c->precision, c->micro_batch,
                                     most);
    bool files = lki_in_files(c, LK_OFFLOADED_ACTIVATIONS);
    return lk_engine_open_offloaded(&s->engine, s->model, s->exec, c->precision, c->micro_batch,
                                    turn->together, files ? c->offload : NULL);
}

lk_status lki_session_options(lki_session *s, lk_parallel_options *out)
{
    LK_TRY(lki_parallel_options_of(s->config, s->model, s->exec, out));
    lk_async *async = (lk_async *)(uintptr_t)out->async;
    if (s->delays == NULL)
        return LK_OK;
    async->time         = lki_delays_time;
    async->time_context = s->delays;
    return LK_OK;
}

/* Joint turns have the same limit on all ranks, which the strategy verifies: the memory of models
 * with joint turns does not depend on instruction sets.  A replay makes turns single in its last
 * step (loop/replay.c), so it needs buffers for them. */
lk_status lki_session_parallel(lki_session *s)
{
    uint32_t            most = s->replays ? 1 : s->joint;
    lk_parallel_options options;
    LK_TRY(lki_delays_open(&s->delays, s->config, s->dataset));
    lk_status status = lki_session_options(s, &options);
    if (status == LK_OK)
        status = lki_parallel_open_joint(&s->parallel, s->comm, s->params, s->param_count, &options,
                                         most);
    lki_parallel_options_free(&options);
    lki_session_may_idle(s->config, s->parallel);
    return status;
}

void lki_session_may_idle(const lk_train_config *config, lk_parallel *parallel)
{
    if (parallel != NULL && lki_federates(config))
        parallel->effects.idles = true;
}

lk_status lki_session_deal(lki_session *s, uint64_t start)
{
    uint32_t first, last, count;
    lki_feed_close(s);
    lk_parallel_share(s->parallel, &s->first, &s->count, &s->stride);
    s->mends = lk_parallel_remainder(s->parallel, &first, &last, &count);
    if (!s->mends)
        LK_TRY(lki_feed_open(s, start));
    else if (count > 0)
        LK_TRY(lki_feed_open_some(s, start, first, last));
    return LK_OK;
}

void lki_fetch_states(lki_session *s)
{
    for (uint32_t i = 0; i < s->state_count; i++)
        s->state_data[i] = lk_parallel_state_data(s->parallel, i);
}

void lki_session_free(lki_session *s)
{
    lki_feed_close(s);
    lki_clients_close(s);
    lk_parallel_free(s->parallel);
    lki_delays_close(s->delays);
    lk_engine_free(s->engine);
    lki_joint_deinit(&s->turn.joint);
    lk_exec_free(s->exec);
    lk_model_free(s->model);
    lk_dataset_free(s->dataset);
    lki_free(s->param_data);
    lki_free(s->param_bf16);
    lki_free(s->state_data);
    lki_free(s->turn.batches);
    lki_free(s->turn.passes);
    lki_free(s->turn.grads);
    lki_free(s->turn.empty);
    lki_free(s->turn.first_terms);
    lki_free(s->turn.state_sums);
    lki_free(s->means);
    lki_free(s->kept);
}
