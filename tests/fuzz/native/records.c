/* Feeds damaged and lying records to the functions that read and parse them: see fuzz.h.

   run.sh records SECONDS SEED */

#include <string.h>
#include <unistd.h>

#include "fuzz.h"

#include "tfpipe_native.h"

enum { MAX_BYTES = 4096, MAX_PLACES = 8 };

typedef struct {
    uint8_t data[MAX_BYTES];
    size_t size;
} buffer;

static FILE *file;
static uint64_t features_found;

static void put(buffer *to, uint8_t byte) {
    if (to->size < MAX_BYTES) to->data[to->size++] = byte;
}

/* Puts a message into a field of another one. */
static void put_field(buffer *to, uint8_t tag, const buffer *value) {
    size_t size = value->size;
    put(to, tag);
    for (; size > 127; size >>= 7) put(to, (uint8_t)((size & 127) | 128));
    put(to, (uint8_t)size);
    for (size_t k = 0; k < value->size; k++) put(to, value->data[k]);
}

static void draw_list(buffer *list, uint8_t tag) {
    buffer run = {.size = 0};
    for (uint64_t count = draw(5); count > 0; count--) {
        run.size = tag == 0x0A ? 0 : run.size;
        for (uint64_t k = tag == 0x12 ? 4 : draw(tag == 0x0A ? 40 : 11); k > 0; k--) put(&run, (uint8_t)draw(256));
        if (tag == 0x0A) put_field(list, 0x0A, &run);
    }
    if (tag != 0x0A && draw(8) != 0) put_field(list, 0x0A, &run);
}

static void draw_example(buffer *example) {
    buffer features = {.size = 0};
    for (uint64_t count = draw(12); count > 0; count--) {
        buffer key = {.size = 0}, list = {.size = 0}, feature = {.size = 0}, entry = {.size = 0};
        const uint8_t tag = (uint8_t)(0x0A + 8 * draw(3));
        for (uint64_t k = draw(4); k > 0; k--) put(&key, (uint8_t)('a' + draw(3)));
        draw_list(&list, tag);
        if (draw(10) != 0) put_field(&feature, tag, &list);
        put_field(&entry, 0x0A, &key);
        put_field(&entry, 0x12, &feature);
        put_field(&features, 0x0A, &entry);
    }
    put_field(example, 0x0A, &features);
}

static void damage(uint8_t *data, size_t size) {
    for (uint64_t count = draw(4); count > 0 && size > 0; count--) {
        static const uint8_t telling[] = {0, 1, 2, 10, 18, 26, 127, 128, 255};
        data[draw(size)] = draw(2) ? telling[draw(sizeof telling)] : (uint8_t)draw(256);
    }
}

static int is_inside(tfpipe_place place, size_t size) {
    return place.at >= 0 && place.size >= 0 && (uint64_t)place.at + (uint64_t)place.size <= size;
}

static void parse(const uint8_t *block, size_t size) {
    tfpipe_place places[MAX_PLACES];
    int64_t counts[MAX_PLACES], sum = 0;
    tfpipe_examples out;
    const size_t count = draw(MAX_PLACES + 1);
    for (size_t k = 0; k < count; k++) {
        places[k].at = (int64_t)draw(size + 1);
        places[k].size = k == 0 ? (int64_t)size - places[k].at : (int64_t)draw(size - (size_t)places[k].at + 1);
        if (draw(3) == 0) places[k] = (tfpipe_place){0, (int64_t)size};
        if (draw(200) == 0) places[k].size = (int64_t)draw(UINT64_MAX);
    }
    if (tfpipe_parse_examples(block, size, places, count, &out, counts) != TFPIPE_OK) return;
    for (size_t k = 0; k < count; k++) sum += counts[k] > 0 ? counts[k] : 0;
    demand((size_t)sum == out.num_features, "the features of all Examples are not all features");
    for (size_t k = 0; k < out.num_features; k++) {
        const tfpipe_feature one = out.features[k];
        const size_t values = one.kind == TFPIPE_TEXTS ? out.num_texts : one.kind == TFPIPE_INTS ? out.num_ints
                            : one.kind == TFPIPE_FLOATS ? out.num_floats : SIZE_MAX / 4;
        demand(one.key >= 0 && (size_t)one.key < out.num_keys, "a feature has no key");
        demand(one.first >= 0 && one.count >= 0 && (size_t)(one.first + one.count) <= values, "a value is missing");
    }
    for (size_t k = 0; k < out.num_keys; k++) demand(is_inside(out.keys[k], size), "a key leaves the block");
    for (size_t k = 0; k < out.num_texts; k++) demand(is_inside(out.texts[k], size), "a text leaves the block");
    features_found += out.num_features;
    tfpipe_free_examples(&out);
}

/* Writes a frame, damages it, and reads it with parts of the file around it. */
static void read_back(const buffer *payload) {
    uint8_t frame[MAX_BYTES + 16], *block, whole;
    const size_t size = payload->size + 16, block_size = size + draw(50);
    const int changed = draw(2) == 0;
    for (int k = 0; k < 8; k++) frame[k] = (uint8_t)((uint64_t)payload->size >> 8 * k);
    memcpy(frame + 12, payload->data, payload->size);
    const uint32_t of_length = tfpipe_masked_crc32c(frame, 8, (int)draw(2));
    const uint32_t of_payload = tfpipe_masked_crc32c(payload->data, payload->size, (int)draw(2));
    for (int k = 0; k < 4; k++) {
        frame[8 + k] = (uint8_t)(of_length >> 8 * k);
        frame[12 + payload->size + (size_t)k] = (uint8_t)(of_payload >> 8 * k);
    }
    if (changed) frame[draw(size)] ^= (uint8_t)(1 << draw(8));
    if (pwrite(fileno(file), frame, size, 0) != (ssize_t)size || ftruncate(fileno(file), (off_t)size) != 0) exit(2);
    block = malloc(block_size);
    if (block == NULL) exit(2);
    const tfpipe_span span = {fileno(file), 0, (int64_t)block_size, 0};
    tfpipe_place place = {0, (int64_t)size};
    demand(tfpipe_read_records(&span, 1, &place, 1, block, block_size, &whole) == TFPIPE_OK && whole == !changed,
           "the check of a record is wrong");
    place = (tfpipe_place){(int64_t)draw(block_size + 1), (int64_t)draw(block_size + 1)};
    tfpipe_read_records(&span, draw(2), &place, 1, block, block_size, &whole);
    free(block);
}

static void run_case(void) {
    buffer example = {.size = 0};
    draw_example(&example);
    read_back(&example);
    damage(example.data, example.size);
    const size_t size = draw(4) == 0 ? draw(example.size + 1) : example.size;
    uint8_t *tight = malloc(size > 0 ? size : 1); /* of exactly its size, so that a read behind the end is found */
    if (tight == NULL) exit(2);
    memcpy(tight, example.data, size);
    parse(tight, size);
    free(tight);
}

int main(int argc, char **argv) {
    file = tmpfile();
    if (argc != 3 || file == NULL) {
        fprintf(stderr, "usage: records SECONDS SEED\n");
        return 2;
    }
    const uint64_t cases = run_cases(argv[1], argv[2], run_case);
    print_end(cases, argv[2], features_found, "features");
    return 0;
}
