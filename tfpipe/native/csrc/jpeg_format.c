#include "jpeg_format.h"

#include <stdio.h>
#include <string.h>

#include "tfpipe_native.h"

enum {
    TEM = 0x01,
    SOF0 = 0xC0,
    SOF1 = 0xC1,
    SOF2 = 0xC2,
    DHT = 0xC4,
    JPG = 0xC8,
    SOF15 = 0xCF,
    DAC = 0xCC,
    RST7 = 0xD7,
    SOS = 0xDA,
    DQT = 0xDB,
    DNL = 0xDC,
    DRI = 0xDD,
    APP0 = 0xE0,
    APP14 = 0xEE,
    APP15 = 0xEF,
    COM = 0xFE,
};

enum {
    MAX_SIDE = 65500, /* libjpeg's limit */
    MAX_FACTOR = 4,
    MAX_LOW_BIT = 13,
    /* Ten scans are usual. A small file with thousands of scans of a large image would keep the decoder busy. */
    MAX_SCANS = 200,
    AC_CLASS = 0x10,
};

const uint8_t tfpipe_zigzag[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

int tfpipe_complain(char *message, int result, const char *phrase) {
    snprintf(message, TFPIPE_MESSAGE_BYTES, "%s", phrase);
    return result;
}

static int read_16(const uint8_t *data) { return data[0] << 8 | data[1]; }

static int32_t divide_up(int32_t value, int32_t by) { return (value + by - 1) / by; }

int tfpipe_find_marker(tfpipe_jpeg *jpeg) {
    const uint8_t *end = jpeg->data + jpeg->size;
    for (const uint8_t *at = jpeg->data + jpeg->at;;) {
        at = at < end ? memchr(at, TFPIPE_MARKER, (size_t)(end - at)) : NULL;
        if (at == NULL) break;
        while (at < end && *at == TFPIPE_MARKER) at++;
        if (at == end) break;
        if (*at++ == 0) continue; /* a stuffed zero */
        jpeg->at = (size_t)(at - jpeg->data);
        return at[-1];
    }
    jpeg->at = jpeg->size;
    return -1;
}

static int read_huffman_tables(tfpipe_jpeg *jpeg, const uint8_t *at, size_t size, char *message) {
    while (size > 16) {
        const int number = at[0] & (AC_CLASS - 1), class = at[0] & ~(AC_CLASS - 1);
        tfpipe_codes codes = {at + 1, 0};
        for (int i = 0; i < 16; i++) codes.num_symbols += codes.counts[i];
        at += 17;
        size -= 17;
        if (codes.num_symbols > 256 || (size_t)codes.num_symbols > size || number >= TFPIPE_TABLES ||
            (class != 0 && class != AC_CLASS))
            return tfpipe_complain(message, TFPIPE_DAMAGED, "a Huffman table is damaged");
        at += codes.num_symbols;
        size -= (size_t)codes.num_symbols;
        (class ? jpeg->ac : jpeg->dc)[number] = codes;
    }
    return size == 0 ? TFPIPE_OK : tfpipe_complain(message, TFPIPE_DAMAGED, "a Huffman table is damaged");
}

static int read_quant_tables(tfpipe_jpeg *jpeg, const uint8_t *at, size_t size, char *message) {
    while (size > 0) {
        const int number = at[0] & 15, is_wide = at[0] >> 4 != 0;
        const size_t bytes = 1 + (is_wide ? 128 : 64);
        if (number >= TFPIPE_TABLES || size < bytes)
            return tfpipe_complain(message, TFPIPE_DAMAGED, "a quantization table is damaged");
        for (int i = 0; i < 64; i++)
            jpeg->quant[number][tfpipe_zigzag[i]] = (uint16_t)(is_wide ? read_16(at + 1 + 2 * i) : at[1 + i]);
        jpeg->has_quant[number] = 1;
        at += bytes;
        size -= bytes;
    }
    return TFPIPE_OK;
}

static int read_frame(tfpipe_jpeg *jpeg, int marker, const uint8_t *at, size_t size, char *message) {
    if (marker > SOF2)
        return tfpipe_complain(message, TFPIPE_UNSUPPORTED,
                               "it is arithmetic, lossless or hierarchical, which only some decoders read");
    if (jpeg->num_components > 0) return tfpipe_complain(message, TFPIPE_DAMAGED, "it has two frame headers");
    if (size < 6 || at[5] == 0 || size != 6 + 3 * (size_t)at[5])
        return tfpipe_complain(message, TFPIPE_DAMAGED, "its frame header is damaged");
    jpeg->progressive = marker == SOF2;
    jpeg->height = read_16(at + 1);
    jpeg->width = read_16(at + 3);
    if (jpeg->height == 0 || jpeg->width == 0)
        return tfpipe_complain(message, TFPIPE_DAMAGED, "it has no pixel");
    if (jpeg->height > MAX_SIDE || jpeg->width > MAX_SIDE)
        return tfpipe_complain(message, TFPIPE_DAMAGED, "a side is longer than the 65500 pixels that decoders read");
    if (at[0] != 8) return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "it has more than 8 bits a sample");
    if (at[5] != 1 && at[5] != 3 && at[5] != 4)
        return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "it has neither 1, 3 nor 4 components");
    jpeg->num_components = at[5];
    jpeg->max_h = jpeg->max_v = 1;
    for (int i = 0; i < jpeg->num_components; i++) {
        tfpipe_component *component = &jpeg->components[i];
        *component = (tfpipe_component){
            .id = at[6 + 3 * i], .factors = at[7 + 3 * i], .h = at[7 + 3 * i] >> 4, .v = at[7 + 3 * i] & 15, .quant_table = at[8 + 3 * i]};
        if (component->h < 1 || component->h > MAX_FACTOR || component->v < 1 || component->v > MAX_FACTOR)
            return tfpipe_complain(message, TFPIPE_DAMAGED, "its sampling factors are not from 1 to 4");
        for (int k = 0; k < i; k++)
            if (jpeg->components[k].id == component->id)
                return tfpipe_complain(message, TFPIPE_UNSUPPORTED, "two components have the same name");
        if (component->h > jpeg->max_h) jpeg->max_h = component->h;
        if (component->v > jpeg->max_v) jpeg->max_v = component->v;
    }
    return TFPIPE_OK;
}

/* Sets what follows from the size of the image and the factors of all components. */
static int set_sizes(tfpipe_jpeg *jpeg, char *message) {
    if (jpeg->num_components == 1) { /* a single component is not interleaved: its MCU is a block */
        jpeg->components[0].h = jpeg->components[0].v = 1;
        jpeg->max_h = jpeg->max_v = 1;
    }
    jpeg->mcus_per_row = divide_up(jpeg->width, 8 * jpeg->max_h);
    jpeg->mcu_rows = divide_up(jpeg->height, 8 * jpeg->max_v);
    for (int i = 0; i < jpeg->num_components; i++) {
        tfpipe_component *component = &jpeg->components[i];
        if (jpeg->max_h % component->h != 0 || jpeg->max_v % component->v != 0)
            return tfpipe_complain(message, TFPIPE_UNSUPPORTED,
                                   "its sampling factors do not divide each other, and no decoder reads it");
        component->wide = divide_up(jpeg->width * component->h, 8 * jpeg->max_h);
        component->high = divide_up(jpeg->height * component->v, 8 * jpeg->max_v);
        component->mcu_wide = jpeg->mcus_per_row * component->h;
        component->mcu_high = jpeg->mcu_rows * component->v;
    }
    return TFPIPE_OK;
}

static void choose_color(tfpipe_jpeg *jpeg) {
    const tfpipe_component *named = jpeg->components;
    if (jpeg->num_components == 1) {
        jpeg->color = TFPIPE_GRAY;
    } else if (jpeg->num_components == 4) {
        jpeg->color = jpeg->has_adobe && jpeg->adobe_transform != 0 ? TFPIPE_YCCK : TFPIPE_CMYK;
    } else if (jpeg->jfif != NULL) {
        jpeg->color = TFPIPE_YCC;
    } else if (jpeg->has_adobe) {
        jpeg->color = jpeg->adobe_transform == 0 ? TFPIPE_RGB : TFPIPE_YCC;
    } else {
        const int is_rgb = named[0].id == 'R' && named[1].id == 'G' && named[2].id == 'B';
        jpeg->color = is_rgb ? TFPIPE_RGB : TFPIPE_YCC;
    }
}

static int set_scan_sizes(tfpipe_jpeg *jpeg, char *message) {
    tfpipe_scan *scan = &jpeg->scan;
    scan->num_blocks = 0;
    if (scan->count == 1) {
        const tfpipe_component *component = &jpeg->components[scan->components[0]];
        scan->mcus_per_row = component->wide;
        scan->mcu_rows = component->high;
        scan->block_component[scan->num_blocks++] = 0;
        return TFPIPE_OK;
    }
    scan->mcus_per_row = jpeg->mcus_per_row;
    scan->mcu_rows = jpeg->mcu_rows;
    for (int i = 0; i < scan->count; i++) {
        const tfpipe_component *component = &jpeg->components[scan->components[i]];
        for (int block = 0; block < component->h * component->v; block++) {
            if (scan->num_blocks == TFPIPE_MAX_BLOCKS)
                return tfpipe_complain(message, TFPIPE_DAMAGED, "an MCU has more than 10 blocks");
            scan->block_component[scan->num_blocks++] = (uint8_t)i;
        }
    }
    return TFPIPE_OK;
}

static int read_scan(tfpipe_jpeg *jpeg, const uint8_t *at, size_t size, char *message) {
    tfpipe_scan *scan = &jpeg->scan;
    const int count = size > 0 ? at[0] : 0;
    if (jpeg->num_components == 0 || count < 1 || count > TFPIPE_MAX_COMPONENTS || size != 4 + 2 * (size_t)count)
        return tfpipe_complain(message, TFPIPE_DAMAGED, "the header of a scan is damaged");
    if (++jpeg->num_scans > MAX_SCANS) return tfpipe_complain(message, TFPIPE_DAMAGED, "it has more than 200 scans");
    scan->count = count;
    for (int i = 0; i < count; i++) {
        int k = 0;
        while (k < jpeg->num_components && jpeg->components[k].id != at[1 + 2 * i]) k++;
        for (int other = 0; other < i; other++)
            if (scan->components[other] == k) k = jpeg->num_components;
        if (k == jpeg->num_components)
            return tfpipe_complain(message, TFPIPE_DAMAGED, "a scan has a component that the image lacks");
        scan->components[i] = k;
        scan->dc[i] = at[2 + 2 * i] >> 4;
        scan->ac[i] = at[2 + 2 * i] & 15;
        if (scan->dc[i] >= TFPIPE_TABLES || scan->ac[i] >= TFPIPE_TABLES)
            return tfpipe_complain(message, TFPIPE_DAMAGED, "a scan has a Huffman table with a number above 3");
    }
    scan->first = at[1 + 2 * count];
    scan->last = at[2 + 2 * count];
    scan->high_bit = at[3 + 2 * count] >> 4;
    scan->low_bit = at[3 + 2 * count] & 15;
    if (jpeg->progressive) {
        const int is_dc = scan->first == 0;
        if (scan->low_bit > MAX_LOW_BIT || (scan->high_bit != 0 && scan->low_bit != scan->high_bit - 1) ||
            (is_dc ? scan->last != 0 : scan->first > scan->last || scan->last > 63 || count != 1))
            return tfpipe_complain(message, TFPIPE_DAMAGED, "the header of a scan is damaged");
    }
    return TFPIPE_OK;
}

/* Takes the quantization tables of the components that begin with this scan. */
static int take_quant_tables(tfpipe_jpeg *jpeg, char *message) {
    for (int i = 0; i < jpeg->scan.count; i++) {
        tfpipe_component *component = &jpeg->components[jpeg->scan.components[i]];
        if (component->is_quantized) continue;
        if (component->quant_table >= TFPIPE_TABLES || !jpeg->has_quant[component->quant_table])
            return tfpipe_complain(message, TFPIPE_DAMAGED, "a quantization table is missing");
        memcpy(component->quant, jpeg->quant[component->quant_table], sizeof component->quant);
        component->is_quantized = 1;
    }
    return TFPIPE_OK;
}

static void read_application(tfpipe_jpeg *jpeg, int marker, const uint8_t *at, size_t size) {
    if (marker == APP0 && size >= 14 && memcmp(at, "JFIF", 5) == 0) jpeg->jfif = at;
    if (marker == APP14 && size >= 12 && memcmp(at, "Adobe", 5) == 0) {
        jpeg->has_adobe = 1;
        jpeg->adobe_transform = at[11];
    }
}

/* Reads a segment behind its marker. The length counts its own two bytes; a smaller one means an empty segment. */
static int read_segment(tfpipe_jpeg *jpeg, int marker, char *message) {
    if (jpeg->size - jpeg->at < 2) return tfpipe_complain(message, TFPIPE_DAMAGED, "it ends among its headers");
    const int length = read_16(jpeg->data + jpeg->at);
    const uint8_t *at = jpeg->data + jpeg->at + 2;
    const size_t size = length > 2 ? (size_t)length - 2 : 0;
    if (size > jpeg->size - jpeg->at - 2) return tfpipe_complain(message, TFPIPE_DAMAGED, "it ends among its headers");
    jpeg->at += 2 + size;
    if ((marker >= APP0 && marker <= APP15) || marker == COM || marker == DNL) {
        read_application(jpeg, marker, at, size);
        return TFPIPE_OK;
    }
    if (length < 2) return tfpipe_complain(message, TFPIPE_DAMAGED, "a segment has an impossible length");
    switch (marker) {
        case DHT:
            return read_huffman_tables(jpeg, at, size, message);
        case DQT:
            return read_quant_tables(jpeg, at, size, message);
        case DRI:
            if (size != 2) return tfpipe_complain(message, TFPIPE_DAMAGED, "its restart interval is damaged");
            jpeg->restart_interval = read_16(at);
            return TFPIPE_OK;
        case SOS:
            return read_scan(jpeg, at, size, message);
        case DAC:
            return TFPIPE_OK;
        default:
            if (marker >= SOF0 && marker <= SOF15 && marker != JPG) return read_frame(jpeg, marker, at, size, message);
            return tfpipe_complain(message, TFPIPE_DAMAGED, "it has a segment of an unknown kind");
    }
}

/* Reads segments up to a scan. Returns as tfpipe_next_scan. */
static int read_segments(tfpipe_jpeg *jpeg, char *message) {
    for (;;) {
        const int marker = tfpipe_find_marker(jpeg);
        if (marker < 0) return tfpipe_complain(message, TFPIPE_DAMAGED, "it ends without an end marker");
        if (marker == TFPIPE_EOI) return TFPIPE_ENDS;
        if (marker == TEM || (marker >= TFPIPE_RST0 && marker <= RST7)) continue;
        const int result = read_segment(jpeg, marker, message);
        if (result != TFPIPE_OK) return result;
        if (marker == SOS) return TFPIPE_OK;
    }
}

static int begin_scan(tfpipe_jpeg *jpeg, char *message) {
    const int result = set_scan_sizes(jpeg, message);
    return result == TFPIPE_OK ? take_quant_tables(jpeg, message) : result;
}

int tfpipe_open_jpeg(tfpipe_jpeg *jpeg, const uint8_t *data, size_t size, int64_t max_pixels, char *message) {
    memset(jpeg, 0, sizeof *jpeg);
    message[0] = '\0';
    if (size < 4 || data[0] != TFPIPE_MARKER || data[1] != TFPIPE_SOI)
        return tfpipe_complain(message, TFPIPE_DAMAGED, "it is not a JPEG");
    jpeg->data = data;
    jpeg->size = size;
    jpeg->at = 2;
    int result = read_segments(jpeg, message);
    if (result == TFPIPE_ENDS) return tfpipe_complain(message, TFPIPE_DAMAGED, "it has no image data");
    if (result != TFPIPE_OK) return result;
    if ((int64_t)jpeg->width * jpeg->height > max_pixels) {
        snprintf(message, TFPIPE_MESSAGE_BYTES, "%d x %d pixels are more than the %lld allowed", jpeg->width,
                 jpeg->height, (long long)max_pixels);
        return TFPIPE_TOO_LARGE;
    }
    choose_color(jpeg);
    result = set_sizes(jpeg, message);
    return result == TFPIPE_OK ? begin_scan(jpeg, message) : result;
}

int tfpipe_next_scan(tfpipe_jpeg *jpeg, char *message) {
    const int result = read_segments(jpeg, message);
    return result == TFPIPE_OK ? begin_scan(jpeg, message) : result;
}
