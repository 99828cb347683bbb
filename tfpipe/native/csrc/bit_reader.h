/* The bits of entropy-coded data, read in place: a zero behind 0xFF is left out, and a marker is not passed.

   Behind the last byte come zeros, which are counted. Whoever reads checks now and then that none of them was used up,
   so that no single read has to. */

#ifndef TFPIPE_BIT_READER_H
#define TFPIPE_BIT_READER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "versions.h"

#define TFPIPE_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define TFPIPE_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* next, end  the next byte, and the one behind the last
   bits       the next bits, the first one on top
   count      how many of them are valid
   added      how many of all that were ever read are zeros behind the data */
typedef struct {
    const uint8_t *next, *end;
    uint64_t bits;
    int32_t count, added;
} tfpipe_bits;

static inline tfpipe_bits tfpipe_begin_bits(const uint8_t *data, const uint8_t *end) {
    return (tfpipe_bits){.next = data, .end = end};
}

enum { TFPIPE_STUFFED = 0xFF };

/* Reads byte by byte until there are at least 56 bits. It is a part of each function that reads bits, as all functions here
   are: so nobody has the address of the bits, and they stay in registers. */
INLINE void tfpipe_refill_slowly(tfpipe_bits *in) {
    while (in->count < 56) {
        uint64_t byte = 0;
        const ptrdiff_t left = in->end - in->next;
        if (TFPIPE_LIKELY(left > 0 && *in->next != TFPIPE_STUFFED)) {
            byte = *in->next++;
        } else if (left > 1 && in->next[1] == 0) {
            byte = TFPIPE_STUFFED;
            in->next += 2;
        } else if (in->added < INT32_MAX - 8) {
            in->added += 8;
        }
        in->bits |= byte << (56 - in->count);
        in->count += 8;
    }
}

/* Makes sure that there are at least 56 bits. */
INLINE void tfpipe_refill(tfpipe_bits *in) {
    if (TFPIPE_LIKELY(in->end - in->next >= 8)) {
        uint64_t bytes;
        memcpy(&bytes, in->next, sizeof bytes);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        bytes = __builtin_bswap64(bytes);
#endif
        const uint64_t ones = UINT64_C(0x0101010101010101);
        if (TFPIPE_LIKELY((bytes & ~(bytes + ones) & ones << 7) == 0)) { /* no byte is 0xFF */
            in->bits |= bytes >> in->count;
            in->next += (63 - in->count) >> 3;
            in->count |= 56;
            return;
        }
    }
    tfpipe_refill_slowly(in);
}

INLINE void tfpipe_skip_bits(tfpipe_bits *in, int count) {
    in->bits <<= count;
    in->count -= count;
}

/* Takes `count` bits, at least one, of those that there are. */
INLINE int32_t tfpipe_take_bits(tfpipe_bits *in, int count) {
    const int32_t value = (int32_t)(in->bits >> (64 - count));
    tfpipe_skip_bits(in, count);
    return value;
}

/* Returns whether more bits were used up than there are. */
static inline int tfpipe_is_overdrawn(const tfpipe_bits *in) { return in->added > in->count; }

/* Returns how many whole bytes are left of those that were read. With 0 a marker must come next; the number is negative if
   more bits were used up than there are. */
static inline int32_t tfpipe_count_left(tfpipe_bits *in) {
    tfpipe_refill_slowly(in);
    return (in->count - in->added) >> 3;
}

#endif
