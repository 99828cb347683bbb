#ifndef TFPIPE_DECODE_H
#define TFPIPE_DECODE_H

#include "tfpipe_native.h"

/* Does what tfpipe_decode does. `streams`: whether the image is one of so many that they do not stay in the caches. */
int tfpipe_decode_one_of_many(const uint8_t *data, size_t size, const tfpipe_request *request, int streams, void *out,
                              char *message);

#endif
