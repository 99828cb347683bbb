/* Feeds JPEGs that are valid, damaged or lie to the functions that decode, check and rewrite them: see fuzz.h.

   run_jpegs.sh SECONDS SEED FILE...

   A file with "incomplete" in its name lacks bits of coefficients; one with "huge" is fed once and not changed.
   It knows only the public header and reads files by itself. Half of the cases change what a file says, one
   field or segment at a time; the others change plain bytes, or nothing. */

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"
#include "fuzz.h"
#include "segments.h"

#include "tfpipe_native.h"

enum { MAX_FILES = 4096, MAX_OUTPUT = 64, MAX_SIDE = 512, MAX_S = 60 };

static const int64_t MAX_PIXELS = 5000000;

typedef struct {
    bytes content;
    int incomplete; /* bits of coefficients are missing, which a decoder may make up for */
} file;

static file files[MAX_FILES];
static int num_files;
static uint64_t decoded; /* how many requests gave pixels */
static char message[TFPIPE_MESSAGE_BYTES];

static bytes fed; /* the input of this case */

/* Keeps the input of a case that fails, in the current folder. */
static void keep_input(void) {
    char name[64];
    snprintf(name, sizeof name, "finding-%llu.jpg", (unsigned long long)case_number);
    FILE *stream = fopen(name, "wb");
    if (stream == NULL || fed.data == NULL) return;
    fwrite(fed.data, 1, fed.size, stream);
    fclose(stream);
    fprintf(stderr, "The input is kept in %s.\n", name);
}

static void end_by_sanitizer(void) {
    print_case();
    keep_input();
}

static void end_by_demand(int number) {
    keep_input();
    signal(number, SIG_DFL);
    raise(number);
}

static bytes copy(bytes from) {
    bytes to = {malloc(from.size ? from.size : 1), from.size};
    if (to.data == NULL) exit(2);
    memcpy(to.data, from.data, from.size);
    return to;
}

static void damage_bytes(bytes *image) {
    if (image->size < 3) return;
    size_t at = draw(image->size - 1);
    switch (draw(6)) {
        case 0: /* some bytes anywhere */
            for (uint64_t i = 0, count = 1 + draw(8); i < count; i++)
                image->data[draw(image->size)] = (uint8_t)draw(256);
            break;
        case 1: /* some bits of the headers */
            for (uint64_t i = 0, count = 1 + draw(4); i < count; i++)
                image->data[draw(image->size < 700 ? image->size : 700)] ^= (uint8_t)(1 << draw(8));
            break;
        case 2: /* the end is missing */
            image->size = draw(image->size + 1);
            break;
        case 3: /* a marker anywhere */
            image->data[at] = 0xFF;
            image->data[at + 1] = (uint8_t)(0xC0 + draw(64));
            break;
        case 4: /* zeros in place of the last bytes in front of the end, or of others */
            if (draw(2) && image->size > 40) at = image->size - 2 - draw(36);
            for (uint64_t i = 0, count = 1 + draw(36); i < count && at + i + 2 < image->size; i++) image->data[at + i] = 0;
            break;
        default: { /* a piece is missing */
            size_t count = 1 + draw(image->size - at);
            if (count > image->size - at) count = image->size - at;
            memmove(image->data + at, image->data + at + count, image->size - at - count);
            image->size -= count;
        }
    }
}

/* Whether it has a progressive frame; and its sides, as the last frame gives them, or 1 x 1. */
static int read_frame(bytes image, int32_t *height, int32_t *width) {
    static segments cut;
    int progressive = 0;
    *height = *width = 1;
    cut_segments(image, &cut);
    for (int i = 0; i < cut.count; i++) {
        const segment *one = &cut.all[i];
        if (!is_frame(one->marker) || one->body_size < 5) continue;
        progressive |= one->marker == SOF2;
        *height = one->body[1] << 8 | one->body[2];
        *width = one->body[3] << 8 | one->body[4];
    }
    if (*height == 0) *height = 1;
    if (*width == 0) *width = 1;
    return progressive;
}

/* Draws where a box begins and how long it is: of a pixel, at an edge, or all of a side. */
static void draw_side(int32_t side, int32_t *begin, int32_t *size) {
    const int32_t most = side < MAX_SIDE ? side : MAX_SIDE;
    *size = draw(6) == 0 ? 1 : draw(6) == 0 ? most : 1 + (int32_t)draw((uint64_t)most);
    const int32_t last = side - *size;
    *begin = draw(5) == 0 ? 0 : draw(5) == 0 ? last : (int32_t)draw((uint64_t)last + 1);
}

/* Draws a box that mostly lies in the image, and what is made of it. */
static tfpipe_request draw_request(int32_t height, int32_t width) {
    tfpipe_request request = {
        .ratio = 1 << draw(4),
        .out_height = 1 + (int32_t)draw(MAX_OUTPUT),
        .out_width = 1 + (int32_t)draw(MAX_OUTPUT),
        .flip = (int32_t)draw(2),
        .dtype = (int32_t)draw(3),
        .max_pixels = MAX_PIXELS,
        .offset = {1, 2, 3},
        .factor = {1, 0.5f, 0.25f},
    };
    draw_side(height, &request.y, &request.height);
    draw_side(width, &request.x, &request.width);
    if (request.dtype == TFPIPE_UINT8 && draw(2)) request.out_height = request.out_width = 0;
    switch (draw(64)) {
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
        case 4: /* in the smallest image that a lying file may show */
        case 5:
        case 6:
            request.y = request.x = 0;
            request.height = request.width = 1 + (int32_t)draw(8);
            break;
        case 7:
            request.max_pixels = (int64_t)height * width - (int64_t)draw(2);
            break;
    }
    return request;
}

static int64_t reduce(int64_t side, int64_t ratio) { return (side + ratio / 2) / ratio; }

/* Returns the bytes of the result, if the box lies in the image; else a few. */
static size_t measure_result(const tfpipe_request *request) {
    const size_t value = request->dtype == TFPIPE_UINT8 ? 1 : request->dtype == TFPIPE_FLOAT32 ? 4 : 2;
    int64_t height = request->out_height, width = request->out_width;
    if (height == 0) {
        const int64_t y = request->y, x = request->x, ratio = request->ratio;
        height = reduce(y + request->height, ratio) - reduce(y, ratio);
        width = reduce(x + request->width, ratio) - reduce(x, ratio);
        if (height < 1 || width < 1 || height > 65535 || width > 65535 || height * width > (1 << 24)) return 1;
    }
    return (size_t)height * (size_t)width * 3 * value;
}

/* Decodes into memory of exactly the result's size, filled with `fill`, so that bytes nobody writes are seen. */
static int decode(bytes image, const tfpipe_request *request, int fill, bytes *result) {
    result->size = measure_result(request);
    result->data = malloc(result->size);
    if (result->data == NULL) exit(2);
    memset(result->data, fill, result->size);
    return tfpipe_decode(image.data, image.size, request, result->data, message);
}

static int is_same(bytes one, bytes other) { return one.size == other.size && memcmp(one.data, other.data, one.size) == 0; }

/* Decodes with and without seeking. If both give pixels, they are the same; if nothing is damaged, so is the answer. */
static void decode_both(bytes image, tfpipe_request request, int intact) {
    bytes results[2], third;
    int codes[2];
    for (int seeks = 0; seeks < 2; seeks++) {
        request.seeks = seeks;
        codes[seeks] = decode(image, &request, seeks ? 0x00 : 0xA5, &results[seeks]);
        decoded += codes[seeks] == TFPIPE_OK;
    }
    if (codes[0] == TFPIPE_OK && codes[1] == TFPIPE_OK)
        demand(is_same(results[0], results[1]), "Pixels differ if the decoder seeks.");
    if (intact) demand(codes[0] == codes[1], "Another answer if the decoder seeks.");
    if (draw(4) == 0) { /* once more, and memory runs out */
        failed = 0;
        fail_after = (int)draw(12);
        third.size = results[1].size;
        third.data = __real_malloc(third.size);
        memset(third.data, 0xA5, third.size);
        const int code = tfpipe_decode(image.data, image.size, &request, third.data, message);
        fail_after = -1;
        if (code == TFPIPE_OK || !failed)
            demand(code == codes[1], "Another answer, though memory did not run out.");
        if (code == TFPIPE_OK) demand(is_same(third, results[1]), "Other pixels when memory runs out.");
        if (code != TFPIPE_OK && codes[1] == TFPIPE_OK)
            demand(code == TFPIPE_NO_MEMORY, "Not NO_MEMORY when memory runs out.");
        free(third.data);
    }
    free(results[0].data);
    free(results[1].data);
}

/* Rewrites the image. The result must be whole, stay as it is if it is rewritten, and have the same pixels. */
static void rewrite(bytes image, int32_t height, int32_t width, int same_pixels) {
    bytes made = {NULL, 0}, again = {NULL, 0};
    const int code = tfpipe_make_seekable(image.data, image.size, MAX_PIXELS, &made.data, &made.size, message);
    if (draw(4) == 0) {
        bytes other = {NULL, 0};
        failed = 0;
        fail_after = (int)draw(12);
        const int second = tfpipe_make_seekable(image.data, image.size, MAX_PIXELS, &other.data, &other.size, message);
        fail_after = -1;
        if (second == TFPIPE_OK) {
            demand(code == TFPIPE_OK && is_same(made, other), "Another file when memory runs out.");
            tfpipe_free(other.data);
        } else if (code == TFPIPE_OK) {
            demand(failed && second == TFPIPE_NO_MEMORY, "Not NO_MEMORY when memory runs out in make_seekable.");
        }
    }
    if (code != TFPIPE_OK) return;
    bytes tight = copy(made);
    demand(tfpipe_check(tight.data, tight.size, MAX_PIXELS, message) == TFPIPE_OK, "check refuses what was made.");
    demand(tfpipe_find_intervals(tight.data, tight.size) == 2, "What was made has other intervals.");
    demand(tfpipe_make_seekable(tight.data, tight.size, MAX_PIXELS, &again.data, &again.size, message) == TFPIPE_OK,
           "What was made cannot be made again.");
    demand(is_same(tight, again), "What was made becomes another file if it is made again.");
    for (int i = 0; i < 2; i++) {
        tfpipe_request request = draw_request(height, width);
        request.seeks = (int32_t)draw(2);
        bytes before, after;
        const int first = decode(image, &request, 0x5A, &before);
        request.seeks = 1;
        const int second = decode(tight, &request, 0xA5, &after);
        if (first == TFPIPE_OK) demand(second == TFPIPE_OK, "What was made cannot be decoded.");
        if (first == TFPIPE_OK && same_pixels) demand(is_same(before, after), "What was made has other pixels.");
        free(before.data);
        free(after.data);
        decode_both(tight, request, 1);
    }
    free(tight.data);
    tfpipe_free(made.data);
    tfpipe_free(again.data);
}

/* Decodes and resizes the whole image. What check refuses is refused, and nothing else but what is never taken. */
static void decode_resized(bytes image, int code) {
    const int32_t ratio = 1 << draw(4), height = 1 + (int32_t)draw(MAX_OUTPUT), width = 1 + (int32_t)draw(MAX_OUTPUT);
    const size_t size = (size_t)height * (size_t)width * 3;
    bytes results[2] = {{malloc(size), size}, {malloc(size), size}};
    int codes[2];
    if (results[0].data == NULL || results[1].data == NULL) exit(2);
    failed = 0;
    for (int i = 0; i < 2; i++) {
        memset(results[i].data, i ? 0xA5 : 0x00, size);
        fail_after = i && draw(4) == 0 ? (int)draw(12) : -1;
        codes[i] = tfpipe_decode_resized(image.data, image.size, MAX_PIXELS, ratio, results[i].data, height, width, message);
        fail_after = -1;
    }
    decoded += codes[0] == TFPIPE_OK;
    if (codes[0] == TFPIPE_OK) demand(code == TFPIPE_OK, "What check refuses is decoded and resized.");
    if (code == TFPIPE_OK)
        demand(codes[0] == TFPIPE_OK || codes[0] == TFPIPE_UNSUPPORTED, "What check accepts is not decoded and resized.");
    demand(codes[1] == codes[0] || (failed && (codes[1] == TFPIPE_NO_MEMORY || codes[0] != TFPIPE_OK)),
           "Another answer of decode_resized.");
    if (codes[0] == TFPIPE_OK && codes[1] == TFPIPE_OK)
        demand(is_same(results[0], results[1]), "decode_resized leaves bytes out.");
    free(results[0].data);
    free(results[1].data);
}

/* Drops padding: what is left is sound, and it is the same file if that was. */
static void drop_padding(bytes image, int code) {
    bytes less = copy(image);
    if (tfpipe_drop_padding(image.data, image.size, MAX_PIXELS, less.data, &less.size, message) == TFPIPE_OK) {
        demand(tfpipe_check(less.data, less.size, MAX_PIXELS, message) == TFPIPE_OK, "check refuses what has no padding.");
        demand(is_same(image, less) == (code == TFPIPE_OK), "check and drop_padding do not agree about padding.");
    } else {
        demand(code != TFPIPE_OK, "drop_padding refuses what check accepts.");
    }
    free(less.data);
}

static void run_case(void) {
    static segments cut;
    __sanitizer_set_death_callback(end_by_sanitizer);
    const file *from = &files[draw((uint64_t)num_files)];
    bytes image = copy(from->content);
    const int kind = (int)draw(8);
    const int changed = kind != 7;
    alarm(MAX_S);
    if (kind < 5) {
        for (uint64_t i = 0, times = 1 + (draw(2) ? 0 : draw(3)); i < times; i++) {
            cut_segments(image, &cut);
            change_segments(&cut);
            const bytes next = join_segments(&cut);
            free(image.data);
            image = next;
        }
    } else if (changed) {
        damage_bytes(&image);
        const bytes tight = copy(image);
        free(image.data);
        image = tight;
    }
    fed = image;
    int32_t height, width;
    const int progressive = read_frame(image, &height, &width);
    for (int i = 0; i < 3; i++) decode_both(image, draw_request(height, width), !changed);
    const int code = tfpipe_check(image.data, image.size, MAX_PIXELS, message);
    tfpipe_find_intervals(image.data, image.size);
    if (draw(8) == 0) {
        failed = 0;
        fail_after = (int)draw(8);
        const int second = tfpipe_check(image.data, image.size, MAX_PIXELS, message);
        fail_after = -1;
        demand(second == code || (failed && (second == TFPIPE_NO_MEMORY || code != TFPIPE_OK)),
               "Another answer of check when memory runs out.");
    }
    drop_padding(image, code);
    decode_resized(image, code);
    rewrite(image, height, width, !progressive || !(changed || from->incomplete));
    fed.data = NULL;
    free(image.data);
}

/* Feeds an image of more pixels than the cases allow, whose end is what matters. */
static void feed_huge(bytes image) {
    int32_t height, width;
    uint8_t pixels[3], *made = NULL;
    size_t size;
    const int64_t most = (int64_t)1 << 28;
    fed = image;
    read_frame(image, &height, &width);
    tfpipe_request request = {.y = height - 8, .x = width - 8, .height = 8, .width = 8, .ratio = 8, .max_pixels = most};
    for (request.seeks = 0; request.seeks < 2; request.seeks++)
        decoded += tfpipe_decode(image.data, image.size, &request, pixels, message) == TFPIPE_OK;
    tfpipe_check(image.data, image.size, most, message);
    tfpipe_find_intervals(image.data, image.size);
    if (tfpipe_make_seekable(image.data, image.size, most, &made, &size, message) == TFPIPE_OK) tfpipe_free(made);
    fed.data = NULL;
    free(image.data);
}

static void stop_late(int number) {
    (void)number;
    demand(0, "It takes too long.");
}

static bytes read_file(const char *path) {
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    bytes content = {NULL, (size_t)ftell(stream)};
    rewind(stream);
    content.data = malloc(content.size + 1);
    if (content.data == NULL || fread(content.data, 1, content.size, stream) != content.size) exit(2);
    fclose(stream);
    return content;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc - 3 > MAX_FILES) {
        fprintf(stderr, "usage: jpegs SECONDS SEED FILE...\n");
        return 2;
    }
    signal(SIGALRM, stop_late);
    signal(SIGABRT, end_by_demand);
    __sanitizer_set_death_callback(end_by_sanitizer);
    for (int i = 3; i < argc; i++) {
        const bytes content = read_file(argv[i]);
        if (strstr(argv[i], "huge") != NULL) {
            feed_huge(content);
            continue;
        }
        files[num_files].content = content;
        files[num_files++].incomplete = strstr(argv[i], "incomplete") != NULL;
    }
    if (num_files == 0) files[num_files++].content = (bytes){calloc(1, 1), 0};
    const uint64_t cases = run_cases(argv[1], argv[2], run_case);
    print_end(cases, argv[2], decoded, "results with pixels");
    for (int i = 0; i < num_files; i++) free(files[i].content.data);
    return 0;
}
