#include "color.h"

#include <string.h>

#include "vectors.h"
#include "versions.h"

INLINE void widen(const uint8_t *restrict in, size_t count, uint8_t *restrict out) {
    for (ptrdiff_t i = 0; i < (ptrdiff_t)count; i++) {
        const int three = 3 * in[i];
        out[2 * i] = (uint8_t)((three + in[i - 1] + 1) >> 2);
        out[2 * i + 1] = (uint8_t)((three + in[i + 1] + 2) >> 2);
    }
}
DEFINE(widen, (const uint8_t *in, size_t count, uint8_t *out), (in, count, out))

enum { SUMS = 64 };

INLINE void widen_between(const uint8_t *restrict near, const uint8_t *restrict far, size_t count,
                          uint8_t *restrict out) {
    uint16_t sums[SUMS + 2];
    for (size_t first = 0; first < count; first += SUMS) {
        const uint8_t *a = near + first, *b = far + first;
        for (ptrdiff_t i = -1; i < SUMS + 1; i++) sums[i + 1] = (uint16_t)(3 * a[i] + b[i]);
        uint8_t *to = out + 2 * first;
        for (size_t i = 0; i < SUMS; i++) {
            const uint16_t three = (uint16_t)(3 * sums[i + 1]);
            to[2 * i] = (uint8_t)((uint16_t)(three + sums[i] + 8) >> 4);
            to[2 * i + 1] = (uint8_t)((uint16_t)(three + sums[i + 2] + 7) >> 4);
        }
    }
}
DEFINE(widen_between, (const uint8_t *near, const uint8_t *far, size_t count, uint8_t *out), (near, far, count, out))

INLINE void blend_rows(const uint8_t *restrict near, const uint8_t *restrict far, int bias, size_t count,
                       uint8_t *restrict out) {
    for (size_t i = 0; i < count; i++) out[i] = (uint8_t)((3 * near[i] + far[i] + bias) >> 2);
}
DEFINE(blend_rows, (const uint8_t *near, const uint8_t *far, int bias, size_t count, uint8_t *out),
       (near, far, bias, count, out))

void tfpipe_repeat(const uint8_t *in, int times, size_t count, uint8_t *out) {
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < times; k++) *out++ = in[i];
}

enum { AT_ONCE = 16, CENTER = 128 };

/* Mixes three rows of AT_ONCE samples. */
INLINE void mix_pixels(bytes_16 red, bytes_16 green, bytes_16 blue, uint8_t *out) {
    const bytes_16 none = {0};
    const shorts red_green[2] = {(shorts)mix_low_bytes(red, green), (shorts)mix_high_bytes(red, green)};
    const shorts blue_none[2] = {(shorts)mix_low_bytes(blue, none), (shorts)mix_high_bytes(blue, none)};
    for (int i = 0; i < 2; i++) {
        store_shorts(out + 32 * i, mix_low(red_green[i], blue_none[i]));
        store_shorts(out + 32 * i + 16, mix_high(red_green[i], blue_none[i]));
    }
}

/* Returns half of the upper half of a product, rounded. */
INLINE shorts round_product(shorts a, int16_t b) { return add(multiply_high(a, b), repeat_short(1)) >> 1; }

/* Makes the colors of eight samples. The factors are those of JFIF with 16 bits of fraction, less whole numbers that are
   added by themselves, so that the rest fits into 16 bits: 1.402 = 1 + 26345 / 65536, 1.772 = 2 - 14942 / 65536,
   0.71414 = 1 - 18734 / 65536, 0.34414 = 22554 / 65536. */
INLINE void make_colors(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, shorts *red, shorts *green,
                        shorts *blue) {
    const shorts light = load_bytes(y);
    const shorts b = subtract(load_bytes(cb), repeat_short(CENTER)), r = subtract(load_bytes(cr), repeat_short(CENTER));
    const shorts twice_b = add(b, b), twice_r = add(r, r);
    const ints half = {32768, 32768, 32768, 32768};
    const ints low = (multiply_pairs(mix_low(b, r), -22554, 18734) + half) >> 16;
    const ints high = (multiply_pairs(mix_high(b, r), -22554, 18734) + half) >> 16;
    *red = add(add(light, r), round_product(twice_r, 26345));
    *green = add(light, subtract(to_shorts(low, high), r));
    *blue = add(add(light, twice_b), round_product(twice_b, -14942));
}

INLINE void convert_ycc(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, size_t count, uint8_t *out) {
    for (size_t i = 0; i < count; i += AT_ONCE) {
        shorts red[2], green[2], blue[2];
        for (size_t k = 0; k < 2; k++)
            make_colors(y + i + 8 * k, cb + i + 8 * k, cr + i + 8 * k, &red[k], &green[k], &blue[k]);
        mix_pixels(to_bytes(red[0], red[1]), to_bytes(green[0], green[1]), to_bytes(blue[0], blue[1]),
                   out + TFPIPE_PIXEL_BYTES * i);
    }
}
DEFINE(convert_ycc, (const uint8_t *y, const uint8_t *cb, const uint8_t *cr, size_t count, uint8_t *out),
       (y, cb, cr, count, out))

INLINE void convert_rgb(const uint8_t *red, const uint8_t *green, const uint8_t *blue, size_t count, uint8_t *out) {
    for (size_t i = 0; i < count; i += AT_ONCE) {
        bytes_16 r, g, b;
        memcpy(&r, red + i, sizeof r);
        memcpy(&g, green + i, sizeof g);
        memcpy(&b, blue + i, sizeof b);
        mix_pixels(r, g, b, out + TFPIPE_PIXEL_BYTES * i);
    }
}
DEFINE(convert_rgb, (const uint8_t *red, const uint8_t *green, const uint8_t *blue, size_t count, uint8_t *out),
       (red, green, blue, count, out))

/* CMYK as TensorFlow converts it. Adobe's files have the values inverted. */
static void convert_cmyk(const uint8_t *const inks[3], const uint8_t *black, int inverted, size_t count, uint8_t *out) {
    for (size_t i = 0; i < count; i++)
        for (size_t c = 0; c < 3; c++)
            out[TFPIPE_PIXEL_BYTES * i + c] =
                (uint8_t)(inverted ? inks[c][i] * black[i] / 255 : (255 - inks[c][i]) * (255 - black[i]) / 255);
}

/* Ink is what is missing of a color. */
static void convert_ycck(const uint8_t *const rows[4], int inverted, size_t count, uint8_t *out) {
    tfpipe_convert_ycc(rows[0], rows[1], rows[2], count, out);
    for (size_t i = 0; i < count; i++)
        for (size_t c = 0; c < 3; c++) {
            uint8_t *pixel = out + TFPIPE_PIXEL_BYTES * i + c;
            const int ink = 255 - *pixel, black = rows[3][i];
            *pixel = (uint8_t)(inverted ? ink * black / 255 : (255 - ink) * (255 - black) / 255);
        }
}

void tfpipe_make_pixels(tfpipe_color color, const uint8_t *const rows[4], int inverted, size_t count, uint8_t *out) {
    switch (color) {
        case TFPIPE_GRAY:
            tfpipe_convert_rgb(rows[0], rows[0], rows[0], count, out);
            return;
        case TFPIPE_YCC:
            tfpipe_convert_ycc(rows[0], rows[1], rows[2], count, out);
            return;
        case TFPIPE_RGB:
            tfpipe_convert_rgb(rows[0], rows[1], rows[2], count, out);
            return;
        case TFPIPE_CMYK:
            convert_cmyk(rows, rows[3], inverted, count, out);
            return;
        case TFPIPE_YCCK:
            convert_ycck(rows, inverted, count, out);
            return;
    }
}
