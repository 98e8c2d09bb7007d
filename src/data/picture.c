/* picture.c -- assembles a sample of an archive from its members, and converts it for the model.
 *
 * An image is .jpg, .jpeg or .png; a class is .cls, a number in ASCII.  A sample has one image and
 * one class.
 */
#include "data/picture.h"

#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "data/pixels.h"

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
    to->is_png    = is_png;
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
    lk_status status = lki_image_fit(image, draw != NULL ? &part : NULL, (uint32_t)shape.dims[0],
                                     (uint32_t)shape.dims[1], bytes);
    if (status == LK_OK)
        lki_pixels_convert(dataset, count, bytes, x);
    lki_free(bytes);
    return status;
}
