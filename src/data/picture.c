/* picture.c -- images with a class: assembles them from members of an archive, and converts them
 * for the model.
 *
 * In an archive an image is .jpg, .jpeg or .png, and a class is .cls, a number in ASCII.  A sample
 * has one image and one class.
 */
#include "data/picture.h"

#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/pixels.h"

/* ---- The spec ------------------------------------------------------------------------------- */

lk_status lki_picture_spec(lk_dataset *dataset, char **path, const char *rest, uint64_t *classes)
{
    uint64_t height = LKI_PICTURE_SIDE, width = LKI_PICTURE_SIDE, channels = LKI_PICTURE_CHANNELS,
             resize = 0;
    const lki_setting table[] = {
        { "h", &height, 1, 4096 },
        { "w", &width, 1, 4096 },
        { "c", &channels, 1, 3 },
        { "resize", &resize, 1, 4096 },
        { classes != NULL ? "classes" : NULL, classes, 1, LKI_CLASSES_MAX },
        { NULL, NULL, 0, 0 },
    };
    const char *settings = strchr(rest, '?');
    LK_TRY(lki_path_join(path, "", rest));
    if (settings != NULL) {
        (*path)[settings - rest] = '\0';
        LK_TRY(lki_settings_parse(settings + 1, '&', table, rest));
    }
    if (channels == 2)
        return lk_fail(LK_EINVAL, "'%s': c is 1 (grey) or 3 (colours)", rest);
    if (resize > 0 && resize < lki_max(height, width))
        return lk_fail(LK_EINVAL, "'%s': resize=%llu is smaller than the samples, %llu x %llu",
                       rest, (unsigned long long)resize, (unsigned long long)height,
                       (unsigned long long)width);
    dataset->resize = (uint32_t)resize;
    dataset->info.x = (lk_shape){ .rank = 3, .dims = { height, width, channels } };
    return LK_OK;
}

lk_status lki_picture_hash(lk_dataset *dataset)
{
    char hashes[2][33];
    if (dataset->resize == 0)
        return LK_OK;
    memcpy(hashes[0], dataset->info.content_hash, sizeof hashes[0]);
    lki_xxh3_128(&dataset->resize, sizeof dataset->resize, hashes[1]);
    return lki_hash_of_hashes(dataset->info.content_hash, hashes, 2);
}

/* ---- Members of an archive ------------------------------------------------------------------- */

static lk_status read_label(lki_picture *out, const lki_tar *tar, const lki_tar_member *member)
{
    const uint8_t *text  = member->content;
    size_t         bytes = member->bytes, i = 0;
    uint64_t       label = 0;
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r' ||
                         text[bytes - 1] == ' '))
        bytes--;
    while (i < bytes && i < 10 && text[i] >= '0' && text[i] <= '9')
        label = label * 10 + (uint64_t)(text[i++] - '0');
    if (bytes == 0 || i < bytes || label >= LKI_CLASSES_MAX)
        return lk_fail(LK_EFORMAT, "'%s': '%s' at byte %zu is no class: '%.*s', expected a number "
                                   "from 0 to %d", tar->path, member->name, member->start,
                       (int)lki_min(bytes, 20), (const char *)text, INT32_MAX - 1);
    out->label = (int32_t)label;
    return LK_OK;
}

bool lki_picture_is_png(const uint8_t *content, size_t bytes, const char *extension)
{
    static const uint8_t png[8] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
    if (bytes >= sizeof png && memcmp(content, png, sizeof png) == 0)
        return true;
    return strcasecmp(extension, "png") == 0 &&
           !(bytes >= 2 && content[0] == 0xff && content[1] == 0xd8);
}

lk_status lki_picture_add(lki_picture *to, const lki_tar *tar, const lki_tar_member *member,
                          const char *extension)
{
    bool is_label = strcasecmp(extension, "cls") == 0, is_png = strcasecmp(extension, "png") == 0;
    if (!is_label && !is_png && strcasecmp(extension, "jpg") != 0 &&
        strcasecmp(extension, "jpeg") != 0)
        return LK_OK;
    if (is_label ? to->label >= 0 : to->has_image)
        return lk_fail(LK_EFORMAT, "'%s': '%s' at byte %zu is the second %s of its sample",
                       tar->path, member->name, member->start, is_label ? "class" : "image");
    if (is_label)
        return read_label(to, tar, member);
    to->has_image = true;
    to->is_png    = lki_picture_is_png(member->content, member->bytes, extension);
    to->start     = member->start;
    to->offset    = member->offset;
    to->bytes     = member->bytes;
    return LK_OK;
}

lk_status lki_picture_end(const lki_picture *picture, const char *path, const char *key,
                          size_t start, bool *is_one)
{
    *is_one = picture->has_image && picture->label >= 0;
    if (*is_one || (!picture->has_image && picture->label < 0))
        return LK_OK;
    return lk_fail(LK_EFORMAT, "'%s': the sample '%s' at byte %zu has %s", path, key, start,
                   picture->has_image ? "an image but no class (.cls)"
                                      : "a class but no image (.jpg, .jpeg or .png)");
}

lk_status lki_picture_decode(const lki_picture *picture, const uint8_t *content, uint32_t channels,
                             const lki_image_place *place, lki_image *out)
{
    return (picture->is_png ? lki_png_decode : lki_jpeg_decode)(out, content, picture->bytes,
                                                                channels, place);
}

/* Returns the centre of the image that the sample would have if the shorter side were resized to
 * dataset->resize pixels first. */
static lki_rectangle centre_of(const lk_dataset *dataset, const lki_image *image)
{
    const uint64_t shorter = lki_min(image->width, image->height), resize = dataset->resize;
    const uint64_t height  = (2 * dataset->info.x.dims[0] * shorter + resize) / (2 * resize);
    const uint64_t width   = (2 * dataset->info.x.dims[1] * shorter + resize) / (2 * resize);
    lki_rectangle  r = { .width = (uint32_t)lki_max(1, width),
                         .height = (uint32_t)lki_max(1, height) };
    r.left = (image->width - r.width) / 2;
    r.top  = (image->height - r.height) / 2;
    return r;
}

lk_status lki_picture_fit(const lk_dataset *dataset, const lki_image *image, const lki_draw *draw,
                          float *x)
{
    lk_shape      shape = dataset->info.x;
    size_t        count = lk_shape_count(shape);
    uint8_t      *bytes = NULL;
    lki_rectangle part  = { 0, 0, 0, 0 };
    LK_TRY(lki_alloc((void **)&bytes, count, "an image"));
    if (draw != NULL)
        part = lki_part_of(dataset, draw, image->height, image->width);
    else if (dataset->resize > 0)
        part = centre_of(dataset, image);
    lk_status status = lki_image_fit(image, part.width > 0 ? &part : NULL, (uint32_t)shape.dims[0],
                                     (uint32_t)shape.dims[1], bytes);
    if (status == LK_OK)
        lki_pixels_convert(dataset, count, bytes, x);
    lki_free(bytes);
    return status;
}
