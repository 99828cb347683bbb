/* Huffman decoding of a baseline scan, in place of libjpeg's, which takes most of the time of a crop.

   It differs in three ways. Stuffed bytes are taken out beforehand, so the bit buffer is refilled without a look at each
   byte. One look into a table gives a coefficient: its code and its own bits together, if they are short, as most are. And
   blocks that nobody needs are read past without being stored.

   Whatever is not as it should be is left to libjpeg, which is asked to decode the image from its beginning. So damaged
   images have the pixels and the messages that libjpeg gives them. */

#ifndef TFPIPE_SCAN_H
#define TFPIPE_SCAN_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

typedef struct tfpipe_scan tfpipe_scan;

/* Makes libjpeg decode the scan that it is about to begin with the functions here.

   To be called after jpeg_start_decompress. `jpeg->client_data` must lead to the scan: see `tfpipe_scan_of`. If the scan
   turns out to be unusual, the decoder jumps to `leave` with the value TFPIPE_LEAVE_TO_LIBJPEG.

   Returns the scan, to be freed by tfpipe_free_scan; or NULL if it is of a kind that is left to libjpeg, or if there is no
   memory. */
tfpipe_scan *tfpipe_take_scan(struct jpeg_decompress_struct *jpeg, jmp_buf *leave);

/* Reads past all blocks of the scan that tfpipe_take_scan returned, and stores none.

   Returns 0 if all of its bytes are used up and the image ends behind it; or -1, to leave it to libjpeg. */
int tfpipe_read_past_scan(struct jpeg_decompress_struct *jpeg);

/* The symbols of a scan in the order of its blocks, each with the bits behind it: what is needed to code it anew.

   tokens    the symbols: TFPIPE_LAST_OF_BLOCK if it is that, the symbol itself from bit 16 on, and its bits below
   dc, ac    how often each symbol occurs, by the number of the output's table
   ignored   how often each occurs in blocks outside the image */
typedef struct {
    uint32_t *tokens;
    size_t count, capacity;
    uint32_t dc[NUM_HUFF_TBLS][256], ac[NUM_HUFF_TBLS][256], ignored[256];
} tfpipe_symbols;

#define TFPIPE_LAST_OF_BLOCK (1u << 31)

/* Reads the symbols of the scan that tfpipe_take_scan returned, as `output` has to code them: with its restart interval,
   which divides a row of MCUs, and with empty blocks outside the image.

   symbols  all zeros before; `tokens` is to be freed, also after an error or a jump

   Returns as tfpipe_read_past_scan; -1 also if a coefficient is too large for a baseline JPEG, or without memory. */
int tfpipe_read_symbols(struct jpeg_decompress_struct *jpeg, const struct jpeg_compress_struct *output,
                        tfpipe_symbols *symbols);

void tfpipe_free_scan(tfpipe_scan *scan);

/* The scan that belongs to a decompressor; the caller of tfpipe_take_scan defines it. */
tfpipe_scan *tfpipe_scan_of(j_decompress_ptr jpeg);

enum { TFPIPE_LEAVE_TO_LIBJPEG = 2 };

#endif
