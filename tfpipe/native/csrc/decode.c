/* A crop of a JPEG: its blocks become samples, samples become rows of pixels, and rows become the result, a few at a time. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "antialias.h"
#include "coefficients.h"
#include "color.h"
#include "decode.h"
#include "output.h"
#include "planes.h"
#include "sequential.h"
#include "tfpipe_native.h"
#include "transform.h"

/* What a request needs, in one place, to be freed together.

   box         the crop in pixels of the reduced image
   resizing    what takes the rows in place of `output`, if all of the file is checked, and decoded as Pillow does; or NULL
   next_row    the row of the reduced image that is made next */
typedef struct {
    tfpipe_jpeg jpeg;
    tfpipe_box box;
    tfpipe_planes planes;
    tfpipe_output output;
    tfpipe_resizing *resizing;
    tfpipe_sequence sequence;
    tfpipe_coefficients coefficients;
    int32_t next_row;
} decoder;

/* Rounds a side of the box to pixels of the reduced image. */
static int32_t reduce(int32_t side, int32_t ratio) { return (side + ratio / 2) / ratio; }

static int is_valid(const tfpipe_request *request) {
    const int has_size = request->out_height > 0 && request->out_width > 0;
    const int keeps_size = request->out_height == 0 && request->out_width == 0 && request->dtype == TFPIPE_UINT8;
    const int32_t ratio = request->ratio;
    return (has_size || keeps_size) && (ratio == 1 || ratio == 2 || ratio == 4 || ratio == 8) &&
           request->dtype >= TFPIPE_UINT8 && request->dtype <= TFPIPE_BFLOAT16;
}

/* Finds the box in the reduced image. Returns TFPIPE_OK or TFPIPE_BAD_BOX. */
static int find_box(decoder *self, const tfpipe_request *request, char *message) {
    const int32_t ratio = request->ratio, height = self->jpeg.height, width = self->jpeg.width;
    const int lies_inside = request->y >= 0 && request->x >= 0 && request->height > 0 && request->width > 0 &&
                            request->height <= height - request->y && request->width <= width - request->x;
    if (lies_inside) {
        const int32_t top = reduce(request->y, ratio), bottom = reduce(request->y + request->height, ratio);
        const int32_t left = reduce(request->x, ratio), right = reduce(request->x + request->width, ratio);
        self->box = (tfpipe_box){top, left, bottom - top, right - left};
        if (bottom > top && right > left) return TFPIPE_OK;
    }
    snprintf(message, TFPIPE_MESSAGE_BYTES, "the crop box leaves the image of %d x %d", width, height);
    return TFPIPE_BAD_BOX;
}

/* Gives a row to what resizes it, which takes two at a time. */
static void resize_row(decoder *self, int32_t row, const uint8_t *pixels) {
    const size_t stride = self->planes.pixel_stride;
    if (row & 1) tfpipe_put_rows(self->resizing, pixels - stride, stride, 2, TFPIPE_PIXEL_BYTES);
    else if (row + 1 == self->box.height) tfpipe_put_rows(self->resizing, pixels, stride, 1, TFPIPE_PIXEL_BYTES);
}

/* Makes the rows of pixels that the samples up to a row of MCUs allow. */
static void make_rows(decoder *self, int32_t mcu_row) {
    const tfpipe_box *box = &self->box;
    tfpipe_end_mcu_row(&self->planes, mcu_row);
    while (self->next_row < box->y + box->height &&
           (mcu_row + 1 == self->planes.end_mcu_row || tfpipe_has_row(&self->planes, self->next_row, mcu_row))) {
        const uint8_t *pixels = tfpipe_make_row(&self->planes, self->next_row);
        if (self->resizing != NULL) resize_row(self, self->next_row, pixels);
        else tfpipe_put_row(&self->output, self->next_row - box->y, pixels, box->width);
        self->next_row++;
    }
}

/* Decodes an image whose one scan holds all components, row by row. */
static int decode_sequence(decoder *self, int seeks, char *message) {
    int result = tfpipe_begin_sequence(&self->sequence, &self->jpeg, &self->planes, seeks, message);
    for (int32_t row = 0; result == TFPIPE_OK && row < self->planes.end_mcu_row; row++) {
        result = tfpipe_read_mcu_row(&self->sequence, row, message);
        if (result == TFPIPE_OK && row >= self->planes.first_mcu_row) make_rows(self, row);
    }
    if (result == TFPIPE_OK && self->resizing != NULL) {
        result = tfpipe_end_scan(&self->jpeg, &self->sequence.in, message);
    } else if (result == TFPIPE_OK && self->planes.end_mcu_row == self->jpeg.mcu_rows) {
        /* The last bits may be those of an end that is missing: decoders differ about them. */
        self->jpeg.at = (size_t)(self->sequence.in.next - self->jpeg.data);
        if (tfpipe_find_marker(&self->jpeg) < 0)
            result = tfpipe_complain(message, TFPIPE_DAMAGED, "it ends without an end marker");
    }
    tfpipe_end_sequence(&self->sequence);
    return result;
}

/* Makes the samples of a row of MCUs of one component. */
static void transform_row(const decoder *self, int index, int32_t mcu_row) {
    const tfpipe_plane *plane = &self->planes.planes[index];
    const tfpipe_component *component = &self->jpeg.components[index];
    for (int32_t y = mcu_row * component->v; y < (mcu_row + 1) * component->v; y++) {
        if (y < plane->first_row || y >= plane->end_row) continue;
        const int16_t *blocks = self->coefficients.blocks[index] + 64 * (size_t)y * (size_t)component->mcu_wide;
        for (int32_t x = plane->first_block; x < plane->end_block; x++) {
            uint8_t *out = tfpipe_find_samples(plane, x, y);
            const int16_t *block = blocks + 64 * (size_t)x;
            if (plane->side == 8) transform_8(block, plane->factors, self->planes.is_accurate, out, plane->stride);
            else if (plane->side == 4) tfpipe_transform_4(block, plane->factors, out, plane->stride);
            else if (plane->side == 2) tfpipe_transform_2(block, plane->factors, out, plane->stride);
            else tfpipe_transform_1(block, plane->factors, out, plane->stride);
        }
    }
}

/* Decodes an image of several scans from its coefficients. */
static int decode_coefficients(decoder *self) {
    for (int32_t row = self->planes.first_mcu_row; row < self->planes.end_mcu_row; row++) {
        for (int i = 0; i < self->jpeg.num_components; i++) transform_row(self, i, row);
        make_rows(self, row);
    }
    return TFPIPE_OK;
}

/* Reads the scans first if there are several, since their quantization tables come with them. */
static int decode_box(decoder *self, int32_t ratio, int seeks, char *message) {
    const int is_one_scan = tfpipe_is_one_scan(&self->jpeg), is_whole = self->resizing != NULL;
    int is_complete = 1;
    if (!is_one_scan) {
        const int result = tfpipe_read_coefficients(&self->jpeg, &self->coefficients, is_whole, &is_complete, message);
        if (result != TFPIPE_OK) return result;
        if (self->jpeg.progressive && !is_complete)
            return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "scans are missing, and decoders guess what they held");
    }
    if (tfpipe_open_planes(&self->planes, &self->jpeg, ratio, is_whole, self->box) != 0) return TFPIPE_NO_MEMORY;
    self->next_row = self->box.y;
    return is_one_scan ? decode_sequence(self, seeks, message) : decode_coefficients(self);
}

int tfpipe_decode_one_of_many(const uint8_t *data, size_t size, const tfpipe_request *request, int streams, void *out,
                              char *message) {
    decoder self;
    memset(&self, 0, sizeof self);
    if (!is_valid(request)) return tfpipe_complain(message, TFPIPE_BAD_REQUEST, "a size, ratio or type is impossible");
    int result = tfpipe_open_jpeg(&self.jpeg, data, size, request->max_pixels, message);
    if (result == TFPIPE_OK) result = find_box(&self, request, message);
    if (result == TFPIPE_OK &&
        tfpipe_open_output(&self.output, request, self.box.height, self.box.width, streams, out) != 0)
        result = TFPIPE_NO_MEMORY;
    if (result == TFPIPE_OK) result = decode_box(&self, request->ratio, request->seeks, message);
    tfpipe_close_planes(&self.planes);
    tfpipe_close_output(&self.output);
    tfpipe_free_coefficients(&self.coefficients);
    return result;
}

int tfpipe_decode(const uint8_t *data, size_t size, const tfpipe_request *request, void *out, char *message) {
    return tfpipe_decode_one_of_many(data, size, request, 0, out, message);
}

int tfpipe_decode_resized(const uint8_t *data, size_t size, int64_t max_pixels, int32_t ratio, uint8_t *out,
                          int32_t out_height, int32_t out_width, char *message) {
    decoder self;
    tfpipe_resizing resizing;
    memset(&self, 0, sizeof self);
    if ((ratio != 1 && ratio != 2 && ratio != 4 && ratio != 8) || out_height < 1 || out_width < 1)
        return tfpipe_complain(message, TFPIPE_BAD_REQUEST, "a size or ratio is impossible");
    int result = tfpipe_open_jpeg(&self.jpeg, data, size, max_pixels, message);
    if (result != TFPIPE_OK) return result;
    if (self.jpeg.num_components != 3)
        return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "it has not three components");
    const float height = (float)self.jpeg.height / (float)ratio, width = (float)self.jpeg.width / (float)ratio;
    const tfpipe_part part = {(int32_t)ceilf(height), (int32_t)ceilf(width), height, width};
    if (tfpipe_open_resizing(&resizing, part, 1, out, out_height, out_width) != 0) return TFPIPE_NO_MEMORY;
    self.box = (tfpipe_box){0, 0, part.height, part.width};
    self.resizing = &resizing;
    result = decode_box(&self, ratio, 0, message);
    tfpipe_close_planes(&self.planes);
    tfpipe_free_coefficients(&self.coefficients);
    tfpipe_close_resizing(&resizing);
    return result;
}

int tfpipe_interface(void) { return TFPIPE_INTERFACE; }

void tfpipe_free(void *memory) { free(memory); }
