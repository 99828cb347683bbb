#include "output.h"

#include <stdlib.h>
#include <string.h>

#include "color.h"

void tfpipe_close_output(tfpipe_output *to) {
    if (to->streams) tfpipe_end_stream();
    free(to->columns);
    free(to->lines[0]);
    memset(to, 0, sizeof *to);
}

int tfpipe_open_output(tfpipe_output *to, const tfpipe_request *request, int32_t height, int32_t width, int streams,
                       void *out) {
    *to = (tfpipe_output){.request = request, .out = out, .line_rows = {-1, -1}, .streams = streams};
    const int same_size = request->out_height == height && request->out_width == width;
    if (request->out_height == 0 || (same_size && request->dtype == TFPIPE_UINT8)) return 0;
    const size_t columns = (size_t)request->out_width, rows = (size_t)request->out_height;
    const size_t line = 3 * columns + 4; /* a row may be written four floats at a time */
    to->columns = malloc((columns + rows) * sizeof *to->columns);
    to->lines[0] = malloc(5 * line * sizeof(float));
    if (to->columns == NULL || to->lines[0] == NULL) {
        tfpipe_close_output(to);
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

static void write_plain_row(tfpipe_output *to, const uint8_t *pixels, int32_t width) {
    uint8_t *out = to->out + (size_t)to->done++ * (size_t)width * 3;
    const int32_t step = to->request->flip ? -TFPIPE_PIXEL_BYTES : TFPIPE_PIXEL_BYTES;
    if (to->request->flip) pixels += (ptrdiff_t)(width - 1) * TFPIPE_PIXEL_BYTES;
    /* The fourth byte is overwritten by the next pixel; the last one has none. */
    for (int32_t i = 0; i < width - 1; i++, out += 3, pixels += step) memcpy(out, pixels, TFPIPE_PIXEL_BYTES);
    memcpy(out, pixels, 3);
}

static void write_blended_row(tfpipe_output *to, const float *top, const float *bottom, float weight) {
    const int32_t count = 3 * to->request->out_width;
    const size_t first = (size_t)to->done * (size_t)count;
    if (to->request->dtype == TFPIPE_UINT8) {
        tfpipe_blend_uint8(top, bottom, weight, count, to->out + first);
    } else if (to->request->dtype == TFPIPE_FLOAT32) {
        (to->streams ? tfpipe_stream_float : tfpipe_blend_float)(top, bottom, weight, to->offset, to->factor, count,
                                                                 (float *)(void *)to->out + first);
    } else {
        tfpipe_blend_float(top, bottom, weight, to->offset, to->factor, count, to->values);
        tfpipe_round_bfloat16(to->values, count, (uint16_t *)(void *)to->out + first);
    }
    to->done++;
}

void tfpipe_put_row(tfpipe_output *to, int32_t row, const uint8_t *pixels, int32_t width) {
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
