/* image.c -- decodes JPEG with libjpeg-turbo and PNG with libpng.
 *
 * JPEG decoders may produce slightly different pixels.  We always use the accurate integer
 * transform with smooth upsampling, which libjpeg-turbo computes identically on every processor.
 * The content hash of data with JPEGs differs between decoders with different pixels.
 */
#include "data/image.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <turbojpeg.h>

#include "base/memory.h"

static lk_status refuse(const lki_image_place *place, const char *kind, const char *reason)
{
    return lk_fail(LK_EFORMAT, "'%s': '%s' at byte %llu is no good %s: %s", place->path,
                   place->member, (unsigned long long)place->offset, kind, reason);
}

static lk_status allocate(lki_image *out, const char *kind, const lki_image_place *place)
{
    uint64_t pixels = (uint64_t)out->width * out->height;
    if (pixels == 0 || pixels > LKI_IMAGE_PIXELS_MAX) {
        char reason[80];
        (void)snprintf(reason, sizeof reason, "%u x %u pixels; read are up to %llu", out->width,
                       out->height, (unsigned long long)LKI_IMAGE_PIXELS_MAX);
        return refuse(place, kind, reason);
    }
    return lki_alloc((void **)&out->pixels, pixels * out->channels, "an image");
}

void lki_image_free(lki_image *image)
{
    lki_free(image->pixels);
    image->pixels = NULL;
}

/* ---- JPEG ----------------------------------------------------------------------------------- */

enum { FLAGS = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS };

static uint8_t luma(const uint8_t *rgb)
{
    return (uint8_t)((299u * rgb[0] + 587u * rgb[1] + 114u * rgb[2] + 500) / 1000);
}

/* Decodes a JPEG of four inks.  Such files store 255 minus the ink, as Adobe's programs write them:
 * a colour is the product of its value and that of black. */
static lk_status decode_inks(tjhandle handle, lki_image *out, const uint8_t *data, size_t bytes,
                             const lki_image_place *place)
{
    const size_t pixels = (size_t)out->width * out->height;
    lki_image    inks   = { .width = out->width, .height = out->height, .channels = 4 };
    LK_TRY(allocate(&inks, "JPEG", place));
    lk_status status = allocate(out, "JPEG", place);
    if (status == LK_OK &&
        tjDecompress2(handle, data, bytes, inks.pixels, (int)inks.width, 0, (int)inks.height,
                      TJPF_CMYK, FLAGS) != 0)
        status = refuse(place, "JPEG", tjGetErrorStr2(handle));
    for (size_t i = 0; status == LK_OK && i < pixels; i++) {
        const uint8_t *ink = inks.pixels + 4 * i;
        uint8_t        rgb[3];
        for (size_t c = 0; c < 3; c++)
            rgb[c] = (uint8_t)((2u * ink[c] * ink[3] + 255) / 510);
        if (out->channels == 1)
            out->pixels[i] = luma(rgb);
        else
            memcpy(out->pixels + 3 * i, rgb, 3);
    }
    lki_image_free(&inks);
    return status;
}

static lk_status decode_with(tjhandle handle, lki_image *out, const uint8_t *data, size_t bytes,
                             const lki_image_place *place)
{
    int width = 0, height = 0, sampling, space;
    if (tjDecompressHeader3(handle, data, bytes, &width, &height, &sampling, &space) != 0)
        return refuse(place, "JPEG", tjGetErrorStr2(handle));
    out->width  = (uint32_t)width;
    out->height = (uint32_t)height;
    if (space == TJCS_CMYK || space == TJCS_YCCK)
        return decode_inks(handle, out, data, bytes, place);
    LK_TRY(allocate(out, "JPEG", place));
    if (tjDecompress2(handle, data, bytes, out->pixels, width, 0, height,
                      out->channels == 1 ? TJPF_GRAY : TJPF_RGB, FLAGS) != 0)
        return refuse(place, "JPEG", tjGetErrorStr2(handle));
    return LK_OK;
}

lk_status lki_jpeg_decode(lki_image *out, const uint8_t *data, size_t bytes, uint32_t channels,
                          const lki_image_place *place)
{
    *out = (lki_image){ .channels = channels };
    tjhandle handle = tjInitDecompress();
    if (handle == NULL)
        return lk_fail(LK_ENOMEM, "no memory to decode a JPEG");
    lk_status status = decode_with(handle, out, data, bytes, place);
    (void)tjDestroy(handle);
    if (status != LK_OK)
        lki_image_free(out);
    return status;
}

/* ---- PNG ------------------------------------------------------------------------------------ */

/* The state of decoding a PNG, in memory that a longjmp out of libpng leaves intact. */
typedef struct {
    png_structp      png;
    png_infop        info;
    const uint8_t   *data;
    size_t           bytes, at;
    lki_image       *image;
    uint8_t        **rows;
    const lki_image_place *place;
    char             reason[128];
} reader;

static void on_error(png_structp png, png_const_charp message)
{
    reader *r = png_get_error_ptr(png);
    (void)snprintf(r->reason, sizeof r->reason, "%s", message);
    png_longjmp(png, 1);
}

/* Ignores warnings, which concern chunks that do not affect pixels. */
static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep out, size_t bytes)
{
    reader *r = png_get_io_ptr(png);
    if (bytes > r->bytes - r->at)
        png_error(png, "it ends too early");
    memcpy(out, r->data + r->at, bytes);
    r->at += bytes;
}

/* Requests 8 bits without palette and transparency. *channels becomes the resulting number of
 * channels. */
static void simplify(reader *r)
{
    int type = png_get_color_type(r->png, r->info);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(r->png);
    if ((type & PNG_COLOR_MASK_COLOR) == 0)
        png_set_expand_gray_1_2_4_to_8(r->png);
    png_set_scale_16(r->png);
    png_set_strip_alpha(r->png);
    (void)png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    r->image->width    = png_get_image_width(r->png, r->info);
    r->image->height   = png_get_image_height(r->png, r->info);
    r->image->channels = png_get_channels(r->png, r->info);
}

static lk_status allocate_rows(reader *r)
{
    LK_TRY(allocate(r->image, "PNG", r->place));
    LK_TRY(LKI_NEW(&r->rows, r->image->height, "rows of an image"));
    for (uint32_t i = 0; i < r->image->height; i++)
        r->rows[i] = r->image->pixels + (size_t)i * r->image->width * r->image->channels;
    return LK_OK;
}

/* Returns true if the file is large enough for the image that its header claims: deflate expands by
 * at most a factor of 1032.  Called before memory is allocated for the image. */
static bool is_vouched_for(const reader *r)
{
    return (uint64_t)png_get_rowbytes(r->png, r->info) * png_get_image_height(r->png, r->info) /
               1032 <= r->bytes;
}

static lk_status read_png(reader *r)
{
    if (setjmp(png_jmpbuf(r->png)) != 0)
        return refuse(r->place, "PNG", r->reason);
    png_set_read_fn(r->png, r, on_read);
    png_read_info(r->png, r->info);
    if (!is_vouched_for(r))
        png_error(r->png, "it claims more pixels than its bytes can hold");
    simplify(r);
    LK_TRY(allocate_rows(r));
    png_read_image(r->png, r->rows);
    png_read_end(r->png, NULL);
    return LK_OK;
}

/* Converts between one channel and three. */
static lk_status convert(lki_image *image, uint32_t channels)
{
    size_t   pixels = (size_t)image->width * image->height;
    uint8_t *to     = NULL;
    if (image->channels == channels)
        return LK_OK;
    LK_TRY(lki_alloc((void **)&to, pixels * channels, "an image"));
    for (size_t i = 0; i < pixels; i++)
        if (channels == 1)
            to[i] = luma(image->pixels + 3 * i);
        else
            memset(to + 3 * i, image->pixels[i], 3);
    lki_free(image->pixels);
    image->pixels   = to;
    image->channels = channels;
    return LK_OK;
}

lk_status lki_png_decode(lki_image *out, const uint8_t *data, size_t bytes, uint32_t channels,
                         const lki_image_place *place)
{
    reader r = { .data = data, .bytes = bytes, .image = out, .place = place };
    *out     = (lki_image){ .pixels = NULL };
    r.png    = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    if (r.png != NULL)
        r.info = png_create_info_struct(r.png);
    lk_status status = r.info == NULL ? lk_fail(LK_ENOMEM, "no memory to decode a PNG")
                                      : read_png(&r);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    lki_free(r.rows);
    if (status == LK_OK)
        status = convert(out, channels);
    if (status != LK_OK)
        lki_image_free(out);
    return status;
}
