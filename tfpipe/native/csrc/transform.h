/* From coefficients to samples: the inverse transforms of libjpeg-turbo that TensorFlow's decoder takes, to the bit.

   At full size it is the fast one with 8 bits of fraction, whose sums wrap around in 16 bits as on x86 (Arai, Agui and
   Nakajima 1988, "A fast DCT-SQ scheme for images"). At 1/2 and 1/4 it is the reduced one with 13 bits of fraction. */

#ifndef TFPIPE_TRANSFORM_H
#define TFPIPE_TRANSFORM_H

#include "vectors.h"

/* The factors by which coefficients are multiplied for a transform of 8, 4, 2 or 1 samples a side. */
void tfpipe_make_factors(const uint16_t quant[64], int side, int16_t factors[64]);

enum { FAST_SHIFT = 5 }; /* the fraction that is left after two passes */

TFPIPE_INLINE void transform_columns(shorts v[8]) {
    enum { SCALE = 2, F_1_082 = 277 << 6, F_1_414 = 362 << 6, F_1_848 = 473 << 6, F_1_613 = 413 << 6 };
    shorts even_sum = add(v[0], v[4]), even_difference = subtract(v[0], v[4]);
    shorts second = add(v[2], v[6]);
    shorts third = subtract(multiply_high(shift_left(subtract(v[2], v[6]), SCALE), F_1_414), second);
    const shorts e0 = add(even_sum, second), e3 = subtract(even_sum, second);
    const shorts e1 = add(even_difference, third), e2 = subtract(even_difference, third);

    const shorts z13 = add(v[5], v[3]), z10 = subtract(v[5], v[3]);
    const shorts z11 = add(v[1], v[7]), z12 = subtract(v[1], v[7]);
    const shorts scaled_10 = shift_left(z10, SCALE), scaled_12 = shift_left(z12, SCALE);
    const shorts o7 = add(z11, z13);
    const shorts o11 = multiply_high(shift_left(subtract(z11, z13), SCALE), F_1_414);
    const shorts z5 = multiply_high(add(scaled_10, scaled_12), F_1_848);
    const shorts o10 = subtract(multiply_high(scaled_12, F_1_082), z5);
    const shorts o12 = add(subtract(multiply_high(scaled_10, -F_1_613), z10), z5);
    const shorts o6 = subtract(o12, o7), o5 = subtract(o11, o6), o4 = add(o10, o5);

    v[0] = add(e0, o7);
    v[7] = subtract(e0, o7);
    v[1] = add(e1, o6);
    v[6] = subtract(e1, o6);
    v[2] = add(e2, o5);
    v[5] = subtract(e2, o5);
    v[4] = add(e3, o4);
    v[3] = subtract(e3, o4);
}

TFPIPE_INLINE void store_rows(const shorts rows[8], uint8_t *out, size_t stride) {
    for (int i = 0; i < 8; i += 2) {
        const bytes_16 samples = to_samples(rows[i] >> FAST_SHIFT, rows[i + 1] >> FAST_SHIFT);
        memcpy(out + (size_t)i * stride, &samples, 8);
        memcpy(out + (size_t)(i + 1) * stride, (const uint8_t *)&samples + 8, 8);
    }
}

/* Makes 8 x 8 samples. */
TFPIPE_INLINE void transform_8(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride) {
    shorts v[8];
    for (int i = 0; i < 8; i++) v[i] = multiply(load_shorts(block + 8 * i), load_shorts(factors + 8 * i));
    transform_columns(v);
    transpose(v);
    transform_columns(v);
    transpose(v);
    store_rows(v, out, stride);
}

/* Makes 8 x 8 samples of a block that has no coefficient but the first. */
TFPIPE_INLINE void fill_8(int16_t first, const int16_t *factors, uint8_t *out, size_t stride) {
    const int value = ((int16_t)(uint16_t)((uint16_t)first * (uint16_t)factors[0]) >> FAST_SHIFT) + 128;
    const uint64_t samples = UINT64_C(0x0101010101010101) * (uint64_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    for (size_t i = 0; i < 8; i++) memcpy(out + i * stride, &samples, 8);
}

/* Makes 4 x 4, 2 x 2 or 1 x 1 samples. */
void tfpipe_transform_4(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride);
void tfpipe_transform_2(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride);
void tfpipe_transform_1(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride);

#endif
