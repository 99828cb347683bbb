/* The rows of a crop, resized to the result that was asked for. */

#ifndef TFPIPE_OUTPUT_H
#define TFPIPE_OUTPUT_H

#include "resize.h"
#include "tfpipe_native.h"

/* Where the result of a request goes, row by row.

   columns, rows  of the result among those of the crop; NULL if pixels stay as they are
   lines          two rows of the crop, interpolated to the result's columns
   line_rows      which rows of the crop they are; -1 for none
   done           the rows of the result that are written
   streams        whether floats are written around the caches */
typedef struct {
    const tfpipe_request *request;
    tfpipe_between *columns, *rows;
    float *lines[2];
    int32_t line_rows[2];
    float *offset, *factor, *values;
    uint8_t *out;
    int32_t done;
    int streams;
} tfpipe_output;

/* Prepares to write the result for a crop of this size.

   streams  whether the result is one of so many that they do not stay in the caches

   Returns 0, or -1 if there is no memory. */
int tfpipe_open_output(tfpipe_output *to, const tfpipe_request *request, int32_t height, int32_t width, int streams,
                       void *out);

/* Takes one row of the crop, the rows in order, and writes the rows of the result that it completes. A pixel behind the
   last one must be readable. */
void tfpipe_put_row(tfpipe_output *to, int32_t row, const uint8_t *pixels, int32_t width);

void tfpipe_close_output(tfpipe_output *to);

#endif
