#include "transform.h"

#include "versions.h"

#if defined(TFPIPE_AVX2)
#include <immintrin.h>
#endif

/* The factors of the fast transform, 14 bits of fraction: 16384 s(row) s(column) with s(0) = 1 and
   s(k) = sqrt(2) cos(k pi / 16). */
static const uint16_t FAST_SCALES[64] = {
    16384, 22725, 21407, 19266, 16384, 12873, 8867,  4520,  22725, 31521, 29692, 26722, 22725, 17855, 12299, 6270,
    21407, 29692, 27969, 25172, 21407, 16819, 11585, 5906,  19266, 26722, 25172, 22654, 19266, 15137, 10426, 5315,
    16384, 22725, 21407, 19266, 16384, 12873, 8867,  4520,  12873, 17855, 16819, 15137, 12873, 10114, 6967,  3552,
    8867,  12299, 11585, 10426, 8867,  6967,  4799,  2446,  4520,  6270,  5906,  5315,  4520,  3552,  2446,  1247,
};

enum { FAST_FRACTION = 12, FRACTION = 13, FIRST_PASS = 2 };

void tfpipe_make_factors(const uint16_t quant[64], int side, int is_accurate, int16_t factors[64]) {
    for (int i = 0; i < 64; i++) {
        const uint32_t scaled = ((uint32_t)quant[i] * FAST_SCALES[i] + (1u << (FAST_FRACTION - 1))) >> FAST_FRACTION;
        factors[i] = side == 8 && !is_accurate ? (int16_t)(uint16_t)scaled : (int16_t)quant[i];
    }
}

INLINE void transform_pair(const int16_t *blocks, const tfpipe_target targets[2]) {
    for (int i = 0; i < 2; i++)
        transform_8(blocks + TFPIPE_PAIR_STEP * i, targets[i].factors, targets[i].is_accurate, targets[i].out,
                    targets[i].stride);
}

#if defined(TFPIPE_AVX2)
typedef int16_t shorts_16 __attribute__((vector_size(32)));
typedef uint16_t unsigned_shorts_16 __attribute__((vector_size(32)));
typedef int32_t ints_8 __attribute__((vector_size(32)));
typedef uint32_t unsigned_ints_8 __attribute__((vector_size(32)));

#define MIX_16(how, a, b) ((shorts_16)_mm256_unpack##how((__m256i)(a), (__m256i)(b)))

#define VECTOR shorts_16
#define UNSIGNED_VECTOR unsigned_shorts_16
#define INTS ints_8
#define UNSIGNED_INTS unsigned_ints_8
#define MULTIPLY_HIGH(a, b) ((shorts_16)_mm256_mulhi_epi16((__m256i)(a), _mm256_set1_epi16(b)))
#define MULTIPLY_PAIRS(a, x, y) \
    ((ints_8)_mm256_madd_epi16((__m256i)(a), _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)(y) << 16 | (uint16_t)(x)))))
#define MIX_LOW(a, b) MIX_16(lo_epi16, a, b)
#define MIX_HIGH(a, b) MIX_16(hi_epi16, a, b)
#define TO_SHORTS(a, b) ((shorts_16)_mm256_packs_epi32((__m256i)(a), (__m256i)(b)))
#define BEGIN TFPIPE_AVX2 INLINE
#define NAME(name) name##_columns_16
#include "transform_columns.h"

/* Transposes the eight rows of both halves. */
TFPIPE_AVX2 INLINE void transpose_16(shorts_16 rows[8]) {
    shorts_16 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = MIX_16(lo_epi16, rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = MIX_16(hi_epi16, rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = MIX_16(lo_epi32, a[i], a[i + 2]);
        b[i + 1] = MIX_16(hi_epi32, a[i], a[i + 2]);
        b[i + 2] = MIX_16(lo_epi32, a[i + 1], a[i + 3]);
        b[i + 3] = MIX_16(hi_epi32, a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        rows[2 * i] = MIX_16(lo_epi64, b[i], b[i + 4]);
        rows[2 * i + 1] = MIX_16(hi_epi64, b[i], b[i + 4]);
    }
}

/* Reads eight numbers of each into the halves of a vector. */
TFPIPE_AVX2 INLINE __m256i load_halves(const int16_t *low, const int16_t *high) {
    return _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(const void *)high),
                            _mm_loadu_si128((const __m128i *)(const void *)low));
}

/* Takes one block in the lower halves of vectors, and the other in the upper ones; both in the same way. */
TFPIPE_AVX2 static void transform_pair_by_avx2(const int16_t *blocks, const tfpipe_target targets[2]) {
    const int is_accurate = targets[0].is_accurate, shift = is_accurate ? 0 : FAST_SHIFT;
    shorts_16 v[8];
    for (int i = 0; i < 8; i++)
        v[i] = (shorts_16)_mm256_mullo_epi16(
            load_halves(blocks + 8 * i, blocks + TFPIPE_PAIR_STEP + 8 * i),
            load_halves(targets[0].factors + 8 * i, targets[1].factors + 8 * i));
    if (is_accurate) accurate_columns_16(v, ACCURATE_FIRST);
    else fast_columns_16(v);
    transpose_16(v);
    if (is_accurate) accurate_columns_16(v, ACCURATE_SECOND);
    else fast_columns_16(v);
    transpose_16(v);
    uint8_t *low = targets[0].out, *high = targets[1].out;
    for (int i = 0; i < 8; i += 2) {
        const __m256i packed = _mm256_packs_epi16((__m256i)(v[i] >> shift), (__m256i)(v[i + 1] >> shift));
        const __m256i samples = _mm256_xor_si256(packed, _mm256_set1_epi8(-128));
        const __m128i left = _mm256_castsi256_si128(samples), right = _mm256_extracti128_si256(samples, 1);
        _mm_storel_epi64((__m128i *)(void *)low, left);
        _mm_storel_epi64((__m128i *)(void *)high, right);
        low += targets[0].stride;
        high += targets[1].stride;
        _mm_storel_epi64((__m128i *)(void *)low, _mm_unpackhi_epi64(left, left));
        _mm_storel_epi64((__m128i *)(void *)high, _mm_unpackhi_epi64(right, right));
        low += targets[0].stride;
        high += targets[1].stride;
    }
}
#endif
CHOOSE(transform_pair, (const int16_t *blocks, const tfpipe_target targets[2]), (blocks, targets))

static uint8_t to_sample(int32_t value) {
    const int32_t sample = value + 128;
    return (uint8_t)(sample < 0 ? 0 : sample > 255 ? 255 : sample);
}

static int32_t limit(int32_t value) { return value < INT16_MIN ? INT16_MIN : value > INT16_MAX ? INT16_MAX : value; }

/* Rounds a number with `bits` of fraction. */
static int32_t descale(int32_t value, int bits) { return (int32_t)((uint32_t)value + (1u << (bits - 1))) >> bits; }

static int16_t scale(int16_t coefficient, int16_t factor) {
    return (int16_t)(uint16_t)((uint32_t)(uint16_t)coefficient * (uint16_t)factor);
}

static int32_t times(int32_t a, int32_t b) { return (int32_t)((uint32_t)a * (uint32_t)b); }

static int32_t sum(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); }

static int32_t difference(int32_t a, int32_t b) { return (int32_t)((uint32_t)a - (uint32_t)b); }

/* Sums of 32 bits that wrap around. */
INLINE ints add_ints(ints a, ints b) { return (ints)((unsigned_ints)a + (unsigned_ints)b); }

INLINE ints subtract_ints(ints a, ints b) { return (ints)((unsigned_ints)a - (unsigned_ints)b); }

/* Rounds numbers with `bits` of fraction. */
INLINE ints descale_ints(ints values, int bits) {
    const int32_t half = 1 << (bits - 1);
    return add_ints(values, (ints){half, half, half, half}) >> bits;
}

/* Makes four numbers of eight, of which that with index 4 has no part, for four columns. `bits` of fraction are lost.

   even      the numbers with index 0, each behind a zero
   odd       with indices 1 and 3 in turn, and with 5 and 7
   tilting   with indices 2 and 6 in turn */
INLINE void reduce_to_4(shorts even, const shorts odd[2], shorts tilting, int bits, ints out[4]) {
    const ints base = (ints)even >> (16 - FRACTION - 1);
    const ints tilt = multiply_pairs(tilting, 15137, -6270);
    const ints outer = add_ints(base, tilt), inner = subtract_ints(base, tilt);
    const ints wide = add_ints(multiply_pairs(odd[0], 20995, 7373), multiply_pairs(odd[1], -4926, -4176));
    const ints narrow = add_ints(multiply_pairs(odd[0], 8697, -17799), multiply_pairs(odd[1], 11893, -1730));
    out[0] = descale_ints(add_ints(outer, wide), bits);
    out[1] = descale_ints(add_ints(inner, narrow), bits);
    out[2] = descale_ints(subtract_ints(inner, narrow), bits);
    out[3] = descale_ints(subtract_ints(outer, wide), bits);
}

void tfpipe_transform_4(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride) {
    const shorts none = {0};
    shorts in[8], v[8] = {{0}};
    for (int i = 0; i < 8; i++) in[i] = multiply(load_shorts(block + 8 * i), load_shorts(factors + 8 * i));
    if (has_first_row_alone(block, 4) /* which has no part */) {
        for (int i = 0; i < 4; i++) v[i] = shift_left(in[0], FIRST_PASS);
    } else {
        const shorts low[2] = {mix_low(in[1], in[3]), mix_low(in[5], in[7])};
        const shorts high[2] = {mix_high(in[1], in[3]), mix_high(in[5], in[7])};
        ints left[4], right[4];
        reduce_to_4(mix_low(none, in[0]), low, mix_low(in[2], in[6]), FRACTION - FIRST_PASS + 1, left);
        reduce_to_4(mix_high(none, in[0]), high, mix_high(in[2], in[6]), FRACTION - FIRST_PASS + 1, right);
        for (int i = 0; i < 4; i++) v[i] = to_shorts(left[i], right[i]);
    }
    transpose(v);
    const shorts odd[2] = {mix_low(v[1], v[3]), mix_low(v[5], v[7])};
    ints columns[4];
    reduce_to_4(mix_low(none, v[0]), odd, mix_low(v[2], v[6]), FRACTION + FIRST_PASS + 3 + 1, columns);
    const bytes_16 samples = to_samples(to_shorts(columns[0], columns[1]), to_shorts(columns[2], columns[3]));
    for (int row = 0; row < 4; row++)
        for (int column = 0; column < 4; column++)
            out[(size_t)row * stride + (size_t)column] = samples[4 * column + row];
}

/* Makes two of the numbers with the indices 0, 1, 3, 5 and 7. */
static void reduce_to_2(const int32_t in[8], int bits, int32_t out[2]) {
    const int32_t even = (int32_t)((uint32_t)in[0] << (FRACTION + 2));
    const int32_t tilt =
        sum(sum(times(in[7], -5906), times(in[5], 6967)), sum(times(in[3], -10426), times(in[1], 29692)));
    out[0] = descale(sum(even, tilt), bits);
    out[1] = descale(difference(even, tilt), bits);
}

void tfpipe_transform_2(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride) {
    static const uint8_t columns[5] = {0, 1, 3, 5, 7};
    int32_t between[2][8] = {{0}};
    for (int k = 0; k < 5; k++) {
        const int column = columns[k];
        int32_t in[8], made[2];
        for (int i = 0; i < 8; i++) in[i] = scale(block[8 * i + column], factors[8 * i + column]);
        reduce_to_2(in, FRACTION - FIRST_PASS + 2, made);
        /* The first column stays at 32 bits. */
        for (int i = 0; i < 2; i++) between[i][column] = column == 0 ? made[i] : limit(made[i]);
    }
    for (int row = 0; row < 2; row++) {
        int32_t made[2];
        reduce_to_2(between[row], FRACTION + FIRST_PASS + 3 + 2, made);
        for (int i = 0; i < 2; i++) out[(size_t)row * stride + (size_t)i] = to_sample(limit(made[i]));
    }
}

void tfpipe_transform_1(const int16_t *block, const int16_t *factors, uint8_t *out, size_t stride) {
    (void)stride;
    /* libjpeg looks the sample up among 1024, of which the upper half stands for numbers below zero. */
    const int32_t value = descale(times(block[0], factors[0]), 3) & 1023;
    out[0] = to_sample(value >= 512 ? value - 1024 : value);
}
