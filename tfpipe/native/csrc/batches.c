/* What is done for all images of a batch in one call. */

#include "crops.h"
#include "decode.h"
#include "parallel.h"
#include "tfpipe_native.h"

/* A batch that is decoded. Results are those of tfpipe_decode. */
typedef struct {
    const tfpipe_bytes *encoded;
    const int32_t *boxes;
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

static void decode_item(void *context, size_t item) {
    const batch *all = context;
    const int32_t *box = all->boxes + 4 * item;
    tfpipe_request request = *all->request;
    char message[TFPIPE_MESSAGE_BYTES];
    request.y = box[0];
    request.x = box[1];
    request.height = box[2];
    request.width = box[3];
    request.flip = all->flips[item];
    request.ratio = choose_ratio(&request, all->max_ratio);
    const size_t row = all->rows == NULL ? item : (size_t)all->rows[item];
    all->results[item] = tfpipe_decode_one_of_many(all->encoded[item].data, all->encoded[item].size, &request, all->streams,
                                                   all->images + row * all->image_bytes, message);
}

void tfpipe_decode_batch(const tfpipe_bytes *encoded, const int32_t *boxes, const uint8_t *flips, size_t count,
                         const tfpipe_request *request, int32_t max_ratio, int32_t threads, const int64_t *rows,
                         void *images, int32_t *results) {
    const size_t value_bytes = request->dtype == TFPIPE_UINT8 ? 1 : request->dtype == TFPIPE_FLOAT32 ? 4 : 2;
    batch all = {.encoded = encoded,
                 .boxes = boxes,
                 .flips = flips,
                 .request = request,
                 .max_ratio = max_ratio,
                 .rows = rows,
                 .images = images,
                 .image_bytes = (size_t)request->out_height * (size_t)request->out_width * 3 * value_bytes,
                 .results = results};
    all.streams = count * all.image_bytes > CACHED_BYTES;
    tfpipe_run_parallel(&tfpipe_computing, decode_item, &all, count, threads);
}

int tfpipe_draw_crops(const int32_t *seeds, const int32_t *sizes, size_t count, const tfpipe_crops *crops,
                      int32_t *boxes, uint8_t *flips) {
    for (size_t k = 0; k < count; k++) {
        const int32_t *seed = seeds + 2 * k, *size = sizes + 2 * k;
        if (size[0] < 1 || size[1] < 1) return TFPIPE_BAD_REQUEST;
        tfpipe_draw_crop(seed, size[0], size[1], crops, boxes + 4 * k);
        if (crops->stored[0] > 0) tfpipe_squeeze_box(boxes + 4 * k, size, crops->stored);
        flips[k] = (uint8_t)tfpipe_draw_flip(seed);
    }
    return TFPIPE_OK;
}
