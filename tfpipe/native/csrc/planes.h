/* The samples of a rectangle of an image, a few rows at a time: each component has a plane of its own size.

   A plane keeps the samples of two rows of MCUs. The next row of MCUs takes the place of the older one, so that the rows of
   pixels between both can still be made. */

#ifndef TFPIPE_PLANES_H
#define TFPIPE_PLANES_H

#include <stddef.h>
#include <stdint.h>

#include "jpeg_format.h"

/* A rectangle of pixels. */
typedef struct {
    int32_t y, x, height, width;
} tfpipe_box;

/* How a component gets the size of the image. */
typedef enum {
    TFPIPE_AS_IT_IS,
    TFPIPE_WIDENED,         /* twice as wide, each sample blended with its neighbors */
    TFPIPE_WIDENED_BETWEEN, /* twice as wide and as high, blended */
    TFPIPE_HEIGHTENED,      /* twice as high, blended */
    TFPIPE_REPEATED,        /* any number of times */
} tfpipe_enlarging;

/* A component of the reduced image.

   side                    the samples of a block, across and down: 8, 4, 2 or 1
   h_times, v_times        how much smaller the component is than the image
   width, height           its samples
   first_block, end_block  the columns of blocks that are needed
   first_row, end_row      the rows of blocks that are needed
   factors                 of the transform
   samples                 the sample at the left end of the first needed column, in the row with index 0
   stride                  the bytes from row to row
   rows                    the rows that are kept: row y has the index y modulo `rows`
   line                    a row of the size of the image, where one has to be made */
typedef struct {
    int side, h_times, v_times;
    tfpipe_enlarging enlarging;
    int32_t width, height;
    int32_t first_block, end_block, first_row, end_row;
    int16_t factors[64];
    uint8_t *samples;
    size_t stride;
    int32_t rows;
    uint8_t *line;
} tfpipe_plane;

/* The planes of an image.

   is_accurate        whether blocks of full size get the accurate transform, not the fast one
   box                the pixels that are wanted, of the reduced image
   first_mcu, end_mcu the columns of MCUs that are needed
   first_mcu_row, end_mcu_row
   pixels             two rows of the box, in turns
   pixel_stride       the bytes from one to the other */
typedef struct {
    const tfpipe_jpeg *jpeg;
    int ratio, is_accurate;
    tfpipe_box box;
    int32_t first_mcu, end_mcu, first_mcu_row, end_mcu_row;
    tfpipe_plane planes[TFPIPE_MAX_COMPONENTS];
    uint8_t *memory, *pixels;
    size_t pixel_stride;
} tfpipe_planes;

/* Makes the planes for a box of the reduced image that is not empty. Returns 0, or -1 if there is no memory. */
int tfpipe_open_planes(tfpipe_planes *self, const tfpipe_jpeg *jpeg, int ratio, int is_accurate, tfpipe_box box);

void tfpipe_close_planes(tfpipe_planes *self);

/* Repeats the samples at the edges of the image, when a row of MCUs has been made. */
void tfpipe_end_mcu_row(tfpipe_planes *self, int32_t mcu_row);

/* Returns whether a row of pixels can be made when the row of MCUs has been. */
int tfpipe_has_row(const tfpipe_planes *self, int32_t y, int32_t mcu_row);

/* Makes a row of pixels of the reduced image. Returns those of the box. With an odd `y` the row before lies in front. */
const uint8_t *tfpipe_make_row(tfpipe_planes *self, int32_t y);

/* Returns where the samples of a block go. */
static inline uint8_t *tfpipe_find_samples(const tfpipe_plane *plane, int32_t block_x, int32_t block_y) {
    return plane->samples + (size_t)(block_y * plane->side % plane->rows) * plane->stride +
           (size_t)((block_x - plane->first_block) * plane->side);
}

#endif
