/* Feeds damaged and lying JPEGs to the functions that decode, check and rewrite them: see fuzz.h.

   run.sh images SECONDS SEED FILE... */

#include <string.h>

#include "fuzz.h"
#include "memory.h"

#include "layout.h"
#include "tfpipe_native.h"

enum { MAX_FILES = 1024, MAX_SIDE = 64, MAX_BOX = 512 };

static const int64_t MAX_PIXELS = 1 << 22;

typedef struct {
    uint8_t *data;
    size_t size;
} bytes;

static bytes files[MAX_FILES];
static int num_files;
static uint64_t decoded; /* how many requests gave pixels */

static bytes copy(bytes from) {
    bytes to = {malloc(from.size + 1), from.size};
    if (to.data == NULL) exit(2);
    memcpy(to.data, from.data, from.size);
    return to;
}

/* Moves bytes into memory of exactly their size, so that a read behind the end is found. */
static bytes tighten(bytes loose) {
    bytes tight = {malloc(loose.size ? loose.size : 1), loose.size};
    if (tight.data == NULL) exit(2);
    memcpy(tight.data, loose.data, loose.size);
    free(loose.data);
    return tight;
}

static size_t find_marker(bytes image, int marker) {
    for (size_t i = 2; i + 10 < image.size; i++)
        if (image.data[i] == 0xFF && image.data[i + 1] == marker) return i;
    return 0;
}

static void damage(bytes *image) {
    size_t at;
    switch (draw(8)) {
        case 0: /* some bytes anywhere */
            for (uint64_t i = 0, count = 1 + draw(8); i < count && image->size > 0; i++)
                image->data[draw(image->size)] = (uint8_t)draw(256);
            break;
        case 1: /* some bits of the headers */
            for (uint64_t i = 0, count = 1 + draw(4); i < count && image->size > 0; i++)
                image->data[draw(image->size < 700 ? image->size : 700)] ^= (uint8_t)(1 << draw(8));
            break;
        case 2: /* the end is missing */
            image->size = draw(image->size + 1);
            break;
        case 3: /* a marker among the data */
            if (image->size > 2) {
                at = draw(image->size - 1);
                image->data[at] = 0xFF;
                image->data[at + 1] = (uint8_t)(0xC0 + draw(64));
            }
            break;
        case 4: /* other sides, or sampling factors */
            at = find_marker(*image, 0xC0);
            if (at == 0) at = find_marker(*image, 0xC2); /* progressive */
            if (at != 0 && image->size - at >= 18) image->data[at + 5 + draw(13)] = (uint8_t)draw(256);
            break;
        case 5: /* another interval between markers */
            at = find_marker(*image, 0xDD);
            if (at != 0) image->data[at + 5] = (uint8_t)draw(256);
            break;
        case 6: /* a piece is missing */
            if (image->size > 2) {
                at = draw(image->size - 1);
                size_t count = 1 + draw(image->size - at);
                memmove(image->data + at, image->data + at + count, image->size - at - count);
                image->size -= count;
            }
            break;
        default: /* nothing at all */
            break;
    }
}

static int32_t at_most(int32_t value, int32_t limit) { return value < limit ? value : limit; }

/* Draws a box that mostly lies in the image, as its header gives the size, and what is made of it. */
static tfpipe_request draw_request(bytes image) {
    tfpipe_layout layout;
    if (tfpipe_read_layout(image.data, image.size, &layout) != 0) layout.height = layout.width = 1;
    const int32_t height = 1 + (int32_t)draw((uint64_t)at_most(layout.height, MAX_BOX));
    const int32_t width = 1 + (int32_t)draw((uint64_t)at_most(layout.width, MAX_BOX));
    tfpipe_request request = {
        .y = (int32_t)draw((uint64_t)(layout.height - height + 1)),
        .x = (int32_t)draw((uint64_t)(layout.width - width + 1)),
        .height = height,
        .width = width,
        .ratio = 1 << draw(4),
        .out_height = 1 + (int32_t)draw(MAX_SIDE),
        .out_width = 1 + (int32_t)draw(MAX_SIDE),
        .flip = (int32_t)draw(2),
        .dtype = (int32_t)draw(3),
        .max_pixels = MAX_PIXELS,
        .offset = {1, 2, 3},
        .factor = {1, 0.5f, 0.25f},
    };
    switch (draw(32)) {
        case 0:
            request.height = INT32_MAX - (int32_t)draw(3);
            break;
        case 1:
            request.x = INT32_MAX - (int32_t)draw(3);
            break;
        case 2:
            request.y -= 1 + (int32_t)draw(20);
            break;
        case 3:
            request.width += (int32_t)draw(600) - 20;
            break;
    }
    return request;
}

/* Decodes with and without seeking. Both must give the same pixels if both give any and nothing is damaged. */
static void decode_both(bytes image, tfpipe_request request, int intact) {
    const size_t value = request.dtype == TFPIPE_UINT8 ? 1 : request.dtype == TFPIPE_FLOAT32 ? 4 : 2;
    const size_t size = (size_t)request.out_height * (size_t)request.out_width * 3 * value;
    uint8_t *results[2];
    int codes[2];
    char message[TFPIPE_MESSAGE_BYTES];
    for (int seeks = 0; seeks < 2; seeks++) {
        results[seeks] = malloc(size);
        if (results[seeks] == NULL) exit(2);
        request.seeks = seeks;
        codes[seeks] = tfpipe_decode(image.data, image.size, &request, results[seeks], message);
        decoded += codes[seeks] == TFPIPE_OK;
    }
    if (intact)
        demand(codes[0] == codes[1] && (codes[0] != TFPIPE_OK || memcmp(results[0], results[1], size) == 0),
               "Pixels differ if the decoder seeks.");
    free(results[0]);
    free(results[1]);
}

static void run_case(void) {
    char message[TFPIPE_MESSAGE_BYTES];
    bytes image = copy(files[draw((uint64_t)num_files)]);
    uint8_t *rewritten = NULL;
    size_t rewritten_size = 0;
    if (draw(2) == 0 &&
        tfpipe_make_seekable(image.data, image.size, MAX_PIXELS, &rewritten, &rewritten_size, message) == TFPIPE_OK) {
        free(image.data);
        image = copy((bytes){rewritten, rewritten_size});
        tfpipe_free(rewritten);
        decode_both(image, draw_request(image), 1);
    }
    for (uint64_t i = 0, times = 1 + draw(3); i < times; i++) damage(&image);
    image = tighten(image);
    for (int i = 0; i < 3; i++) decode_both(image, draw_request(image), 0);
    tfpipe_check(image.data, image.size, MAX_PIXELS, message);
    fail_after = draw(4) == 0 ? (int)draw(8) : -1;
    const int result = tfpipe_make_seekable(image.data, image.size, MAX_PIXELS, &rewritten, &rewritten_size, message);
    fail_after = -1;
    if (result == TFPIPE_OK) tfpipe_free(rewritten);
    free(image.data);
}

static bytes read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    bytes content = {NULL, (size_t)ftell(file)};
    rewind(file);
    content.data = malloc(content.size + 1);
    if (content.data == NULL || fread(content.data, 1, content.size, file) != content.size) exit(2);
    fclose(file);
    return content;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc - 3 > MAX_FILES) {
        fprintf(stderr, "usage: images SECONDS SEED FILE...\n");
        return 2;
    }
    for (num_files = 0; num_files < argc - 3; num_files++) files[num_files] = read_file(argv[num_files + 3]);
    const uint64_t cases = run_cases(argv[1], argv[2], run_case);
    print_end(cases, argv[2], decoded, "results with pixels");
    for (int i = 0; i < num_files; i++) free(files[i].data);
    return 0;
}
