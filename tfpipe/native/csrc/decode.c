#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "jpeg_input.h"
#include "resize.h"
#include "splice.h"
#include "tfpipe_native.h"

/* Where the result of a request goes, row by row. */
typedef struct {
    const tfpipe_request *request;
    tfpipe_between *columns, *rows; /* of the result among those of the crop; NULL if pixels stay as they are */
    float *lines[2];                /* two rows of the crop, interpolated to the result's columns */
    int32_t line_rows[2];           /* which rows of the crop they are; -1 for none */
    float *offset, *factor, *values;
    uint8_t *out;
    int32_t done; /* rows of the result that are written */
} writer;

static void free_writer(writer *to) {
    free(to->columns);
    free(to->lines[0]);
    memset(to, 0, sizeof *to);
}

/* Prepares to write the result for a crop of this size. Returns 0, or -1 if there is no memory. */
static int open_writer(writer *to, const tfpipe_request *request, int32_t height, int32_t width, void *out) {
    *to = (writer){.request = request, .out = out, .line_rows = {-1, -1}};
    const int same_size = request->out_height == height && request->out_width == width;
    if (request->out_height == 0 || (same_size && request->dtype == TFPIPE_UINT8)) return 0;
    const size_t columns = (size_t)request->out_width, rows = (size_t)request->out_height;
    const size_t line = 3 * columns + 4; /* a row may be written four floats at a time */
    to->columns = malloc((columns + rows) * sizeof *to->columns);
    to->lines[0] = malloc(5 * line * sizeof(float));
    if (to->columns == NULL || to->lines[0] == NULL) {
        free_writer(to);
        return -1;
    }
    to->rows = to->columns + columns;
    to->lines[1] = to->lines[0] + line;
    to->offset = to->lines[1] + line;
    to->factor = to->offset + line;
    to->values = to->factor + line;
    tfpipe_place_outputs(width, request->out_width, to->columns);
    tfpipe_place_outputs(height, request->out_height, to->rows);
    if (request->flip) {
        for (size_t i = 0, j = columns - 1; i < j; i++, j--) {
            tfpipe_between kept = to->columns[i];
            to->columns[i] = to->columns[j];
            to->columns[j] = kept;
        }
    }
    for (size_t i = 0; i < 3 * columns; i++) {
        to->offset[i] = request->offset[i % 3];
        to->factor[i] = request->factor[i % 3];
    }
    return 0;
}

static void write_plain_row(writer *to, const uint8_t *pixels, int32_t width) {
    uint8_t *out = to->out + (size_t)to->done++ * (size_t)width * 3;
    if (!to->request->flip) {
        memcpy(out, pixels, (size_t)width * 3);
        return;
    }
    for (int32_t i = 0; i < width; i++) memcpy(out + 3 * i, pixels + 3 * (width - 1 - i), 3);
}

static void write_blended_row(writer *to, const float *top, const float *bottom, float weight) {
    const int32_t count = 3 * to->request->out_width;
    const size_t first = (size_t)to->done * (size_t)count;
    if (to->request->dtype == TFPIPE_UINT8) {
        tfpipe_blend_uint8(top, bottom, weight, count, to->out + first);
    } else if (to->request->dtype == TFPIPE_FLOAT32) {
        tfpipe_blend_float(top, bottom, weight, to->offset, to->factor, count, (float *)(void *)to->out + first);
    } else {
        tfpipe_blend_float(top, bottom, weight, to->offset, to->factor, count, to->values);
        tfpipe_round_bfloat16(to->values, count, (uint16_t *)(void *)to->out + first);
    }
    to->done++;
}

/* Takes one row of the crop, the rows in order, and writes the rows of the result that it completes.

   TFPIPE_ROW_PADDING bytes behind the last pixel must be readable. */
static void take_row(writer *to, int32_t row, const uint8_t *pixels, int32_t width) {
    if (to->columns == NULL) {
        write_plain_row(to, pixels, width);
        return;
    }
    const int32_t height = to->request->out_height;
    int current = -1;
    for (int32_t i = to->done; i < height && to->rows[i].lower <= row; i++) {
        if (to->rows[i].lower != row && to->rows[i].upper != row) break;
        if (current < 0) {
            /* The older of the two rows gives way. */
            current = to->line_rows[0] <= to->line_rows[1] ? 0 : 1;
            tfpipe_resize_row(pixels, to->columns, to->request->out_width, to->lines[current]);
            to->line_rows[current] = row;
        }
        if (to->rows[i].upper > row) break;
        const float *bottom = to->lines[current];
        const float *top = to->rows[i].lower == row ? bottom : to->lines[1 - current];
        write_blended_row(to, top, bottom, to->rows[i].weight);
    }
}

/* CMYK as TensorFlow converts it. Adobe's files have the values inverted. */
static void convert_cmyk(uint8_t *row, JDIMENSION width, boolean inverted) {
    for (JDIMENSION i = 0; i < width; i++) {
        const uint8_t *from = row + 4 * i;
        const int black = inverted ? from[3] : 255 - from[3];
        int values[3];
        for (int c = 0; c < 3; c++) values[c] = black * (inverted ? from[c] : 255 - from[c]) / 255;
        for (int c = 0; c < 3; c++) row[3 * i + (size_t)c] = (uint8_t)values[c];
    }
}

/* Rounds a side of the box to pixels of the reduced image. */
static int32_t reduce(int32_t side, int32_t ratio) { return (side + ratio / 2) / ratio; }

/* What `decode_rows` returns if the scan is unusual, besides the results of tfpipe_decode. */
enum { LEAVE_TO_LIBJPEG = -1 };

/* What `decode_rows` needs, in one place: after a longjmp local variables may be lost. */
typedef struct {
    tfpipe_input input;
    writer to;
    uint8_t *row;
} decoder;

/* Decodes the rows of a box and writes the result. With `by_libjpeg` it leaves the scan to libjpeg.

   Returns a result of tfpipe_decode, or LEAVE_TO_LIBJPEG. */
static int decode_rows(decoder *self, const uint8_t *data, size_t size, const tfpipe_request *request, tfpipe_box box,
                       void *out, int by_libjpeg) {
    tfpipe_input *input = &self->input;
    struct jpeg_decompress_struct *jpeg = &input->jpeg;
    const int jumped = setjmp(input->jump);
    if (jumped != 0) return jumped == TFPIPE_LEAVE_TO_LIBJPEG ? LEAVE_TO_LIBJPEG : TFPIPE_DAMAGED;
    tfpipe_open_input(input, data, size);
    if (jpeg_read_header(jpeg, TRUE) != JPEG_HEADER_OK) return TFPIPE_DAMAGED;
    const int has_black = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
    jpeg->out_color_space = has_black ? JCS_CMYK : JCS_RGB;
    jpeg->scale_num = 1;
    jpeg->scale_denom = (unsigned)request->ratio;
    jpeg->dct_method = JDCT_IFAST; /* what tf.io.decode_jpeg takes if it is not told otherwise */
    jpeg->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(jpeg);
    if (!by_libjpeg) input->scan = tfpipe_take_scan(jpeg, &input->jump);

    const int32_t top = reduce(box.y, request->ratio), bottom = reduce(box.y + box.height, request->ratio);
    const int32_t left = reduce(box.x, request->ratio), right = reduce(box.x + box.width, request->ratio);
    const int32_t height = bottom - top, width = right - left;
    if (height < 1 || width < 1 || (JDIMENSION)bottom > jpeg->output_height || (JDIMENSION)right > jpeg->output_width) {
        snprintf(input->message, TFPIPE_MESSAGE_BYTES, "the crop box leaves the image of %u x %u", jpeg->image_width,
                 jpeg->image_height);
        return TFPIPE_BAD_BOX;
    }
    /* The color of the first and the last column is blended with that of their neighbors. */
    JDIMENSION first = left > 2 ? (JDIMENSION)left - 2 : 0;
    JDIMENSION columns = (JDIMENSION)right + 2 < jpeg->output_width ? (JDIMENSION)right + 2 - first
                                                                     : jpeg->output_width - first;
    if (columns < jpeg->output_width) jpeg_crop_scanline(jpeg, &first, &columns);
    if (open_writer(&self->to, request, height, width, out) != 0) return TFPIPE_NO_MEMORY;
    self->row = malloc((size_t)columns * (size_t)jpeg->output_components + TFPIPE_ROW_PADDING);
    if (self->row == NULL) return TFPIPE_NO_MEMORY;
    if (top > 0 && jpeg_skip_scanlines(jpeg, (JDIMENSION)top) != (JDIMENSION)top) return TFPIPE_DAMAGED;
    for (int32_t row = 0; row < height; row++) {
        JSAMPROW scanline = self->row;
        if (jpeg_read_scanlines(jpeg, &scanline, 1) != 1) return TFPIPE_DAMAGED;
        if (has_black) convert_cmyk(self->row, columns, jpeg->saw_Adobe_marker);
        take_row(&self->to, row, self->row + 3 * ((JDIMENSION)left - first), width);
    }
    return TFPIPE_OK;
}

int tfpipe_decode(const uint8_t *data, size_t size, const tfpipe_request *request, void *out, char *message) {
    message[0] = '\0';
    tfpipe_layout layout;
    if (tfpipe_read_layout(data, size, &layout) != 0) {
        snprintf(message, TFPIPE_MESSAGE_BYTES, "its JPEG headers are damaged");
        return TFPIPE_DAMAGED;
    }
    if ((int64_t)layout.width * layout.height > request->max_pixels) {
        snprintf(message, TFPIPE_MESSAGE_BYTES, "%d x %d pixels are more than the %lld allowed", layout.width,
                 layout.height, (long long)request->max_pixels);
        return TFPIPE_TOO_LARGE;
    }
    tfpipe_box box = {request->y, request->x, request->height, request->width};
    if (box.y < 0 || box.x < 0 || box.height < 1 || box.width < 1 || box.height > layout.height - box.y ||
        box.width > layout.width - box.x) {
        snprintf(message, TFPIPE_MESSAGE_BYTES, "the crop box leaves the image of %d x %d", layout.width,
                 layout.height);
        return TFPIPE_BAD_BOX;
    }
    tfpipe_splice splice = {0};
    if (request->seeks) {
        const int spliced = tfpipe_splice_box(data, size, &layout, box, 2 * request->ratio, &splice);
        if (spliced < 0) {
            tfpipe_free_splice(&splice);
            return TFPIPE_NO_MEMORY;
        }
        if (spliced > 0) {
            data = splice.data;
            size = splice.size;
            box.y -= splice.y;
            box.x -= splice.x;
        }
    }
    int result = LEAVE_TO_LIBJPEG;
    for (int by_libjpeg = 0; by_libjpeg < 2 && result == LEAVE_TO_LIBJPEG; by_libjpeg++) {
        decoder self;
        memset(&self, 0, sizeof self);
        self.input.message = message;
        result = decode_rows(&self, data, size, request, box, out, by_libjpeg);
        tfpipe_close_input(&self.input);
        free_writer(&self.to);
        free(self.row);
    }
    tfpipe_free_splice(&splice);
    if (result == TFPIPE_DAMAGED && message[0] == '\0')
        snprintf(message, TFPIPE_MESSAGE_BYTES, "its JPEG data is damaged");
    return result;
}

int tfpipe_interface(void) { return TFPIPE_INTERFACE; }

void tfpipe_free(void *memory) { free(memory); }
