/* A JPEG is checked, or rewritten without loss: the same coefficients, in one scan of Huffman codes made for them, with
   restart markers that divide a row of MCUs.

   A JPEG of one scan is rewritten by its symbols: each keeps the bits of its value, and gets another code. One of several
   scans is rewritten by its coefficients. */

#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "coefficients.h"
#include "sequential.h"
#include "tfpipe_native.h"
#include "versions.h"

/* The pixels between two restart markers: a marker costs about two bytes, and a crop decodes half an interval in vain
   on each side. */
enum { MOST_PIXELS = 96, LEAST_PIXELS = 24 };

/* Tables of codes: one for the first component, and one for color. */
enum { CODES = 2, DC_CLASS = 0, AC_CLASS = 2, CLASSES = 4 };

enum {
    MOST_DC_BITS = 11, /* of a value in a baseline JPEG of 8 bits a sample */
    SIXTEEN_ZEROS = 0xF0,
    LOOKS = 1 << TFPIPE_CODE_BITS,
    KINDS = LOOKS * (1 + TFPIPE_TABLES * CODES), /* of tokens */
    MOST_TOKENS = 65, /* of a block: no coefficient takes more than one, and one says that the rest is zero */
    PADDING = 16,     /* bytes behind the data that may be written in vain */
};

/* What is coded, in the order of blocks.

   A token has its kind in the bits from 16 on, and the bits of a value below. The first LOOKS kinds are the symbols of four
   tables. Then come the looks at the file's codes, for each of its tables and each of the new ones: one or two symbols.

   tokens, count, room
   ends         the number of tokens before the end of each interval
   num_ends */
typedef struct {
    uint32_t *tokens;
    size_t count, room;
    size_t *ends, num_ends;
} token_list;

/* A JPEG that is rewritten.

   has_adobe whether Adobe's segment was seen before the last pixel
   interval  the MCUs between two restart markers of the result
   last_dc   the first coefficient of the block before, by component, as the result codes it */
typedef struct {
    tfpipe_jpeg jpeg;
    tfpipe_tables tables;
    tfpipe_coefficients coefficients;
    token_list list;
    int has_adobe;
    int32_t interval;
    int32_t last_dc[TFPIPE_MAX_COMPONENTS];
    tfpipe_new_code codes[CLASSES];
} recoder;

/* Bytes that are written. */
typedef struct {
    uint8_t *next;
} writer;

/* Chooses the MCUs of an interval: the most that divide a row and are not more than MOST_PIXELS, or a whole row. */
static int32_t choose_interval(int32_t mcus_per_row, int32_t mcu_width) {
    for (int32_t interval = MOST_PIXELS / mcu_width; interval * mcu_width >= LEAST_PIXELS; interval--)
        if (mcus_per_row % interval == 0) return interval;
    return mcus_per_row;
}

/* Returns which table codes a component: color has its own. */
static int choose_codes(const tfpipe_jpeg *jpeg, int component) {
    const int is_color = jpeg->color == TFPIPE_YCC || jpeg->color == TFPIPE_YCCK;
    return is_color && (component == 1 || component == 2);
}

/* Counts the bits of a value without its sign. No branch depends on the sign, which nothing predicts. */
INLINE int count_bits(int32_t value) {
    const int32_t sign = value >> 31;
    return 31 - __builtin_clz((uint32_t)((value ^ sign) - sign) << 1 | 1);
}

/* Returns the bits of a value: a negative one has those of the number before it. */
INLINE uint32_t code_value(int32_t value, int bits) { return (uint32_t)(value + (value >> 31)) & ((1u << bits) - 1); }

INLINE uint32_t *put_token(uint32_t *to, uint32_t table, uint32_t symbol, uint32_t bits) {
    *to = table << 24 | symbol << 16 | bits;
    return to + 1;
}

/* Puts the difference of a block's first coefficient. Returns NULL if it is too large. */
INLINE uint32_t *put_dc(uint32_t *to, int codes, int32_t difference) {
    const int bits = count_bits(difference);
    if (bits > MOST_DC_BITS) return NULL;
    return put_token(to, (uint32_t)(DC_CLASS + codes), (uint32_t)bits, code_value(difference, bits));
}

/* Puts a block that fills up an MCU outside of the image: it repeats the first coefficient of the one before. */
static uint32_t *put_filling(uint32_t *to, int codes) {
    to = put_token(to, (uint32_t)(DC_CLASS + codes), 0, 0);
    return put_token(to, (uint32_t)(AC_CLASS + codes), 0, 0);
}

/* Puts the other coefficients of a block. Returns NULL if one is too large. */
static uint32_t *put_ac(uint32_t *to, int codes, const int16_t *block) {
    const uint32_t table = (uint32_t)(AC_CLASS + codes);
    int last = 0;
    for (int k = 1; k < 64; k++) {
        const int32_t value = block[tfpipe_zigzag[k]];
        if (value == 0) continue;
        const int bits = count_bits(value);
        int run = k - last - 1;
        if (bits > TFPIPE_MOST_AC_BITS) return NULL;
        for (; run > 15; run -= 16) to = put_token(to, table, SIXTEEN_ZEROS, 0);
        to = put_token(to, table, (uint32_t)(run << 4 | bits), code_value(value, bits));
        last = k;
    }
    return last == 63 ? to : put_token(to, table, 0, 0);
}

/* Puts a look at the next bits, and goes past them. Of `used` only the lowest six bits count. `kind` is that of the first
   look of the table. */
INLINE uint32_t *put_look(uint32_t look, uint32_t kind, uint64_t *bits, uint64_t *used, uint32_t *to) {
    const uint32_t value = (uint32_t)(*bits >> (-look & 63)) & ((1u << (look >> 28)) - 1);
    *to = (kind + (uint32_t)(*bits >> (64 - TFPIPE_CODE_BITS))) << 16 | value;
    *bits <<= look & 63;
    *used += look;
    return to + 1;
}

/* Reads the other symbols of a block and puts them, in the one form that a coder gives them: no zeros stand in front of
   the symbol that says that the rest is zero. Returns NULL if the block is damaged or a value is too large. */
INLINE uint32_t *copy_ac(tfpipe_bits *in, const tfpipe_copy_table *from, uint32_t kind, uint32_t *to, int codes) {
    const uint32_t table = (uint32_t)(AC_CLASS + codes);
    int zeros = 0;
    for (int k = 1; k < 64;) {
        tfpipe_refill(in);
        if (TFPIPE_LIKELY(zeros == 0)) {
            uint64_t bits = in->bits, used = 0; /* copies, so that they stay in registers */
            uint32_t look = 0;
            int next = k;
#pragma GCC unroll 3
            for (int i = 0; i < 3; i++) { /* at most TFPIPE_COPY_LENGTH bits each */
                look = (uint32_t)from->looks[bits >> (64 - TFPIPE_CODE_BITS)];
                next = k + (int)(look >> 8 & 255);
                if (TFPIPE_UNLIKELY(next > 63)) break;
                to = put_look(look, kind, &bits, &used, to);
                k = next;
            }
            const int ends = next == 64 || (next >= TFPIPE_LEAP_END && next < TFPIPE_LEAP_END + 64);
            if (TFPIPE_LIKELY(ends)) to = put_look(look, kind, &bits, &used, to);
            in->bits = bits;
            in->count -= (int32_t)(used & 63);
            if (TFPIPE_LIKELY(next < 64)) continue;
            if (ends) return to;
            tfpipe_refill(in);
        }
        const int symbol = tfpipe_take_code(in, &from->codes), size = symbol & 15, run = symbol >> 4;
        if (TFPIPE_UNLIKELY(size == 0)) {
            if (run < 15) break;
            zeros++;
            k += 16;
            if (k > 64) return NULL;
            continue;
        }
        k += run + 1;
        if (TFPIPE_UNLIKELY(size > TFPIPE_MOST_AC_BITS || k > 64 || symbol < 0)) return NULL;
        for (; TFPIPE_UNLIKELY(zeros > 0); zeros--) to = put_token(to, table, SIXTEEN_ZEROS, 0);
        to = put_token(to, table, (uint32_t)symbol, (uint32_t)tfpipe_take_bits(in, size));
        if (k == 64) return to;
    }
    return put_token(to, table, 0, 0);
}

/* Makes sure that there is room for the tokens of an MCU. Returns 0, or -1 without memory. */
static int make_room(token_list *list, size_t at_least) {
    const size_t needed = TFPIPE_MAX_BLOCKS * MOST_TOKENS;
    if (list->room - list->count >= needed) return 0;
    const size_t room = 2 * list->room + at_least + needed;
    uint32_t *tokens = realloc(list->tokens, room * sizeof *tokens);
    if (tokens == NULL) return -1;
    list->tokens = tokens;
    list->room = room;
    return 0;
}

/* Notes that an interval ends if the MCU at `column` begins one. */
static void begin_mcu(recoder *self, int32_t column, int32_t row) {
    token_list *list = &self->list;
    if (column % self->interval != 0) return;
    memset(self->last_dc, 0, sizeof self->last_dc);
    if (row > 0 || column > 0) list->ends[list->num_ends++] = list->count;
}

/* Returns whether a block of a component lies in the image. */
INLINE int is_inside(const tfpipe_component *component, int32_t x, int32_t y) {
    return x < component->wide && y < component->high;
}

/* Puts a block that lies in the image. Returns NULL if a value is too large. */
static uint32_t *put_block(recoder *self, uint32_t *to, int component, const int16_t *block) {
    const int codes = choose_codes(&self->jpeg, component);
    to = put_dc(to, codes, block[0] - self->last_dc[component]);
    self->last_dc[component] = block[0];
    return to == NULL ? NULL : put_ac(to, codes, block);
}

/* Makes the tokens of coefficients. */
static int list_coefficients(recoder *self, char *message) {
    const tfpipe_jpeg *jpeg = &self->jpeg;
    for (int32_t row = 0; row < jpeg->mcu_rows; row++)
        for (int32_t column = 0; column < jpeg->mcus_per_row; column++) {
            if (make_room(&self->list, 0) != 0) return TFPIPE_NO_MEMORY;
            begin_mcu(self, column, row);
            uint32_t *to = self->list.tokens + self->list.count;
            for (int i = 0; i < jpeg->num_components && to != NULL; i++) {
                const tfpipe_component *component = &jpeg->components[i];
                for (int k = 0; k < component->h * component->v && to != NULL; k++) {
                    const int32_t x = column * component->h + k % component->h;
                    const int32_t y = row * component->v + k / component->h;
                    const size_t at = (size_t)y * (size_t)component->mcu_wide + (size_t)x;
                    to = is_inside(component, x, y)
                             ? put_block(self, to, i, self->coefficients.blocks[i] + 64 * at)
                             : put_filling(to, choose_codes(jpeg, i));
                }
            }
            if (to == NULL)
                return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "a coefficient is too large for a baseline JPEG");
            self->list.count = (size_t)(to - self->list.tokens);
        }
    return TFPIPE_OK;
}

/* A component while its scan is read.

   kind      that of the first look at its codes
   read_dc   the first coefficient of its block before */
typedef struct {
    const tfpipe_dc_table *dc;
    const tfpipe_copy_table *ac;
    uint32_t kind;
    const tfpipe_component *component;
    int codes, index;
    int32_t read_dc;
} channel;

/* Makes the tokens of one MCU from those of the file. Returns NULL if it is damaged or a value is too large. */
INLINE uint32_t *copy_mcu(recoder *self, tfpipe_bits *in, channel *channels, uint32_t *to, int32_t column, int32_t row) {
    uint32_t ignored[MOST_TOKENS + 1];
    for (channel *from = channels; from < channels + self->jpeg.scan.count; from++)
        for (int32_t y = row * from->component->v; y < (row + 1) * from->component->v; y++)
            for (int32_t x = column * from->component->h; x < (column + 1) * from->component->h; x++) {
                int is_bad = 0;
                tfpipe_refill(in);
                from->read_dc = (int32_t)((uint32_t)from->read_dc + (uint32_t)tfpipe_take_dc(in, from->dc, &is_bad));
                if (is_bad) return NULL;
                if (!is_inside(from->component, x, y)) {
                    if (copy_ac(in, from->ac, from->kind, ignored, from->codes) == NULL) return NULL;
                    to = put_filling(to, from->codes);
                    continue;
                }
                const int32_t value = (int16_t)from->read_dc;
                to = put_dc(to, from->codes, value - self->last_dc[from->index]);
                self->last_dc[from->index] = value;
                if (to != NULL) to = copy_ac(in, from->ac, from->kind, to, from->codes);
                if (to == NULL) return NULL;
            }
    return to;
}

/* Makes the tokens of a row of MCUs. `left` are the MCUs up to the file's next restart marker. Returns TFPIPE_OK,
   TFPIPE_DAMAGED or TFPIPE_NO_MEMORY. */
INLINE int copy_row(recoder *self, tfpipe_bits *in, channel *channels, int32_t row, int32_t *left, int *number) {
    const tfpipe_jpeg *jpeg = &self->jpeg;
    for (int32_t column = 0; column < jpeg->mcus_per_row; column++) {
        if (jpeg->restart_interval > 0 && (*left)-- == 0) {
            if (tfpipe_pass_restart(jpeg, in, (*number)++) != NULL) return TFPIPE_DAMAGED;
            *left = jpeg->restart_interval - 1;
            for (int i = 0; i < jpeg->scan.count; i++) channels[i].read_dc = 0;
        }
        /* Most photographs have a symbol in each 6 or 7 bits. */
        if (make_room(&self->list, jpeg->size) != 0) return TFPIPE_NO_MEMORY;
        begin_mcu(self, column, row);
        uint32_t *to = copy_mcu(self, in, channels, self->list.tokens + self->list.count, column, row);
        if (to == NULL) return TFPIPE_DAMAGED;
        self->list.count = (size_t)(to - self->list.tokens);
    }
    return tfpipe_is_overdrawn(in) ? TFPIPE_DAMAGED : TFPIPE_OK;
}

DEFINE_INT(copy_row, (recoder *self, tfpipe_bits *in, channel *channels, int32_t row, int32_t *left, int *number),
           (self, in, channels, row, left, number))

/* Makes the tokens of a JPEG of one scan. */
static int list_symbols(recoder *self, char *message) {
    tfpipe_jpeg *jpeg = &self->jpeg;
    channel channels[TFPIPE_MAX_COMPONENTS];
    tfpipe_bits in = tfpipe_begin_bits(jpeg->data + jpeg->at, jpeg->data + jpeg->size);
    int32_t left = jpeg->restart_interval;
    int number = 0;
    int result = tfpipe_get_tables(jpeg, 1 << TFPIPE_DC | 1 << TFPIPE_COPIES, &self->tables, message);
    if (result != TFPIPE_OK) return result;
    for (int i = 0; i < jpeg->scan.count; i++) {
        const int index = jpeg->scan.components[i], ac = jpeg->scan.ac[i], codes = choose_codes(jpeg, index);
        channels[i] = (channel){self->tables.of[TFPIPE_DC][jpeg->scan.dc[i]],
                                self->tables.of[TFPIPE_COPIES][ac],
                                (uint32_t)(LOOKS * (1 + CODES * ac + codes)),
                                &jpeg->components[index],
                                codes,
                                index,
                                0};
    }
    for (int32_t row = 0; result == TFPIPE_OK && row < jpeg->mcu_rows; row++)
        result = choose_copy_row(self, &in, channels, row, &left, &number);
    if (result == TFPIPE_DAMAGED) return tfpipe_complain(message, result, "its image data is damaged");
    return result == TFPIPE_OK ? tfpipe_end_scan(jpeg, &in, message) : result;
}

static void put_bytes(writer *out, const void *bytes, size_t count) {
    memcpy(out->next, bytes, count);
    out->next += count;
}

static void put_16(writer *out, int value) {
    *out->next++ = (uint8_t)(value >> 8);
    *out->next++ = (uint8_t)value;
}

static void put_segment(writer *out, int marker, int size) {
    put_16(out, TFPIPE_MARKER << 8 | marker);
    if (size >= 0) put_16(out, size + 2);
}

/* Writes what says how the components make a color. */
static void put_color(writer *out, const tfpipe_jpeg *jpeg, int has_adobe) {
    if (jpeg->color == TFPIPE_GRAY || jpeg->color == TFPIPE_YCC) {
        uint8_t jfif[14] = {'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
        /* Version 1 with its minor number, and the density with its unit. */
        if (jpeg->jfif != NULL && jpeg->jfif[5] == 1) jfif[6] = jpeg->jfif[6];
        if (jpeg->jfif != NULL) memcpy(jfif + 7, jpeg->jfif + 7, 5);
        put_segment(out, 0xE0, sizeof jfif);
        put_bytes(out, jfif, sizeof jfif);
    } else if (jpeg->color != TFPIPE_CMYK || has_adobe) { /* without it ink is not inverted */
        uint8_t adobe[12] = {'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 0};
        if (jpeg->color == TFPIPE_YCCK) adobe[11] = 2;
        put_segment(out, 0xEE, sizeof adobe);
        put_bytes(out, adobe, sizeof adobe);
    }
}

/* Writes the quantization tables. Returns whether one has numbers of 16 bits. */
static int put_quant_tables(writer *out, const tfpipe_jpeg *jpeg) {
    int any_wide = 0;
    for (int i = 0; i < jpeg->num_components; i++) {
        const tfpipe_component *component = &jpeg->components[i];
        int is_wide = 0, is_written = 0;
        for (int k = 0; k < i; k++) is_written |= jpeg->components[k].quant_table == component->quant_table;
        if (is_written) continue;
        for (int k = 0; k < 64; k++) is_wide |= component->quant[k] > 255;
        put_segment(out, 0xDB, is_wide ? 129 : 65);
        *out->next++ = (uint8_t)(is_wide << 4 | component->quant_table);
        for (int k = 0; k < 64; k++) {
            const int value = component->quant[tfpipe_zigzag[k]];
            if (is_wide) put_16(out, value);
            else *out->next++ = (uint8_t)value;
        }
        any_wide |= is_wide;
    }
    return any_wide;
}

static void put_codes(writer *out, int header, const tfpipe_new_code *code) {
    put_segment(out, 0xC4, 17 + code->num_symbols);
    *out->next++ = (uint8_t)header;
    put_bytes(out, code->counts, sizeof code->counts);
    put_bytes(out, code->symbols, (size_t)code->num_symbols);
}

static void put_headers(writer *out, const recoder *self) {
    const tfpipe_jpeg *jpeg = &self->jpeg;
    const int count = jpeg->num_components;
    int num_codes = 1;
    for (int i = 0; i < count; i++)
        if (choose_codes(jpeg, i) == 1) num_codes = 2;
    put_segment(out, TFPIPE_SOI, -1);
    put_color(out, jpeg, self->has_adobe);
    const int any_wide = put_quant_tables(out, jpeg);
    put_segment(out, any_wide ? 0xC1 : 0xC0, 6 + 3 * count);
    *out->next++ = 8;
    put_16(out, jpeg->height);
    put_16(out, jpeg->width);
    *out->next++ = (uint8_t)count;
    for (int i = 0; i < count; i++) {
        const tfpipe_component *component = &jpeg->components[i];
        put_bytes(out, (uint8_t[]){component->id, component->factors, component->quant_table}, 3);
    }
    for (int i = 0; i < num_codes; i++) {
        put_codes(out, i, &self->codes[DC_CLASS + i]);
        put_codes(out, 0x10 | i, &self->codes[AC_CLASS + i]);
    }
    put_segment(out, 0xDD, 2);
    put_16(out, self->interval);
    put_segment(out, 0xDA, 4 + 2 * count);
    *out->next++ = (uint8_t)count;
    for (int i = 0; i < count; i++)
        put_bytes(out, (uint8_t[]){jpeg->components[i].id, (uint8_t)(0x11 * choose_codes(jpeg, i))}, 2);
    put_bytes(out, (uint8_t[]){0, 63, 0}, 3);
}

/* Codes tokens without a look at the bytes. Returns the byte behind the last, which is filled up with ones.

   looks  by kind: the length of the codes and the values together in bits 0 to 5, and the codes above, shifted by the bits
          of the last value */
INLINE uint8_t *code_tokens(const uint32_t *token, const uint32_t *end, const uint64_t *looks, uint8_t *to) {
    uint64_t bits = 0;
    int count = 0;
    for (; token < end; token++) { /* at most 52 bits each, behind 7 of a byte */
        const uint64_t look = looks[*token >> 16];
        bits = bits << (look & 63) | look >> 6 | (*token & 0xFFFF);
        count += (int)(look & 63);
        uint64_t word = bits << 1 << (63 - count);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        memcpy(to, &word, sizeof word);
        to += count >> 3;
        count &= 7;
    }
    if (count > 0) *to++ = (uint8_t)(bits << (8 - count) | ((1u << (8 - count)) - 1));
    return to;
}

/* Copies bytes, each 0xFF with a zero behind it. Up to seven bytes behind the end are read and written in vain. */
static void put_stuffed(writer *out, const uint8_t *from, const uint8_t *end) {
    uint8_t *to = out->next;
    while (from < end) {
        uint64_t word;
        memcpy(&word, from, sizeof word);
        const uint64_t ones = UINT64_C(0x0101010101010101);
        if ((word & ~(word + ones) & ones << 7) == 0 && end - from >= 8) {
            memcpy(to, &word, sizeof word);
            from += 8;
            to += 8;
            continue;
        }
        for (int i = 0; i < 8 && from < end; i++) {
            *to++ = *from;
            if (*from++ == TFPIPE_MARKER) *to++ = 0;
        }
    }
    out->next = to;
}

INLINE void put_scan(writer *out, const token_list *list, const uint64_t *looks, uint8_t *scratch) {
    size_t begin = 0;
    for (size_t i = 0; i < list->num_ends; i++) {
        if (i > 0) put_segment(out, TFPIPE_RST0 + (int)((i - 1) & 7), -1);
        const uint8_t *end = code_tokens(list->tokens + begin, list->tokens + list->ends[i], looks, scratch);
        put_stuffed(out, scratch, end);
        begin = list->ends[i];
    }
}
DEFINE(put_scan, (writer *out, const token_list *list, const uint64_t *looks, uint8_t *scratch),
       (out, list, looks, scratch))

/* Makes what codes the looks at a table of the file. Each symbol was counted by as many looks. */
static void join_looks(const tfpipe_copy_table *from, const uint32_t *counts, const uint64_t *symbols, uint64_t *looks) {
    for (int k = 0; k < LOOKS; k++) {
        const uint64_t look = from->looks[k], last = symbols[look >> 16 & 255];
        if (counts[k] == 0) continue;
        looks[k] = last;
        if ((look >> 26 & 3) < 2) continue;
        const uint64_t first = symbols[look >> 48];
        looks[k] = ((first >> 6 | (look >> 32 & 0xFFFF)) << (last & 63) | last >> 6) << 6 | ((first & 63) + (last & 63));
    }
}

/* Counts the symbols of looks. */
static void count_symbols(const tfpipe_copy_table *from, const uint32_t *counts, uint32_t *frequencies) {
    for (int k = 0; k < LOOKS; k++) {
        frequencies[from->looks[k] >> 16 & 255] += counts[k];
        if ((from->looks[k] >> 26 & 3) == 2) frequencies[from->looks[k] >> 48] += counts[k];
    }
}

/* Makes the codes and their looks. Returns the bytes of the coded scan, before any is stuffed. */
static size_t make_codes(recoder *self, uint64_t *looks) {
    uint32_t counts[KINDS] = {0};
    uint64_t bits = 0;
    for (size_t i = 0; i < self->list.count; i++) counts[self->list.tokens[i] >> 16]++;
    for (int i = 0; i < TFPIPE_TABLES * CODES; i++) {
        const tfpipe_copy_table *from = self->tables.of[TFPIPE_COPIES][i / CODES];
        if (from != NULL) count_symbols(from, counts + LOOKS * (1 + i), counts + 256 * (AC_CLASS + i % CODES));
    }
    for (int table = 0; table < CLASSES; table++) {
        tfpipe_make_code(counts + 256 * table, &self->codes[table]);
        for (int symbol = 0; symbol < 256; symbol++) {
            const int size = symbol & 15, length = self->codes[table].lengths[symbol] + size;
            bits += (uint64_t)counts[256 * table + symbol] * (uint64_t)length;
            looks[256 * table + symbol] = (uint64_t)self->codes[table].codes[symbol] << size << 6 | ((uint64_t)length & 63);
        }
    }
    for (int i = 0; i < TFPIPE_TABLES * CODES; i++) {
        const int begin = LOOKS * (1 + i);
        const tfpipe_copy_table *from = self->tables.of[TFPIPE_COPIES][i / CODES];
        if (from != NULL) join_looks(from, counts + begin, looks + 256 * (AC_CLASS + i % CODES), looks + begin);
    }
    return (size_t)(bits / 8) + 2 * self->list.num_ends;
}

enum { HEADER_BYTES = 4096 }; /* four tables of 145 bytes, four codes of 277, and less than 200 bytes */

static int write_result(recoder *self, uint8_t **out, size_t *out_size) {
    uint64_t looks[KINDS];
    const size_t bytes = make_codes(self, looks);
    /* Each byte may be 0xFF, and each interval has a marker. */
    uint8_t *const result = malloc(HEADER_BYTES + 2 * bytes + 2 * self->list.num_ends + PADDING);
    uint8_t *const scratch = malloc(bytes + PADDING);
    if (result == NULL || scratch == NULL) {
        free(result);
        free(scratch);
        return TFPIPE_NO_MEMORY;
    }
    writer to = {result};
    memset(scratch, 0, bytes + PADDING);
    put_headers(&to, self);
    tfpipe_put_scan(&to, &self->list, looks, scratch);
    put_segment(&to, TFPIPE_EOI, -1);
    free(scratch);
    *out_size = (size_t)(to.next - result);
    uint8_t *const fitting = realloc(result, *out_size);
    *out = fitting == NULL ? result : fitting;
    return TFPIPE_OK;
}

/* Checks that one baseline scan can hold the components. */
static int check_scan(const tfpipe_jpeg *jpeg, char *message) {
    int blocks = 0;
    for (int i = 0; i < jpeg->num_components; i++) {
        blocks += jpeg->components[i].h * jpeg->components[i].v;
        for (int k = 0; k < i; k++)
            if (jpeg->components[k].quant_table == jpeg->components[i].quant_table &&
                memcmp(jpeg->components[k].quant, jpeg->components[i].quant, sizeof jpeg->components[i].quant) != 0)
                return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "a quantization table changes between its scans");
    }
    if (jpeg->num_components > 1 && blocks > TFPIPE_MAX_BLOCKS)
        return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "its components do not fit into one scan");
    return TFPIPE_OK;
}

static int list_tokens(recoder *self, char *message) {
    tfpipe_jpeg *jpeg = &self->jpeg;
    int is_complete = 1;
    const int is_one_scan = tfpipe_is_one_scan(jpeg);
    int result = TFPIPE_OK;
    if (!is_one_scan) result = tfpipe_read_coefficients(jpeg, &self->coefficients, 1, &is_complete, message);
    if (result == TFPIPE_OK && jpeg->progressive && !is_complete)
        result = tfpipe_complain(message, TFPIPE_UNSUPPORTED, "scans are missing, and decoders guess what they held");
    if (result == TFPIPE_OK) result = check_scan(jpeg, message);
    if (result != TFPIPE_OK) return result;
    self->has_adobe = jpeg->has_adobe; /* decoders of one scan do not see what follows it */
    self->interval = choose_interval(jpeg->mcus_per_row, 8 * jpeg->max_h);
    const size_t intervals = (size_t)(jpeg->mcus_per_row / self->interval) * (size_t)jpeg->mcu_rows;
    /* A block takes two bits at least. */
    if (is_one_scan && intervals > 4 * (jpeg->size - jpeg->at))
        return tfpipe_complain(message, TFPIPE_DAMAGED, "it ends among its image data");
    self->list.ends = malloc(intervals * sizeof *self->list.ends);
    if (self->list.ends == NULL) return TFPIPE_NO_MEMORY;
    result = is_one_scan ? list_symbols(self, message) : list_coefficients(self, message);
    self->list.ends[self->list.num_ends++] = self->list.count;
    return result;
}

int tfpipe_make_seekable(const uint8_t *data, size_t size, int64_t max_pixels, uint8_t **out, size_t *out_size,
                         char *message) {
    recoder *self = calloc(1, sizeof *self);
    message[0] = '\0';
    if (self == NULL) return TFPIPE_NO_MEMORY;
    int result = tfpipe_open_jpeg(&self->jpeg, data, size, max_pixels, message);
    if (result == TFPIPE_OK) result = list_tokens(self, message);
    if (result == TFPIPE_OK) result = write_result(self, out, out_size);
    tfpipe_release_tables(&self->tables);
    tfpipe_free_coefficients(&self->coefficients);
    free(self->list.tokens);
    free(self->list.ends);
    free(self);
    return result;
}

int tfpipe_find_intervals(const uint8_t *data, size_t size) {
    char message[TFPIPE_MESSAGE_BYTES];
    tfpipe_jpeg jpeg;
    if (tfpipe_open_jpeg(&jpeg, data, size, INT64_MAX, message) != TFPIPE_OK || !tfpipe_is_one_scan(&jpeg)) return 0;
    const int32_t interval = jpeg.restart_interval, per_row = jpeg.mcus_per_row;
    if (interval == 0 || per_row % interval != 0) return 0;
    const int64_t count = (int64_t)(per_row / interval) * jpeg.mcu_rows;
    const uint8_t *at = data + jpeg.at, *const last = data + size - 1;
    for (int64_t found = 0; found < count; at += 2) {
        at = at < last ? memchr(at, TFPIPE_MARKER, (size_t)(last - at)) : NULL;
        if (at == NULL) return 0;
        if (at[1] == 0) continue;
        if (at[1] != (++found == count ? TFPIPE_EOI : TFPIPE_RST0 + (int)((found - 1) & 7))) return 0;
    }
    return interval == choose_interval(per_row, 8 * jpeg.max_h) ? 2 : 1;
}

/* Goes past the MCUs up to the next restart marker. Returns 0 or TFPIPE_BAD_BLOCK. */
INLINE int pass_mcus(const tfpipe_jpeg *jpeg, const tfpipe_tables *tables, tfpipe_bits *to, int64_t count) {
    const tfpipe_scan *scan = &jpeg->scan;
    tfpipe_bits in = *to;
    int result = 0;
    for (int64_t mcu = 0; mcu < count && result == 0; mcu++) {
        for (int block = 0; block < scan->num_blocks; block++) {
            const int component = scan->block_component[block];
            tfpipe_refill(&in);
            tfpipe_take_dc(&in, tables->of[TFPIPE_DC][scan->dc[component]], &result);
            result |= tfpipe_pass_ac(&in, tables->of[TFPIPE_LEAPS][scan->ac[component]]);
        }
        if (TFPIPE_UNLIKELY(in.added > 0) && tfpipe_is_overdrawn(&in)) result = TFPIPE_BAD_BLOCK;
    }
    *to = in;
    return result;
}

DEFINE_INT(pass_mcus, (const tfpipe_jpeg *jpeg, const tfpipe_tables *tables, tfpipe_bits *to, int64_t count),
           (jpeg, tables, to, count))

/* Checks a JPEG of one scan. */
static int check_blocks(tfpipe_jpeg *jpeg, char *message) {
    tfpipe_tables tables = {{{NULL}}};
    const int64_t mcus = (int64_t)jpeg->mcus_per_row * jpeg->mcu_rows;
    const int64_t interval = jpeg->restart_interval > 0 ? jpeg->restart_interval : mcus;
    tfpipe_bits in = tfpipe_begin_bits(jpeg->data + jpeg->at, jpeg->data + jpeg->size);
    int result = tfpipe_get_tables(jpeg, 1 << TFPIPE_DC | 1 << TFPIPE_LEAPS, &tables, message);
    int number = 0;
    for (int64_t first = 0; result == TFPIPE_OK && first < mcus; first += interval) {
        const char *wrong = first > 0 ? tfpipe_pass_restart(jpeg, &in, number++) : NULL;
        if (wrong != NULL) result = tfpipe_complain(message, TFPIPE_DAMAGED, wrong);
        else if (choose_pass_mcus(jpeg, &tables, &in, mcus - first < interval ? mcus - first : interval) != 0)
            result = tfpipe_complain(message, TFPIPE_DAMAGED, "its image data is damaged");
    }
    tfpipe_release_tables(&tables);
    return result == TFPIPE_OK ? tfpipe_end_scan(jpeg, &in, message) : result;
}

/* Checks a JPEG, and copies it without padding, unless `copy` is NULL. */
static int check(const uint8_t *data, size_t size, int64_t max_pixels, tfpipe_copy *copy, char *message) {
    tfpipe_jpeg jpeg;
    tfpipe_coefficients coefficients = {{NULL}};
    int is_complete;
    int result = tfpipe_open_jpeg(&jpeg, data, size, max_pixels, message);
    if (result != TFPIPE_OK) return result;
    jpeg.copy = copy;
    if (tfpipe_is_one_scan(&jpeg)) return check_blocks(&jpeg, message);
    result = tfpipe_read_coefficients(&jpeg, &coefficients, 1, &is_complete, message);
    tfpipe_free_coefficients(&coefficients);
    return result;
}

int tfpipe_check(const uint8_t *data, size_t size, int64_t max_pixels, char *message) {
    return check(data, size, max_pixels, NULL, message);
}

int tfpipe_drop_padding(const uint8_t *data, size_t size, int64_t max_pixels, uint8_t *out, size_t *out_size,
                        char *message) {
    tfpipe_copy copy = {data, out, 0, 0};
    const int result = check(data, size, max_pixels, &copy, message);
    const size_t left = size - (size_t)(copy.from - data);
    if (result != TFPIPE_OK) return result;
    if (copy.doubtful && copy.places == 1) return tfpipe_complain(message, TFPIPE_DAMAGED, TFPIPE_SURPLUS);
    memcpy(copy.to, copy.from, left);
    *out_size = (size_t)(copy.to - out) + left;
    return TFPIPE_OK;
}
