/* The features of many serialized tf.train.Examples, found in one pass.

   Only the form that writers really use is taken: one Features message; in each of its entries a key, then a Feature of
   at most one list; numbers packed into one run. Everything else is refused, valid or not. */

#include <stdlib.h>
#include <string.h>

#include "tfpipe_native.h"

/* MAX_FIELDS  the most fields of one Example; the caller's own parser, which takes what is refused, has a limit too
   MAX_KEYS    the most different keys: each is compared with all others */
enum { MAX_FIELDS = 10000, MAX_KEYS = 64 };

/* The longest varints: of a length, since no Example has more than 2 GB, and of an int64. */
enum { LENGTH_BYTES = 5, INT64_BYTES = 10 };

enum { FIRST_FIELD = 0x0A, SECOND_FIELD = 0x12, BYTES_LIST = 0x0A, FLOAT_LIST = 0x12, INT64_LIST = 0x1A };

typedef struct {
    const uint8_t *at, *end;
} message;

typedef struct {
    const uint8_t *block;
    tfpipe_examples *out;
    size_t capacities[5];
    int fields; /* of the Example that is read */
    int no_memory;
} parser;

enum { KEYS, FEATURES, TEXTS, INTS, FLOATS };

/* Makes room for more items. Returns the place of the first, or NULL without memory. */
static void *add(parser *self, int pool, void **items, size_t *count, size_t more, size_t item_bytes) {
    if (more > self->capacities[pool] - *count) {
        const size_t twice = *count < 64 ? 64 : 2 * *count, capacity = more > twice - *count ? *count + more : twice;
        void *larger = capacity > SIZE_MAX / item_bytes ? NULL : realloc(*items, capacity * item_bytes);
        if (larger == NULL) {
            self->no_memory = 1;
            return NULL;
        }
        *items = larger;
        self->capacities[pool] = capacity;
    }
    uint8_t *first = (uint8_t *)*items + *count * item_bytes;
    *count += more;
    return first;
}

#define ADD_MANY(self, pool, items, count, more) add(self, pool, (void **)&(self)->out->items, &(self)->out->count, \
                                                     more, sizeof *(self)->out->items)
#define ADD(self, pool, items, count) ADD_MANY(self, pool, items, count, 1)

static int read_varint(message *from, int max_bytes, uint64_t *value) {
    *value = 0;
    for (int place = 0; place < max_bytes && from->at < from->end; place++) {
        const uint8_t byte = *from->at++;
        *value |= (uint64_t)(byte & 127) << 7 * place;
        if (byte < 128) return 1;
    }
    return 0;
}

/* Reads a field of this tag, whose value has a length, into `value`. */
static int read_field(parser *self, message *from, uint8_t tag, message *value) {
    uint64_t size;
    if (from->at >= from->end || *from->at != tag || ++self->fields > MAX_FIELDS) return 0;
    from->at++;
    if (!read_varint(from, LENGTH_BYTES, &size) || size > (uint64_t)(from->end - from->at)) return 0;
    value->at = from->at;
    value->end = from->at += size;
    return 1;
}

/* Finds the number of a key. `guess` is the number of the key that stood here in the record before. */
static int find_key(parser *self, message key, size_t guess, int64_t *number) {
    tfpipe_examples *out = self->out;
    const int64_t begin = key.at - self->block, size = key.end - key.at;
    for (size_t tried = 0; tried <= out->num_keys; tried++) {
        const size_t k = tried == 0 ? guess : tried - 1;
        if (k < out->num_keys && out->keys[k].size == size && memcmp(self->block + out->keys[k].at, key.at, size) == 0) {
            *number = (int64_t)k;
            return 1;
        }
    }
    if (out->num_keys == MAX_KEYS) return 0;
    *number = (int64_t)out->num_keys;
    tfpipe_place *added = ADD(self, KEYS, keys, num_keys);
    if (added != NULL) *added = (tfpipe_place){begin, size};
    return added != NULL;
}

static int read_texts(parser *self, message list) {
    message value;
    while (list.at < list.end) {
        if (!read_field(self, &list, FIRST_FIELD, &value)) return 0;
        tfpipe_place *text = ADD(self, TEXTS, texts, num_texts);
        if (text == NULL) return 0;
        *text = (tfpipe_place){value.at - self->block, value.end - value.at};
    }
    return 1;
}

static int read_floats(parser *self, message run) {
    const size_t count = (size_t)(run.end - run.at) / 4;
    if ((run.end - run.at) % 4 != 0) return 0;
    if (count == 0) return 1;
    float *values = ADD_MANY(self, FLOATS, floats, num_floats, count);
    if (values == NULL) return 0;
    for (size_t k = 0; k < count; k++) { /* a copy of memory where numbers begin with their lowest byte */
        const uint8_t *at = run.at + 4 * k;
        const uint32_t bits = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        memcpy(values + k, &bits, sizeof bits);
    }
    return 1;
}

static int read_ints(parser *self, message run) {
    while (run.at < run.end) {
        uint64_t bits;
        if (!read_varint(&run, INT64_BYTES, &bits)) return 0;
        int64_t *value = ADD(self, INTS, ints, num_ints);
        if (value == NULL) return 0;
        memcpy(value, &bits, sizeof bits);
    }
    return 1;
}

static size_t count_values(const tfpipe_examples *out, int kind) {
    return kind == TFPIPE_TEXTS ? out->num_texts : kind == TFPIPE_FLOATS ? out->num_floats : out->num_ints;
}

/* Reads the one list of a Feature. */
static int read_list(parser *self, message feature, int kind, uint8_t tag) {
    message list, run;
    if (!read_field(self, &feature, tag, &list) || feature.at < feature.end) return 0;
    if (kind == TFPIPE_TEXTS) return read_texts(self, list);
    if (list.at == list.end) return 1;
    if (!read_field(self, &list, FIRST_FIELD, &run) || list.at < list.end) return 0;
    return kind == TFPIPE_FLOATS ? read_floats(self, run) : read_ints(self, run);
}

static int read_entry(parser *self, message entry, size_t guess) {
    message key, feature;
    int64_t number;
    int kind = TFPIPE_NOTHING;
    if (!read_field(self, &entry, FIRST_FIELD, &key) || !read_field(self, &entry, SECOND_FIELD, &feature) ||
        entry.at < entry.end || !find_key(self, key, guess, &number))
        return 0;
    if (feature.at < feature.end)
        kind = *feature.at == BYTES_LIST   ? TFPIPE_TEXTS
               : *feature.at == FLOAT_LIST ? TFPIPE_FLOATS
               : *feature.at == INT64_LIST ? TFPIPE_INTS
                                           : TFPIPE_NOTHING;
    const size_t first = count_values(self->out, kind);
    if (feature.at < feature.end && (kind == TFPIPE_NOTHING || !read_list(self, feature, kind, *feature.at))) return 0;
    tfpipe_feature *added = ADD(self, FEATURES, features, num_features);
    if (added == NULL) return 0;
    *added = (tfpipe_feature){number, kind, (int64_t)first, (int64_t)(count_values(self->out, kind) - first)};
    return 1;
}

static int read_example(parser *self, message example, size_t last) {
    message features, entry;
    const size_t first = self->out->num_features;
    while (example.at < example.end) { /* twice or more where the features of columns follow */
        if (!read_field(self, &example, FIRST_FIELD, &features)) return 0;
        while (features.at < features.end) {
            const size_t before = last + self->out->num_features - first;
            const size_t guess = before < first ? (size_t)self->out->features[before].key : 0;
            if (!read_field(self, &features, FIRST_FIELD, &entry) || !read_entry(self, entry, guess)) return 0;
        }
    }
    return 1;
}

int tfpipe_parse_examples(const uint8_t *block, size_t block_size, const tfpipe_place *payloads, size_t count,
                          tfpipe_examples *out, int64_t *num_features) {
    parser self = {.block = block, .out = out};
    size_t last = 0; /* the first feature of the record before */
    memset(out, 0, sizeof *out);
    for (size_t k = 0; k < count; k++) {
        const tfpipe_place place = payloads[k];
        if (place.at < 0 || place.size < 0 || (uint64_t)place.at > block_size ||
            (uint64_t)place.size > block_size - (uint64_t)place.at) {
            tfpipe_free_examples(out);
            return TFPIPE_BAD_REQUEST;
        }
        const tfpipe_examples before = *out;
        const message example = {block + place.at, block + place.at + place.size};
        self.fields = 0;
        if (read_example(&self, example, last)) {
            num_features[k] = (int64_t)(out->num_features - before.num_features);
            last = before.num_features;
        } else if (self.no_memory) {
            tfpipe_free_examples(out);
            return TFPIPE_NO_MEMORY;
        } else { /* keys stay: others may have them */
            num_features[k] = -1;
            out->num_features = before.num_features;
            out->num_texts = before.num_texts;
            out->num_ints = before.num_ints;
            out->num_floats = before.num_floats;
        }
    }
    return TFPIPE_OK;
}

void tfpipe_free_examples(tfpipe_examples *examples) {
    free(examples->keys);
    free(examples->features);
    free(examples->texts);
    free(examples->ints);
    free(examples->floats);
    memset(examples, 0, sizeof *examples);
}
