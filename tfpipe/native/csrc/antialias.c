/* Resizing of RGB pixels with antialiasing, in the arithmetic of Pillow, so that results are equal to the bit: the weights
   are whole numbers of 22 bits behind the point, and rows that were made narrower are rounded to bytes. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "antialias.h"
#include "tfpipe_native.h"
#include "versions.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { WEIGHT_BITS = 22, CHANNELS = 3, TOGETHER = 64 /* values of a row that are added up at once */ };

/* The weight of an input at a distance, in inputs; of the bicubic filter: Keys, "Cubic convolution interpolation for digital
   image processing", IEEE Transactions on Acoustics, Speech, and Signal Processing, 1981, whose a is -1/2. */
static double weigh(double distance, int is_bicubic) {
    const double d = fabs(distance);
    if (!is_bicubic) return d < 1.0 ? 1.0 - d : 0.0;
    if (d >= 2.0) return 0.0;
    return d < 1.0 ? 1.0 + d * d * (1.5 * d - 2.5) : 0.5 * (1.0 - d) * (2.0 - d) * (2.0 - d);
}

static void free_taps(tfpipe_taps *of) {
    free(of->firsts);
    free(of->weights);
}

/* Finds the taps of `out_size` outputs of the first `part` of `in_size` inputs. Returns 0, or -1 without memory. */
static int make_taps(tfpipe_taps *to, int32_t in_size, float part, int32_t out_size, int is_bicubic) {
    const double scale = (double)part / out_size, stretch = scale < 1.0 ? 1.0 : scale;
    const double support = (is_bicubic ? 2.0 : 1.0) * stretch;
    to->room = (int32_t)ceil(support) * 2 + 1;
    to->firsts = malloc(2 * (size_t)out_size * sizeof *to->firsts);
    to->weights = malloc((size_t)out_size * (size_t)to->room * sizeof *to->weights);
    double *weights = malloc((size_t)to->room * sizeof *weights);
    if (to->firsts == NULL || to->weights == NULL || weights == NULL) {
        free(weights);
        return -1;
    }
    to->counts = to->firsts + out_size;
    for (int32_t i = 0; i < out_size; i++) {
        const double center = (i + 0.5) * scale;
        double sum = 0.0;
        int32_t first = (int32_t)(center - support + 0.5), end = (int32_t)(center + support + 0.5);
        if (first < 0) first = 0;
        if (end > in_size) end = in_size;
        for (int32_t k = first; k < end; k++) {
            weights[k - first] = weigh((k - center + 0.5) * (1.0 / stretch), is_bicubic);
            sum += weights[k - first];
        }
        for (int32_t k = 0; k < end - first; k++) {
            const double weight = (sum != 0.0 ? weights[k] / sum : weights[k]) * (1 << WEIGHT_BITS);
            to->weights[i * to->room + k] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        to->firsts[i] = first;
        to->counts[i] = end - first;
    }
    free(weights);
    return 0;
}

INLINE uint8_t round_to_byte(int32_t sum) {
    const int32_t value = sum >> WEIGHT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Makes rows narrower, or wider. */
INLINE void narrow_rows(const uint8_t *in, size_t stride, int32_t rows, int step, const tfpipe_taps *of, int32_t width,
                        uint8_t *out) {
    for (int32_t row = 0; row < rows; row++, in += stride)
        for (int32_t i = 0; i < width; i++) {
            const uint8_t *pixel = in + step * of->firsts[i];
            const int32_t *weights = of->weights + (size_t)i * (size_t)of->room;
            int32_t sums[CHANNELS] = {1 << (WEIGHT_BITS - 1), 1 << (WEIGHT_BITS - 1), 1 << (WEIGHT_BITS - 1)};
            for (int32_t k = 0; k < of->counts[i]; k++, pixel += step)
                for (int c = 0; c < CHANNELS; c++) sums[c] += pixel[c] * weights[k];
            for (int c = 0; c < CHANNELS; c++) *out++ = round_to_byte(sums[c]);
        }
}

#if defined(TFPIPE_AVX2)
/* Takes two rows at a time: of each the four bytes from a pixel on, of which the last does not count. */
TFPIPE_AVX2 static void narrow_rows_by_avx2(const uint8_t *in, size_t stride, int32_t rows, int step, const tfpipe_taps *of,
                                            int32_t width, uint8_t *out) {
    const size_t out_stride = (size_t)width * CHANNELS;
    const int32_t end = rows - (step == CHANNELS); /* behind the last pixel of three bytes nothing may be read */
    int32_t row = 0;
    for (; row + 2 <= end; row += 2, in += 2 * stride, out += 2 * out_stride)
        for (int32_t i = 0; i < width; i++) {
            const uint8_t *pixel = in + step * of->firsts[i];
            const int32_t *weights = of->weights + (size_t)i * (size_t)of->room;
            __m256i sums = _mm256_set1_epi32(1 << (WEIGHT_BITS - 1));
            for (int32_t k = 0; k < of->counts[i]; k++, pixel += step) {
                int32_t upper, lower;
                memcpy(&upper, pixel, sizeof upper);
                memcpy(&lower, pixel + stride, sizeof lower);
                const __m256i values = _mm256_cvtepu8_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(upper), lower, 1));
                sums = _mm256_add_epi32(sums, _mm256_mullo_epi32(values, _mm256_set1_epi32(weights[k])));
            }
            const __m256i shorts = _mm256_packs_epi32(_mm256_srai_epi32(sums, WEIGHT_BITS), sums);
            const __m256i bytes = _mm256_packus_epi16(shorts, shorts);
            const int32_t upper = _mm256_extract_epi32(bytes, 0), lower = _mm256_extract_epi32(bytes, 4);
            memcpy(out + CHANNELS * i, &upper, CHANNELS);
            memcpy(out + out_stride + CHANNELS * i, &lower, CHANNELS);
        }
    narrow_rows(in, stride, rows - row, step, of, width, out);
}
#endif
CHOOSE(narrow_rows,
       (const uint8_t *in, size_t stride, int32_t rows, int step, const tfpipe_taps *of, int32_t width, uint8_t *out),
       (in, stride, rows, step, of, width, out))

/* Adds up rows of `count` values with their weights. */
INLINE void sum_rows(const uint8_t *in, size_t count, const int32_t *weights, int32_t rows, uint8_t *out) {
    for (size_t at = 0; at < count; at += TOGETHER) {
        const size_t end = count - at < TOGETHER ? count - at : TOGETHER;
        int32_t sums[TOGETHER];
        for (size_t i = 0; i < TOGETHER; i++) sums[i] = 1 << (WEIGHT_BITS - 1);
        for (int32_t k = 0; k < rows; k++) {
            const uint8_t *row = in + (size_t)k * count + at;
            if (end == TOGETHER)
                for (size_t i = 0; i < TOGETHER; i++) sums[i] += row[i] * weights[k];
            else
                for (size_t i = 0; i < end; i++) sums[i] += row[i] * weights[k];
        }
        for (size_t i = 0; i < end; i++) out[at + i] = round_to_byte(sums[i]);
    }
}
DEFINE(sum_rows, (const uint8_t *in, size_t count, const int32_t *weights, int32_t rows, uint8_t *out),
       (in, count, weights, rows, out))

void tfpipe_close_resizing(tfpipe_resizing *self) {
    free_taps(&self->across);
    free_taps(&self->down);
    free(self->narrow);
}

int tfpipe_open_resizing(tfpipe_resizing *to, tfpipe_part from, int is_bicubic, uint8_t *out, int32_t out_height,
                         int32_t out_width) {
    *to = (tfpipe_resizing){.out = out, .out_height = out_height, .out_width = out_width};
    to->narrow = malloc((size_t)from.height * (size_t)out_width * CHANNELS);
    const int is_ready = to->narrow != NULL &&
                         make_taps(&to->across, from.width, from.part_width, out_width, is_bicubic) == 0 &&
                         make_taps(&to->down, from.height, from.part_height, out_height, is_bicubic) == 0;
    if (!is_ready) tfpipe_close_resizing(to);
    return is_ready ? 0 : -1;
}

void tfpipe_put_rows(tfpipe_resizing *to, const uint8_t *in, size_t stride, int32_t rows, int step) {
    const size_t out_stride = (size_t)to->out_width * CHANNELS;
    tfpipe_narrow_rows(in, stride, rows, step, &to->across, to->out_width, to->narrow + (size_t)to->rows * out_stride);
    to->rows += rows;
    for (; to->done < to->out_height; to->done++) {
        const int32_t first = to->down.firsts[to->done], count = to->down.counts[to->done];
        if (first + count > to->rows) break;
        tfpipe_sum_rows(to->narrow + (size_t)first * out_stride, out_stride,
                        to->down.weights + (size_t)to->done * (size_t)to->down.room, count,
                        to->out + (size_t)to->done * out_stride);
    }
}

int tfpipe_resize_antialiased(const uint8_t *in, int32_t height, int32_t width, float part_height, float part_width,
                              int is_bicubic, uint8_t *out, int32_t out_height, int32_t out_width) {
    const tfpipe_part from = {height, width, part_height, part_width};
    tfpipe_resizing resizing;
    if (tfpipe_open_resizing(&resizing, from, is_bicubic, out, out_height, out_width) != 0) return TFPIPE_NO_MEMORY;
    tfpipe_put_rows(&resizing, in, (size_t)width * CHANNELS, height, CHANNELS);
    tfpipe_close_resizing(&resizing);
    return TFPIPE_OK;
}
