/* The coefficients of a JPEG of several scans: progressive ones, and those whose scans have single components. */

#ifndef TFPIPE_COEFFICIENTS_H
#define TFPIPE_COEFFICIENTS_H

#include "jpeg_format.h"

/* The coefficients of each component: 64 in the order of rows for each block, `mcu_wide` blocks in a row. */
typedef struct {
    int16_t *blocks[TFPIPE_MAX_COMPONENTS];
} tfpipe_coefficients;

/* Reads all scans from the one on at which `jpeg` stands, which is left behind the last.

   Memory is asked for only if the file is long enough to have so many blocks.

   is_strict    whether bytes between a scan and the next marker are damage; decoders pass over them
   is_complete  set to whether all coefficients that decoders smooth over otherwise are known to the last bit

   Returns TFPIPE_OK, TFPIPE_DAMAGED, TFPIPE_UNSUPPORTED or TFPIPE_NO_MEMORY. */
int tfpipe_read_coefficients(tfpipe_jpeg *jpeg, tfpipe_coefficients *to, int is_strict, int *is_complete,
                             char *message);

void tfpipe_free_coefficients(tfpipe_coefficients *of);

#endif
