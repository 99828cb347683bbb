/* Where the parts of a JPEG lie: its frame, and the intervals between restart markers.

   A JPEG codes MCUs, blocks of 8 to 32 pixels a side, row after row. A restart marker makes the MCUs behind it readable
   without those before it. If the number of MCUs between two markers divides a row, the MCUs of any rectangle can be
   found, and a small JPEG of them is made by copying bytes: see splice.h. */

#ifndef TFPIPE_LAYOUT_H
#define TFPIPE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum { TFPIPE_MAX_COMPONENTS = 4 };

/* The frame of a JPEG.

   width, height          the size in pixels
   mcu_width, mcu_height  the pixels of an MCU
   mcus_per_row, mcu_rows the MCUs of the image
   restart_interval       the MCUs between two restart markers; 0 without markers
   intervals_per_row      the intervals of a row of MCUs; 0 if they do not divide it: then nothing can be spliced
   frame                  the offset of the marker that begins the frame header
   scan                   the offset of the first byte of entropy-coded data
   baseline               whether there is one scan of all components, Huffman-coded, 8 bits deep */
typedef struct {
    int32_t width, height;
    int32_t components;
    int32_t mcu_width, mcu_height;
    int32_t mcus_per_row, mcu_rows;
    int32_t restart_interval;
    int32_t intervals_per_row;
    size_t frame, scan;
    int baseline;
} tfpipe_layout;

/* Reads the headers of a JPEG up to its first scan. Returns 0, or -1 if they are damaged or of an unknown kind. */
int tfpipe_read_layout(const uint8_t *data, size_t size, tfpipe_layout *layout);

/* Finds where each interval begins, and where the last one ends: offsets[0] to offsets[count].

   The offset of an interval is that of its first byte of data; the marker in front of it is not a part of it, but the
   end of the interval before. Returns 0, or -1 if the markers are not as many as the layout says, or not in order. */
int tfpipe_find_intervals(const uint8_t *data, size_t size, const tfpipe_layout *layout, size_t *offsets,
                          size_t count);

#endif
