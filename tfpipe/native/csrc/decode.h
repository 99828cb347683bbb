/* What a batch asks of the decoder. */

#ifndef TFPIPE_DECODE_H
#define TFPIPE_DECODE_H

#include "tfpipe_native.h"

/* Does what tfpipe_decode does.

   streams  whether the image is one of so many that they do not stay in the caches */
int tfpipe_decode_one_of_many(const uint8_t *data, size_t size, const tfpipe_request *request, int streams, void *out,
                              char *message);

/* Does what tfpipe_resize_batch does with each image of this height and width. */
int tfpipe_resize_pixels(const tfpipe_bytes *pixels, const int32_t size[2], const tfpipe_request *request, int streams,
                         void *out);

#endif
