/* synthetic.c -- data without files: every value is a function of (seed, index).
 *
 * images=N or samples=N: the label of sample i is drawn from its index.  Element e is half the
 *      class's own pattern at e and half noise, so the label can be learnt from the data, and the
 *      values are in [-1, 1) like standardised pixels.  Both halves are multiples of 2^-24 of at
 *      most 1/2, so their sum is exact.
 * tokens=N: phrases of 8 tokens.  The first token is drawn, and each further token is its
 *      predecessor plus one.  A model that has learnt this rule is uncertain only at one token of
 *      eight.
 */
#include "data/source.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/memory.h"

enum { PHRASE = 8 };

/* The purposes of random words, stored in the counter's last word. */
enum { FOR_LABEL, FOR_PATTERN, FOR_NOISE, FOR_PHRASE };

typedef struct {
    uint64_t images, samples, tokens, height, width, channels, features, classes, vocabulary;
} synthetic;

static lki_random draw(const lk_dataset *dataset, uint64_t index, uint32_t element, uint32_t what)
{
    return lki_philox(dataset->options.seed, LKI_RNG_DATA, (uint32_t)index,
                      (uint32_t)(index >> 32), element, what);
}

/* ---- Kinds -------------------------------------------------------------------------------- */

static void or_default(uint64_t *value, uint64_t fallback)
{
    if (*value == 0)
        *value = fallback;
}

static lk_status describe_images(lk_dataset *dataset, synthetic *self)
{
    or_default(&self->height, 8);
    or_default(&self->width, 8);
    or_default(&self->channels, 1);
    or_default(&self->classes, 10);
    dataset->total   = self->images;
    dataset->info.x  = (lk_shape){ .rank = 3,
                                   .dims = { self->height, self->width, self->channels } };
    return LK_OK;
}

static lk_status describe_samples(lk_dataset *dataset, synthetic *self)
{
    or_default(&self->features, 32);
    or_default(&self->classes, 10);
    dataset->total  = self->samples;
    dataset->info.x = (lk_shape){ .rank = 1, .dims = { self->features } };
    return LK_OK;
}

static lk_status describe_tokens(lk_dataset *dataset, synthetic *self)
{
    or_default(&self->vocabulary, 256);
    dataset->total        = self->tokens;
    dataset->info.tokens  = true;
    return LK_OK;
}

/* Fills in the description for the kind: images, samples or tokens.  Settings of other kinds are
 * errors. */
static lk_status describe(lk_dataset *dataset, synthetic *self, const char *rest)
{
    bool image_only  = self->height > 0 || self->width > 0 || self->channels > 0;
    bool token_only  = self->vocabulary > 0;
    bool sample_only = self->features > 0;
    int  kinds       = (self->images > 0) + (self->samples > 0) + (self->tokens > 0);

    if (kinds == 1 && self->images > 0 && !token_only && !sample_only)
        return describe_images(dataset, self);
    if (kinds == 1 && self->samples > 0 && !token_only && !image_only)
        return describe_samples(dataset, self);
    if (kinds == 1 && self->tokens > 0 && !sample_only && !image_only && self->classes == 0)
        return describe_tokens(dataset, self);
    return lk_fail(LK_EINVAL, "'synthetic:%s' must be one of images=N,h=H,w=W,c=C,classes=K or "
                              "samples=N,features=F,classes=K or tokens=N,vocab=K", rest);
}

static void hash_content(lk_dataset *dataset, const synthetic *self)
{
    char text[320];
    int  length = snprintf(text, sizeof text,
                           "synthetic images %llu samples %llu tokens %llu h %llu w %llu c %llu "
                           "features %llu classes %llu vocab %llu seed %llu",
                           (unsigned long long)self->images, (unsigned long long)self->samples,
                           (unsigned long long)self->tokens, (unsigned long long)self->height,
                           (unsigned long long)self->width, (unsigned long long)self->channels,
                           (unsigned long long)self->features, (unsigned long long)self->classes,
                           (unsigned long long)self->vocabulary,
                           (unsigned long long)dataset->options.seed);
    LK_ASSERT(length > 0 && (size_t)length < sizeof text);
    lki_xxh3_128(text, (size_t)length, dataset->info.content_hash);
}

static lk_status synthetic_open(lk_dataset *dataset, const char *rest)
{
    synthetic *self = NULL;
    LK_TRY(LKI_NEW(&self, 1, "synthetic data"));
    dataset->state = self;
    const lki_setting table[] = {
        { "images", &self->images, 1, UINT64_C(1) << 40 },
        { "samples", &self->samples, 1, UINT64_C(1) << 40 },
        { "tokens", &self->tokens, 1, UINT64_C(1) << 48 },
        { "h", &self->height, 1, 1024 },
        { "w", &self->width, 1, 1024 },
        { "c", &self->channels, 1, 1024 },
        { "features", &self->features, 1, 1 << 24 },
        { "classes", &self->classes, 1, 1 << 20 },
        { "vocab", &self->vocabulary, 1, LKI_CLASSES_MAX },
        { NULL, NULL, 0, 0 },
    };
    LK_TRY(lki_settings_parse(rest, ',', table, rest));
    LK_TRY(describe(dataset, self, rest));
    dataset->info.classes =
        (uint32_t)(dataset->info.tokens ? self->vocabulary : self->classes);
    hash_content(dataset, self);
    return LK_OK;
}

static void synthetic_close(lk_dataset *dataset)
{
    lki_free(dataset->state);
}

/* ---- Reading ------------------------------------------------------------------------------ */

static void synthetic_read_tokens(const lk_dataset *dataset, uint64_t first, size_t count,
                                  int32_t *out)
{
    const synthetic *self = dataset->state;
    for (size_t i = 0; i < count; i++) {
        uint64_t   at     = first + i;
        lki_random random = draw(dataset, at / PHRASE, 0, FOR_PHRASE);
        out[i] = (int32_t)((random.word[0] + at % PHRASE) % self->vocabulary);
    }
}

static lk_status synthetic_read_sample(const lk_dataset *dataset, uint64_t index, float *x,
                                  int32_t *label)
{
    const synthetic *self  = dataset->state;
    size_t           count = dataset->elements;
    uint32_t         which = (uint32_t)(draw(dataset, index, 0, FOR_LABEL).word[0] %
                                        self->classes);
    for (size_t e = 0; e < count; e += 4) {
        lki_random pattern = draw(dataset, which, (uint32_t)e, FOR_PATTERN);
        lki_random noise   = draw(dataset, index, (uint32_t)e, FOR_NOISE);
        for (size_t lane = 0; lane < 4 && e + lane < count; lane++)
            x[e + lane] = (lki_random_unit(pattern.word[lane]) - 0.5f) +
                          (lki_random_unit(noise.word[lane]) - 0.5f);
    }
    *label = (int32_t)which;
    return LK_OK;
}

const lki_source lki_source_synthetic = {
    .name        = "synthetic",
    .open        = synthetic_open,
    .close       = synthetic_close,
    .read_tokens = synthetic_read_tokens,
    .read_sample = synthetic_read_sample,
};
