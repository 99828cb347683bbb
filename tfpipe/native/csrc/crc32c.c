/* CRC32C, by the processor's own instruction where there is one.

   A state is the register of the checksum without the inversions at its begin and its end. It is linear: the state after
   A and B is the state after A, carried on by as many zero bytes as B has, plus the state of B from zero. So three parts
   are computed side by side, since the instruction gives its result after three cycles but can begin in each of them. */

#include <string.h>

#include "tfpipe_native.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_SSE42 1
#include <nmmintrin.h>
/* The instruction has a name of its own, which newer compilers ask for and older ones do not know. */
#if defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 11
#define SSE42 "sse4.2,crc32"
#else
#define SSE42 "sse4.2"
#endif
#else
#define HAS_SSE42 0
#endif

enum { PART_BYTES = 256 };

static const uint32_t POLYNOMIAL = 0x82F63B78u, MASK_DELTA = 0xA282EAD8u;

static uint32_t tables[8][256]; /* of a byte that is followed by 0 to 7 zero bytes */
static uint32_t carry[4][256];  /* of a byte of a state that is carried on by PART_BYTES zero bytes */

__attribute__((constructor)) static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) state = state & 1 ? state >> 1 ^ POLYNOMIAL : state >> 1;
        tables[0][byte] = state;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            const uint32_t state = tables[zeros - 1][byte];
            tables[zeros][byte] = state >> 8 ^ tables[0][state & 255];
        }
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t state = byte << 8 * place;
            for (int zeros = 0; zeros < PART_BYTES; zeros++) state = state >> 8 ^ tables[0][state & 255];
            carry[place][byte] = state;
        }
}

static uint32_t extend_by_tables(uint32_t state, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t next = 0;
        for (int place = 0; place < 4; place++)
            next ^= tables[7 - place][(state >> 8 * place & 255) ^ data[place]] ^ tables[3 - place][data[4 + place]];
        state = next;
    }
    for (; size > 0; data++, size--) state = state >> 8 ^ tables[0][(state & 255) ^ *data];
    return state;
}

#if HAS_SSE42
static uint64_t load(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

static uint32_t carry_on(uint32_t state) {
    return carry[0][state & 255] ^ carry[1][state >> 8 & 255] ^ carry[2][state >> 16 & 255] ^ carry[3][state >> 24];
}

__attribute__((target(SSE42))) static uint32_t extend_by_sse42(uint32_t begin, const uint8_t *data, size_t size) {
    uint64_t state = begin;
    for (; size >= 3 * PART_BYTES; data += 3 * PART_BYTES, size -= 3 * PART_BYTES) {
        uint64_t second = 0, third = 0;
        for (int at = 0; at < PART_BYTES; at += 8) {
            state = _mm_crc32_u64(state, load(data + at));
            second = _mm_crc32_u64(second, load(data + PART_BYTES + at));
            third = _mm_crc32_u64(third, load(data + 2 * PART_BYTES + at));
        }
        state = carry_on(carry_on((uint32_t)state) ^ (uint32_t)second) ^ (uint32_t)third;
    }
    for (; size >= 8; data += 8, size -= 8) state = _mm_crc32_u64(state, load(data));
    for (; size > 0; data++, size--) state = _mm_crc32_u8((uint32_t)state, *data);
    return (uint32_t)state;
}
#endif

static uint32_t mask(uint32_t state) {
    const uint32_t crc = ~state;
    return (crc >> 15 | crc << 17) + MASK_DELTA;
}

uint32_t tfpipe_masked_crc32c(const uint8_t *data, size_t size, int by_tables) {
#if HAS_SSE42
    if (!by_tables && __builtin_cpu_supports("sse4.2")) return mask(extend_by_sse42(~0u, data, size));
#endif
    (void)by_tables;
    return mask(extend_by_tables(~0u, data, size));
}
