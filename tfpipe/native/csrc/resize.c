#include "resize.h"

#include <math.h>
#include <string.h>

#include "color.h"
#include "versions.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

typedef float floats_4 __attribute__((vector_size(16)));

void tfpipe_place_outputs(int32_t in_size, int32_t out_size, tfpipe_between *places) {
    const float scale = (float)in_size / (float)out_size;
    for (int32_t i = 0; i < out_size; i++) {
        const float at = ((float)i + 0.5f) * scale - 0.5f;
        const float below = floorf(at);
        int32_t upper = (int32_t)ceilf(at), lower = (int32_t)below;
        if (lower < 0) lower = 0;
        if (upper > in_size - 1) upper = in_size - 1;
        if (lower > upper) lower = upper;
        places[i] = (tfpipe_between){lower, upper, TFPIPE_PIXEL_BYTES * lower, TFPIPE_PIXEL_BYTES * upper, at - below};
    }
}

/* Reads a pixel as floats. Compilers convert a vector of bytes one by one, hence the instructions. */
INLINE floats_4 load_pixel(const uint8_t *pixel) {
    int32_t word;
    memcpy(&word, pixel, sizeof word);
#if defined(__SSE2__)
    const __m128i zero = _mm_setzero_si128();
    const __m128i shorts = _mm_unpacklo_epi8(_mm_cvtsi32_si128(word), zero);
    return (floats_4)_mm_cvtepi32_ps(_mm_unpacklo_epi16(shorts, zero));
#elif defined(__ARM_NEON)
    const uint16x8_t shorts = vmovl_u8(vcreate_u8((uint32_t)word));
    return (floats_4)vcvtq_f32_u32(vmovl_u16(vget_low_u16(shorts)));
#else
    return (floats_4){pixel[0], pixel[1], pixel[2], 0};
#endif
}

INLINE void resize_row(const uint8_t *row, const tfpipe_between *places, int32_t width, float *out) {
    for (int32_t i = 0; i < width; i++) {
        const floats_4 lower = load_pixel(row + places[i].lower_byte), upper = load_pixel(row + places[i].upper_byte);
        const floats_4 value = lower + (upper - lower) * places[i].weight;
        memcpy(out + 3 * i, &value, sizeof value); /* the fourth is overwritten by the next pixel */
    }
}

#if defined(__x86_64__) && !defined(TFPIPE_ONE_VERSION)
/* Whether the pixel behind the lower one gives the result: it is the upper one, or it has no weight. */
static int is_inside(const tfpipe_between *place) { return place->upper == place->lower + 1 || place->weight == 0; }

/* Takes two results at a time. Eight bytes hold both pixels of a result. */
TFPIPE_AVX2 static void resize_row_by_avx2(const uint8_t *row, const tfpipe_between *places,
                                                               int32_t width, float *out) {
    const __m256i without_fourth = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
    int32_t first = 0, end = width;
    while (first < width && !is_inside(&places[first])) first++;
    while (end > first && !is_inside(&places[end - 1])) end--;
    resize_row(row, places, first, out);
    for (; first + 2 <= end; first += 2) {
        const tfpipe_between *one = &places[first], *two = one + 1;
        const __m128i bytes = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(row + one->lower_byte)),
                                                 _mm_loadl_epi64((const __m128i *)(const void *)(row + two->lower_byte)));
        const __m128i pixels = _mm_shuffle_epi32(bytes, _MM_SHUFFLE(3, 1, 2, 0)); /* the lower ones first */
        const __m256 lower = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(pixels));
        const __m256 upper = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(pixels, pixels)));
        const __m256 weight = _mm256_set_m128(_mm_set1_ps(two->weight), _mm_set1_ps(one->weight));
        const __m256 value = _mm256_add_ps(lower, _mm256_mul_ps(_mm256_sub_ps(upper, lower), weight));
        _mm256_storeu_ps(out + 3 * first, _mm256_permutevar8x32_ps(value, without_fourth)); /* six of the eight count */
    }
    resize_row(row, places + first, width - first, out + 3 * first);
}
#endif
CHOOSE(resize_row, (const uint8_t *row, const tfpipe_between *places, int32_t width, float *out),
       (row, places, width, out))

INLINE void blend_uint8(const float *restrict top, const float *restrict bottom, float weight, int32_t count,
                        uint8_t *restrict out) {
    for (int32_t i = 0; i < count; i++) out[i] = (uint8_t)(int32_t)(top[i] + (bottom[i] - top[i]) * weight + 0.5f);
}
DEFINE(blend_uint8, (const float *top, const float *bottom, float weight, int32_t count, uint8_t *out),
       (top, bottom, weight, count, out))

INLINE void blend_float(const float *restrict top, const float *restrict bottom, float weight,
                        const float *restrict offset, const float *restrict factor, int32_t count,
                        float *restrict out) {
    for (int32_t i = 0; i < count; i++) out[i] = (top[i] + (bottom[i] - top[i]) * weight - offset[i]) * factor[i];
}
DEFINE(blend_float,
       (const float *top, const float *bottom, float weight, const float *offset, const float *factor, int32_t count,
        float *out),
       (top, bottom, weight, offset, factor, count, out))

/* Where stores cannot go around the caches, they go through them. */
INLINE void stream_float(const float *top, const float *bottom, float weight, const float *offset, const float *factor,
                         int32_t count, float *out) {
    blend_float(top, bottom, weight, offset, factor, count, out);
}

#if defined(TFPIPE_AVX2)
TFPIPE_AVX2 static void stream_float_by_avx2(const float *top, const float *bottom, float weight, const float *offset,
                                             const float *factor, int32_t count, float *out) {
    const int is_aligned = ((uintptr_t)out & (sizeof(__m256) - 1)) == 0;
    const __m256 share = _mm256_set1_ps(weight);
    int32_t i = 0;
    for (; is_aligned && i + 8 <= count; i += 8) {
        const __m256 above = _mm256_loadu_ps(top + i), below = _mm256_loadu_ps(bottom + i);
        const __m256 value = _mm256_add_ps(above, _mm256_mul_ps(_mm256_sub_ps(below, above), share));
        const __m256 shifted = _mm256_sub_ps(value, _mm256_loadu_ps(offset + i));
        _mm256_stream_ps(out + i, _mm256_mul_ps(shifted, _mm256_loadu_ps(factor + i)));
    }
    blend_float(top + i, bottom + i, weight, offset + i, factor + i, count - i, out + i);
}
#endif
CHOOSE(stream_float,
       (const float *top, const float *bottom, float weight, const float *offset, const float *factor, int32_t count,
        float *out),
       (top, bottom, weight, offset, factor, count, out))

INLINE void round_bfloat16(const float *restrict values, int32_t count, uint16_t *restrict out) {
    for (int32_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        out[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16); /* finite values only */
    }
}
DEFINE(round_bfloat16, (const float *values, int32_t count, uint16_t *out), (values, count, out))

void tfpipe_end_stream(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
