/* Calls the functions of the library with cases from a file, and prints a line for each result, so that the results of
   builds by other compilers and for other processors can be compared.

   cases FILE

   FILE has one case behind the other. A case begins with three int64: its kind, and two numbers; what follows depends on
   the kind. Structs are those of tfpipe_native.h, as they lie in memory on any 64-bit little-endian machine.

   JPEG     size, count     the file of `size` bytes, then `count` requests
   BATCH    count, ratio    int64 sizes[count], the files, int32 boxes[count][4], uint8 flips[count], a request;
                            `ratio` is the largest one
   CROPS    count, 0        a tfpipe_crops, int32 seeds[count][2], int32 sizes[count][2]
   RECORDS  count, size     tfpipe_place frames[count], which lie in the `size` bytes that follow */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tfpipe_native.h"

enum { JPEG, BATCH, CROPS, RECORDS };
enum { THREADS = 3, HEADER_BYTES = 12, FRAMING_BYTES = 16 };

static const int64_t MAX_PIXELS = 1 << 20;

static FILE *cases;
static int case_number;
static char message[TFPIPE_MESSAGE_BYTES];

/* Reads the next bytes of the file into memory of exactly their size, to be freed. */
static void *take(size_t size) {
    void *bytes = malloc(size ? size : 1);
    if (bytes == NULL || fread(bytes, 1, size, cases) != size) {
        fprintf(stderr, "The file ends within case %d.\n", case_number);
        exit(2);
    }
    return bytes;
}

/* Returns the FNV-1a hash. */
static uint64_t digest(const void *data, size_t size) {
    const uint8_t *bytes = data;
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001B3);
    return hash;
}

/* Prints the result code of a call, and the digest of what it made or its message. */
static void print_result(const char *what, size_t index, int code, const void *data, size_t size) {
    printf("%d %s %zu: %d ", case_number, what, index, code);
    if (code == TFPIPE_OK)
        printf("%016llx\n", (unsigned long long)digest(data, size));
    else
        printf("%s\n", message);
    message[0] = 0;
}

static int64_t reduce(int64_t begin, int64_t size, int64_t ratio) {
    return (begin + size + ratio / 2) / ratio - (begin + ratio / 2) / ratio;
}

static size_t measure_result(const tfpipe_request *request) {
    const size_t value_bytes = request->dtype == TFPIPE_UINT8 ? 1 : request->dtype == TFPIPE_FLOAT32 ? 4 : 2;
    int64_t height = request->out_height, width = request->out_width;
    if (height == 0 && width == 0) {
        height = reduce(request->y, request->height, request->ratio);
        width = reduce(request->x, request->width, request->ratio);
    }
    return height < 1 || width < 1 ? 0 : (size_t)height * (size_t)width * 3 * value_bytes;
}

static void decode(const char *what, size_t index, const uint8_t *data, size_t size, const tfpipe_request *request) {
    const size_t result_bytes = measure_result(request);
    uint8_t *result = malloc(result_bytes ? result_bytes : 1);
    if (result == NULL) exit(2);
    memset(result, 0xA5, result_bytes);
    print_result(what, index, tfpipe_decode(data, size, request, result, message), result, result_bytes);
    free(result);
}

static void decode_resized(const uint8_t *data, size_t size) {
    uint8_t result[40 * 30 * 3];
    for (int32_t ratio = 1; ratio <= 8; ratio *= 2) {
        memset(result, 0xA5, sizeof result);
        const int code = tfpipe_decode_resized(data, size, MAX_PIXELS, ratio, result, 30, 40, message);
        print_result("decode_resized", (size_t)ratio, code, result, code == TFPIPE_OK ? sizeof result : 0);
    }
}

/* Checks a JPEG, resizes it, makes it seekable, and decodes parts of the original and of what was made. */
static void run_jpeg(size_t size, size_t count) {
    uint8_t *data = take(size), *made = NULL;
    tfpipe_request *requests = take(count * sizeof *requests);
    size_t made_bytes = 0;
    print_result("check", 0, tfpipe_check(data, size, MAX_PIXELS, message), "", 0);
    decode_resized(data, size);
    const int code = tfpipe_make_seekable(data, size, MAX_PIXELS, &made, &made_bytes, message);
    print_result("make_seekable", 0, code, made, made_bytes);
    for (size_t i = 0; i < count; i++) {
        decode("decode", i, data, size, &requests[i]);
        if (code == TFPIPE_OK) decode("decode seekable", i, made, made_bytes, &requests[i]);
    }
    if (code == TFPIPE_OK) tfpipe_free(made);
    free(data);
    free(requests);
}

static void run_batch(size_t count, int32_t max_ratio) {
    int64_t *sizes = take(count * sizeof *sizes);
    tfpipe_bytes *encoded = calloc(count, sizeof *encoded);
    int32_t *results = calloc(count, sizeof *results);
    if (encoded == NULL || results == NULL) exit(2);
    for (size_t i = 0; i < count; i++) encoded[i] = (tfpipe_bytes){take((size_t)sizes[i]), (size_t)sizes[i]};
    int32_t *boxes = take(count * 4 * sizeof *boxes);
    uint8_t *flips = take(count);
    tfpipe_request *request = take(sizeof *request);
    const size_t image_bytes = measure_result(request);
    uint8_t *images = malloc(count * image_bytes);
    if (images == NULL) exit(2);
    tfpipe_decode_batch(encoded, NULL, boxes, flips, count, request, max_ratio, THREADS, NULL, images, results);
    for (size_t i = 0; i < count; i++) {
        print_result("decode_batch", i, results[i], images + i * image_bytes, image_bytes);
        free((void *)(uintptr_t)encoded[i].data);
    }
    free(sizes), free(encoded), free(results), free(boxes), free(flips), free(request), free(images);
}

static void run_crops(size_t count) {
    tfpipe_crops *crops = take(sizeof *crops);
    int32_t *seeds = take(count * 2 * sizeof *seeds), *sizes = take(count * 2 * sizeof *sizes);
    int32_t(*boxes)[4] = calloc(count, sizeof *boxes);
    uint8_t *flips = calloc(count, 1);
    if (boxes == NULL || flips == NULL) exit(2);
    printf("%d draw_crops: %d\n", case_number, tfpipe_draw_crops(seeds, sizes, count, crops, boxes[0], flips));
    for (size_t i = 0; i < count; i++)
        printf("%d draw_crops %zu: %d %d %d %d %d\n", case_number, i, boxes[i][0], boxes[i][1], boxes[i][2], boxes[i][3],
               flips[i]);
    free(crops), free(seeds), free(sizes), free(boxes), free(flips);
}

/* Parses the payloads of frames, and prints what is in them. */
static void parse(const uint8_t *block, size_t size, tfpipe_place *frames, size_t count) {
    tfpipe_examples found;
    int64_t *num_features = calloc(count, sizeof *num_features);
    if (num_features == NULL) exit(2);
    for (size_t i = 0; i < count; i++)
        frames[i] = (tfpipe_place){frames[i].at + HEADER_BYTES, frames[i].size - FRAMING_BYTES};
    const int code = tfpipe_parse_examples(block, size, frames, count, &found, num_features);
    print_result("parse_examples", 0, code, num_features, count * sizeof *num_features);
    if (code == TFPIPE_OK) {
        print_result("keys", found.num_keys, 0, found.keys, found.num_keys * sizeof *found.keys);
        print_result("features", found.num_features, 0, found.features, found.num_features * sizeof *found.features);
        print_result("texts", found.num_texts, 0, found.texts, found.num_texts * sizeof *found.texts);
        print_result("ints", found.num_ints, 0, found.ints, found.num_ints * sizeof *found.ints);
        print_result("floats", found.num_floats, 0, found.floats, found.num_floats * sizeof *found.floats);
        tfpipe_free_examples(&found);
    }
    free(num_features);
}

/* Computes checksums of frames in memory, reads the frames from the file, and parses them. */
static void run_records(size_t count, size_t size) {
    tfpipe_place *frames = take(count * sizeof *frames);
    const int64_t begin = ftell(cases);
    uint8_t *expected = take(size), *block = malloc(size), *whole = calloc(count, 1);
    tfpipe_span *spans = calloc(count, sizeof *spans);
    if (block == NULL || whole == NULL || spans == NULL) exit(2);
    memset(block, 0xA5, size);
    for (size_t i = 0; i < count; i++) {
        const tfpipe_place frame = frames[i];
        const uint8_t *payload = expected + frame.at + HEADER_BYTES;
        const size_t payload_bytes = (size_t)frame.size - FRAMING_BYTES;
        printf("%d masked_crc32c %zu: %08x %08x\n", case_number, i, tfpipe_masked_crc32c(payload, payload_bytes, 0),
               tfpipe_masked_crc32c(payload, payload_bytes, 1));
        spans[i] = (tfpipe_span){fileno(cases), begin + frame.at, frame.size, frame.at};
    }
    const int code = tfpipe_read_records(spans, count, frames, count, block, size, whole);
    print_result("read_records", 0, code, block, size);
    print_result("whole", 0, code, whole, count);
    parse(block, size, frames, count);
    free(frames), free(expected), free(block), free(whole), free(spans);
}

int main(int argc, char **argv) {
    int64_t head[3];
    cases = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (cases == NULL) {
        fprintf(stderr, "usage: cases FILE\n");
        return 2;
    }
    for (; fread(head, sizeof head, 1, cases) == 1; case_number++) {
        const size_t first = (size_t)head[1], second = (size_t)head[2];
        if (head[0] == JPEG) run_jpeg(first, second);
        if (head[0] == BATCH) run_batch(first, (int32_t)second);
        if (head[0] == CROPS) run_crops(first);
        if (head[0] == RECORDS) run_records(first, second);
    }
    fclose(cases);
    return 0;
}
