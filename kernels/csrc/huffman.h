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

#endif
