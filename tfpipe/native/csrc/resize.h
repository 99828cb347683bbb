/* Bilinear resizing with half-pixel centers, row by row, in the arithmetic of TensorFlow's ResizeBilinear.

   Every product and sum is rounded to float32 on its own, in TensorFlow's order, so results are equal to the bit. */

#ifndef TFPIPE_RESIZE_H
#define TFPIPE_RESIZE_H

#include <stdint.h>

/* The two input places between which an output place lies, their bytes in a row of pixels, and the weight of the second. */
typedef struct {
    int32_t lower, upper;
    int32_t lower_byte, upper_byte;
    float weight;
} tfpipe_between;

/* Finds the places of `out_size` outputs among `in_size` inputs. */
void tfpipe_place_outputs(int32_t in_size, int32_t out_size, tfpipe_between *places);

/* Interpolates a row of pixels of TFPIPE_PIXEL_BYTES: `width` results of 3 floats. A pixel behind the last one must be
   readable, and two floats behind the last result writable. */
void tfpipe_resize_row(const uint8_t *row, const tfpipe_between *places, int32_t width, float *out);

/* Interpolates between two rows of `count` values and rounds to the nearest, halves up. */
void tfpipe_blend_uint8(const float *top, const float *bottom, float weight, int32_t count, uint8_t *out);

/* Interpolates between two rows and normalizes: (value - offset) * factor, each of which has `count` values. */
void tfpipe_blend_float(const float *top, const float *bottom, float weight, const float *offset, const float *factor,
                        int32_t count, float *out);

/* Does the same, and writes the results around the caches: for those that are too many to stay in them. The processor then
   need not read what is overwritten. */
void tfpipe_stream_float(const float *top, const float *bottom, float weight, const float *offset, const float *factor,
                         int32_t count, float *out);

/* Waits until what was written around the caches can be seen by others. */
void tfpipe_end_stream(void);

/* Rounds to bfloat16, ties to even. */
void tfpipe_round_bfloat16(const float *values, int32_t count, uint16_t *out);

#endif
