#include "layout.h"

#include <string.h>

enum {
    MARKER = 0xFF,
    SOF0 = 0xC0,
    SOF1 = 0xC1,
    SOF15 = 0xCF,
    DHT = 0xC4,
    JPG = 0xC8,
    DAC = 0xCC,
    RST0 = 0xD0,
    RST7 = 0xD7,
    SOI = 0xD8,
    EOI = 0xD9,
    SOS = 0xDA,
    DRI = 0xDD,
};

static int32_t read_16(const uint8_t *data) { return data[0] << 8 | data[1]; }

static int is_frame(int marker) {
    return marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC;
}

/* Reads a frame header of `length` bytes behind its marker. Returns 0, or -1 if it is damaged. */
static int read_frame(const uint8_t *data, size_t length, int marker, tfpipe_layout *layout) {
    if (length < 8) return -1;
    layout->height = read_16(data + 3);
    layout->width = read_16(data + 5);
    layout->components = data[7];
    if (layout->width == 0 || layout->height == 0) return -1;
    if (layout->components < 1 || layout->components > TFPIPE_MAX_COMPONENTS) return -1;
    if (length < 8 + 3 * (size_t)layout->components) return -1;
    int across = 1, down = 1;
    for (int i = 0; i < layout->components; i++) {
        int h = data[9 + 3 * i] >> 4, v = data[9 + 3 * i] & 15;
        if (h < 1 || h > 4 || v < 1 || v > 4) return -1;
        if (h > across) across = h;
        if (v > down) down = v;
    }
    /* A single component is not interleaved, so its MCU is a block, whatever its sampling factors. */
    if (layout->components == 1) across = down = 1;
    layout->mcu_width = 8 * across;
    layout->mcu_height = 8 * down;
    layout->mcus_per_row = (layout->width + layout->mcu_width - 1) / layout->mcu_width;
    layout->mcu_rows = (layout->height + layout->mcu_height - 1) / layout->mcu_height;
    layout->baseline = (marker == SOF0 || marker == SOF1) && data[2] == 8;
    return 0;
}

int tfpipe_read_layout(const uint8_t *data, size_t size, tfpipe_layout *layout) {
    memset(layout, 0, sizeof *layout);
    if (size < 4 || data[0] != MARKER || data[1] != SOI) return -1;
    size_t at = 2;
    for (;;) {
        /* Any number of fill bytes may stand in front of a marker. */
        while (at + 1 < size && data[at] == MARKER && data[at + 1] == MARKER) at++;
        if (size - at < 4 || data[at] != MARKER) return -1;
        int marker = data[at + 1];
        const uint8_t *segment = data + at + 2;
        size_t length = (size_t)read_16(segment);
        if (length < 2 || length > size - at - 2) return -1;
        if (is_frame(marker)) {
            if (layout->frame != 0 || read_frame(segment, length, marker, layout) != 0) return -1;
            layout->frame = at;
        } else if (marker == DRI) {
            if (length < 4) return -1;
            layout->restart_interval = read_16(segment + 2);
        } else if (marker == SOS) {
            if (layout->frame == 0 || length < 3) return -1;
            layout->baseline = layout->baseline && segment[2] == layout->components;
            layout->scan = at + 2 + length;
            break;
        }
        at += 2 + length;
    }
    int32_t interval = layout->restart_interval;
    if (layout->baseline && interval > 0 && layout->mcus_per_row % interval == 0)
        layout->intervals_per_row = layout->mcus_per_row / interval;
    return 0;
}

int tfpipe_find_intervals(const uint8_t *data, size_t size, const tfpipe_layout *layout, size_t *offsets,
                          size_t count) {
    const uint8_t *at = data + layout->scan, *end = data + size;
    size_t found = 0;
    offsets[0] = layout->scan;
    while (at < end && (at = memchr(at, MARKER, (size_t)(end - at))) != NULL && end - at >= 2) {
        int marker = at[1];
        if (marker >= RST0 && marker <= RST7) {
            if (marker != RST0 + (int)(found % 8) || ++found >= count) return -1;
            offsets[found] = (size_t)(at + 2 - data);
        } else if (marker == EOI) {
            if (++found != count) return -1;
            offsets[found] = (size_t)(at + 2 - data);
            return 0;
        } else if (marker != 0) {
            return -1; /* another segment, or a fill byte: no encoder of ours writes one here */
        }
        at += 2;
    }
    return -1;
}
