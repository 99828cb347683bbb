/* The segments of a JPEG: its frame, tables and scans. This is the only place that reads them.

   Segments are found as libjpeg finds them, so that a file has one meaning: bytes between segments, fill bytes, stuffed
   zeros and markers without parameters are passed over. */

#ifndef TFPIPE_JPEG_FORMAT_H
#define TFPIPE_JPEG_FORMAT_H

#include <stddef.h>
#include <stdint.h>

enum {
    TFPIPE_MAX_COMPONENTS = 4,
    TFPIPE_MAX_BLOCKS = 10, /* of an MCU */
    TFPIPE_TABLES = 4,      /* quantization tables, and Huffman tables of each class */
};

enum {
    TFPIPE_MARKER = 0xFF,
    TFPIPE_RST0 = 0xD0,
    TFPIPE_SOI = 0xD8,
    TFPIPE_EOI = 0xD9,
};

/* How the components make a color. */
typedef enum { TFPIPE_GRAY, TFPIPE_YCC, TFPIPE_RGB, TFPIPE_CMYK, TFPIPE_YCCK } tfpipe_color;

/* The codes of a Huffman table as they stand in the file: 16 counts of codes by length, then the symbols. The bytes are
   the file's; NULL if there is no such table. */
typedef struct {
    const uint8_t *counts;
    int num_symbols;
} tfpipe_codes;

/* A component of the image.

   id               its name in the headers of scans
   factors          the sampling factors as the file has them: h in the upper four bits, v in the lower
   h, v             the blocks of an MCU across and down
   quant_table      the number of its quantization table
   is_quantized     whether `quant` is set: it is taken when the component's first scan begins
   quant            the factors, in the order of rows
   wide, high       the blocks that hold the image
   mcu_wide         the blocks of all MCUs of a row: `wide`, filled up to a multiple of h
   mcu_high         the same of a column */
typedef struct {
    uint8_t id, factors, h, v, quant_table;
    int is_quantized;
    uint16_t quant[64];
    int32_t wide, high, mcu_wide, mcu_high;
} tfpipe_component;

/* The header of a scan.

   count           its components
   components      which ones of the image
   dc, ac          the numbers of their Huffman tables
   first, last     the coefficients that it holds, in the order of zigzag
   high_bit        the bit that the scan before has reached; 0 for the first scan of these coefficients
   low_bit         the lowest bit that it holds
   mcus_per_row, mcu_rows
   num_blocks      the blocks of an MCU
   block_component of each block of an MCU: which component of the scan */
typedef struct {
    int count;
    int components[TFPIPE_MAX_COMPONENTS];
    uint8_t dc[TFPIPE_MAX_COMPONENTS], ac[TFPIPE_MAX_COMPONENTS];
    uint8_t first, last, high_bit, low_bit;
    int32_t mcus_per_row, mcu_rows;
    int num_blocks;
    uint8_t block_component[TFPIPE_MAX_BLOCKS];
} tfpipe_scan;

#define TFPIPE_SURPLUS "it has more data than blocks"

/* A copy of a file without padding.

   from, to  the next byte of the file that is not copied, and where it goes
   places    the markers that had padding in front of them
   doubtful  whether one may have had 0xFF and its stuffed zero, and one bit was flipped */
typedef struct {
    const uint8_t *from;
    uint8_t *to;
    int places, doubtful;
} tfpipe_copy;

/* A JPEG that is read up to some byte.

   data, size        the file
   at                the offset of the next byte that is not read
   progressive       whether scans refine the coefficients
   max_h, max_v      the largest factors of the components
   mcus_per_row, mcu_rows   of scans with all components
   restart_interval  the MCUs between two restart markers; 0 for none
   jfif              the 14 bytes of JFIF's segment; NULL without one
   has_adobe         whether Adobe's segment was seen
   scan              the header of the scan that begins at `at`
   copy              gets the file without padding; NULL: padding is damage */
typedef struct {
    const uint8_t *data;
    size_t size, at;
    int32_t width, height;
    int num_components, progressive;
    tfpipe_component components[TFPIPE_MAX_COMPONENTS];
    int max_h, max_v;
    int32_t mcus_per_row, mcu_rows;
    int32_t restart_interval;
    tfpipe_color color;
    const uint8_t *jfif;
    int has_adobe, adobe_transform;
    int has_quant[TFPIPE_TABLES];
    uint16_t quant[TFPIPE_TABLES][64];
    tfpipe_codes dc[TFPIPE_TABLES], ac[TFPIPE_TABLES];
    int num_scans;
    tfpipe_scan scan;
    tfpipe_copy *copy;
} tfpipe_jpeg;

/* Zigzag: the place of each coefficient in a block of rows. */
extern const uint8_t tfpipe_zigzag[64];

/* Reads the headers up to the first scan.

   max_pixels  the most pixels that the image may have
   message     TFPIPE_MESSAGE_BYTES for what is wrong

   Returns TFPIPE_OK, TFPIPE_DAMAGED, TFPIPE_TOO_LARGE or TFPIPE_UNSUPPORTED. */
int tfpipe_open_jpeg(tfpipe_jpeg *jpeg, const uint8_t *data, size_t size, int64_t max_pixels, char *message);

/* What follows a scan. */
enum { TFPIPE_ENDS = -1 };

/* Reads the segments behind a scan up to the next one. Returns as tfpipe_open_jpeg, or TFPIPE_ENDS if the image ends. */
int tfpipe_next_scan(tfpipe_jpeg *jpeg, char *message);

/* Finds the next marker from `jpeg->at` on, and goes behind it. Returns it, or -1 if there is none. */
int tfpipe_find_marker(tfpipe_jpeg *jpeg);

/* Writes a phrase to `message`, and returns `result`. */
int tfpipe_complain(char *message, int result, const char *phrase);

/* Returns whether all components are in one scan that is not refined: it is decoded row by row. */
static inline int tfpipe_is_one_scan(const tfpipe_jpeg *jpeg) {
    return !jpeg->progressive && jpeg->scan.count == jpeg->num_components;
}

#endif
