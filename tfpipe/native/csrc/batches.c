/* What is done for all images of a batch in one call. */

#include <stdlib.h>
#include <string.h>

#include "color.h"
#include "decode.h"
#include "output.h"
#include "parallel.h"
#include "tfpipe_native.h"

static int fits(const tfpipe_request *request, const tfpipe_bytes *pixels, const int32_t size[2]) {
    const int64_t height = size[0], width = size[1];
    return height > 0 && width > 0 && pixels->size == (size_t)height * (size_t)width * 3 && request->y >= 0 &&
           request->x >= 0 && request->height > 0 && request->width > 0 && request->y <= height - request->height &&
           request->x <= width - request->width;
}

/* Makes the result of one image of this height and width that is pixels already. */
static int resize_pixels(const tfpipe_bytes *pixels, const int32_t size[2], const tfpipe_request *request, int streams,
                         void *out) {
    if (!fits(request, pixels, size)) return TFPIPE_BAD_BOX;
    tfpipe_output output;
    uint8_t *row = calloc((size_t)request->width + 1, TFPIPE_PIXEL_BYTES);
    int result = TFPIPE_NO_MEMORY;
    if (row != NULL && tfpipe_open_output(&output, request, request->height, request->width, streams, out) == 0) {
        for (int32_t y = 0; y < request->height; y++) {
            const uint8_t *pixel = pixels->data + 3 * ((size_t)(request->y + y) * (size_t)size[1] + (size_t)request->x);
            /* As wide as the rest of the library has them. */
            for (int32_t i = 0; i < request->width; i++, pixel += 3) memcpy(row + i * TFPIPE_PIXEL_BYTES, pixel, 3);
            tfpipe_put_row(&output, y, row, request->width);
        }
        tfpipe_close_output(&output);
        result = TFPIPE_OK;
    }
    free(row);
    return result;
}

/* A batch of JPEGs, or of pixels if `sizes` is not NULL. */
typedef struct {
    const tfpipe_bytes *inputs;
    const int32_t *sizes, *boxes;
    const uint8_t *flips;
    const tfpipe_request *request;
    int32_t max_ratio;
    const int64_t *rows;
    uint8_t *images;
    size_t image_bytes;
    int streams;
    int32_t *results;
} batch;

/* The bytes of images above which they are written around the caches: a part of the largest cache, which others need too. */
enum { CACHED_BYTES = 8 << 20 };

/* Chooses the largest reduction that leaves the crop no smaller than the result. */
static int32_t choose_ratio(const tfpipe_request *request, int32_t max_ratio) {
    int32_t ratio = 1;
    while (ratio < max_ratio && request->height >= 2 * ratio * request->out_height &&
           request->width >= 2 * ratio * request->out_width)
        ratio *= 2;
    return ratio;
}

static void make_item(void *context, size_t item) {
    const batch *all = context;
    const tfpipe_bytes *input = all->inputs + item;
    const int32_t *box = all->boxes + 4 * item;
    tfpipe_request request = *all->request;
    char message[TFPIPE_MESSAGE_BYTES];
    request.y = box[0];
    request.x = box[1];
    request.height = box[2];
    request.width = box[3];
    request.flip = all->flips[item];
    request.ratio = choose_ratio(&request, all->max_ratio);
    uint8_t *const out = all->images + (all->rows == NULL ? item : (size_t)all->rows[item]) * all->image_bytes;
    all->results[item] =
        all->sizes != NULL ? resize_pixels(input, all->sizes + 2 * item, &request, all->streams, out)
                           : tfpipe_decode_one_of_many(input->data, input->size, &request, all->streams, out, message);
}

void tfpipe_decode_batch(const tfpipe_bytes *inputs, const int32_t *sizes, const int32_t *boxes, const uint8_t *flips,
                         size_t count, const tfpipe_request *request, int32_t max_ratio, int32_t threads,
                         const int64_t *rows, void *images, int32_t *results) {
    const size_t value_bytes = request->dtype == TFPIPE_UINT8 ? 1 : request->dtype == TFPIPE_FLOAT32 ? 4 : 2;
    const size_t image_bytes = (size_t)request->out_height * (size_t)request->out_width * 3 * value_bytes;
    const int streams = count * image_bytes > CACHED_BYTES;
    batch all = {inputs, sizes, boxes, flips, request, max_ratio, rows, images, image_bytes, streams, results};
    tfpipe_run_parallel(&tfpipe_computing, make_item, &all, count, threads);
}
