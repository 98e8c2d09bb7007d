/* subject.c -- the small models of the measurements, with sizes that users' models rarely have. */
#include "plan/subject.h"

#include <string.h>

#include "base/memory.h"

/* ---- The small models -------------------------------------------------------------------- */

#define GPT(m, layer_count, head_count, channels, places, words)                                   \
    {                                                                                              \
        m,                                                                                         \
        {                                                                                          \
            .layers = (layer_count), .heads = (head_count), .width = (channels), .tokens = true,   \
            .input = { 1, { places } }, .classes = (words)                                         \
        }                                                                                          \
    }
#define LLAMA(m, layer_count, head_count, kv_count, channels, places, words)                       \
    {                                                                                              \
        m,                                                                                         \
        {                                                                                          \
            .layers = (layer_count), .heads = (head_count), .kv_heads = (kv_count),                \
            .width = (channels), .tokens = true, .input = { 1, { places } }, .classes = (words)    \
        }                                                                                          \
    }
#define RESNET(m, layer_count, side, labels)                                                       \
    {                                                                                              \
        m,                                                                                         \
        {                                                                                          \
            .depth = (layer_count), .input = { 3, { side, side, 3 } }, .classes = (labels)         \
        }                                                                                          \
    }
#define MLP(m, in, first, second, labels)                                                          \
    {                                                                                              \
        m,                                                                                         \
        {                                                                                          \
            .input = { 1, { in } }, .hidden = { first, second }, .hidden_count = 2,                \
            .classes = (labels)                                                                    \
        }                                                                                          \
    }

static const lki_probe_model gpts[] = {
    GPT(8, 1, 2, 72, 48, 97),    GPT(6, 2, 5, 160, 104, 390),   GPT(3, 1, 5, 320, 200, 1500),
    GPT(2, 1, 9, 576, 300, 640), GPT(3, 3, 11, 704, 40, 12000), GPT(1, 1, 7, 224, 640, 200),
    GPT(1, 1, 7, 448, 96, 5000), GPT(5, 1, 3, 96, 160, 300),    GPT(2, 1, 3, 192, 64, 40000),
};
static const lki_probe_model llamas[] = {
    LLAMA(8, 1, 2, 1, 72, 48, 97),    LLAMA(6, 2, 5, 5, 160, 104, 390),
    LLAMA(3, 1, 5, 1, 320, 200, 1500), LLAMA(2, 1, 9, 3, 576, 300, 640),
    LLAMA(3, 3, 11, 11, 704, 40, 12000), LLAMA(1, 1, 7, 7, 224, 640, 200),
    LLAMA(1, 1, 8, 2, 448, 96, 5000), LLAMA(5, 1, 3, 1, 96, 160, 300),
    LLAMA(2, 1, 3, 3, 192, 64, 40000),
};
static const lki_probe_model resnets[] = {
    RESNET(14, 8, 20, 12), RESNET(3, 14, 28, 10), RESNET(40, 8, 12, 10),  RESNET(5, 8, 40, 10),
    RESNET(4, 18, 20, 10), RESNET(2, 18, 36, 90), RESNET(1, 18, 72, 900), RESNET(10, 18, 12, 20),
};
static const lki_probe_model mlps[] = {
    MLP(24, 400, 96, 72, 12),    MLP(6, 1000, 300, 200, 20),  MLP(48, 640, 640, 400, 10),
    MLP(12, 1500, 900, 600, 90), MLP(100, 200, 240, 160, 30),
};

static const lki_probe_family families[] = {
    { "gpt", gpts, sizeof gpts / sizeof gpts[0] },
    { "llama", llamas, sizeof llamas / sizeof llamas[0] },
    { "resnet", resnets, sizeof resnets / sizeof resnets[0] },
    { "mlp", mlps, sizeof mlps / sizeof mlps[0] },
};

const lki_probe_family *lki_probe_family_of(const char *model)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        if (strcmp(families[f].name, model) == 0)
            return &families[f];
    return NULL;
}

/* ---- Inputs ------------------------------------------------------------------------------ */

static void fill_noise(float *to, size_t count, float center, float spread)
{
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        to[i] = center + spread * ((float)(state >> 8) / (float)(1 << 23) - 1);
    }
}

static lk_status subject_input(lki_subject *s, const lk_model_options *o)
{
    size_t count = s->samples * lk_shape_count(o->input);
    size_t rows  = (size_t)s->samples * lk_model_loss_rows(s->model);
    float *image = NULL;
    LK_TRY(LKI_NEW(&image, count, "a probe's input"));
    s->x = image;
    LK_TRY(LKI_NEW(&s->targets, rows, "a probe's targets"));
    for (size_t i = 0; i < rows; i++)
        s->targets[i] = (int32_t)(i * 7919 % o->classes);
    fill_noise(image, count, 0, 1);
    if (o->tokens)
        for (size_t i = 0; i < count; i++)
            ((int32_t *)s->x)[i] = (int32_t)(i * 104729 % o->classes);
    return LK_OK;
}

lk_status lki_subject_open(lki_subject *s, const lki_probe_model *probe,
                           const lk_train_config *config)
{
    lk_model_options options = probe->options;

    *s                  = (lki_subject){ .config = config, .samples = probe->samples };
    options.struct_size = sizeof options;
    LK_TRY(lk_model_build(&s->model, config->model, &options));
    s->params      = lk_model_params(s->model, &s->param_count);
    s->states      = lk_model_states(s->model, &s->state_count);
    s->terms       = lk_model_terms(s->model, &s->term_count);
    s->block_count = lk_model_block_count(s->model);
    LK_TRY(LKI_NEW(&s->values, s->param_count, "a probe's parameters"));
    LK_TRY(LKI_NEW(&s->running, s->state_count + 1, "a probe's state"));
    for (uint32_t p = 0; p < s->param_count; p++) {
        size_t count = lk_shape_count(s->params[p].shape);
        LK_TRY(LKI_NEW(&s->values[p], count, "a probe's parameters"));
        fill_noise(s->values[p], count, s->params[p].init == LK_INIT_ONE, 0.05F);
    }
    for (uint32_t i = 0; i < s->state_count; i++) {
        LK_TRY(LKI_NEW(&s->running[i], s->states[i].count, "a probe's state"));
        fill_noise(s->running[i], s->states[i].count, s->states[i].initial, 0);
    }
    return subject_input(s, &options);
}

void lki_free_rows(float **rows, uint32_t count)
{
    for (uint32_t i = 0; rows != NULL && i < count; i++)
        lki_free(rows[i]);
    lki_free(rows);
}

void lki_subject_close(lki_subject *s)
{
    lki_free_rows(s->values, s->param_count);
    lki_free_rows(s->running, s->state_count);
    lki_free(s->x);
    lki_free(s->targets);
    lk_model_free(s->model);
}
