/* Crops of images that are pixels already, resized and converted as crops of JPEGs are. */

#include <stdlib.h>
#include <string.h>

#include "color.h"
#include "output.h"
#include "parallel.h"
#include "tfpipe_native.h"

/* A batch of images. */
typedef struct {
    const tfpipe_bytes *pixels;
    const int32_t *sizes, *boxes;
    const uint8_t *flips;
    const tfpipe_request *request;
    const int64_t *rows;
    uint8_t *images;
    size_t image_bytes;
    int streams;
    int32_t *results;
} batch;

/* The bytes of images above which they are written around the caches. */
enum { CACHED_BYTES = 8 << 20 };

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

static int resize(const uint8_t *pixels, int32_t width, const tfpipe_request *request, int streams, void *out) {
    tfpipe_output output;
    uint8_t *row = calloc((size_t)request->width + 1, TFPIPE_PIXEL_BYTES);
    int result = TFPIPE_NO_MEMORY;
    if (row != NULL && tfpipe_open_output(&output, request, request->height, request->width, streams, out) == 0) {
        for (int32_t y = 0; y < request->height; y++) {
            widen(pixels + 3 * ((size_t)(request->y + y) * (size_t)width + (size_t)request->x), request->width, row);
            tfpipe_put_row(&output, y, row, request->width);
        }
        tfpipe_close_output(&output);
        result = TFPIPE_OK;
    }
    free(row);
    return result;
}

static void resize_item(void *context, size_t item) {
    const batch *all = context;
    const int32_t *box = all->boxes + 4 * item, *size = all->sizes + 2 * item;
    tfpipe_request request = *all->request;
    request.y = box[0];
    request.x = box[1];
    request.height = box[2];
    request.width = box[3];
    request.flip = all->flips[item];
    const size_t row = all->rows == NULL ? item : (size_t)all->rows[item];
    all->results[item] = !fits(&request, all->pixels + item, size)
                             ? TFPIPE_BAD_BOX
                             : resize(all->pixels[item].data, size[1], &request, all->streams,
                                      all->images + row * all->image_bytes);
}

void tfpipe_resize_batch(const tfpipe_bytes *pixels, const int32_t *sizes, const int32_t *boxes, const uint8_t *flips,
                         size_t count, const tfpipe_request *request, int32_t threads, const int64_t *rows,
                         void *images, int32_t *results) {
    const size_t value_bytes = request->dtype == TFPIPE_UINT8 ? 1 : request->dtype == TFPIPE_FLOAT32 ? 4 : 2;
    batch all = {.pixels = pixels,
                 .sizes = sizes,
                 .boxes = boxes,
                 .flips = flips,
                 .request = request,
                 .rows = rows,
                 .images = images,
                 .image_bytes = (size_t)request->out_height * (size_t)request->out_width * 3 * value_bytes,
                 .results = results};
    all.streams = count * all.image_bytes > CACHED_BYTES;
    tfpipe_run_parallel(&tfpipe_computing, resize_item, &all, count, threads);
}
