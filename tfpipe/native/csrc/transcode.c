#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>
#define JPEG_INTERNALS
#include <jpegint.h>

#include "huffman.h"
#include "jpeg_input.h"
#include "tfpipe_native.h"

/* The pixels between two restart markers: a marker costs about two bytes, and a crop decodes half an interval in vain
   on each side. */
enum { MOST_PIXELS = 96, LEAST_PIXELS = 24 };

enum { STUFFED = 0xFF, RST0 = 0xD0, MARKER_BYTES = 2, WORD_BYTES = 4, MOST_BITS = 16, FIRST_BYTES = 1 << 16 };

/* What rewriting needs, in one place: after a longjmp local variables may be lost.

   bytes, room, size  the result, what is allocated for it, and what it takes
   symbols            of the input's scan
   scan               the output's, and how many bytes of it are used */
typedef struct {
    tfpipe_input input;
    struct jpeg_compress_struct output;
    struct jpeg_destination_mgr destination;
    int output_opened;
    uint8_t *bytes;
    size_t room, size;
    tfpipe_symbols symbols;
    uint8_t *scan;
    size_t scan_size;
} transcoder;

/* Bits that are written.

   next   where the next byte goes
   bits   the last ones, of which the lowest `count` are not written yet */
typedef struct {
    uint8_t *next;
    uint64_t bits;
    int count;
} writer;

/* A code of each symbol, and its length. */
typedef struct {
    uint16_t codes[256];
    uint8_t lengths[256];
} encoder;

static void begin(transcoder *self, char *message) {
    memset(self, 0, sizeof *self);
    message[0] = '\0';
    self->input.message = message;
    self->input.strict = 1;
}

/* Chooses the MCUs of an interval: the most that divide a row and are not more than MOST_PIXELS, or a whole row. */
static unsigned choose_interval(unsigned mcus_per_row, unsigned mcu_width) {
    for (unsigned interval = MOST_PIXELS / mcu_width; interval * mcu_width >= LEAST_PIXELS; interval--)
        if (mcus_per_row % interval == 0) return interval;
    return mcus_per_row;
}

static int open_header(transcoder *self, const uint8_t *data, size_t size, int64_t max_pixels) {
    struct jpeg_decompress_struct *jpeg = &self->input.jpeg;
    tfpipe_open_input(&self->input, data, size);
    if (jpeg_read_header(jpeg, TRUE) != JPEG_HEADER_OK) return TFPIPE_DAMAGED;
    if ((int64_t)jpeg->image_width * jpeg->image_height > max_pixels) {
        snprintf(self->input.message, TFPIPE_MESSAGE_BYTES, "%u x %u pixels are more than the %lld allowed",
                 jpeg->image_width, jpeg->image_height, (long long)max_pixels);
        return TFPIPE_TOO_LARGE;
    }
    return TFPIPE_OK;
}

static int open_coefficients(transcoder *self, const uint8_t *data, size_t size, int64_t max_pixels,
                             jvirt_barray_ptr **coefficients) {
    const int opened = open_header(self, data, size, max_pixels);
    if (opened != TFPIPE_OK) return opened;
    *coefficients = jpeg_read_coefficients(&self->input.jpeg);
    return *coefficients == NULL ? TFPIPE_DAMAGED : TFPIPE_OK;
}

/* Makes room for the result, and says where libjpeg goes on to write. */
static void make_room(j_compress_ptr output, size_t room) {
    transcoder *self = (transcoder *)output->client_data;
    uint8_t *bytes = realloc(self->bytes, room);
    if (bytes == NULL) ERREXIT1(output, JERR_OUT_OF_MEMORY, 0);
    self->destination.next_output_byte = bytes + self->room;
    self->destination.free_in_buffer = room - self->room;
    self->bytes = bytes;
    self->room = room;
}

static void begin_result(j_compress_ptr output) { make_room(output, FIRST_BYTES); }

/* Takes the place of jpeg_mem_dest, which does not say where its bytes are until it has written all of them: nobody could
   free them after an error. */
static boolean grow_result(j_compress_ptr output) {
    make_room(output, 2 * ((transcoder *)output->client_data)->room);
    return TRUE;
}

static void end_result(j_compress_ptr output) {
    transcoder *self = (transcoder *)output->client_data;
    self->size = self->room - self->destination.free_in_buffer;
}

/* Makes the compressor, with the parameters of the input. */
static void open_output(transcoder *self) {
    struct jpeg_decompress_struct *jpeg = &self->input.jpeg;
    struct jpeg_compress_struct *output = &self->output;
    output->err = &self->input.errors;
    output->client_data = &self->input;
    jpeg_create_compress(output);
    self->output_opened = 1;
    self->destination = (struct jpeg_destination_mgr){
        .init_destination = begin_result, .empty_output_buffer = grow_result, .term_destination = end_result};
    output->dest = &self->destination;
    jpeg_copy_critical_parameters(jpeg, output);
    /* A single component is not interleaved: its MCU is a block. */
    unsigned mcu_width = 8 * (jpeg->num_components == 1 ? 1 : (unsigned)jpeg->max_h_samp_factor);
    output->restart_in_rows = 0;
    output->restart_interval = choose_interval((jpeg->image_width + mcu_width - 1) / mcu_width, mcu_width);
    output->optimize_coding = FALSE;
}

static void fill_encoder(encoder *to, const JHUFF_TBL *from) {
    unsigned code = 0;
    int index = 0;
    memset(to, 0, sizeof *to);
    for (int length = 1; length <= MOST_BITS; length++, code <<= 1)
        for (int i = 0; i < from->bits[length]; i++, index++, code++) {
            to->codes[from->huffval[index]] = (uint16_t)code;
            to->lengths[from->huffval[index]] = (uint8_t)length;
        }
}

static inline void put_byte(writer *out, uint8_t byte) {
    *out->next++ = byte;
    if (byte == STUFFED) *out->next++ = 0;
}

/* Writes a symbol and its bits, at most 27. */
static inline void put_token(writer *out, const encoder *with, uint32_t token) {
    const uint8_t symbol = (uint8_t)(token >> 16);
    const int length = with->lengths[symbol] + (symbol & 15);
    out->bits = out->bits << length | (uint32_t)with->codes[symbol] << (symbol & 15) | (token & 0xFFFF);
    out->count += length;
    if (out->count < 8 * WORD_BYTES) return;
    out->count -= 8 * WORD_BYTES;
    const uint32_t word = (uint32_t)(out->bits >> out->count);
    if ((word & 0x80808080u & ~(word + 0x01010101u)) == 0) { /* no byte has to be stuffed */
        for (int i = 0; i < WORD_BYTES; i++) out->next[i] = (uint8_t)(word >> 8 * (WORD_BYTES - 1 - i));
        out->next += WORD_BYTES;
    } else {
        for (int i = WORD_BYTES - 1; i >= 0; i--) put_byte(out, (uint8_t)(word >> 8 * i));
    }
}

/* Fills up the last byte with ones. */
static void end_interval(writer *out) {
    const int rest = -out->count & 7;
    out->bits = out->bits << rest | ((1u << rest) - 1);
    for (out->count += rest; out->count > 0;) put_byte(out, (uint8_t)(out->bits >> (out->count -= 8)));
}

/* Counts the bytes that the scan takes at most: each may have to be stuffed. */
static size_t count_scan_bytes(const tfpipe_symbols *symbols, const encoder *dc, const encoder *ac, size_t intervals) {
    uint64_t bits = 0;
    for (int table = 0; table < NUM_HUFF_TBLS; table++)
        for (int symbol = 0; symbol < 256; symbol++) {
            bits += (uint64_t)symbols->dc[table][symbol] * (dc[table].lengths[symbol] + (symbol & 15u));
            bits += (uint64_t)symbols->ac[table][symbol] * (ac[table].lengths[symbol] + (symbol & 15u));
        }
    return 2 * (size_t)(bits / 8) + intervals * (2 + MARKER_BYTES) + 2 * WORD_BYTES;
}

/* Writes the symbols with the output's codes to `self->scan`. Returns 0, or -1 without memory. */
static int code_symbols(transcoder *self) {
    const struct jpeg_decompress_struct *jpeg = &self->input.jpeg;
    const struct jpeg_compress_struct *output = &self->output;
    const size_t mcus = (size_t)jpeg->MCUs_per_row * (size_t)jpeg->MCU_rows_in_scan;
    encoder dc[NUM_HUFF_TBLS] = {{{0}, {0}}}, ac[NUM_HUFF_TBLS] = {{{0}, {0}}};
    const encoder *of_dc[D_MAX_BLOCKS_IN_MCU], *of_ac[D_MAX_BLOCKS_IN_MCU];
    for (int i = 0; i < output->num_components; i++) {
        const jpeg_component_info *to = &output->comp_info[i];
        fill_encoder(&dc[to->dc_tbl_no], output->dc_huff_tbl_ptrs[to->dc_tbl_no]);
        fill_encoder(&ac[to->ac_tbl_no], output->ac_huff_tbl_ptrs[to->ac_tbl_no]);
    }
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        const jpeg_component_info *from = jpeg->cur_comp_info[jpeg->MCU_membership[i]];
        of_dc[i] = &dc[output->comp_info[from->component_index].dc_tbl_no];
        of_ac[i] = &ac[output->comp_info[from->component_index].ac_tbl_no];
    }
    self->scan = malloc(count_scan_bytes(&self->symbols, dc, ac, mcus / output->restart_interval + 1));
    if (self->scan == NULL) return -1;
    writer out = {self->scan, 0, 0};
    const uint32_t *token = self->symbols.tokens;
    for (size_t mcu = 0; mcu < mcus; mcu++) {
        if (mcu > 0 && mcu % output->restart_interval == 0) {
            end_interval(&out);
            *out.next++ = STUFFED;
            *out.next++ = (uint8_t)(RST0 + (mcu / output->restart_interval - 1) % 8);
        }
        for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
            put_token(&out, of_dc[i], *token++);
            do put_token(&out, of_ac[i], *token & ~TFPIPE_LAST_OF_BLOCK);
            while ((*token++ & TFPIPE_LAST_OF_BLOCK) == 0);
        }
    }
    end_interval(&out);
    self->scan_size = (size_t)(out.next - self->scan);
    return 0;
}

/* Takes the place of libjpeg's function, which would code a row of MCUs: writes the whole scan at the first call. */
static boolean write_scan(j_compress_ptr output, JSAMPIMAGE none) {
    transcoder *self = (transcoder *)output->client_data;
    (void)none;
    for (size_t done = 0; done < self->scan_size;) {
        const size_t left = self->scan_size - done, room = output->dest->free_in_buffer;
        const size_t count = left < room ? left : room;
        memcpy(output->dest->next_output_byte, self->scan + done, count);
        output->dest->next_output_byte += count;
        output->dest->free_in_buffer -= count;
        done += count;
        if (output->dest->free_in_buffer == 0) output->dest->empty_output_buffer(output);
    }
    self->scan_size = 0;
    return TRUE;
}

static void do_nothing(j_compress_ptr output) { (void)output; }

/* Rewrites a baseline JPEG of one scan without its coefficients: its symbols get other codes. Returns whether it did; if
   not, the way by the coefficients has the last word. */
static int recode(transcoder *self, const uint8_t *data, size_t size, int64_t max_pixels) {
    struct jpeg_decompress_struct *jpeg = &self->input.jpeg;
    struct jpeg_compress_struct *output = &self->output;
    if (setjmp(self->input.jump) != 0) return 0;
    if (open_header(self, data, size, max_pixels) != TFPIPE_OK || jpeg_has_multiple_scans(jpeg)) return 0;
    jpeg_start_decompress(jpeg);
    self->input.scan = tfpipe_take_scan(jpeg, &self->input.jump);
    if (self->input.scan == NULL) return 0;
    open_output(self);
    if (tfpipe_read_symbols(jpeg, output, &self->symbols) != 0) return 0;
    tfpipe_make_codes_of(output, self->symbols.dc, self->symbols.ac);
    if (code_symbols(self) != 0) return 0;
    jpeg_write_coefficients(output, NULL); /* only the headers: the functions below take the place of what would read them */
    output->coef->compress_data = write_scan;
    output->entropy->finish_pass = do_nothing;
    jpeg_finish_compress(output);
    return 1;
}

static int rewrite(transcoder *self, const uint8_t *data, size_t size, int64_t max_pixels) {
    struct jpeg_decompress_struct *jpeg = &self->input.jpeg;
    struct jpeg_compress_struct *output = &self->output;
    jvirt_barray_ptr *coefficients;
    if (setjmp(self->input.jump) != 0) return TFPIPE_DAMAGED;
    const int opened = open_coefficients(self, data, size, max_pixels, &coefficients);
    if (opened != TFPIPE_OK) return opened;
    open_output(self);
    if (tfpipe_make_codes(jpeg, output, coefficients) != 0) {
        snprintf(self->input.message, TFPIPE_MESSAGE_BYTES, "a coefficient is too large for a baseline JPEG");
        return TFPIPE_DAMAGED;
    }
    jpeg_write_coefficients(output, coefficients);
    jpeg_finish_compress(output);
    jpeg_finish_decompress(jpeg);
    return TFPIPE_OK;
}

/* Frees all but the result. */
static void end(transcoder *self) {
    if (self->output_opened) jpeg_destroy_compress(&self->output);
    tfpipe_close_input(&self->input);
    free(self->symbols.tokens);
    free(self->scan);
}

int tfpipe_make_seekable(const uint8_t *data, size_t size, int64_t max_pixels, uint8_t **out, size_t *out_size,
                         char *message) {
    transcoder self;
    begin(&self, message);
    int result = recode(&self, data, size, max_pixels) ? TFPIPE_OK : TFPIPE_DAMAGED;
    end(&self);
    if (result != TFPIPE_OK) {
        free(self.bytes);
        begin(&self, message);
        result = rewrite(&self, data, size, max_pixels);
        end(&self);
    }
    if (result != TFPIPE_OK) {
        free(self.bytes);
        return result;
    }
    *out = self.bytes;
    *out_size = self.size;
    return TFPIPE_OK;
}

/* Reads past the scan of a baseline JPEG. Returns whether it is whole; if not, libjpeg has the last word. */
static int read_past(transcoder *self, const uint8_t *data, size_t size, int64_t max_pixels) {
    struct jpeg_decompress_struct *jpeg = &self->input.jpeg;
    if (setjmp(self->input.jump) != 0) return 0;
    if (open_header(self, data, size, max_pixels) != TFPIPE_OK || jpeg_has_multiple_scans(jpeg)) return 0;
    jpeg_start_decompress(jpeg);
    self->input.scan = tfpipe_take_scan(jpeg, &self->input.jump);
    return self->input.scan != NULL && tfpipe_read_past_scan(jpeg) == 0;
}

static int read_all(transcoder *self, const uint8_t *data, size_t size, int64_t max_pixels) {
    jvirt_barray_ptr *coefficients;
    if (setjmp(self->input.jump) != 0) return TFPIPE_DAMAGED;
    const int result = open_coefficients(self, data, size, max_pixels, &coefficients);
    if (result == TFPIPE_OK) jpeg_finish_decompress(&self->input.jpeg);
    return result;
}

int tfpipe_check(const uint8_t *data, size_t size, int64_t max_pixels, char *message) {
    transcoder self;
    begin(&self, message);
    const int is_whole = read_past(&self, data, size, max_pixels);
    tfpipe_close_input(&self.input);
    if (is_whole) return TFPIPE_OK;
    begin(&self, message);
    const int result = read_all(&self, data, size, max_pixels);
    tfpipe_close_input(&self.input);
    return result;
}
