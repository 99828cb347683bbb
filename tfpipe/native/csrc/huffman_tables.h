/* Tables that decode Huffman codes, several at a look; and new codes.

   Tables are kept for the life of the process by the bytes of the segments that describe them, since many files share
   them. */

#ifndef TFPIPE_HUFFMAN_TABLES_H
#define TFPIPE_HUFFMAN_TABLES_H

#include <stdint.h>

#include "jpeg_format.h"

enum {
    TFPIPE_PAIR_BITS = 12, /* 16 KB: half of a level-1 cache */
    TFPIPE_LEAP_BITS = 11, /* 4 KB */
    TFPIPE_LEAP_LENGTH = 18,
    TFPIPE_COPY_LENGTH = 18,
    TFPIPE_CODE_BITS = 10,
    TFPIPE_DC_BITS = 9,
};

/* Codes without what follows them.

   codes    by the next TFPIPE_CODE_BITS bits: the length of the code times 256, plus the symbol; 0 for a longer one
   limits   by a length: one more than its last code, filled up to 16 bits; what is smaller has at most this length
   offsets  by a length: what is added to a code to get the index of its symbol */
typedef struct {
    uint16_t codes[1 << TFPIPE_CODE_BITS];
    uint32_t limits[17];
    int32_t offsets[17];
    uint8_t symbols[256];
} tfpipe_code_table;

/* A look at DC codes: bits 0 to 5 are the length of the code and its value together, 0 for a longer one; bits 16 to 31
   are the value, signed. */
typedef struct {
    tfpipe_code_table codes;
    uint32_t looks[1 << TFPIPE_DC_BITS];
} tfpipe_dc_table;

/* A look at one or two AC codes: bits 0 to 5 are the length of the codes and their values; 6 to 12 how far the first
   coefficient lies from the last one, or TFPIPE_END, or TFPIPE_LONG; 13 to 19 how far the second lies from the last one,
   as far as the first if there is none, TFPIPE_SECOND_END more if the block ends; 20 to 24 the second value, signed; 25 to
   31 the first value, signed. */
typedef struct {
    tfpipe_code_table codes;
    uint32_t looks[1 << TFPIPE_PAIR_BITS];
} tfpipe_pair_table;

/* A look at up to three AC codes whose values nobody needs: bits 0 to 7 are the length of all codes and their values, at
   most TFPIPE_LEAP_LENGTH; 8 to 15 how far the last coefficient lies from the one before the first, plus TFPIPE_LEAP_END
   if the block ends behind it; 0 for a longer code. */
typedef struct {
    tfpipe_code_table codes;
    uint16_t looks[1 << TFPIPE_LEAP_BITS];
} tfpipe_leap_table;

/* A look at one or two AC codes that get other codes: bits 0 to 5 are the length of the codes and their values, at most
   TFPIPE_COPY_LENGTH; 8 to 15 how far the last coefficient lies from the one before the first, plus TFPIPE_LEAP_END if the
   block ends with the last code; 16 to 23 the last symbol, whose value may lie behind the look; 26 to 27 the number of codes;
   28 to 31 the bits of the last value; 32 to 47 the value of the first of two, and 48 to 55 its symbol. TFPIPE_NO_COPY for a longer code, or one that says that sixteen coefficients are zero. */
typedef struct {
    tfpipe_code_table codes;
    uint64_t looks[1 << TFPIPE_CODE_BITS];
} tfpipe_copy_table;

enum { TFPIPE_END = 100, TFPIPE_LONG = 127, TFPIPE_SECOND_END = 80, TFPIPE_LEAP_END = 128 };

enum { TFPIPE_NO_COPY = 255 << 8 /* a distance that leaves any block */ };

enum { TFPIPE_MOST_AC_BITS = 10 /* of a value in a baseline JPEG of 8 bits a sample */ };

/* The kinds of tables. All but the first are of AC codes. */
enum { TFPIPE_DC, TFPIPE_CODES, TFPIPE_PAIRS, TFPIPE_LEAPS, TFPIPE_COPIES, TFPIPE_KINDS };

/* The tables of a scan, by their kinds and numbers; NULL for those that nobody asked for. */
typedef struct {
    const void *of[TFPIPE_KINDS][TFPIPE_TABLES];
} tfpipe_tables;

/* Gets tables that the scan of a JPEG names, each to be released. `tables` must be zero, or hold tables of another scan,
   which are released.

   needs  which kinds: a bit for each

   Returns TFPIPE_OK, TFPIPE_DAMAGED if a table is missing or is no prefix code, or TFPIPE_NO_MEMORY. */
int tfpipe_get_tables(const tfpipe_jpeg *jpeg, int needs, tfpipe_tables *tables, char *message);

void tfpipe_release_tables(tfpipe_tables *tables);

/* By one more than the number of a coefficient in zigzag: where it lies. */
extern const uint8_t tfpipe_places[64 + TFPIPE_SECOND_END + 1];

/* New codes: how many have each length, from 1 bit on; the symbols in their order; and by symbol the code, and its length in
   bits, 0 for one without a code. */
typedef struct {
    uint8_t counts[16];
    int num_symbols;
    uint8_t symbols[256];
    uint16_t codes[256];
    uint8_t lengths[256];
} tfpipe_new_code;

/* Makes the codes that are the shortest for symbols of these frequencies. */
void tfpipe_make_code(const uint32_t frequencies[256], tfpipe_new_code *code);

#endif
