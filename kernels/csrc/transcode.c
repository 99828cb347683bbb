#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "huffman.h"
#include "jpeg_input.h"
#include "tfpipe_kernels.h"

/* The pixels between two restart markers: a marker costs about two bytes, and a crop decodes half an interval in vain
   on each side. */
enum { MOST_PIXELS = 96, LEAST_PIXELS = 24 };

/* What `rewrite` needs, in one place: after a longjmp local variables may be lost. */
typedef struct {
    tfpipe_input input;
    struct jpeg_compress_struct output;
    int output_opened;
    unsigned char *bytes;
    unsigned long size;
} transcoder;

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

static int rewrite(transcoder *self, const uint8_t *data, size_t size, int64_t max_pixels) {
    struct jpeg_decompress_struct *jpeg = &self->input.jpeg;
    struct jpeg_compress_struct *output = &self->output;
    jvirt_barray_ptr *coefficients;
    if (setjmp(self->input.jump) != 0) return TFPIPE_DAMAGED;
    const int opened = open_coefficients(self, data, size, max_pixels, &coefficients);
    if (opened != TFPIPE_OK) return opened;
    output->err = &self->input.errors;
    output->client_data = &self->input;
    jpeg_create_compress(output);
    self->output_opened = 1;
    jpeg_mem_dest(output, &self->bytes, &self->size);
    jpeg_copy_critical_parameters(jpeg, output);
    /* A single component is not interleaved: its MCU is a block. */
    unsigned mcu_width = 8 * (jpeg->num_components == 1 ? 1 : (unsigned)jpeg->max_h_samp_factor);
    output->restart_in_rows = 0;
    output->restart_interval = choose_interval((jpeg->image_width + mcu_width - 1) / mcu_width, mcu_width);
    if (tfpipe_make_codes(jpeg, output, coefficients) != 0) {
        snprintf(self->input.message, TFPIPE_MESSAGE_BYTES, "a coefficient is too large for a baseline JPEG");
        return TFPIPE_DAMAGED;
    }
    output->optimize_coding = FALSE;
    jpeg_write_coefficients(output, coefficients);
    jpeg_finish_compress(output);
    jpeg_finish_decompress(jpeg);
    return TFPIPE_OK;
}

int tfpipe_make_seekable(const uint8_t *data, size_t size, int64_t max_pixels, uint8_t **out, size_t *out_size,
                         char *message) {
    transcoder self;
    begin(&self, message);
    const int result = rewrite(&self, data, size, max_pixels);
    if (self.output_opened) jpeg_destroy_compress(&self.output);
    tfpipe_close_input(&self.input);
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
