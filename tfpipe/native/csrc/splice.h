/* Cuts a rectangle out of a JPEG without decoding it: a small JPEG of the intervals that it needs. */

#ifndef TFPIPE_SPLICE_H
#define TFPIPE_SPLICE_H

#include "layout.h"

/* A rectangle of pixels. */
typedef struct {
    int32_t y, x, height, width;
} tfpipe_box;

/* A spliced JPEG.

   data, size      its bytes; `data` is the caller's to free
   y, x            where the small image lies in the whole one, in pixels
   capacity        the bytes that `data` has room for; it grows as needed */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
    size_t *offsets;
    size_t offsets_capacity;
    int32_t y, x;
} tfpipe_splice;

/* Splices the part of a JPEG that the pixels of a box depend on.

   Color that is stored at a lower resolution is blended with its neighbors, so a ring of `margin` pixels around the box
   is taken too. Returns 1 if there is a spliced image; 0 if the JPEG has no suitable markers, or its markers are not
   where they must be, so that it has to be decoded as it is; -1 if there is no memory. */
int tfpipe_splice_box(const uint8_t *data, size_t size, const tfpipe_layout *layout, tfpipe_box box, int32_t margin,
                      tfpipe_splice *splice);

/* Frees the memory of a splice. */
void tfpipe_free_splice(tfpipe_splice *splice);

#endif
