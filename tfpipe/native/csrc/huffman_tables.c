#include "huffman_tables.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tfpipe_native.h"
#include "versions.h"

const uint8_t tfpipe_places[64 + TFPIPE_SECOND_END + 1] = {
    0,  0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40,
    48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15,
    23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [65 ... 64 + TFPIPE_SECOND_END] = 64,
};

enum {
    SLOTS = 64,
    MAX_DC_SIZE = 15, /* bits of a difference */
    MAX_CREDIT = 8,
    MAX_VALUE_1 = 63, /* of the values of a pair */
    MAX_VALUE_2 = 15,
};

/* What is known of a table, which lies behind it.

   users   those who use it, and the slot if it lies in one
   credit  how often it was asked for, up to MAX_CREDIT: a table that many files share is not given up for others
   kind    TFPIPE_DC, ...
   key     the counts and symbols of its codes */
typedef struct {
    int users, credit, kind;
    uint32_t hash;
    int key_size;
    uint8_t key[16 + 256];
} __attribute__((aligned(16))) entry;

/* Nobody waits for the lock: a table is made anew where it is taken. So a forked process goes on if another thread of its
   parent had the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *slots[SLOTS];

static int32_t extend(int32_t value, int32_t size) {
    return value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

/* Makes the codes from counts and symbols. Returns 0, or -1 if they are no prefix code, or one of ones alone. */
static int make_codes(tfpipe_code_table *to, const uint8_t *counts, const uint8_t *symbols, int num_symbols) {
    uint32_t code = 0;
    int32_t index = 0;
    memset(to, 0, sizeof *to);
    memcpy(to->symbols, symbols, (size_t)num_symbols);
    for (int length = 1; length <= 16; length++) {
        const int32_t count = counts[length - 1];
        to->offsets[length] = index - (int32_t)code;
        if (length <= TFPIPE_CODE_BITS) {
            uint16_t *codes = to->codes + ((size_t)code << (TFPIPE_CODE_BITS - length));
            const size_t copies = (size_t)1 << (TFPIPE_CODE_BITS - length);
            if (code + (uint32_t)count > 1u << length) return -1;
            for (int32_t i = 0; i < count; i++)
                for (size_t k = 0; k < copies; k++) *codes++ = (uint16_t)(length << 8 | symbols[index + i]);
        }
        code += (uint32_t)count;
        index += count;
        if (count > 0 && code >= 1u << length) return -1;
        to->limits[length] = code << (16 - length);
        code <<= 1;
    }
    return 0;
}

static void make_dc_table(tfpipe_dc_table *to) {
    for (uint32_t bits = 0; bits < 1 << TFPIPE_DC_BITS; bits++) {
        const uint32_t code = to->codes.codes[bits << (TFPIPE_CODE_BITS - TFPIPE_DC_BITS)];
        const int length = (int)(code >> 8), size = (int)(code & 15), rest = TFPIPE_DC_BITS - length - size;
        const int32_t value = rest < 0 || size == 0 ? 0 : extend((int32_t)(bits >> rest) & ((1 << size) - 1), size);
        to->looks[bits] = length == 0 || rest < 0 ? 0 : (uint32_t)value << 16 | (uint32_t)(length + size);
    }
}

/* What is needed to make pairs: for the code that the next bits begin with

   singles  the look at it alone
   seconds  what is added to the look at another code in front of it; the length is NEVER if it has no place there */
typedef struct {
    uint32_t singles[1 << TFPIPE_PAIR_BITS], seconds[1 << TFPIPE_PAIR_BITS];
} pair_parts;

enum { NEVER = 63 };

static uint32_t make_single(int length, int distance, int32_t value) {
    return (uint32_t)length | (uint32_t)distance << 6 | (uint32_t)distance << 13 | (uint32_t)value << 25;
}

static uint32_t make_second(int length, int distance, int32_t value) {
    if (value > MAX_VALUE_2 || value < -MAX_VALUE_2) return NEVER;
    return (uint32_t)length | (uint32_t)distance << 13 | ((uint32_t)value & 31) << 20;
}

static void fill(uint32_t *to, uint32_t value, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = value;
}

/* Fills the looks that begin with a code, from `at` on. */
static void fill_looks(pair_parts *to, size_t at, int length, int symbol) {
    const int size = symbol & 15, run = symbol >> 4, rest = TFPIPE_PAIR_BITS - length;
    const size_t copies = (size_t)1 << rest;
    if (size == 0) {
        const int ends = run != 15;
        fill(to->singles + at, make_single(length, ends ? TFPIPE_END : 16, 0), copies);
        fill(to->seconds + at, make_second(length, ends ? TFPIPE_SECOND_END : 16, 0), copies);
    } else if (size > rest || (1 << size) - 1 > MAX_VALUE_1) {
        fill(to->singles + at, make_single(0, TFPIPE_LONG, 0), copies);
        fill(to->seconds + at, NEVER, copies);
    } else {
        const size_t same = copies >> size;
        for (int32_t bits = 0; bits < 1 << size; bits++, at += same) {
            const int32_t value = extend(bits, size);
            fill(to->singles + at, make_single(length + size, run + 1, value), same);
            fill(to->seconds + at, make_second(length + size, run + 1, value), same);
        }
    }
}

/* Adds the second code to each look. */
INLINE void join_pairs(const pair_parts *restrict parts, uint32_t *restrict looks) {
    for (uint32_t bits = 0; bits < 1 << TFPIPE_PAIR_BITS; bits++) {
        const uint32_t first = parts->singles[bits], length = first & 63;
        const uint32_t second = parts->seconds[bits << length & ((1 << TFPIPE_PAIR_BITS) - 1)];
        const uint32_t fits = ((first >> 6 & 127) < TFPIPE_END) & (length + (second & 63) <= TFPIPE_PAIR_BITS);
        looks[bits] = first + (second & (0u - fits));
    }
}
DEFINE(join_pairs, (const pair_parts *parts, uint32_t *looks), (parts, looks))

/* Makes the looks at one code, and then adds the second to each. */
static void make_pairs(tfpipe_pair_table *to, const uint8_t *counts, const uint8_t *symbols) {
    pair_parts parts;
    size_t at = 0;
    for (int length = 1; length <= TFPIPE_PAIR_BITS; length++)
        for (int i = 0; i < counts[length - 1]; i++, at += (size_t)1 << (TFPIPE_PAIR_BITS - length))
            fill_looks(&parts, at, length, *symbols++);
    fill(parts.singles + at, make_single(0, TFPIPE_LONG, 0), (1 << TFPIPE_PAIR_BITS) - at);
    fill(parts.seconds + at, NEVER, (1 << TFPIPE_PAIR_BITS) - at);
    tfpipe_join_pairs(&parts, to->looks);
}

/* Adds two more codes to the leaps over one. */
INLINE void join_leaps(const uint32_t *restrict singles, uint16_t *restrict looks) {
    for (uint32_t bits = 0; bits < 1 << TFPIPE_LEAP_BITS; bits++) {
        uint32_t leap = singles[bits] & 0xFFFF;
        for (int i = 0; i < 2; i++) {
            const uint32_t length = leap & 255;
            const uint32_t next = singles[bits << (length & 31) & ((1 << TFPIPE_LEAP_BITS) - 1)];
            const uint32_t fits = (leap != 0) & (leap >> 8 < TFPIPE_LEAP_END) & (next != 0) &
                                  (length + (next >> 16) <= TFPIPE_LEAP_BITS) &
                                  (length + (next & 255) <= TFPIPE_LEAP_LENGTH);
            leap += next & 0xFFFF & (0u - fits);
        }
        looks[bits] = (uint16_t)leap;
    }
}
DEFINE(join_leaps, (const uint32_t *singles, uint16_t *looks), (singles, looks))

/* Makes the leaps over one code, and then adds the two that follow. The last may lack the bits of its value. */
static void make_leaps(tfpipe_leap_table *to, const uint8_t *counts, const uint8_t *symbols) {
    /* The length of the code and its value, 256 times the distance, and 65536 times the length of the code alone. */
    uint32_t singles[1 << TFPIPE_LEAP_BITS];
    size_t at = 0;
    for (int length = 1; length <= TFPIPE_LEAP_BITS; length++)
        for (int i = 0; i < counts[length - 1]; i++) {
            const int symbol = *symbols++, size = symbol & 15, run = symbol >> 4;
            const size_t copies = (size_t)1 << (TFPIPE_LEAP_BITS - length);
            const int distance = size == 0 && run != 15 ? TFPIPE_LEAP_END : run + 1;
            const int is_short = length + size <= TFPIPE_LEAP_LENGTH;
            fill(singles + at, is_short ? (uint32_t)(length << 16 | distance << 8 | (length + size)) : 0, copies);
            at += copies;
        }
    fill(singles + at, 0, (1 << TFPIPE_LEAP_BITS) - at);
    tfpipe_join_leaps(singles, to->looks);
}

/* Returns whether a look can hold a code: it has a value that a baseline JPEG can have, or says that the rest is zero. */
static int can_copy(uint32_t code) {
    const uint32_t size = code & 15;
    return code != 0 && size <= TFPIPE_MOST_AC_BITS && (size > 0 || (code & 255) < 0xF0);
}

/* Returns a look at a code alone, but for the first of two. */
static uint64_t make_copy(uint32_t code) {
    const uint32_t symbol = code & 255, size = symbol & 15;
    if (size == 0) return TFPIPE_LEAP_END << 8 | code >> 8;
    return (uint64_t)(size << 28 | symbol << 16 | ((symbol >> 4) + 1) << 8 | ((code >> 8) + size));
}

/* Makes the looks at one code, and adds a second where it lies in the look. */
static void make_copies(tfpipe_copy_table *to) {
    const uint16_t *const codes = to->codes.codes;
    const uint32_t mask = (1 << TFPIPE_CODE_BITS) - 1;
    for (uint32_t bits = 0; bits <= mask; bits++) {
        const uint64_t first = can_copy(codes[bits]) ? make_copy(codes[bits]) : TFPIPE_NO_COPY;
        const uint32_t length = first & 63, size = codes[bits] & 15;
        to->looks[bits] = first | 1 << 26;
        if (length > TFPIPE_COPY_LENGTH) to->looks[bits] = TFPIPE_NO_COPY;
        if (size == 0 || !can_copy(codes[bits]) || length >= TFPIPE_CODE_BITS) continue;
        const uint32_t code = codes[bits << length & mask];
        const uint64_t last = can_copy(code) ? make_copy(code) : TFPIPE_NO_COPY;
        if (!can_copy(code) || length + (code >> 8) > TFPIPE_CODE_BITS || length + (last & 63) > TFPIPE_COPY_LENGTH) continue;
        const uint32_t value = bits >> (TFPIPE_CODE_BITS - length) & ((1u << size) - 1);
        to->looks[bits] = (uint64_t)((codes[bits] & 255u) << 16 | value) << 32 | 2 << 26 | (last + (first & 0xFF3F));
    }
}

static const size_t SIZES[TFPIPE_KINDS] = {
    [TFPIPE_DC] = sizeof(tfpipe_dc_table),       [TFPIPE_CODES] = sizeof(tfpipe_code_table),
    [TFPIPE_PAIRS] = sizeof(tfpipe_pair_table),  [TFPIPE_LEAPS] = sizeof(tfpipe_leap_table),
    [TFPIPE_COPIES] = sizeof(tfpipe_copy_table),
};

/* Makes a table. Returns NULL if the codes are no prefix code, with `*result` what else to return. */
static entry *make_entry(const uint8_t *key, int key_size, uint32_t hash, int kind, int *result) {
    entry *made = malloc(sizeof *made + SIZES[kind]);
    *result = TFPIPE_NO_MEMORY;
    if (made == NULL) return NULL;
    *made = (entry){.users = 1, .kind = kind, .hash = hash, .key_size = key_size};
    memcpy(made->key, key, (size_t)key_size);
    void *table = made + 1; /* each kind begins with the codes */
    int is_bad = make_codes(table, key, key + 16, key_size - 16) != 0;
    for (int i = 16; kind == TFPIPE_DC && i < key_size; i++) is_bad |= key[i] > MAX_DC_SIZE;
    if (is_bad) {
        free(made);
        *result = TFPIPE_DAMAGED;
        return NULL;
    }
    if (kind == TFPIPE_DC) make_dc_table(table);
    else if (kind == TFPIPE_PAIRS) make_pairs(table, key, key + 16);
    else if (kind == TFPIPE_LEAPS) make_leaps(table, key, key + 16);
    else if (kind == TFPIPE_COPIES) make_copies(table);
    return made;
}

static uint32_t hash_key(const uint8_t *key, int size, int kind) {
    uint32_t hash = 2166136261u + (uint32_t)kind; /* FNV-1a */
    for (int i = 0; i < size; i++) hash = (hash ^ key[i]) * 16777619u;
    return hash;
}

static int is_same(const entry *kept, const uint8_t *key, int key_size, uint32_t hash, int kind) {
    return kept != NULL && kept->hash == hash && kept->kind == kind && kept->key_size == key_size &&
           memcmp(kept->key, key, (size_t)key_size) == 0;
}

static void release(entry *used) {
    if (used != NULL && __atomic_sub_fetch(&used->users, 1, __ATOMIC_ACQ_REL) == 0) free(used);
}

/* Puts a table into its slot, unless the one that lies there is asked for more often. */
static void keep(entry *made) {
    entry *given_up = NULL;
    if (pthread_mutex_trylock(&lock) != 0) return;
    entry **slot = &slots[made->hash % SLOTS];
    if (*slot != NULL && (*slot)->credit > 0) {
        (*slot)->credit--;
    } else {
        given_up = *slot;
        made->users++;
        *slot = made;
    }
    pthread_mutex_unlock(&lock);
    release(given_up);
}

/* Returns a table that is kept, or NULL. */
static entry *take_kept(const uint8_t *key, int key_size, uint32_t hash, int kind) {
    if (pthread_mutex_trylock(&lock) != 0) return NULL;
    entry *kept = slots[hash % SLOTS];
    if (is_same(kept, key, key_size, hash, kind)) {
        __atomic_add_fetch(&kept->users, 1, __ATOMIC_RELAXED);
        if (kept->credit < MAX_CREDIT) kept->credit++;
    } else {
        kept = NULL;
    }
    pthread_mutex_unlock(&lock);
    return kept;
}

/* Gets a table, which the caller releases. Returns NULL if there is none. Sets `*result`. */
static const void *get_table(const tfpipe_codes *codes, int kind, int *result) {
    *result = TFPIPE_DAMAGED;
    if (codes->counts == NULL) return NULL;
    const int key_size = 16 + codes->num_symbols;
    const uint32_t hash = hash_key(codes->counts, key_size, kind);
    entry *kept = take_kept(codes->counts, key_size, hash, kind);
    if (kept == NULL) {
        kept = make_entry(codes->counts, key_size, hash, kind, result);
        if (kept == NULL) return NULL;
        keep(kept);
    }
    *result = TFPIPE_OK;
    return kept + 1;
}

int tfpipe_get_tables(const tfpipe_jpeg *jpeg, int needs, tfpipe_tables *tables, char *message) {
    int result = TFPIPE_OK;
    tfpipe_release_tables(tables);
    for (int kind = 0; kind < TFPIPE_KINDS; kind++)
        for (int i = 0; i < jpeg->scan.count && (needs >> kind & 1) && result == TFPIPE_OK; i++) {
            const int number = (kind == TFPIPE_DC ? jpeg->scan.dc : jpeg->scan.ac)[i];
            const tfpipe_codes *codes = (kind == TFPIPE_DC ? jpeg->dc : jpeg->ac) + number;
            const void **place = &tables->of[kind][number];
            if (*place == NULL) *place = get_table(codes, kind, &result);
        }
    return result == TFPIPE_DAMAGED ? tfpipe_complain(message, result, "a Huffman table is damaged") : result;
}

void tfpipe_release_tables(tfpipe_tables *tables) {
    for (int i = 0; i < TFPIPE_KINDS * TFPIPE_TABLES; i++) {
        const void *table = tables->of[i / TFPIPE_TABLES][i % TFPIPE_TABLES];
        if (table != NULL) release((entry *)(uintptr_t)table - 1);
    }
    memset(tables, 0, sizeof *tables);
}
