/* data/picture.h -- samples that are an image with a class: sizes, decoding, resizing. */
#ifndef LKI_DATA_PICTURE_H
#define LKI_DATA_PICTURE_H

#include "data/files.h"
#include "data/image.h"
#include "data/source.h"

enum { LKI_PICTURE_SIDE = 32, LKI_PICTURE_CHANNELS = 3 }; /* defaults of the spec */

/* A sample that may not have all its members yet. */
typedef struct {
    uint64_t start;  /* offset of the headers of the image */
    uint64_t offset; /* offset of the content of the image */
    uint64_t bytes;
    uint32_t shard;
    int32_t  label; /* -1: none yet */
    bool     is_png, has_image;
} lki_picture;

/* Parses "PATH?h=&w=&c=&resize=&classes=".  Sets the shape of a sample and dataset->resize.  The
 * caller frees *path with lki_free(), also on failure.  If `classes` is NULL, the spec may not give
 * it. */
LK_NODISCARD lk_status lki_picture_spec(lk_dataset *dataset, char **path, const char *rest,
                                        uint64_t *classes);

/* Adds `resize` to the content hash if it is given. */
LK_NODISCARD lk_status lki_picture_hash(lk_dataset *dataset);

/* Returns true if the content is a PNG: by its first bytes, or if they are also no JPEG's, by the
 * ending of its name. */
bool lki_picture_is_png(const uint8_t *content, size_t bytes, const char *extension);

/* Adds a member to its sample.  Ignores members that are neither an image nor a class.  Returns
 * LK_EFORMAT for a second image or class, or an invalid class. */
LK_NODISCARD lk_status lki_picture_add(lki_picture *to, const lki_tar *tar,
                                       const lki_tar_member *member, const char *extension);

/* Finishes a sample. *is_one becomes true if the sample has an image and a class.  Returns
 * LK_EFORMAT if the sample has only one of the two. */
LK_NODISCARD lk_status lki_picture_end(const lki_picture *picture, const char *path,
                                       const char *key, size_t start, bool *is_one);

/* Decodes the image. `content` is the content of the image's member; `channels` is 1 or 3. */
LK_NODISCARD lk_status lki_picture_decode(const lki_picture *picture, const uint8_t *content,
                                          uint32_t channels, const lki_image_place *place,
                                          lki_image *out);

/* Converts a decoded image to a sample: the part drawn by `draw`, or the centre if `draw` is
 * NULL. */
LK_NODISCARD lk_status lki_picture_fit(const lk_dataset *dataset, const lki_image *image,
                                       const lki_draw *draw, float *x);

#endif
