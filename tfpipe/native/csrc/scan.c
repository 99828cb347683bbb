#include "scan.h"

#include <stdlib.h>
#include <string.h>

#define JPEG_INTERNALS
#include <jpegint.h>

#include "huffman.h"

enum {
    LOOK_BITS = 10, /* a table of 4 KB; AC codes of photographs with their bits are rarely longer */
    LEAP_BITS = 10, /* a table of 4 KB; they hold two or three codes of a photograph */
    PADDING = 16,   /* bytes that may be read behind the last interval */
    MARKER = 0xFF,
    RST0 = 0xD0,
    RST7 = 0xD7,
    EOI = 0xD9,
    MOST_TOKENS = 65, /* of a block: no coefficient takes more than one, and one says that the rest is zero */
    SIXTEEN_ZEROS = 0xF0,
    END_OF_BLOCK = 128, /* more places than a block has, also behind the longest run */
    UNKNOWN = 255,
};

/* What the next LOOK_BITS bits begin with.

   kind    COEFFICIENT: a code and its value; CODE: a code without the bits of its value; ZEROS: 16 zeros; END: the rest
           of the block is zero; LONG: a code that is longer than LOOK_BITS, or none
   value   the value; for CODE the number of its bits; for ZEROS 0
   length  the number of bits that are used up
   run     the number of zeros in front of the value */
typedef struct {
    int16_t value;
    uint8_t length;
    uint8_t run : 4, kind : 4;
} look;

enum { COEFFICIENT, CODE, ZEROS, END, LONG };

/* How far the next LEAP_BITS bits lead if nobody needs the values.

   length, advance          the bits of the first code and of its value, and the places of the block that it fills:
                            END_OF_BLOCK for the rest of it; the length is 0 for a code that is longer, or none
   all_length, all_advance  the same for all codes that lie in these bits, none of which ends the block; the advance is
                            END_OF_BLOCK or UNKNOWN if the first one does, or is longer */
typedef struct {
    uint8_t length, advance, all_length, all_advance;
} leap;

/* A Huffman table. Codes of more than LOOK_BITS bits are found by their largest value of each length. */
typedef struct {
    look looks[1 << LOOK_BITS];
    leap leaps[1 << LEAP_BITS]; /* of AC codes only */
    int32_t max_code[18]; /* -1 if there is none of this length */
    int32_t first[17];    /* the index of a length's first symbol, less its first code */
    uint8_t symbols[256];
} table;

/* The bits that come next. Each function takes it out of the scan and puts it back, so that it stays in registers.

   next, most  the next byte, and the last one from which eight may be read
   bits        the next bits, the first one on top
   count       how many of them are valid */
typedef struct {
    const uint8_t *next, *most;
    uint64_t bits;
    int count;
} reader;

struct tfpipe_scan {
    jmp_buf *leave;
    uint8_t *bytes; /* of all intervals, without stuffed bytes */
    size_t *ends;   /* of the intervals in `bytes` */
    size_t intervals, interval;
    int ends_image; /* whether the marker behind the last interval ends the image */
    reader in;
    unsigned restarts_to_go;
    JDIMENSION column; /* of the next MCU in its row */
    int32_t last_dc[MAX_COMPS_IN_SCAN];
    table *dc[NUM_HUFF_TBLS], *ac[NUM_HUFF_TBLS];
};

/* Zigzag places, with some behind the last one for a run that leaves the block. */
static const uint8_t PLACES[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
};

static int32_t extend(int32_t value, int32_t size) { return value < 1 << (size - 1) ? value - (1 << size) + 1 : value; }

/* Fills the looks that begin with a code. */
static void fill_looks(table *to, uint32_t code, int length, uint8_t symbol, int is_dc) {
    const int size = is_dc ? symbol : symbol & 15, run = is_dc ? 0 : symbol >> 4, rest = LOOK_BITS - length;
    look *looks = to->looks + ((size_t)code << rest);
    look entry = {.length = (uint8_t)length, .run = (unsigned)run & 15};
    if (size == 0) {
        entry.kind = is_dc ? COEFFICIENT : run == 15 ? ZEROS : END;
    } else if (size > rest) {
        entry.kind = CODE;
        entry.value = (int16_t)size;
    } else {
        entry.kind = COEFFICIENT;
        entry.length = (uint8_t)(length + size);
    }
    for (int32_t i = 0; i < 1 << rest; i++) {
        if (entry.kind == COEFFICIENT && size > 0) entry.value = (int16_t)extend(i >> (rest - size), size);
        looks[i] = entry;
    }
}

/* Fills the leaps with their first codes. `lengths` gets the bits of these codes alone. */
static void fill_leaps(table *to, uint8_t *lengths) {
    uint32_t code = 0;
    const uint8_t *symbol = to->symbols;
    for (size_t i = 0; i < 1 << LEAP_BITS; i++) to->leaps[i] = (leap){.all_advance = UNKNOWN};
    for (int length = 1; length <= LEAP_BITS; length++, code <<= 1) {
        for (; (int32_t)code <= to->max_code[length]; code++, symbol++) {
            const int size = *symbol & 15, run = *symbol >> 4, rest = LEAP_BITS - length;
            const int advance = size > 0 || run == 15 ? run + 1 : END_OF_BLOCK;
            const size_t first = (size_t)code << rest;
            for (size_t i = first; i < first + ((size_t)1 << rest); i++) {
                to->leaps[i] = (leap){(uint8_t)(length + size), (uint8_t)advance, 0, END_OF_BLOCK};
                lengths[i] = (uint8_t)length;
            }
        }
    }
}

/* Makes the leaps of a table of AC codes. */
static void make_leaps(table *to) {
    uint8_t lengths[1 << LEAP_BITS] = {0};
    fill_leaps(to, lengths);
    for (size_t i = 0; i < 1 << LEAP_BITS; i++) {
        int length = 0, advance = 0;
        while (length < LEAP_BITS) {
            const size_t at = i << length & ((1 << LEAP_BITS) - 1);
            const leap next = to->leaps[at];
            if (next.length == 0 || next.advance == END_OF_BLOCK || length + lengths[at] > LEAP_BITS) break;
            if (advance + next.advance >= 64) break;
            length += next.length;
            advance += next.advance;
        }
        if (advance == 0) continue;
        to->leaps[i].all_length = (uint8_t)length;
        to->leaps[i].all_advance = (uint8_t)advance;
    }
}

/* Makes a table. Returns NULL if the codes are not a prefix code, or if there is no memory. */
static table *make_table(const JHUFF_TBL *from, int is_dc) {
    if (from == NULL) return NULL;
    table *to = malloc(sizeof *to);
    if (to == NULL) return NULL;
    for (size_t i = 0; i < 1 << LOOK_BITS; i++) to->looks[i] = (look){.kind = LONG};
    memcpy(to->symbols, from->huffval, sizeof to->symbols);
    uint32_t code = 0;
    int32_t index = 0;
    for (int length = 1; length <= 16; length++) {
        const int32_t count = from->bits[length];
        to->first[length] = index - (int32_t)code;
        to->max_code[length] = count ? (int32_t)code + count - 1 : -1;
        if (index + count > 256 || code + (uint32_t)count > 1u << length) {
            free(to);
            return NULL;
        }
        for (int32_t i = 0; i < count; i++, index++, code++) {
            const uint8_t symbol = from->huffval[index];
            if (is_dc && symbol > 11) { /* more bits than 8-bit samples can need */
                free(to);
                return NULL;
            }
            if (length <= LOOK_BITS) fill_looks(to, code, length, symbol, is_dc);
        }
        code <<= 1;
    }
    if (!is_dc) make_leaps(to);
    return to;
}

/* Copies the entropy-coded data without stuffed bytes, and notes where intervals end. Returns 0, or -1 if it is unusual
   or if there is no memory. */
static int take_bytes(tfpipe_scan *scan, const uint8_t *data, size_t size, size_t most_intervals) {
    scan->bytes = malloc(size + PADDING);
    scan->ends = malloc(most_intervals * sizeof *scan->ends);
    if (scan->bytes == NULL || scan->ends == NULL) return -1;
    const uint8_t *from = data, *end = data + size;
    size_t used = 0;
    for (;;) {
        const uint8_t *marker = memchr(from, MARKER, (size_t)(end - from));
        if (marker == NULL || end - marker < 2) return -1;
        memcpy(scan->bytes + used, from, (size_t)(marker - from));
        used += (size_t)(marker - from);
        from = marker + 2;
        if (marker[1] == 0) {
            scan->bytes[used++] = MARKER;
            continue;
        }
        if (scan->intervals == most_intervals) return -1;
        const int is_restart = marker[1] >= RST0 && marker[1] <= RST7;
        if (is_restart && marker[1] != RST0 + (int)(scan->intervals % 8)) return -1;
        scan->ends[scan->intervals++] = used;
        scan->ends_image = marker[1] == EOI;
        if (!is_restart) break;
    }
    memset(scan->bytes + used, 0, PADDING);
    scan->in = (reader){.next = scan->bytes, .most = scan->bytes + used + PADDING - sizeof(uint64_t)};
    return scan->intervals == most_intervals ? 0 : -1;
}

__attribute__((noreturn, cold)) static void leave(tfpipe_scan *scan) {
    longjmp(*scan->leave, TFPIPE_LEAVE_TO_LIBJPEG);
}

/* Makes sure that there are at least 56 bits. */
static inline void refill(reader *in, tfpipe_scan *scan) {
    uint64_t bytes;
    if (in->next > in->most) leave(scan);
    memcpy(&bytes, in->next, sizeof bytes);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    bytes = __builtin_bswap64(bytes);
#endif
    in->bits |= bytes >> in->count;
    in->next += (63 - in->count) >> 3;
    in->count |= 56;
}

static inline void skip(reader *in, int count) {
    in->bits <<= count;
    in->count -= count;
}

/* Reads at least one bit. */
static inline int32_t take(reader *in, int count) {
    const int32_t value = (int32_t)(in->bits >> (64 - count));
    skip(in, count);
    return value;
}

static inline look look_ahead(const reader *in, const table *from) { return from->looks[in->bits >> (64 - LOOK_BITS)]; }

/* Reads a code that is longer than `shorter` bits. */
static inline uint8_t take_long_code(reader *in, tfpipe_scan *scan, const table *from, int shorter) {
    for (int length = shorter + 1; length <= 16; length++) {
        const int32_t code = (int32_t)(in->bits >> (64 - length));
        if (code <= from->max_code[length]) {
            skip(in, length);
            return from->symbols[(code + from->first[length]) & 255];
        }
    }
    leave(scan);
}

/* Reads the difference of a block's first coefficient to that of the block before. */
static inline int32_t take_dc(reader *in, tfpipe_scan *scan, const table *from) {
    const look entry = look_ahead(in, from);
    int size = entry.value;
    if (entry.kind == LONG) {
        size = take_long_code(in, scan, from, LOOK_BITS);
    } else {
        skip(in, entry.length);
        if (entry.kind == COEFFICIENT) return entry.value;
    }
    return size ? extend(take(in, size), size) : 0;
}

/* Reads the other coefficients of a block. */
static inline void take_ac(reader *in, tfpipe_scan *scan, const table *from, JCOEF *block) {
    for (int k = 1; k < 64;) {
        refill(in, scan);
        look entry = look_ahead(in, from);
        if (entry.kind == COEFFICIENT) {
            skip(in, entry.length);
            k += entry.run;
            block[PLACES[k++]] = entry.value;
            if (k >= 64) {
                if (k > 64) leave(scan);
                return;
            }
            entry = look_ahead(in, from); /* there are 46 bits or more: enough for a code and its value */
            if (entry.kind == COEFFICIENT) {
                skip(in, entry.length);
                k += entry.run;
                block[PLACES[k++]] = entry.value;
                if (k > 64) leave(scan);
                continue;
            }
        }
        if (entry.kind == END) {
            skip(in, entry.length);
            return;
        }
        int run = entry.run, size = entry.value;
        if (entry.kind == LONG) {
            const uint8_t symbol = take_long_code(in, scan, from, LOOK_BITS);
            run = symbol >> 4;
            size = symbol & 15;
            if (size == 0 && run != 15) return;
        } else {
            skip(in, entry.length);
        }
        if (size == 0) {
            k += 16;
        } else {
            k += run;
            block[PLACES[k++]] = (JCOEF)extend(take(in, size), size);
        }
        if (k > 64) leave(scan);
    }
}

/* Goes past the other coefficients of a block. */
static inline void pass_ac(reader *in, tfpipe_scan *scan, const table *from) {
    for (int k = 1; k < 64;) {
        refill(in, scan);
        leap next = from->leaps[in->bits >> (64 - LEAP_BITS)];
        if (k + next.all_advance < 64) {
            skip(in, next.all_length);
            k += next.all_advance;
            next = from->leaps[in->bits >> (64 - LEAP_BITS)]; /* there are 30 bits or more: enough for a leap */
            if (k + next.all_advance < 64) {
                skip(in, next.all_length);
                k += next.all_advance;
                continue;
            }
        }
        if (next.length > 0) {
            skip(in, next.length);
            k += next.advance;
        } else {
            const uint8_t symbol = take_long_code(in, scan, from, LEAP_BITS);
            const int size = symbol & 15, run = symbol >> 4;
            if (size == 0 && run != 15) return;
            refill(in, scan);
            skip(in, size);
            k += run + 1;
        }
        if (k > 64 && k < END_OF_BLOCK) leave(scan);
    }
}

/* Returns the number of bytes that are used up, a part of one counted as a whole. */
static size_t count_used(const tfpipe_scan *scan) {
    return (size_t)(scan->in.next - scan->bytes) - (size_t)(scan->in.count >> 3);
}

/* Goes on behind a restart marker, if the interval before it was used up. */
static void begin_interval(tfpipe_scan *scan, j_decompress_ptr jpeg) {
    if (count_used(scan) != scan->ends[scan->interval] || scan->interval + 1 == scan->intervals) leave(scan);
    scan->in.next = scan->bytes + scan->ends[scan->interval++];
    scan->in.bits = 0;
    scan->in.count = 0;
    scan->restarts_to_go = jpeg->restart_interval;
    memset(scan->last_dc, 0, sizeof scan->last_dc);
}

/* Takes the place of libjpeg's function of the same name. It reads past an MCU without blocks, or beside the crop: libjpeg
   makes no pixels of the latter. */
static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    tfpipe_scan *scan = tfpipe_scan_of(jpeg);
    if (jpeg->restart_interval) {
        if (scan->restarts_to_go == 0) begin_interval(scan, jpeg);
        scan->restarts_to_go--;
    }
    const JDIMENSION column = scan->column;
    scan->column = column + 1 < jpeg->MCUs_per_row ? column + 1 : 0;
    const int is_needed =
        blocks != NULL && column >= jpeg->master->first_iMCU_col && column <= jpeg->master->last_iMCU_col;
    reader in = scan->in;
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        const int component = jpeg->MCU_membership[i];
        const jpeg_component_info *info = jpeg->cur_comp_info[component];
        const table *ac = scan->ac[info->ac_tbl_no];
        refill(&in, scan);
        scan->last_dc[component] += take_dc(&in, scan, scan->dc[info->dc_tbl_no]);
        if (is_needed) {
            blocks[i][0][0] = (JCOEF)scan->last_dc[component];
            take_ac(&in, scan, ac, blocks[i][0]);
        } else {
            pass_ac(&in, scan, ac);
        }
    }
    scan->in = in;
    if (count_used(scan) > scan->ends[scan->interval]) leave(scan);
    return TRUE;
}

tfpipe_scan *tfpipe_take_scan(struct jpeg_decompress_struct *jpeg, jmp_buf *leave_to) {
    if (jpeg->progressive_mode || jpeg->arith_code || jpeg->inputctl->has_multiple_scans || jpeg->data_precision != 8 ||
        jpeg->comps_in_scan != jpeg->num_components || jpeg->unread_marker != 0)
        return NULL;
    size_t intervals = 1;
    if (jpeg->restart_interval) {
        const size_t mcus = (size_t)jpeg->MCUs_per_row * (size_t)jpeg->MCU_rows_in_scan;
        intervals = (mcus + jpeg->restart_interval - 1) / jpeg->restart_interval;
    }
    /* Each interval has a marker, so a lying header cannot ask for much memory. */
    if (intervals > jpeg->src->bytes_in_buffer / 2) return NULL;
    tfpipe_scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL) return NULL;
    scan->leave = leave_to;
    scan->restarts_to_go = jpeg->restart_interval;
    int usual = take_bytes(scan, jpeg->src->next_input_byte, jpeg->src->bytes_in_buffer, intervals) == 0;
    for (int i = 0; usual && i < jpeg->comps_in_scan; i++) {
        const int dc = jpeg->cur_comp_info[i]->dc_tbl_no, ac = jpeg->cur_comp_info[i]->ac_tbl_no;
        usual = dc >= 0 && dc < NUM_HUFF_TBLS && ac >= 0 && ac < NUM_HUFF_TBLS;
        if (usual && scan->dc[dc] == NULL) scan->dc[dc] = make_table(jpeg->dc_huff_tbl_ptrs[dc], 1);
        if (usual && scan->ac[ac] == NULL) scan->ac[ac] = make_table(jpeg->ac_huff_tbl_ptrs[ac], 0);
        usual = usual && scan->dc[dc] != NULL && scan->ac[ac] != NULL;
    }
    if (!usual) {
        tfpipe_free_scan(scan);
        return NULL;
    }
    jpeg->entropy->decode_mcu = decode_mcu;
    return scan;
}

static int is_at_end(const tfpipe_scan *scan) {
    const int is_last = scan->interval + 1 == scan->intervals;
    return is_last && scan->ends_image && count_used(scan) == scan->ends[scan->interval];
}

int tfpipe_read_past_scan(struct jpeg_decompress_struct *jpeg) {
    const size_t mcus = (size_t)jpeg->MCUs_per_row * (size_t)jpeg->MCU_rows_in_scan;
    for (size_t i = 0; i < mcus; i++) decode_mcu(jpeg, NULL);
    return is_at_end(tfpipe_scan_of(jpeg)) ? 0 : -1;
}

/* Returns a symbol with its bits: a negative value has those of the number before it. */
static inline uint32_t make_token(int run, int bits, int value) {
    return (uint32_t)(run << 4 | bits) << 16 | ((uint32_t)(value + (value >> 31)) & ((1u << bits) - 1));
}

/* Reads the symbols of a block but the first, in the one form that a coder gives them: no zeros stand in front of the
   symbol that says that the rest is zero. Returns the place behind the last token, or NULL if a value is too large. */
static inline uint32_t *take_ac_tokens(reader *in, tfpipe_scan *scan, const table *from, uint32_t *to,
                                       uint32_t *counts) {
    int zeros = 0;
    for (int k = 1; k < 64;) {
        refill(in, scan);
        const look entry = look_ahead(in, from);
        int run = entry.run, value = entry.value, bits;
        if (entry.kind == COEFFICIENT) {
            skip(in, entry.length);
            bits = tfpipe_count_bits(value);
        } else {
            if (entry.kind == LONG) {
                const uint8_t symbol = take_long_code(in, scan, from, LOOK_BITS);
                run = symbol >> 4;
                bits = symbol & 15;
            } else {
                skip(in, entry.length);
                bits = entry.kind == CODE ? value : 0;
                if (entry.kind == ZEROS) run = 15;
                if (entry.kind == END) run = 0;
            }
            if (bits == 0) {
                if (run != 15) break;
                zeros++;
                k += 16;
                if (k > 64) leave(scan);
                continue;
            }
            value = extend(take(in, bits), bits);
        }
        k += run + 1;
        if (k > 64) leave(scan);
        if (bits > TFPIPE_MOST_AC_BITS) return NULL;
        for (; zeros > 0; zeros--) {
            *to++ = SIXTEEN_ZEROS << 16;
            counts[SIXTEEN_ZEROS]++;
        }
        *to++ = make_token(run, bits, value);
        counts[run << 4 | bits]++;
        if (k == 64) {
            to[-1] |= TFPIPE_LAST_OF_BLOCK;
            return to;
        }
    }
    *to++ = TFPIPE_LAST_OF_BLOCK;
    counts[0]++;
    return to;
}

/* Makes sure that there is room for the tokens of an MCU. */
static int make_room(tfpipe_symbols *symbols, size_t at_least) {
    const size_t needed = D_MAX_BLOCKS_IN_MCU * MOST_TOKENS;
    if (symbols->capacity - symbols->count >= needed) return 0;
    const size_t capacity = 2 * symbols->capacity + at_least + needed;
    uint32_t *tokens = realloc(symbols->tokens, capacity * sizeof *tokens);
    if (tokens == NULL) return -1;
    symbols->tokens = tokens;
    symbols->capacity = capacity;
    return 0;
}

/* Reads the symbols of an MCU.

   across, down  the place of its first block among those of each component, in MCUs
   last          the first coefficient of each component's block before, as the output codes it */
static int read_mcu_symbols(j_decompress_ptr jpeg, const struct jpeg_compress_struct *output, tfpipe_symbols *symbols,
                            JDIMENSION across, JDIMENSION down, int *last) {
    tfpipe_scan *scan = tfpipe_scan_of(jpeg);
    uint32_t ignored[MOST_TOKENS];
    uint32_t *to = symbols->tokens + symbols->count;
    reader in = scan->in;
    int place = 0, component = -1; /* of the block among those of its component */
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        place = jpeg->MCU_membership[i] == component ? place + 1 : 0;
        component = jpeg->MCU_membership[i];
        const jpeg_component_info *info = jpeg->cur_comp_info[component];
        const jpeg_component_info *target = &output->comp_info[info->component_index];
        uint32_t *dc = symbols->dc[target->dc_tbl_no], *ac = symbols->ac[target->ac_tbl_no];
        refill(&in, scan);
        scan->last_dc[component] += take_dc(&in, scan, scan->dc[info->dc_tbl_no]);
        const JDIMENSION x = across * (JDIMENSION)info->MCU_width + (JDIMENSION)(place % info->MCU_width);
        const JDIMENSION y = down * (JDIMENSION)info->MCU_height + (JDIMENSION)(place / info->MCU_width);
        if (x >= info->width_in_blocks || y >= info->height_in_blocks) {
            if (take_ac_tokens(&in, scan, scan->ac[info->ac_tbl_no], ignored, symbols->ignored) == NULL) return -1;
            *to++ = 0;
            *to++ = TFPIPE_LAST_OF_BLOCK;
            dc[0]++;
            ac[0]++;
            continue;
        }
        const int value = (JCOEF)scan->last_dc[component], difference = value - last[component];
        const int bits = tfpipe_count_bits(difference);
        if (bits > TFPIPE_MOST_DC_BITS) return -1;
        last[component] = value;
        *to++ = make_token(0, bits, difference);
        dc[bits]++;
        to = take_ac_tokens(&in, scan, scan->ac[info->ac_tbl_no], to, ac);
        if (to == NULL) return -1;
    }
    symbols->count = (size_t)(to - symbols->tokens);
    scan->in = in;
    if (count_used(scan) > scan->ends[scan->interval]) leave(scan);
    return 0;
}

int tfpipe_read_symbols(struct jpeg_decompress_struct *jpeg, const struct jpeg_compress_struct *output,
                        tfpipe_symbols *symbols) {
    tfpipe_scan *scan = tfpipe_scan_of(jpeg);
    int last[MAX_COMPS_IN_SCAN] = {0};
    const size_t at_least = jpeg->src->bytes_in_buffer; /* most photographs have a symbol in each 6 or 7 bits */
    for (JDIMENSION down = 0; down < jpeg->MCU_rows_in_scan; down++) {
        for (JDIMENSION across = 0; across < jpeg->MCUs_per_row; across++) {
            if (make_room(symbols, at_least) != 0) return -1;
            if (jpeg->restart_interval) {
                if (scan->restarts_to_go == 0) begin_interval(scan, jpeg);
                scan->restarts_to_go--;
            }
            if (across % output->restart_interval == 0) memset(last, 0, sizeof last);
            if (read_mcu_symbols(jpeg, output, symbols, across, down, last) != 0) return -1;
        }
    }
    return is_at_end(scan) ? 0 : -1;
}

void tfpipe_free_scan(tfpipe_scan *scan) {
    if (scan == NULL) return;
    for (int i = 0; i < NUM_HUFF_TBLS; i++) {
        free(scan->dc[i]);
        free(scan->ac[i]);
    }
    free(scan->bytes);
    free(scan->ends);
    free(scan);
}
