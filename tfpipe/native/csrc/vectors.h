/* Vectors of eight 16-bit numbers, by the compiler's extensions. What has no sign of its own in C is the processor's
   instruction on x86 and ARM, and a loop elsewhere. */

#ifndef TFPIPE_VECTORS_H
#define TFPIPE_VECTORS_H

#include <stdint.h>
#include <string.h>

#include "versions.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

typedef int16_t shorts __attribute__((vector_size(16)));
typedef uint16_t unsigned_shorts __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(16)));
typedef uint32_t unsigned_ints __attribute__((vector_size(16)));
typedef uint8_t bytes_16 __attribute__((vector_size(16)));

INLINE shorts load_shorts(const void *from) {
    shorts vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

INLINE void store_shorts(void *to, shorts vector) { memcpy(to, &vector, sizeof vector); }

/* Sums and products wrap around, as the processor's do. For the compiler that holds for unsigned numbers only. */
INLINE shorts add(shorts a, shorts b) { return (shorts)((unsigned_shorts)a + (unsigned_shorts)b); }

INLINE shorts subtract(shorts a, shorts b) { return (shorts)((unsigned_shorts)a - (unsigned_shorts)b); }

INLINE shorts multiply(shorts a, shorts b) { return (shorts)((unsigned_shorts)a * (unsigned_shorts)b); }

INLINE shorts shift_left(shorts a, int count) { return (shorts)((unsigned_shorts)a << count); }

INLINE shorts repeat_short(int16_t value) {
    return (shorts){value, value, value, value, value, value, value, value};
}

/* Returns the upper halves of the products. */
INLINE shorts multiply_high(shorts a, int16_t b) {
#if defined(__SSE2__)
    return (shorts)_mm_mulhi_epi16((__m128i)a, _mm_set1_epi16(b));
#elif defined(__ARM_NEON)
    const int16x8_t x = (int16x8_t)a;
    return (shorts)vcombine_s16(vshrn_n_s32(vmull_n_s16(vget_low_s16(x), b), 16),
                                vshrn_n_s32(vmull_n_s16(vget_high_s16(x), b), 16));
#else
    shorts result;
    for (int i = 0; i < 8; i++) result[i] = (int16_t)((int32_t)a[i] * b >> 16);
    return result;
#endif
}

/* Returns a0 x + a1 y, a2 x + a3 y and so on. */
INLINE ints multiply_pairs(shorts a, int16_t x, int16_t y) {
#if defined(__SSE2__)
    return (ints)_mm_madd_epi16((__m128i)a, _mm_set1_epi32((int32_t)((uint32_t)(uint16_t)y << 16 | (uint16_t)x)));
#elif defined(__aarch64__)
    const int16x8_t factors = {x, y, x, y, x, y, x, y};
    return (ints)vpaddq_s32(vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16(factors)),
                            vmull_s16(vget_high_s16((int16x8_t)a), vget_high_s16(factors)));
#else
    ints result;
    for (int i = 0; i < 4; i++) result[i] = (int32_t)a[2 * i] * x + (int32_t)a[2 * i + 1] * y;
    return result;
#endif
}

/* Reads eight bytes. */
INLINE shorts load_bytes(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
#if defined(__SSE2__)
    return (shorts)_mm_unpacklo_epi8(_mm_cvtsi64_si128((int64_t)word), _mm_setzero_si128());
#elif defined(__ARM_NEON)
    return (shorts)vmovl_u8(vcreate_u8(word));
#else
    shorts result;
    for (int i = 0; i < 8; i++) result[i] = from[i];
    return result;
#endif
}

/* Limits the numbers of two vectors to bytes. */
INLINE bytes_16 to_bytes(shorts a, shorts b) {
#if defined(__SSE2__)
    return (bytes_16)_mm_packus_epi16((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
    return (bytes_16)vcombine_u8(vqmovun_s16((int16x8_t)a), vqmovun_s16((int16x8_t)b));
#else
    bytes_16 result;
    for (int i = 0; i < 16; i++) {
        const int value = i < 8 ? a[i] : b[i - 8];
        result[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
    return result;
#endif
}

/* Limits the numbers of two vectors to those of a signed byte, and adds 128. */
INLINE bytes_16 to_samples(shorts a, shorts b) {
#if defined(__SSE2__)
    return (bytes_16)_mm_packs_epi16((__m128i)a, (__m128i)b) ^ 0x80;
#elif defined(__ARM_NEON)
    return (bytes_16)vcombine_s8(vqmovn_s16((int16x8_t)a), vqmovn_s16((int16x8_t)b)) ^ 0x80;
#else
    bytes_16 result;
    for (int i = 0; i < 16; i++) {
        const int value = (i < 8 ? a[i] : b[i - 8]) + 128;
        result[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
    return result;
#endif
}

/* Limits the numbers of two vectors to 16 bits. */
INLINE shorts to_shorts(ints a, ints b) {
#if defined(__SSE2__)
    return (shorts)_mm_packs_epi32((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
    return (shorts)vcombine_s16(vqmovn_s32((int32x4_t)a), vqmovn_s32((int32x4_t)b));
#else
    shorts result;
    for (int i = 0; i < 8; i++) {
        const int32_t value = i < 4 ? a[i] : b[i - 4];
        result[i] = (int16_t)(value < INT16_MIN ? INT16_MIN : value > INT16_MAX ? INT16_MAX : value);
    }
    return result;
#endif
}

/* Take the numbers of two vectors in turn, those of their lower and of their upper halves. */
#if defined(__clang__)
#define TFPIPE_MIX(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TFPIPE_MIX(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

INLINE shorts mix_low(shorts a, shorts b) { return TFPIPE_MIX(shorts, a, b, 0, 8, 1, 9, 2, 10, 3, 11); }

INLINE shorts mix_high(shorts a, shorts b) { return TFPIPE_MIX(shorts, a, b, 4, 12, 5, 13, 6, 14, 7, 15); }

INLINE shorts mix_low_pairs(shorts a, shorts b) {
    return (shorts)TFPIPE_MIX(ints, (ints)a, (ints)b, 0, 4, 1, 5);
}

INLINE shorts mix_high_pairs(shorts a, shorts b) {
    return (shorts)TFPIPE_MIX(ints, (ints)a, (ints)b, 2, 6, 3, 7);
}

INLINE shorts mix_low_halves(shorts a, shorts b) {
    return (shorts)TFPIPE_MIX(ints, (ints)a, (ints)b, 0, 1, 4, 5);
}

INLINE shorts mix_high_halves(shorts a, shorts b) {
    return (shorts)TFPIPE_MIX(ints, (ints)a, (ints)b, 2, 3, 6, 7);
}

INLINE bytes_16 mix_low_bytes(bytes_16 a, bytes_16 b) {
    return TFPIPE_MIX(bytes_16, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

INLINE bytes_16 mix_high_bytes(bytes_16 a, bytes_16 b) {
    return TFPIPE_MIX(bytes_16, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Transposes eight rows of eight numbers. */
INLINE void transpose(shorts rows[8]) {
    shorts a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = mix_low(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = mix_high(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = mix_low_pairs(a[i], a[i + 2]);
        b[i + 1] = mix_high_pairs(a[i], a[i + 2]);
        b[i + 2] = mix_low_pairs(a[i + 1], a[i + 3]);
        b[i + 3] = mix_high_pairs(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        rows[2 * i] = mix_low_halves(b[i], b[i + 4]);
        rows[2 * i + 1] = mix_high_halves(b[i], b[i + 4]);
    }
}

#endif
