/* resnet.c -- residual networks of basic blocks, each two 3x3 convolutions and a shortcut.
 *
 *     x -- conv1 -- bn1 -- relu -- conv2 -- bn2 -- (+) -- relu --
 *       \-------------- shortcut ------------------/
 *
 * The CIFAR family (depth 6n + 2) has three stages of n blocks with 16, 32 and 64 channels, and
 * shortcuts without parameters.  ResNet-18 (depth 18) has four stages of two blocks with 64 to 512
 * channels.  Its shortcuts are 1x1 convolutions if the shape changes.  For images of at least 64
 * pixels it begins with a 7x7 convolution and max pooling, for smaller images with a 3x3
 * convolution.  Names are torchvision's.
 *
 * Source: He et al. 2015, sections 3.3 and 4.2.
 */
#include <math.h>

#include "models/build.h"

enum { DEPTH_DEFAULT = 20, DEPTH_MAX = 1202, LARGE_IMAGE = 64 };

typedef struct {
    lki_builder base;
    bool        projection; /* shortcuts have parameters */
    bool        zero_gamma;
    const lk_block_type *norm;
    uint64_t    channels;   /* channels of the value that the next block reads */
} resnet;

static lk_value conv(resnet *r, lki_name name, uint64_t out, uint64_t kernel, uint64_t stride,
                     lk_value x)
{
    lk_conv_options options = { .out = out, .kernel = kernel, .stride = stride, .pad = kernel / 2 };
    return lki_build(&r->base, &lk_block_conv, name.text, &options, sizeof options, x);
}

static lk_value norm(resnet *r, lki_name name, bool relu, lk_value x)
{
    lk_batchnorm_options options = { .relu = relu };
    return lki_build(&r->base, r->norm, name.text, &options, sizeof options, x);
}

static lk_value shortcut(resnet *r, lki_name prefix, uint64_t channels, uint64_t stride, lk_value x)
{
    if (stride == 1 && channels == r->channels)
        return x;
    if (r->projection) {
        x = conv(r, lki_name_of("%.64s.downsample.0", prefix.text), channels, 1, stride, x);
        return norm(r, lki_name_of("%.64s.downsample.1", prefix.text), false, x);
    }
    lk_shortcut_options options = { .channels = channels, .stride = stride };
    return lki_build(&r->base, &lk_block_shortcut, "", &options, sizeof options, x);
}

static lk_value basic_block(resnet *r, lki_name prefix, uint64_t channels, uint64_t stride,
                            lk_value x)
{
    lk_batchnorm_options last = { .relu = true, .zero_gamma = r->zero_gamma };

    lk_value h = conv(r, lki_name_of("%.64s.conv1", prefix.text), channels, 3, stride, x);
    h          = norm(r, lki_name_of("%.64s.bn1", prefix.text), true, h);
    h          = conv(r, lki_name_of("%.64s.conv2", prefix.text), channels, 3, 1, h);
    x          = shortcut(r, prefix, channels, stride, x);
    r->channels = channels;
    return lki_build2(&r->base, r->norm, lki_name_of("%.64s.bn2", prefix.text).text, &last,
                      sizeof last, h, x);
}

static lk_value stem(resnet *r, bool large, uint64_t channels)
{
    lk_maxpool_options pool = { .kernel = 3, .stride = 2, .pad = 1 };

    lk_value x  = conv(r, lki_name_of("conv1"), channels, large ? 7 : 3, large ? 2 : 1, 0);
    x           = norm(r, lki_name_of("bn1"), true, x);
    r->channels = channels;
    return large ? lki_build(&r->base, &lk_block_maxpool, "", &pool, sizeof pool, x) : x;
}

static void head(resnet *r, const lk_model_options *options, lk_value x)
{
    lk_linear_options fc = { .out = options->classes, .init = LK_INIT_UNIFORM,
                             .scale = 1.0F / sqrtf((float)r->channels) };
    x = lki_build(&r->base, &lk_block_avgpool, "", NULL, 0, x);
    x = lki_build(&r->base, &lk_block_linear, "fc", &fc, sizeof fc, x);
    lki_build_cross_entropy(&r->base, options, x);
}

/* Returns true for supported depths.  50 and 152 are also 6n + 2, but denote bottleneck
 * networks. */
static bool known_depth(uint32_t depth)
{
    return depth == 18 || (depth >= 8 && depth <= DEPTH_MAX && depth % 6 == 2 && depth != 50 &&
                           depth != 152);
}

static lk_status check_options(const lk_model_options *options, uint32_t depth)
{
    if (options->tokens || options->input.rank != 3)
        return lk_fail(
            LK_EINVAL,
            "resnet: it reads images (height, width, channels); give `data.source` idx:, "
            "cifar10:, tar:, or npy: or stream: with images, or train mlp");
    if (options->classes < 2)
        return lk_fail(LK_EINVAL,
                       "resnet: %u classes; the labels of `data.source` must have at least 2",
                       options->classes);
    if (!known_depth(depth))
        return lk_fail(LK_EINVAL,
                       "resnet: `depth` %u; there are 18, and 20, 32, 44, 56, 110 ... (6n + 2, "
                       "the CIFAR family) without the bottleneck networks 50 and 152",
                       depth);
    return LK_OK;
}

void lki_resolve_resnet(lk_model_options *out, const lk_model_options *options)
{
    out->depth      = options->depth > 0 ? options->depth : DEPTH_DEFAULT;
    out->zero_gamma = options->zero_gamma;
    out->batchnorm  = options->batchnorm;

    out->activation_checkpointing = options->activation_checkpointing;
}

lk_status lki_build_resnet(lk_model **out, const lk_model_options *options)
{
    uint32_t depth  = options->depth;
    bool     is18   = depth == 18;
    uint32_t stages = is18 ? 4 : 3, blocks = is18 ? 2 : (depth - 2) / 6;
    uint64_t channels = is18 ? 64 : 16;
    resnet   r        = { .projection = is18,
                          .zero_gamma = options->zero_gamma,
                          .norm       = options->batchnorm == LK_BATCHNORM_SYNC
                                            ? &lk_block_sync_batchnorm
                                            : &lk_block_batchnorm };

    LK_TRY(check_options(options, depth));
    LK_TRY(lki_build_begin(&r.base, "resnet", options->input, false));
    lk_value x = stem(&r, is18 && options->input.dims[1] >= LARGE_IMAGE, channels);
    for (uint32_t stage = 0; stage < stages; stage++, channels *= 2)
        for (uint32_t i = 0; i < blocks; i++) {
            lki_build_segment(&r.base, options->activation_checkpointing);
            x = basic_block(&r, lki_name_of("layer%u.%u", stage + 1, i), channels,
                            stage > 0 && i == 0 ? 2 : 1, x);
        }
    lki_build_segment(&r.base, false);
    head(&r, options, x);
    return lki_build_end(&r.base, out);
}
