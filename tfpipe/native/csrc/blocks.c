#include "blocks.h"

#define END 64
const uint8_t tfpipe_places[64 + TFPIPE_SECOND_END + 1] = {
    0,   0,   1,   8,   16,  9,   2,   3,   10,  17,  24,  32,  25,  18,  11,  4,   5,   12,  19,  26,  33,  40,
    48,  41,  34,  27,  20,  13,  6,   7,   14,  21,  28,  35,  42,  49,  56,  57,  50,  43,  36,  29,  22,  15,
    23,  30,  37,  44,  51,  58,  59,  52,  45,  38,  31,  39,  46,  53,  60,  61,  54,  47,  55,  62,  63,  END,
    END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END,
    END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END,
    END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END, END,
    END, END, END, END, END, END, END, END, END, END, END, END, END,
};

tfpipe_step tfpipe_take_long_ac(tfpipe_bits in, const tfpipe_ac_table *from, int k, int16_t *block) {
    tfpipe_refill(&in);
    const int symbol = tfpipe_take_code(&in, &from->codes);
    const int size = symbol & 15, run = symbol >> 4;
    if (symbol < 0) return (tfpipe_step){in, 64 + 1}; /* as a run that leaves the block */
    if (size == 0) return (tfpipe_step){in, run == 15 ? k + 16 : k + TFPIPE_SECOND_END};
    const int16_t value = (int16_t)tfpipe_extend(tfpipe_take_bits(&in, size), size);
    k += run + 1;
    if (block != NULL) block[tfpipe_places[k]] = value;
    return (tfpipe_step){in, k};
}
