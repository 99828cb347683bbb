#include "sequential.h"

#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "tfpipe_native.h"
#include "transform.h"
#include "versions.h"

const char *tfpipe_end_interval(const tfpipe_jpeg *jpeg, tfpipe_bits *in) {
    tfpipe_copy *const copy = jpeg->copy;
    const uint8_t *begin, *end;
    int32_t left = tfpipe_count_left(in);
    if (left <= 0) return left == 0 ? NULL : "its image data is damaged";
    for (begin = in->next; left > 0; left--) begin -= begin[-1] == 0 && begin[-2] == TFPIPE_STUFFED ? 2 : 1;
    for (end = begin; end < in->end && *end == 0; end++) continue;
    /* Where the blocks end in zeros too, a cut file may have been filled up with them. */
    const int is_padding = end > begin && (begin[-1] | begin[-2]) != 0;
    if (copy == NULL || !is_padding || in->end - end < 2 || end[0] != TFPIPE_MARKER || end[1] == 0)
        return TFPIPE_SURPLUS;
    copy->places++;
    copy->doubtful |= end - begin == 1 && __builtin_popcount(begin[-1]) == 7 && end[1] != TFPIPE_EOI && jpeg->progressive;
    memcpy(copy->to, copy->from, (size_t)(begin - copy->from));
    copy->to += begin - copy->from;
    copy->from = end;
    *in = tfpipe_begin_bits(end, in->end);
    return NULL;
}

const char *tfpipe_pass_restart(const tfpipe_jpeg *jpeg, tfpipe_bits *in, int number) {
    const char *wrong = tfpipe_end_interval(jpeg, in);
    if (wrong != NULL) return wrong;
    while (in->end - in->next >= 2 && in->next[0] == TFPIPE_MARKER && in->next[1] == TFPIPE_MARKER) in->next++;
    if (in->end - in->next < 2 || in->next[1] != TFPIPE_RST0 + (number & 7))
        return "a restart marker is not where it must be";
    *in = tfpipe_begin_bits(in->next + 2, in->end);
    return NULL;
}

int tfpipe_end_scan(tfpipe_jpeg *jpeg, tfpipe_bits *in, char *message) {
    const char *wrong = tfpipe_end_interval(jpeg, in);
    if (wrong != NULL) return tfpipe_complain(message, TFPIPE_DAMAGED, wrong);
    jpeg->at = (size_t)(in->next - jpeg->data);
    const int result = tfpipe_next_scan(jpeg, message);
    if (result == TFPIPE_OK) return tfpipe_complain(message, TFPIPE_DAMAGED, "it has a scan more than its components");
    return result == TFPIPE_ENDS ? TFPIPE_OK : result;
}

/* Finds where intervals begin, up to the one behind the last that is needed. Returns 0, or -1 if the markers are not
   those that they must be. */
static int find_intervals(const uint8_t *data, const uint8_t *begin, const uint8_t *end, size_t *offsets, int64_t count) {
    const uint8_t *at = begin;
    int64_t found = 0;
    offsets[0] = (size_t)(begin - data);
    while (at < end && (at = memchr(at, TFPIPE_MARKER, (size_t)(end - at))) != NULL && end - at >= 2) {
        const int marker = at[1];
        if (marker == 0) {
            at += 2;
            continue;
        }
        if (++found == count) {
            offsets[found] = (size_t)(at - data);
            return 0;
        }
        if (marker != TFPIPE_RST0 + (int)((found - 1) & 7)) return -1; /* fill bytes too */
        at += 2;
        offsets[found] = (size_t)(at - data);
    }
    return -1;
}

/* Prepares to seek, if there are restart markers and they are where they must be. Returns 0, or -1 without memory. */
static int prepare_to_seek(tfpipe_sequence *self) {
    const tfpipe_jpeg *jpeg = self->jpeg;
    const int32_t interval = jpeg->restart_interval, per_row = jpeg->mcus_per_row;
    if (interval == 0) return 0;
    const int64_t needed = (int64_t)self->planes->end_mcu_row * per_row;
    const int64_t count = (needed + interval - 1) / interval;
    /* Each interval has a byte of data and a marker, so a lying header cannot ask for much memory. */
    if (count < 2 || (uint64_t)count > (jpeg->size - jpeg->at) / 2) return 0;
    size_t *offsets = malloc(((size_t)count + 1) * sizeof *offsets);
    if (offsets == NULL) return -1;
    if (find_intervals(jpeg->data, jpeg->data + jpeg->at, jpeg->data + jpeg->size, offsets, count) != 0) {
        free(offsets);
        return 0;
    }
    self->intervals = offsets;
    self->num_intervals = count;
    return 0;
}

/* Returns which tables are needed. Where it jumps to the intervals that it needs, few blocks are passed over. */
static int find_needs(const tfpipe_sequence *self) {
    const int32_t columns = self->planes->end_mcu - self->planes->first_mcu;
    const int passes_few = self->intervals != NULL && self->jpeg->restart_interval <= columns;
    return 1 << TFPIPE_DC | 1 << TFPIPE_PAIRS | (passes_few ? 0 : 1 << TFPIPE_LEAPS);
}

static void open_channel(tfpipe_sequence *self, int index) {
    const tfpipe_jpeg *jpeg = self->jpeg;
    const int number = jpeg->scan.components[index];
    const tfpipe_component *component = &jpeg->components[number];
    const tfpipe_plane *plane = &self->planes->planes[number];
    self->channels[index] = (tfpipe_channel){.dc = self->tables.of[TFPIPE_DC][jpeg->scan.dc[index]],
                                             .pairs = self->tables.of[TFPIPE_PAIRS][jpeg->scan.ac[index]],
                                             .leaps = self->tables.of[TFPIPE_LEAPS][jpeg->scan.ac[index]],
                                             .factors = plane->factors,
                                             .stride = plane->stride,
                                             .side = plane->side,
                                             .is_accurate = self->planes->is_accurate,
                                             .h = component->h,
                                             .v = component->v,
                                             .first = plane->first_block,
                                             .end = plane->end_block};
}

int tfpipe_begin_sequence(tfpipe_sequence *self, const tfpipe_jpeg *jpeg, tfpipe_planes *planes, int seeks,
                          char *message) {
    *self = (tfpipe_sequence){.jpeg = jpeg, .planes = planes};
    if (seeks && prepare_to_seek(self) != 0) return TFPIPE_NO_MEMORY;
    const int result = tfpipe_get_tables(jpeg, find_needs(self), &self->tables, message);
    if (result != TFPIPE_OK) return result;
    for (int i = 0; i < jpeg->scan.count; i++) open_channel(self, i);
    self->in = tfpipe_begin_bits(jpeg->data + jpeg->at, jpeg->data + jpeg->size);
    return TFPIPE_OK;
}

void tfpipe_end_sequence(tfpipe_sequence *self) {
    tfpipe_release_tables(&self->tables);
    free(self->intervals);
    self->intervals = NULL;
}

/* Returns whether an interval has an MCU that is needed. */
static int is_needed(const tfpipe_planes *planes, int32_t per_row, int64_t begin, int64_t end) {
    const int64_t row = begin / per_row, last_row = (end - 1) / per_row;
    if (last_row < planes->first_mcu_row) return 0;
    if (row != last_row) return 1;
    return end - row * per_row > planes->first_mcu && begin - row * per_row < planes->end_mcu;
}

/* Begins the interval of the next MCU, or goes on to the next one that is needed. Returns NULL, or a phrase that says what is
   wrong between two intervals. */
static const char *begin_interval(tfpipe_sequence *self) {
    const int32_t interval = self->jpeg->restart_interval;
    const uint8_t *data = self->jpeg->data;
    int64_t number = self->next_mcu / interval;
    if (self->intervals == NULL) {
        const char *wrong = number > 0 ? tfpipe_pass_restart(self->jpeg, &self->in, (int)(number - 1) & 7) : NULL;
        if (wrong != NULL) return wrong;
    } else {
        const int32_t per_row = self->jpeg->mcus_per_row;
        const char *wrong = self->has_begun ? tfpipe_end_interval(self->jpeg, &self->in) : NULL;
        if (wrong != NULL) return wrong;
        while (number < self->num_intervals &&
               !is_needed(self->planes, per_row, number * interval, (number + 1) * interval))
            number++;
        if (number == self->num_intervals) { /* nothing behind it is needed */
            self->next_mcu = INT64_MAX;
            return NULL;
        }
        self->in = tfpipe_begin_bits(data + self->intervals[number], data + self->intervals[number + 1]);
        self->next_mcu = number * interval;
    }
    self->has_begun = 1;
    self->left = interval;
    for (int i = 0; i < self->jpeg->scan.count; i++) self->channels[i].last_dc = 0;
    return NULL;
}

/* Finds where the samples of a row of MCUs go. */
static void open_row(tfpipe_sequence *self, int32_t mcu_row) {
    for (int i = 0; i < self->jpeg->scan.count; i++) {
        const tfpipe_plane *plane = &self->planes->planes[self->jpeg->scan.components[i]];
        tfpipe_channel *channel = &self->channels[i];
        for (int32_t k = 0; k < channel->v; k++) {
            const int32_t row = mcu_row * channel->v + k;
            const int is_needed = row >= plane->first_row && row < plane->end_row;
            channel->rows[k] = is_needed ? tfpipe_find_samples(plane, plane->first_block, row) : NULL;
        }
    }
}

/* Reads a block of which nothing is needed but its place in the order. Returns 0 or TFPIPE_BAD_BLOCK. */
INLINE int pass_block(tfpipe_bits *in, tfpipe_channel *from) {
    int is_bad = 0;
    tfpipe_refill(in);
    from->last_dc = (int32_t)((uint32_t)from->last_dc + (uint32_t)tfpipe_take_dc(in, from->dc, &is_bad));
    if (TFPIPE_LIKELY(from->leaps != NULL)) return tfpipe_pass_ac(in, from->leaps) | -is_bad;
    int16_t ignored[TFPIPE_BLOCK_ROOM];
    return tfpipe_take_ac(in, from->pairs, ignored) < 0 ? TFPIPE_BAD_BLOCK : -is_bad;
}

/* Reads a block. Returns how many coefficients may not be zero, or TFPIPE_BAD_BLOCK. */
INLINE int read_block(tfpipe_bits *in, tfpipe_channel *from, int16_t *block) {
    int is_bad = 0;
    for (int i = 0; i < 64; i += 8) store_shorts(block + i, repeat_short(0));
    tfpipe_refill(in);
    from->last_dc = (int32_t)((uint32_t)from->last_dc + (uint32_t)tfpipe_take_dc(in, from->dc, &is_bad));
    block[0] = (int16_t)from->last_dc;
    return tfpipe_take_ac(in, from->pairs, block) | -is_bad;
}

/* Blocks of full size whose samples are made two at a time. */
typedef struct {
    int16_t blocks[2 * TFPIPE_PAIR_STEP] __attribute__((aligned(32)));
    tfpipe_target targets[2];
    int count;
} pair;

/* Makes the samples of a block that has no partner. */
INLINE void end_pair(const pair *of) {
    const tfpipe_target *to = &of->targets[0];
    if (of->count == 1) transform_8(of->blocks, to->factors, to->is_accurate, to->out, to->stride);
}

/* Reads a block of full size. Its samples are made with those of the next. Returns 0 or TFPIPE_BAD_BLOCK. */
INLINE int read_full(tfpipe_bits *in, tfpipe_channel *from, pair *with, uint8_t *out) {
    int16_t *block = with->blocks + TFPIPE_PAIR_STEP * with->count;
    const int count = read_block(in, from, block);
    if (count <= 1) {
        fill_8(block[0], from->factors, from->is_accurate, out, from->stride);
        return count < 0 ? TFPIPE_BAD_BLOCK : 0;
    }
    if (from->is_accurate && TFPIPE_UNLIKELY(has_first_row_alone(block, 0))) {
        transform_8(block, from->factors, 1, out, from->stride);
        return 0;
    }
    with->targets[with->count++] = (tfpipe_target){from->factors, from->is_accurate, out, from->stride};
    if (with->count == 2) {
        tfpipe_transform_pair(with->blocks, with->targets);
        with->count = 0;
    }
    return 0;
}

/* Reads a block and makes its samples of reduced size. Returns 0 or TFPIPE_BAD_BLOCK. */
INLINE int read_reduced(tfpipe_bits *in, tfpipe_channel *from, uint8_t *out) {
    int16_t block[TFPIPE_BLOCK_ROOM] __attribute__((aligned(32)));
    if (from->side == 1) {
        if (pass_block(in, from) != 0) return TFPIPE_BAD_BLOCK;
        block[0] = (int16_t)from->last_dc;
        tfpipe_transform_1(block, from->factors, out, from->stride);
        return 0;
    }
    if (read_block(in, from, block) < 0) return TFPIPE_BAD_BLOCK;
    if (from->side == 4) tfpipe_transform_4(block, from->factors, out, from->stride);
    else tfpipe_transform_2(block, from->factors, out, from->stride);
    return 0;
}

/* Reads the blocks of one row of an MCU, which begin at the column `x`. Returns 0 or TFPIPE_BAD_BLOCK. */
INLINE int read_blocks(tfpipe_bits *in, tfpipe_channel *from, pair *with, uint8_t *samples, int32_t x) {
    const int32_t end = x + from->h;
    int result = 0;
    for (; x < end; x++) {
        if (samples == NULL || x < from->first || x >= from->end) result |= pass_block(in, from);
        else if (from->side == 8) result |= read_full(in, from, with, samples + (size_t)(x - from->first) * 8);
        else result |= read_reduced(in, from, samples + (size_t)((x - from->first) * from->side));
    }
    return result;
}

/* Reads MCUs of one row up to the column `end`. Returns 0 or TFPIPE_BAD_BLOCK. */
INLINE int read_mcus(tfpipe_sequence *self, int32_t row, int32_t begin, int32_t end) {
    const tfpipe_planes *planes = self->planes;
    const int count = self->jpeg->scan.count;
    const int is_needed_row = row >= planes->first_mcu_row;
    tfpipe_channel *const channels = self->channels;
    tfpipe_bits in = self->in;
    pair with;
    int result = 0;
    with.count = 0;
    for (int32_t column = begin; column < end && result == 0; column++) {
        const int is_needed = is_needed_row && column >= planes->first_mcu && column < planes->end_mcu;
        for (tfpipe_channel *from = channels; from < channels + count; from++)
            for (int32_t y = 0; y < from->v; y++)
                result |= read_blocks(&in, from, &with, is_needed ? from->rows[y] : NULL, column * from->h);
    }
    end_pair(&with);
    self->in = in;
    return result;
}

DEFINE_INT(read_mcus, (tfpipe_sequence *self, int32_t row, int32_t begin, int32_t end), (self, row, begin, end))

int tfpipe_read_mcu_row(tfpipe_sequence *self, int32_t row, char *message) {
    const int32_t interval = self->jpeg->restart_interval;
    const int64_t row_end = (int64_t)(row + 1) * self->jpeg->mcus_per_row;
    open_row(self, row);
    while (self->next_mcu < row_end) {
        const char *wrong = interval > 0 && self->left == 0 ? begin_interval(self) : NULL;
        if (wrong != NULL) return tfpipe_complain(message, TFPIPE_DAMAGED, wrong);
        if (self->next_mcu >= row_end) break;
        const int32_t begin = (int32_t)(self->next_mcu - (row_end - self->jpeg->mcus_per_row));
        const int32_t rest = self->jpeg->mcus_per_row - begin;
        const int32_t end = begin + (interval > 0 && self->left < rest ? self->left : rest);
        if (choose_read_mcus(self, row, begin, end) != 0 || tfpipe_is_overdrawn(&self->in))
            return tfpipe_complain(message, TFPIPE_DAMAGED, "its image data is damaged");
        self->next_mcu += end - begin;
        self->left -= end - begin;
    }
    return TFPIPE_OK;
}
