/* The numbers of TensorFlow's stateless_sample_distorted_bounding_box and stateless_uniform on a CPU, to the bit.

   They are those of Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") under a key and a
   counter that are drawn from the seed. What TensorFlow computes in float32 is computed in float32. */

#include <math.h>
#include <string.h>

#include "tfpipe_native.h"

enum { ATTEMPTS = 10, ROUNDS = 10 };

static const uint32_t FLIP_KEY[2] = {0x243F6A88, 0x05A308D3}; /* the first digits of pi, as in tfpipe */

typedef struct {
    uint32_t counter[4], key[2], numbers[4];
    int used; /* of the numbers */
} generator;

static void make_numbers(const uint32_t counter[4], const uint32_t key[2], uint32_t numbers[4]) {
    uint32_t k0 = key[0], k1 = key[1];
    memcpy(numbers, counter, 4 * sizeof *numbers);
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t left = (uint64_t)0xD2511F53 * numbers[0], right = (uint64_t)0xCD9E8D57 * numbers[2];
        numbers[0] = (uint32_t)(right >> 32) ^ numbers[1] ^ k0;
        numbers[1] = (uint32_t)right;
        numbers[2] = (uint32_t)(left >> 32) ^ numbers[3] ^ k1;
        numbers[3] = (uint32_t)left;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
}

static generator seed_generator(uint32_t first, uint32_t second) {
    static const uint32_t scramble[2] = {0x3EC8F720, 0x02461E29};
    /* The seeds as 64-bit numbers, with their signs. */
    const uint32_t words[4] = {first, first >> 31 ? UINT32_MAX : 0, second, second >> 31 ? UINT32_MAX : 0};
    uint32_t drawn[4];
    make_numbers(words, scramble, drawn);
    return (generator){.counter = {0, 0, drawn[2], drawn[3]}, .key = {drawn[0], drawn[1]}, .used = 4};
}

static uint32_t draw(generator *from) {
    if (from->used == 4) {
        make_numbers(from->counter, from->key, from->numbers);
        from->counter[0]++;
        from->used = 0;
    }
    return from->numbers[from->used++];
}

/* Draws a number below `count`, without bias. */
static int32_t draw_below(generator *from, uint32_t count) {
    if ((count & (count - 1)) == 0) return (int32_t)(draw(from) & (count - 1));
    const uint32_t rest = UINT32_MAX % count + 1;
    uint32_t number;
    do number = draw(from);
    while (number < rest);
    return (int32_t)(number % count);
}

/* Rounds halves to even, as lrintf does unless somebody changed the mode. */
static int64_t get_width(int64_t height, float aspect) { return llrintf((float)height * aspect); }

/* Draws a height, uniform among those that keep the area within bounds, and its width. Returns whether one does. */
static int draw_extent(generator *from, int32_t height, int32_t width, float min_area, float max_area, float aspect,
                       int32_t extent[2]) {
    const int64_t shortest = llrintf(sqrtf(min_area / aspect));
    int64_t tallest = llrintf(sqrtf(max_area / aspect));
    if (get_width(tallest, aspect) > width) {
        tallest = (int64_t)((width + 0.5 - 1e-7) / (double)aspect);
        tallest -= get_width(tallest, aspect) > width;
    }
    if (tallest > height) tallest = height;
    int64_t high = shortest < tallest ? shortest : tallest;
    if (high < tallest) high += draw_below(from, (uint32_t)(tallest - high + 1));
    /* Rounding may carry the area out of its bounds by less than a row. */
    high += (float)(high * get_width(high, aspect)) < min_area;
    high -= (float)(high * get_width(high, aspect)) > max_area;
    const int64_t wide = get_width(high, aspect);
    const float area = (float)(high * wide);
    extent[0] = (int32_t)high;
    extent[1] = (int32_t)wide;
    return min_area <= area && area <= max_area && 0 < wide && wide <= width && 0 < high && high <= height;
}

/* Draws a crop of an image of this size, which must have a pixel. The box is y, x, height, width. */
static void draw_crop(const int32_t seed[2], int32_t height, int32_t width, const tfpipe_crops *crops, int32_t box[4]) {
    generator from = seed_generator((uint32_t)seed[0], (uint32_t)seed[1]);
    const float min_area = crops->min_area * (float)width * (float)height;
    const float max_area = crops->max_area * (float)width * (float)height;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        /* The lower 23 bits are those of a float between 1 and 2. */
        const float part = (float)(draw(&from) & 0x7FFFFF) * 0x1p-23F;
        const float aspect = part * (crops->max_aspect - crops->min_aspect) + crops->min_aspect;
        int32_t extent[2];
        if (!draw_extent(&from, height, width, min_area, max_area, aspect, extent)) continue;
        box[0] = extent[0] < height ? draw_below(&from, (uint32_t)(height - extent[0])) : 0;
        box[1] = extent[1] < width ? draw_below(&from, (uint32_t)(width - extent[1])) : 0;
        box[2] = extent[0];
        box[3] = extent[1];
        return;
    }
    box[0] = box[1] = 0;
    box[2] = height;
    box[3] = width;
}

/* Converts a box to pixels of an image that was squeezed to another size: its corners keep their shares. */
static void squeeze_box(int32_t box[4], const int32_t original[2], const int32_t stored[2]) {
    if (original[0] == stored[0] && original[1] == stored[1]) return;
    for (int axis = 0; axis < 2; axis++) {
        const float size = (float)original[axis], extent = (float)stored[axis];
        int32_t near = (int32_t)lrintf((float)box[axis] / size * extent);
        const int32_t far = (int32_t)lrintf((float)(box[axis] + box[axis + 2]) / size * extent);
        if (near > stored[axis] - 1) near = stored[axis] - 1;
        const int32_t most = stored[axis] - near, side = far - near;
        box[axis] = near;
        box[axis + 2] = side < 1 ? 1 : side > most ? most : side;
    }
}

static int draw_flip(const int32_t seed[2]) {
    generator from = seed_generator((uint32_t)seed[0] ^ FLIP_KEY[0], (uint32_t)seed[1] ^ FLIP_KEY[1]);
    return (int)(draw(&from) & 1);
}

int tfpipe_draw_crops(const int32_t *seeds, const int32_t *sizes, size_t count, const tfpipe_crops *crops,
                      int32_t *boxes, uint8_t *flips) {
    for (size_t k = 0; k < count; k++) {
        const int32_t *seed = seeds + 2 * k, *size = sizes + 2 * k;
        if (size[0] < 1 || size[1] < 1) return TFPIPE_BAD_REQUEST;
        draw_crop(seed, size[0], size[1], crops, boxes + 4 * k);
        if (crops->stored[0] > 0) squeeze_box(boxes + 4 * k, size, crops->stored);
        flips[k] = (uint8_t)draw_flip(seed);
    }
    return TFPIPE_OK;
}
