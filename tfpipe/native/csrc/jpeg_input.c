#include "jpeg_input.h"

#include <jerror.h>
#include <string.h>

#include "tfpipe_native.h"

/* Ten scans are usual. A small file with thousands of scans of a large image would keep the decoder busy. */
enum { MAX_SCANS = 200 };

static void keep_message(tfpipe_input *input, j_common_ptr jpeg) {
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    snprintf(input->message, TFPIPE_MESSAGE_BYTES, "%.*s", TFPIPE_MESSAGE_BYTES - 1, text);
}

static void stop(j_common_ptr jpeg) {
    tfpipe_input *input = jpeg->client_data;
    keep_message(input, jpeg);
    longjmp(input->jump, 1);
}

static void warn(j_common_ptr jpeg, int level) {
    tfpipe_input *input = jpeg->client_data;
    if (level >= 0) return;
    jpeg->err->num_warnings++;
    if (input->strict) stop(jpeg);
}

static void limit_scans(j_common_ptr jpeg) {
    tfpipe_input *input = jpeg->client_data;
    if (input->jpeg.input_scan_number <= MAX_SCANS) return;
    snprintf(input->message, TFPIPE_MESSAGE_BYTES, "it has more than %d scans", MAX_SCANS);
    longjmp(input->jump, 1);
}

static void do_nothing(j_decompress_ptr jpeg) { (void)jpeg; }

static boolean refuse_end(j_decompress_ptr jpeg) {
    ERREXIT(jpeg, JERR_INPUT_EOF);
    return FALSE;
}

static void skip_bytes(j_decompress_ptr jpeg, long count) {
    if (count <= 0) return;
    if ((size_t)count > jpeg->src->bytes_in_buffer) ERREXIT(jpeg, JERR_INPUT_EOF);
    jpeg->src->next_input_byte += count;
    jpeg->src->bytes_in_buffer -= (size_t)count;
}

void tfpipe_open_input(tfpipe_input *input, const uint8_t *data, size_t size) {
    struct jpeg_decompress_struct *jpeg = &input->jpeg;
    jpeg->err = jpeg_std_error(&input->errors);
    jpeg->client_data = input;
    input->errors.error_exit = stop;
    input->errors.emit_message = warn;
    jpeg_create_decompress(jpeg);
    input->opened = 1;
    input->progress.progress_monitor = limit_scans;
    jpeg->progress = &input->progress;
    input->source = (struct jpeg_source_mgr){
        .next_input_byte = data,
        .bytes_in_buffer = size,
        .init_source = do_nothing,
        .fill_input_buffer = refuse_end,
        .skip_input_data = skip_bytes,
        .resync_to_restart = jpeg_resync_to_restart,
        .term_source = do_nothing,
    };
    jpeg->src = &input->source;
}

tfpipe_scan *tfpipe_scan_of(j_decompress_ptr jpeg) { return ((tfpipe_input *)jpeg->client_data)->scan; }

void tfpipe_close_input(tfpipe_input *input) {
    tfpipe_free_scan(input->scan);
    input->scan = NULL;
    if (input->opened) jpeg_destroy_decompress(&input->jpeg);
    input->opened = 0;
}
