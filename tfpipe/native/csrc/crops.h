/* The crop boxes and flips of training, drawn from the seeds of records. */

#ifndef TFPIPE_CROPS_H
#define TFPIPE_CROPS_H

#include <stdint.h>

#include "tfpipe_native.h"

/* Draws a random resized crop of an image of this size, which must have a pixel. The box is y, x, height, width. */
void tfpipe_draw_crop(const int32_t seed[2], int32_t height, int32_t width, const tfpipe_crops *crops, int32_t box[4]);

/* Converts a box to pixels of an image that was squeezed to another size: its corners keep their shares. */
void tfpipe_squeeze_box(int32_t box[4], const int32_t original[2], const int32_t stored[2]);

/* Draws whether to mirror an image left to right. */
int tfpipe_draw_flip(const int32_t seed[2]);

#endif
