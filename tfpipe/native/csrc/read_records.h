/* Records of TFRecord files: what the functions that read many of them have in common. */

#ifndef TFPIPE_READ_RECORDS_H
#define TFPIPE_READ_RECORDS_H

#include "tfpipe_native.h"

/* The framing of a record.

   TFPIPE_HEADER_BYTES  the length of the payload in 8 bytes, then the checksum of these in 4
   TFPIPE_FOOTER_BYTES  the checksum of the payload */
enum { TFPIPE_HEADER_BYTES = 12, TFPIPE_FOOTER_BYTES = 4 };

/* Reads what lies in the page cache, and asks storage for the rest without waiting for it. Returns the bytes read.

   ahead  the bytes from the beginning of the span on that storage is asked for, if they are more than its own */
TFPIPE_EXPORT size_t tfpipe_read_cached(const tfpipe_span *span, uint8_t *target, size_t ahead);

/* Reads the rest of a span, of which `done` bytes are read. What cannot be read becomes zeros, which no checksum of a
   header fits. */
TFPIPE_EXPORT void tfpipe_read_rest(const tfpipe_span *span, uint8_t *target, size_t done);

/* Returns whether a record with its framing, of `size` bytes, has that length and the right checksums. */
TFPIPE_EXPORT int tfpipe_is_whole(const uint8_t *frame, size_t size);

#endif
