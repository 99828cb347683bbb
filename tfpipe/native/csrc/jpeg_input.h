/* libjpeg's decompressor on bytes in memory, whose errors come back by longjmp. */

#ifndef TFPIPE_JPEG_INPUT_H
#define TFPIPE_JPEG_INPUT_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#include "scan.h"

/* A decompressor.

   message   TFPIPE_MESSAGE_BYTES for the first complaint
   strict    whether a warning is an error too
   opened    whether there is something to close
   scan      what decodes the scan in libjpeg's place; NULL if libjpeg does */
typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    struct jpeg_source_mgr source;
    jmp_buf jump;
    char *message;
    int strict;
    int opened;
    tfpipe_scan *scan;
} tfpipe_input;

/* Makes the decompressor. The caller has called setjmp on `input->jump`, and has set `message` and `strict`. */
void tfpipe_open_input(tfpipe_input *input, const uint8_t *data, size_t size);

void tfpipe_close_input(tfpipe_input *input);

#endif
