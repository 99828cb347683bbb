#include "planes.h"

#include <stdlib.h>
#include <string.h>

#include "color.h"
#include "transform.h"

enum { LEFT_MARGIN = 16, FULL = 8 };

static int32_t divide_up(int32_t value, int32_t by) { return (value + by - 1) / by; }

static int32_t at_most(int32_t value, int32_t limit) { return value < limit ? value : limit; }

static int32_t at_least(int32_t value, int32_t limit) { return value > limit ? value : limit; }

/* Chooses how large the blocks of a component become. One that is stored at less than the full size is reduced less, as
   libjpeg does it. */
static int choose_side(const tfpipe_jpeg *jpeg, const tfpipe_component *component, int least) {
    int side = least;
    while (side < FULL && jpeg->max_h * least % (component->h * side * 2) == 0 &&
           jpeg->max_v * least % (component->v * side * 2) == 0)
        side *= 2;
    return side;
}

/* Chooses as libjpeg does with "fancy upsampling". */
static tfpipe_enlarging choose_enlarging(const tfpipe_plane *plane, int least) {
    const int blends = least > 1;
    if (plane->h_times == 1 && plane->v_times == 1) return TFPIPE_AS_IT_IS;
    if (plane->h_times == 2 && plane->v_times == 1 && blends && plane->width > 2) return TFPIPE_WIDENED;
    if (plane->h_times == 2 && plane->v_times == 2 && blends && plane->width > 2) return TFPIPE_WIDENED_BETWEEN;
    if (plane->h_times == 1 && plane->v_times == 2 && blends) return TFPIPE_HEIGHTENED;
    return TFPIPE_REPEATED;
}

static int blends_rows(const tfpipe_plane *plane) {
    return plane->enlarging == TFPIPE_WIDENED_BETWEEN || plane->enlarging == TFPIPE_HEIGHTENED;
}

static int blends_columns(const tfpipe_plane *plane) {
    return plane->enlarging == TFPIPE_WIDENED_BETWEEN || plane->enlarging == TFPIPE_WIDENED;
}

/* Finds the blocks on which pixels from `begin` to `end` depend. */
static void find_blocks(int32_t begin, int32_t end, int times, int blends, int32_t size, int side, int32_t *first,
                        int32_t *last) {
    const int32_t from = at_least(begin / times - blends, 0), to = at_most((end - 1) / times + 1 + blends, size);
    *first = from / side;
    *last = divide_up(to, side);
}

static void measure(tfpipe_planes *self, int component_index) {
    const tfpipe_jpeg *jpeg = self->jpeg;
    const tfpipe_component *component = &jpeg->components[component_index];
    tfpipe_plane *plane = &self->planes[component_index];
    const int least = FULL / self->ratio;
    const tfpipe_box box = self->box;
    plane->side = choose_side(jpeg, component, least);
    plane->h_times = jpeg->max_h * least / (component->h * plane->side);
    plane->v_times = jpeg->max_v * least / (component->v * plane->side);
    plane->width = divide_up(jpeg->width * component->h * plane->side, jpeg->max_h * FULL);
    plane->height = divide_up(jpeg->height * component->v * plane->side, jpeg->max_v * FULL);
    plane->enlarging = choose_enlarging(plane, least);
    find_blocks(box.x, box.x + box.width, plane->h_times, blends_columns(plane), plane->width, plane->side,
                &plane->first_block, &plane->end_block);
    find_blocks(box.y, box.y + box.height, plane->v_times, blends_rows(plane), plane->height, plane->side,
                &plane->first_row, &plane->end_row);
    self->first_mcu = at_most(self->first_mcu, plane->first_block / component->h);
    self->end_mcu = at_least(self->end_mcu, divide_up(plane->end_block, component->h));
    self->first_mcu_row = at_most(self->first_mcu_row, plane->first_row / component->v);
    self->end_mcu_row = at_least(self->end_mcu_row, divide_up(plane->end_row, component->v));
    plane->rows = 2 * component->v * plane->side;
    plane->stride = LEFT_MARGIN + (size_t)((plane->end_block - plane->first_block) * plane->side) + LEFT_MARGIN;
}

static size_t count_line_bytes(const tfpipe_plane *plane) {
    if (plane->enlarging == TFPIPE_AS_IT_IS) return 0;
    return (plane->stride + 2 * TFPIPE_ROW_MARGIN) * (size_t)plane->h_times;
}

int tfpipe_open_planes(tfpipe_planes *self, const tfpipe_jpeg *jpeg, int ratio, int is_accurate, tfpipe_box box) {
    const size_t pixel_bytes = ((size_t)box.width + 2 * TFPIPE_ROW_MARGIN) * TFPIPE_PIXEL_BYTES;
    size_t bytes = 2 * pixel_bytes;
    *self = (tfpipe_planes){.jpeg = jpeg,
                            .ratio = ratio,
                            .is_accurate = is_accurate,
                            .box = box,
                            .first_mcu = INT32_MAX,
                            .first_mcu_row = INT32_MAX,
                            .pixel_stride = pixel_bytes};
    for (int i = 0; i < jpeg->num_components; i++) {
        measure(self, i);
        bytes += self->planes[i].stride * (size_t)self->planes[i].rows + 2 * TFPIPE_ROW_MARGIN +
                 count_line_bytes(&self->planes[i]);
    }
    uint8_t *at = self->memory = malloc(bytes);
    if (at == NULL) return -1;
    self->pixels = at;
    at += 2 * pixel_bytes;
    for (int i = 0; i < jpeg->num_components; i++) {
        tfpipe_plane *plane = &self->planes[i];
        tfpipe_make_factors(jpeg->components[i].quant, plane->side, is_accurate, plane->factors);
        plane->samples = at + LEFT_MARGIN;
        at += plane->stride * (size_t)plane->rows + 2 * TFPIPE_ROW_MARGIN;
        plane->line = at;
        at += count_line_bytes(plane);
    }
    return 0;
}

void tfpipe_close_planes(tfpipe_planes *self) {
    free(self->memory);
    self->memory = NULL;
}

/* Returns the row of samples of a plane, one in front of the first and one behind the last of the image included. */
static uint8_t *find_row(const tfpipe_plane *plane, int32_t y) {
    return plane->samples + (size_t)(y % plane->rows) * plane->stride;
}

void tfpipe_end_mcu_row(tfpipe_planes *self, int32_t mcu_row) {
    for (int i = 0; i < self->jpeg->num_components; i++) {
        const tfpipe_plane *plane = &self->planes[i];
        const int32_t count = plane->rows / 2, behind = plane->width - plane->first_block * plane->side;
        if (!blends_columns(plane)) continue;
        for (int32_t y = mcu_row * count; y < (mcu_row + 1) * count; y++) {
            uint8_t *row = find_row(plane, y);
            if (plane->first_block == 0) row[-1] = row[0];
            if (plane->end_block * plane->side >= plane->width) row[behind] = row[behind - 1];
        }
    }
}

/* Finds the rows of samples that a row of pixels is made of: the nearer one, and the other. */
static void find_rows(const tfpipe_plane *plane, int32_t y, int32_t *near, int32_t *far) {
    *near = *far = y / plane->v_times;
    if (blends_rows(plane)) *far = y % 2 == 0 ? at_least(*near - 1, 0) : at_most(*near + 1, plane->height - 1);
}

int tfpipe_has_row(const tfpipe_planes *self, int32_t y, int32_t mcu_row) {
    for (int i = 0; i < self->jpeg->num_components; i++) {
        int32_t near, far;
        find_rows(&self->planes[i], y, &near, &far);
        if (at_least(near, far) >= (mcu_row + 1) * (self->planes[i].rows / 2)) return 0;
    }
    return 1;
}

/* Returns the samples of a component at the size of the image, from the left end of the box on. */
static const uint8_t *enlarge(const tfpipe_planes *self, const tfpipe_plane *plane, int32_t y) {
    int32_t near, far;
    find_rows(plane, y, &near, &far);
    /* Samples from `begin` on are enlarged, so that the box begins in those of the first. */
    const int32_t begin = self->box.x / plane->h_times, end = (self->box.x + self->box.width - 1) / plane->h_times + 1;
    const ptrdiff_t skipped = begin - (ptrdiff_t)plane->first_block * plane->side;
    const uint8_t *from = find_row(plane, near) + skipped, *other = find_row(plane, far) + skipped;
    const size_t count = (size_t)(end - begin);
    switch (plane->enlarging) {
        case TFPIPE_AS_IT_IS:
            return from;
        case TFPIPE_WIDENED:
            tfpipe_widen(from, count, plane->line);
            break;
        case TFPIPE_WIDENED_BETWEEN:
            tfpipe_widen_between(from, other, count, plane->line);
            break;
        case TFPIPE_HEIGHTENED:
            tfpipe_blend_rows(from, other, y % 2 == 0 ? 1 : 2, count, plane->line);
            break;
        case TFPIPE_REPEATED:
            tfpipe_repeat(from, plane->h_times, count, plane->line);
            break;
    }
    return plane->line + (self->box.x - begin * plane->h_times);
}

const uint8_t *tfpipe_make_row(tfpipe_planes *self, int32_t y) {
    const uint8_t *rows[TFPIPE_MAX_COMPONENTS] = {NULL};
    uint8_t *const pixels = self->pixels + (size_t)(y & 1) * self->pixel_stride;
    for (int i = 0; i < self->jpeg->num_components; i++) rows[i] = enlarge(self, &self->planes[i], y);
    tfpipe_make_pixels(self->jpeg->color, rows, self->jpeg->has_adobe, (size_t)self->box.width, pixels);
    return pixels;
}
