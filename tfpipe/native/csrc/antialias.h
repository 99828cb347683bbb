/* Pixels that are resized with antialiasing while their rows are made. */

#ifndef TFPIPE_ANTIALIAS_H
#define TFPIPE_ANTIALIAS_H

#include <stddef.h>
#include <stdint.h>

/* The inputs of each output: the first, their number, and their weights, of which each output has `room`. */
typedef struct {
    int32_t *firsts, *counts, *weights;
    int32_t room;
} tfpipe_taps;

/* The size of an image, and the upper left part of it that is resized, whose sides need not be whole numbers. */
typedef struct {
    int32_t height, width;
    float part_height, part_width;
} tfpipe_part;

/* An image that is resized.

   narrow      its rows with the width of the result
   rows, done  the rows of `narrow`, and of the result, that are made */
typedef struct {
    tfpipe_taps across, down;
    uint8_t *narrow, *out;
    int32_t rows, done, out_height, out_width;
} tfpipe_resizing;

/* Prepares to resize. Returns 0, or -1 if there is no memory. */
int tfpipe_open_resizing(tfpipe_resizing *to, tfpipe_part from, int is_bicubic, uint8_t *out, int32_t out_height,
                         int32_t out_width);

/* Takes the next rows of the image, and makes the rows of the result that they complete.

   step  the bytes of a pixel: three, or four, of which the last does not count */
void tfpipe_put_rows(tfpipe_resizing *to, const uint8_t *in, size_t stride, int32_t rows, int step);

void tfpipe_close_resizing(tfpipe_resizing *self);

#endif
