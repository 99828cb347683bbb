/* Huffman codes that are the shortest for symbols that were counted. */

#ifndef TFPIPE_HUFFMAN_CODES_H
#define TFPIPE_HUFFMAN_CODES_H

#include <stdint.h>

/* counts   the codes of each length, from 1 bit on
   symbols  in the order of their codes
   codes    by symbol
   lengths  by symbol, in bits; 0 for one without a code */
typedef struct {
    uint8_t counts[16];
    int num_symbols;
    uint8_t symbols[256];
    uint16_t codes[256];
    uint8_t lengths[256];
} tfpipe_new_code;

/* Makes the codes for the frequencies of symbols. */
void tfpipe_make_code(const uint32_t frequencies[256], tfpipe_new_code *code);

#endif
