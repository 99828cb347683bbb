#include "splice.h"

#include <stdlib.h>
#include <string.h>

enum { MARKER = 0xFF, RST0 = 0xD0, EOI = 0xD9 };

/* Makes room for `needed` elements of `element` bytes. Returns 0, or -1 if there is no memory. */
static int reserve(void **memory, size_t *capacity, size_t needed, size_t element) {
    if (needed <= *capacity) return 0;
    void *larger = realloc(*memory, needed * element);
    if (larger == NULL) return -1;
    *memory = larger;
    *capacity = needed;
    return 0;
}

static void write_16(uint8_t *data, int32_t value) {
    data[0] = (uint8_t)(value >> 8);
    data[1] = (uint8_t)value;
}

static int32_t at_most(int32_t value, int32_t limit) { return value < limit ? value : limit; }

static int32_t at_least(int32_t value, int32_t limit) { return value > limit ? value : limit; }

int tfpipe_splice_box(const uint8_t *data, size_t size, const tfpipe_layout *layout, tfpipe_box box, int32_t margin,
                      tfpipe_splice *splice) {
    const int32_t per_row = layout->intervals_per_row, rows = layout->mcu_rows;
    if (per_row == 0) return 0;
    size_t count = (size_t)per_row * (size_t)rows;
    /* Each interval has a byte of data and a marker, so a lying header cannot ask for much memory. */
    if (count > (size - layout->scan) / 2) return 0;
    if (reserve((void **)&splice->offsets, &splice->offsets_capacity, count + 1, sizeof *splice->offsets) != 0) return -1;
    if (tfpipe_find_intervals(data, size, layout, splice->offsets, count) != 0) return 0;

    const int32_t interval_width = layout->restart_interval * layout->mcu_width;
    const int32_t margin_x = layout->mcu_width > 8 ? margin : 0, margin_y = layout->mcu_height > 8 ? margin : 0;
    const int32_t top = at_least(box.y - margin_y, 0) / layout->mcu_height;
    const int32_t bottom = at_most((box.y + box.height + margin_y - 1) / layout->mcu_height + 1, rows);
    int32_t left = at_least(box.x - margin_x, 0) / interval_width;
    int32_t right = at_most((box.x + box.width + margin_x - 1) / interval_width + 1, per_row);
    /* libjpeg blends no color in a row of two samples of it or fewer, and `margin` is two pixels of the reduced image. */
    if (at_most(right * interval_width, layout->width) - left * interval_width <= 2 * margin_x) {
        if (right < per_row) right++;
        else if (left > 0) left--;
    }
    if (top == 0 && left == 0 && bottom == rows && right == per_row) return 0; /* all of it */

    size_t needed = layout->scan;
    for (int32_t row = top; row < bottom; row++) {
        const size_t *offsets = splice->offsets + (size_t)row * (size_t)per_row;
        needed += offsets[right] - offsets[left];
    }
    if (reserve((void **)&splice->data, &splice->capacity, needed, 1) != 0) return -1;
    uint8_t *out = splice->data;
    memcpy(out, data, layout->scan);
    const int32_t height = (bottom == rows ? layout->height : bottom * layout->mcu_height) - top * layout->mcu_height;
    const int32_t width = (right == per_row ? layout->width : right * interval_width) - left * interval_width;
    write_16(out + layout->frame + 5, height);
    write_16(out + layout->frame + 7, width);

    size_t at = layout->scan;
    int marker = 0;
    for (int32_t row = top; row < bottom; row++) {
        const size_t *offsets = splice->offsets + (size_t)row * (size_t)per_row;
        memcpy(out + at, data + offsets[left], offsets[right] - offsets[left]);
        for (int32_t interval = left; interval < right; interval++) {
            at += offsets[interval + 1] - offsets[interval];
            out[at - 2] = MARKER;
            out[at - 1] = (uint8_t)(RST0 + marker++ % 8);
        }
    }
    out[at - 1] = EOI;
    splice->size = at;
    splice->y = top * layout->mcu_height;
    splice->x = left * interval_width;
    return 1;
}

void tfpipe_free_splice(tfpipe_splice *splice) {
    free(splice->data);
    free(splice->offsets);
    memset(splice, 0, sizeof *splice);
}
