/* The blocks of a sequential scan, one after the other. */

#ifndef TFPIPE_BLOCKS_H
#define TFPIPE_BLOCKS_H

#include "bit_reader.h"
#include "huffman_tables.h"

/* A block with places behind the last coefficient, for what a damaged run would write, and for the ends of blocks. */
enum { TFPIPE_BLOCK_ROOM = 64 + 16 };

/* What a function returns for a block that is damaged. */
enum { TFPIPE_BAD_BLOCK = -1 };

INLINE int32_t tfpipe_extend(int32_t value, int32_t size) {
    return value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

/* Takes a code of any length. There must be 16 bits. Returns its symbol, or -1 if there is no such code. */
INLINE int tfpipe_take_code(tfpipe_bits *in, const tfpipe_code_table *from) {
    const uint32_t code = from->codes[in->bits >> (64 - TFPIPE_CODE_BITS)];
    if (TFPIPE_LIKELY(code != 0)) {
        tfpipe_skip_bits(in, (int)(code >> 8));
        return (int)(code & 255);
    }
    const uint32_t bits = (uint32_t)(in->bits >> 48);
    for (int length = TFPIPE_CODE_BITS + 1; length <= 16; length++) {
        if (bits >= from->limits[length]) continue;
        tfpipe_skip_bits(in, length);
        return from->symbols[((int32_t)(bits >> (16 - length)) + from->offsets[length]) & 255];
    }
    return -1;
}

/* Takes the difference of a block's first coefficient to that of the block before. There must be 31 bits. */
INLINE int32_t tfpipe_take_dc(tfpipe_bits *in, const tfpipe_dc_table *from, int *is_bad) {
    const uint32_t look = from->looks[in->bits >> (64 - TFPIPE_DC_BITS)];
    if (TFPIPE_LIKELY((look & 63) != 0)) {
        tfpipe_skip_bits(in, (int)(look & 63));
        return (int32_t)look >> 16;
    }
    const int size = tfpipe_take_code(in, &from->codes);
    if (size < 0) *is_bad = 1;
    return size > 0 ? tfpipe_extend(tfpipe_take_bits(in, size), size) : 0;
}

/* Takes one coefficient, or what says that there is none, by a code of any length. Returns the number of the next
   coefficient: 64 or more at the end of the block, TFPIPE_SECOND_END more than `k` if a code says so. `block` may be NULL. */
INLINE int tfpipe_take_long_ac(tfpipe_bits *in, const tfpipe_code_table *from, int k, int16_t *block) {
    tfpipe_refill(in);
    const int symbol = tfpipe_take_code(in, from), size = symbol & 15, run = symbol >> 4;
    if (symbol < 0) return 64 + 1; /* as a run that leaves the block */
    if (size == 0) return run == 15 ? k + 16 : k + TFPIPE_SECOND_END;
    const int16_t value = (int16_t)tfpipe_extend(tfpipe_take_bits(in, size), size);
    k += run + 1;
    if (block != NULL) block[tfpipe_places[k]] = value;
    return k;
}

/* Takes the other coefficients of a block, which must be zero. Returns how many coefficients may not be zero, or
   TFPIPE_BAD_BLOCK. */
INLINE int tfpipe_take_ac(tfpipe_bits *in, const tfpipe_pair_table *from, int16_t *block) {
    uint32_t k = 1;
    for (;;) {
        tfpipe_refill(in);
        /* Copies, so that they stay in registers. Of `used` only the lowest bits count. */
        uint64_t bits = in->bits;
        uint32_t used = 0, look = 0, first = 0;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) { /* at most 12 bits each */
            look = from->looks[bits >> (64 - TFPIPE_PAIR_BITS)];
            first = k + (look >> 6 & 127);
            if (TFPIPE_UNLIKELY(first > 63)) break;
            k += look >> 13 & 127;
            block[tfpipe_places[k]] = (int16_t)((int32_t)(look << 7) >> 27);
            block[tfpipe_places[first]] = (int16_t)((int32_t)look >> 25); /* last: without a second it is the same place */
            bits <<= look & 63;
            used += look;
            if (TFPIPE_UNLIKELY(k > 63)) break;
        }
        in->bits = bits;
        in->count -= (int32_t)(used & 63);
        if (TFPIPE_LIKELY(first < 64)) {
            if (k < 64) continue;
            return k == 64 ? 64 : k > TFPIPE_SECOND_END ? (int)first : TFPIPE_BAD_BLOCK;
        }
        if ((look >> 6 & 127) == TFPIPE_END) {
            tfpipe_skip_bits(in, (int)(look & 63));
            return (int)k;
        }
        const int next = tfpipe_take_long_ac(in, &from->codes, (int)k, block);
        if (next >= 64) return next == 64 ? 64 : next >= TFPIPE_SECOND_END ? next - TFPIPE_SECOND_END : TFPIPE_BAD_BLOCK;
        k = (uint32_t)next;
    }
}

/* Goes past the other coefficients of a block. Returns 0, or TFPIPE_BAD_BLOCK. */
INLINE int tfpipe_pass_ac(tfpipe_bits *in, const tfpipe_leap_table *from) {
    uint32_t k = 1;
    for (;;) {
        tfpipe_refill(in);
        /* Copies, so that they stay in registers. Of `used` only the lowest bits count. */
        uint64_t bits = in->bits;
        uint32_t used = 0, leap = 0, next = 0;
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) { /* at most TFPIPE_LEAP_LENGTH bits each */
            leap = from->looks[bits >> (64 - TFPIPE_LEAP_BITS)];
            next = k + (leap >> 8);
            if (TFPIPE_UNLIKELY(next > 63) || TFPIPE_UNLIKELY(leap == 0)) break;
            bits <<= leap & 63;
            used += leap;
            k = next;
        }
        in->bits = bits;
        in->count -= (int32_t)(used & 63);
        if (TFPIPE_LIKELY(next < 64 && leap != 0)) continue;
        if (TFPIPE_LIKELY(next >= TFPIPE_LEAP_END && next < TFPIPE_LEAP_END + 64)) { /* the end lies within the block */
            tfpipe_skip_bits(in, (int)(leap & 63));
            return 0;
        }
        const int after = tfpipe_take_long_ac(in, &from->codes, (int)k, NULL);
        if (after >= 64) return after == 64 || after >= TFPIPE_SECOND_END ? 0 : TFPIPE_BAD_BLOCK;
        k = (uint32_t)after;
    }
}

#endif
