#include "bit_reader.h"

enum { STUFFED = 0xFF };

tfpipe_bits tfpipe_refill_slowly(tfpipe_bits in) {
    while (in.count < 56) {
        uint64_t byte = 0;
        const ptrdiff_t left = in.end - in.next;
        if (left > 0 && *in.next != STUFFED) {
            byte = *in.next++;
        } else if (left > 1 && in.next[1] == 0) {
            byte = STUFFED;
            in.next += 2;
        } else if (in.added < INT32_MAX - 8) {
            in.added += 8;
        }
        in.bits |= byte << (56 - in.count);
        in.count += 8;
    }
    return in;
}
