/* A JPEG whose one scan holds all components: its blocks become samples as they are read. */

#ifndef TFPIPE_SEQUENTIAL_H
#define TFPIPE_SEQUENTIAL_H

#include "bit_reader.h"
#include "huffman_tables.h"
#include "planes.h"

/* A component of the scan while a row of MCUs is read.

   is_accurate which transform makes samples of full size
   leaps       NULL if so few blocks are passed over that the table would not be worth its making
   last_dc     the first coefficient of the block before
   first, end  the columns of blocks whose samples are needed
   rows        where the samples of each row of blocks begin, at the column `first`; NULL if none is needed */
typedef struct {
    const tfpipe_dc_table *dc;
    const tfpipe_pair_table *pairs;
    const tfpipe_leap_table *leaps;
    const int16_t *factors;
    size_t stride;
    int is_accurate;
    int32_t side, h, v, last_dc, first, end;
    uint8_t *rows[4];
} tfpipe_channel;

/* The scan, and where its next MCU is.

   intervals      the offset of each interval in the file, and of the end of the last; NULL if none is left out
   num_intervals  those up to the last that is needed
   next_mcu       the number of the next MCU
   left           the MCUs up to the end of the interval
   has_begun      whether an interval has begun
   channels       the components of the scan */
typedef struct {
    const tfpipe_jpeg *jpeg;
    tfpipe_planes *planes;
    tfpipe_tables tables;
    tfpipe_bits in;
    size_t *intervals;
    int64_t num_intervals;
    int64_t next_mcu;
    int32_t left;
    int has_begun;
    tfpipe_channel channels[TFPIPE_MAX_COMPONENTS];
} tfpipe_sequence;

/* Begins to read the scan at which `jpeg` stands, for the pixels that the planes need.

   seeks  whether to skip what is not needed by restart markers

   Returns TFPIPE_OK, TFPIPE_DAMAGED or TFPIPE_NO_MEMORY. */
int tfpipe_begin_sequence(tfpipe_sequence *self, const tfpipe_jpeg *jpeg, tfpipe_planes *planes, int seeks,
                          char *message);

/* Reads up to the end of a row of MCUs, and makes the samples of its needed blocks. Returns TFPIPE_OK or TFPIPE_DAMAGED. */
int tfpipe_read_mcu_row(tfpipe_sequence *self, int32_t row, char *message);

void tfpipe_end_sequence(tfpipe_sequence *self);

/* Ends an interval whose blocks are read: the next byte is that of a marker. Zeros in front of it are left out of
   `jpeg->copy`. Returns NULL, or a phrase that says what is wrong. */
const char *tfpipe_end_interval(const tfpipe_jpeg *jpeg, tfpipe_bits *in);

/* Ends an interval, and goes behind the restart marker that must come next, the one with this number modulo 8. Returns as
   tfpipe_end_interval. */
const char *tfpipe_pass_restart(const tfpipe_jpeg *jpeg, tfpipe_bits *in, int number);

/* Ends a scan that was read to its last block. Returns TFPIPE_OK if nothing follows but the end of the image. */
int tfpipe_end_scan(tfpipe_jpeg *jpeg, tfpipe_bits *in, char *message);

#endif
