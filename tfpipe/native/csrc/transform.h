/* From coefficients to samples: the inverse transforms of libjpeg-turbo that TensorFlow's decoder takes, to the bit.

   At full size it is the fast one with 8 bits of fraction, whose sums wrap around in 16 bits as on x86 (Arai, Agui and
   Nakajima 1988, "A fast DCT-SQ scheme for images"); or the accurate one with 13 bits of fraction, which Pillow takes
   (Loeffler, Ligtenberg and Moschytz 1989). At 1/2 and 1/4 it is the reduced one with 13 bits of fraction. */

#ifndef TFPIPE_TRANSFORM_H
#define TFPIPE_TRANSFORM_H

#include "vectors.h"

/* The factors by which coefficients are multiplied for a transform of 8, 4, 2 or 1 samples a side. */
void tfpipe_make_factors(const uint16_t quant[64], int side, int is_accurate, int16_t factors[64]);

enum {
    FAST_SHIFT = 5, /* the fraction that is left after two passes */
    ACCURATE_FIRST = 11, ACCURATE_SECOND = 18, /* the fraction that each pass of the accurate one takes away */
};

#define VECTOR shorts
#define UNSIGNED_VECTOR unsigned_shorts
#define INTS ints
#define UNSIGNED_INTS unsigned_ints
#define MULTIPLY_HIGH multiply_high
#define MULTIPLY_PAIRS multiply_pairs
#define MIX_LOW mix_low
#define MIX_HIGH mix_high
#define TO_SHORTS to_shorts
#define BEGIN INLINE
#define NAME(name) name##_columns
#include "transform_columns.h"

INLINE void store_rows(const shorts rows[8], int shift, uint8_t *out, size_t stride) {
    for (int i = 0; i < 8; i += 2) {
        const bytes_16 samples = to_samples(rows[i] >> shift, rows[i + 1] >> shift);
        memcpy(out + (size_t)i * stride, &samples, 8);
        memcpy(out + (size_t)(i + 1) * stride, (const uint8_t *)&samples + 8, 8);
    }
}

/* Returns whether the rows below the first have no coefficient but in the row `ignored`. */
INLINE int has_first_row_alone(const int16_t *block, int ignored) {
    shorts any = {0};
    for (int i = 1; i < 8; i++)
        if (i != ignored) any |= load_shorts(block + 8 * i);
    uint64_t words[2];
    memcpy(words, &any, sizeof words);
    return (words[0] | words[1]) == 0;
}

/* Makes 8 x 8 samples. */
INLINE void transform_8(const int16_t *block, const int16_t *factors, int is_accurate, uint8_t *out, size_t stride) {
    shorts v[8];
    for (int i = 0; i < 8; i++) v[i] = multiply(load_shorts(block + 8 * i), load_shorts(factors + 8 * i));
    if (is_accurate && has_first_row_alone(block, 0)) /* then what is too large for 16 bits wraps around */
        for (int i = 7; i >= 0; i--) v[i] = shift_left(v[0], 2);
    else if (is_accurate) accurate_columns(v, ACCURATE_FIRST);
    else fast_columns(v);
    transpose(v);
    if (is_accurate) accurate_columns(v, ACCURATE_SECOND);
    else fast_columns(v);
    transpose(v);
    store_rows(v, is_accurate ? 0 : FAST_SHIFT, out, stride);
}

/* Makes 8 x 8 samples of a block that has no coefficient but the first. */
INLINE void fill_8(int16_t first, const int16_t *factors, int is_accurate, uint8_t *out, size_t stride) {
    const uint32_t scaled = (uint32_t)(uint16_t)first * (uint16_t)factors[0];
    const int sample = is_accurate ? (int16_t)(uint16_t)(scaled << 2) + 16 : (int16_t)(uint16_t)scaled;
    const int value = (sample >> FAST_SHIFT) + 128;
    const uint64_t samples = UINT64_C(0x0101010101010101) * (uint64_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    for (size_t i = 0; i < 8; i++) memcpy(out + i * stride, &samples, 8);
}

/* A block whose samples are still to be made, and where they go. */
typedef struct {
    const int16_t *factors;
    int is_accurate;
    uint8_t *out;
    size_t stride;
} tfpipe_target;

enum { TFPIPE_PAIR_STEP = 80 };

/* Makes the samples of two blocks. The second begins TFPIPE_PAIR_STEP coefficients behind the first. */
void tfpipe_transform_pair(const int16_t *blocks, const tfpipe_target targets[2]);

/* Makes 4 x 4, 2 x 2 or 1 x 1 samples. */
void tfpipe_transform_4(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride);
void tfpipe_transform_2(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride);
void tfpipe_transform_1(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride);

#endif
