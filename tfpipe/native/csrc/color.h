/* From rows of samples to rows of pixels: color at full size, then red, green and blue. Results equal libjpeg's. */

#ifndef TFPIPE_COLOR_H
#define TFPIPE_COLOR_H

#include <stddef.h>
#include <stdint.h>

#include "jpeg_format.h"

enum {
    TFPIPE_PIXEL_BYTES = 4, /* red, green, blue and one of no meaning */
    /* Samples and pixels behind a row that may be read without a meaning, or written in vain: rows are made in pieces. */
    TFPIPE_ROW_MARGIN = 64,
};

/* Enlarges a row to twice its width; each result lies a quarter of the way to a neighbor.

   in   the samples; one in front of the first and one behind the last count too
   out  2 `count` samples, and twice the margin */
void tfpipe_widen(const uint8_t *in, size_t count, uint8_t *out);

/* Enlarges a row to twice its width between two rows: `near`, which has three quarters of the weight, and `far`.

   Both are read like the row of tfpipe_widen. */
void tfpipe_widen_between(const uint8_t *near, const uint8_t *far, size_t count, uint8_t *out);

/* Makes a row between two: `near`, which has three quarters of the weight, and `far`. The result is rounded up by
   `bias` quarters. */
void tfpipe_blend_rows(const uint8_t *near, const uint8_t *far, int bias, size_t count, uint8_t *out);

/* Repeats each sample `times` times. */
void tfpipe_repeat(const uint8_t *in, int times, size_t count, uint8_t *out);

/* Converts rows of the components to pixels.

   rows      of each component
   inverted  for four components: whether the samples of ink are inverted, as Adobe writes them
   out       `count` pixels, and the margin */
void tfpipe_make_pixels(tfpipe_color color, const uint8_t *const rows[4], int inverted, size_t count, uint8_t *out);

#endif
