/* Huffman codes that are the shortest for the coefficients of an image.

   libjpeg can make such codes too. But it counts the symbols with a branch for each of a block's 64 coefficients, which
   takes twice as long as decoding them. */

#ifndef TFPIPE_HUFFMAN_H
#define TFPIPE_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

/* Makes the codes of `output` for coefficients that `input` has read. They are written with `output->restart_interval`,
   which divides a row of MCUs.

   Returns 0, or -1 if a coefficient is larger than a baseline JPEG can have. libjpeg's errors leave by its own way. */
int tfpipe_make_codes(struct jpeg_decompress_struct *input, struct jpeg_compress_struct *output,
                      jvirt_barray_ptr *coefficients);

/* Makes the codes of `output` for symbols that were counted by the number of its tables. */
void tfpipe_make_codes_of(struct jpeg_compress_struct *output, uint32_t (*dc)[256], uint32_t (*ac)[256]);

/* Counts the bits of a value without its sign. No branch depends on the sign, which nothing predicts. */
static inline int tfpipe_count_bits(int value) {
    const int sign = value >> 31;
    return 32 - __builtin_clz((unsigned)((value ^ sign) - sign) << 1 | 1) - 1;
}

/* The most bits of a value in a baseline JPEG of 8 bits a sample. */
enum { TFPIPE_MOST_DC_BITS = 11, TFPIPE_MOST_AC_BITS = 10 };

#endif
