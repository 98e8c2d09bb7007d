/* data/picture.h -- samples of archives: a picture and its class. */
#ifndef LKI_DATA_PICTURE_H
#define LKI_DATA_PICTURE_H

#include "data/files.h"
#include "data/image.h"
#include "data/source.h"

enum { LKI_PICTURE_SIDE = 32, LKI_PICTURE_CHANNELS = 3 }; /* where a spec does not say */

/* What the members of a sample have said so far. */
typedef struct {
    uint64_t start;  /* of the image's headers */
    uint64_t offset; /* of its content */
    uint64_t bytes;
    uint32_t shard;
    int32_t  label; /* -1: not seen */
    bool     is_png, has_image;
} lki_picture;

/* Adds a member to its sample, or passes it over.  LK_EFORMAT: it is what the sample has already,
 * or a class that is none. */
LK_NODISCARD lk_status lki_picture_add(lki_picture *to, const lki_tar *tar,
                                       const lki_tar_member *member, const char *extension);

/* Whether a sample of which no more comes is one; LK_EFORMAT if it is half of one. */
LK_NODISCARD lk_status lki_picture_end(const lki_picture *picture, const char *path,
                                       const char *key, size_t start, bool *is_one);

/* `content` is what stands in the archive; `channels` 1 or 3. */
LK_NODISCARD lk_status lki_picture_decode(const lki_picture *picture, const uint8_t *content,
                                          uint32_t channels, const lki_image_place *place,
                                          lki_image *out);

/* A decoded picture as the data set's samples are: the part of it that is drawn, or, with NULL, its
 * middle.  `pixel` is what a byte becomes. */
LK_NODISCARD lk_status lki_picture_fit(const lk_dataset *dataset, const lki_image *image,
                                       const lki_draw *draw, const float pixel[256], float *x);

#endif
