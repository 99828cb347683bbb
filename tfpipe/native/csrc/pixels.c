/* A crop of an image that is pixels already, resized and converted as a crop of a JPEG is. */

#include <stdlib.h>
#include <string.h>

#include "color.h"
#include "decode.h"
#include "output.h"
#include "tfpipe_native.h"

static int fits(const tfpipe_request *request, const tfpipe_bytes *pixels, const int32_t size[2]) {
    const int64_t height = size[0], width = size[1];
    return height > 0 && width > 0 && pixels->size == (size_t)height * (size_t)width * 3 && request->y >= 0 &&
           request->x >= 0 && request->height > 0 && request->width > 0 && request->y <= height - request->height &&
           request->x <= width - request->width;
}

/* Makes the pixels of a row as wide as the rest of the library has them. */
static void widen(const uint8_t *pixels, int32_t width, uint8_t *out) {
    for (int32_t i = 0; i < width; i++, pixels += 3, out += TFPIPE_PIXEL_BYTES) memcpy(out, pixels, 3);
}

int tfpipe_resize_pixels(const tfpipe_bytes *pixels, const int32_t size[2], const tfpipe_request *request, int streams,
                         void *out) {
    if (!fits(request, pixels, size)) return TFPIPE_BAD_BOX;
    tfpipe_output output;
    uint8_t *row = calloc((size_t)request->width + 1, TFPIPE_PIXEL_BYTES);
    int result = TFPIPE_NO_MEMORY;
    if (row != NULL && tfpipe_open_output(&output, request, request->height, request->width, streams, out) == 0) {
        for (int32_t y = 0; y < request->height; y++) {
            const size_t at = (size_t)(request->y + y) * (size_t)size[1] + (size_t)request->x;
            widen(pixels->data + 3 * at, request->width, row);
            tfpipe_put_row(&output, y, row, request->width);
        }
        tfpipe_close_output(&output);
        result = TFPIPE_OK;
    }
    free(row);
    return result;
}
