#include "coefficients.h"

#include <stdlib.h>
#include <string.h>

#include "bit_reader.h"
#include "blocks.h"
#include "huffman_tables.h"
#include "sequential.h"
#include "tfpipe_native.h"
#include "versions.h"

enum {
    UNKNOWN = -1,      /* no scan had this coefficient yet */
    SMOOTHED = 10,     /* decoders guess the first coefficients from the blocks around while bits are missing */
    MOST_VISITS = 512 /* of blocks by scans, for a byte of the file: 64 scans of an image without any detail */
};

/* A scan that is read.

   end_run   how many more blocks have no new coefficients
   is_strict whether bytes between a scan and the next marker are damage
   known     by component and coefficient: the lowest bit that is known, or UNKNOWN */
typedef struct {
    tfpipe_jpeg *jpeg;
    tfpipe_coefficients *to;
    tfpipe_tables tables;
    tfpipe_bits in;
    int32_t last_dc[TFPIPE_MAX_COMPONENTS];
    int32_t end_run;
    int is_strict;
    int8_t known[TFPIPE_MAX_COMPONENTS][64];
} reading;

INLINE void refill_for(tfpipe_bits *in, int count) {
    if (in->count < count) tfpipe_refill(in);
}

/* Reads all coefficients of a block. */
INLINE int read_sequential(reading *self, tfpipe_bits *in, int index, int16_t *block) {
    const tfpipe_scan *scan = &self->jpeg->scan;
    int16_t room[TFPIPE_BLOCK_ROOM] __attribute__((aligned(32))) = {0};
    const tfpipe_dc_table *dc = self->tables.of[TFPIPE_DC][scan->dc[index]];
    int is_bad = 0;
    tfpipe_refill(in);
    self->last_dc[index] = (int32_t)((uint32_t)self->last_dc[index] + (uint32_t)tfpipe_take_dc(in, dc, &is_bad));
    room[0] = (int16_t)self->last_dc[index];
    if (is_bad || tfpipe_take_ac(in, self->tables.of[TFPIPE_PAIRS][scan->ac[index]], room) < 0) return TFPIPE_BAD_BLOCK;
    memcpy(block, room, 64 * sizeof *block);
    return 0;
}

INLINE int read_first_dc(reading *self, tfpipe_bits *in, int index, int16_t *block) {
    const tfpipe_scan *scan = &self->jpeg->scan;
    const tfpipe_dc_table *dc = self->tables.of[TFPIPE_DC][scan->dc[index]];
    int is_bad = 0;
    tfpipe_refill(in);
    self->last_dc[index] = (int32_t)((uint32_t)self->last_dc[index] + (uint32_t)tfpipe_take_dc(in, dc, &is_bad));
    block[0] = (int16_t)(uint16_t)((uint32_t)self->last_dc[index] << scan->low_bit);
    return -is_bad;
}

INLINE int refine_dc(reading *self, tfpipe_bits *in, int16_t *block) {
    refill_for(in, 1);
    if (tfpipe_take_bits(in, 1)) block[0] = (int16_t)(block[0] | 1 << self->jpeg->scan.low_bit);
    return 0;
}

INLINE int32_t take_run(tfpipe_bits *in, int run) { return (1 << run) + (run > 0 ? tfpipe_take_bits(in, run) : 0); }

INLINE int read_first_ac(reading *self, tfpipe_bits *in, int16_t *block) {
    const tfpipe_scan *scan = &self->jpeg->scan;
    const tfpipe_code_table *codes = self->tables.of[TFPIPE_CODES][scan->ac[0]];
    if (self->end_run > 0) {
        self->end_run--;
        return 0;
    }
    for (int k = scan->first; k <= scan->last; k++) {
        refill_for(in, 31);
        const int symbol = tfpipe_take_code(in, codes), size = symbol & 15, run = symbol >> 4;
        if (symbol < 0) return TFPIPE_BAD_BLOCK;
        if (size == 0 && run < 15) {
            self->end_run = take_run(in, run) - 1;
            return 0;
        }
        k += run;
        if (size == 0) continue;
        if (k > scan->last) return TFPIPE_BAD_BLOCK;
        const int32_t value = tfpipe_extend(tfpipe_take_bits(in, size), size);
        block[tfpipe_zigzag[k]] = (int16_t)(uint16_t)((uint32_t)value << scan->low_bit);
    }
    return 0;
}

/* Reads a bit of a coefficient that is not zero. */
INLINE void refine(tfpipe_bits *in, int16_t *coefficient, int low) {
    refill_for(in, 1);
    if (tfpipe_take_bits(in, 1) && (*coefficient & low) == 0)
        *coefficient = (int16_t)(*coefficient + (*coefficient >= 0 ? low : -low));
}

INLINE int refine_ac(reading *self, tfpipe_bits *in, int16_t *block) {
    const tfpipe_scan *scan = &self->jpeg->scan;
    const tfpipe_code_table *codes = self->tables.of[TFPIPE_CODES][scan->ac[0]];
    const int low = 1 << scan->low_bit;
    int k = scan->first;
    while (self->end_run == 0 && k <= scan->last) {
        int value = 0;
        refill_for(in, 32);
        const int symbol = tfpipe_take_code(in, codes);
        int run = symbol >> 4;
        if (symbol < 0 || (symbol & 15) > 1) return TFPIPE_BAD_BLOCK;
        if ((symbol & 15) == 1) {
            value = tfpipe_take_bits(in, 1) ? low : -low;
        } else if (run < 15) {
            self->end_run = take_run(in, run);
            break;
        }
        for (; k <= scan->last; k++) {
            int16_t *coefficient = &block[tfpipe_zigzag[k]];
            if (*coefficient != 0) refine(in, coefficient, low);
            else if (--run < 0) break;
        }
        if (value != 0) {
            if (k > scan->last) return TFPIPE_BAD_BLOCK;
            block[tfpipe_zigzag[k]] = (int16_t)value;
        }
        k++;
    }
    if (self->end_run > 0) {
        for (; k <= scan->last; k++)
            if (block[tfpipe_zigzag[k]] != 0) refine(in, &block[tfpipe_zigzag[k]], low);
        self->end_run--;
    }
    return 0;
}

INLINE int read_block(reading *self, tfpipe_bits *in, int index, int16_t *block) {
    const tfpipe_scan *scan = &self->jpeg->scan;
    if (!self->jpeg->progressive) return read_sequential(self, in, index, block);
    if (scan->first == 0)
        return scan->high_bit == 0 ? read_first_dc(self, in, index, block) : refine_dc(self, in, block);
    return scan->high_bit == 0 ? read_first_ac(self, in, block) : refine_ac(self, in, block);
}

/* Returns a block of the scan's component `index`. */
static int16_t *find_block(const reading *self, int index, int32_t x, int32_t y) {
    const int component = self->jpeg->scan.components[index];
    return self->to->blocks[component] + 64 * ((size_t)y * (size_t)self->jpeg->components[component].mcu_wide + (size_t)x);
}

static int read_mcu(reading *self, tfpipe_bits *in, int32_t column, int32_t row) {
    const tfpipe_scan *scan = &self->jpeg->scan;
    if (scan->count == 1) return read_block(self, in, 0, find_block(self, 0, column, row));
    for (int i = 0; i < scan->count; i++) {
        const tfpipe_component *component = &self->jpeg->components[scan->components[i]];
        for (int32_t y = 0; y < component->v; y++)
            for (int32_t x = 0; x < component->h; x++)
                if (read_block(self, in, i, find_block(self, i, column * component->h + x, row * component->v + y)) != 0)
                    return TFPIPE_BAD_BLOCK;
    }
    return 0;
}

static int read_scan(reading *self, char *message) {
    const tfpipe_jpeg *jpeg = self->jpeg;
    const tfpipe_scan *scan = &jpeg->scan;
    int32_t left = jpeg->restart_interval;
    int number = 0;
    self->end_run = 0;
    memset(self->last_dc, 0, sizeof self->last_dc);
    tfpipe_bits in = tfpipe_begin_bits(jpeg->data + jpeg->at, jpeg->data + jpeg->size);
    for (int32_t row = 0; row < scan->mcu_rows; row++) {
        for (int32_t column = 0; column < scan->mcus_per_row; column++) {
            if (jpeg->restart_interval > 0) {
                if (left == 0) {
                    const char *wrong = tfpipe_pass_restart(jpeg, &in, number++);
                    if (wrong != NULL) return tfpipe_complain(message, TFPIPE_DAMAGED, wrong);
                    self->end_run = 0;
                    memset(self->last_dc, 0, sizeof self->last_dc);
                    left = jpeg->restart_interval;
                }
                left--;
            }
            if (read_mcu(self, &in, column, row) != 0)
                return tfpipe_complain(message, TFPIPE_DAMAGED, "its image data is damaged");
        }
        if (tfpipe_is_overdrawn(&in)) return tfpipe_complain(message, TFPIPE_DAMAGED, "its image data is damaged");
    }
    const char *wrong = self->is_strict ? tfpipe_end_interval(jpeg, &in) : NULL;
    if (wrong != NULL) return tfpipe_complain(message, TFPIPE_DAMAGED, wrong);
    self->jpeg->at = (size_t)(in.next - jpeg->data);
    return TFPIPE_OK;
}

/* Notes what a scan brings. Returns whether the scans before have brought what it goes on from. */
static int follows(reading *self) {
    const tfpipe_scan *scan = &self->jpeg->scan;
    for (int i = 0; i < scan->count; i++) {
        int8_t *known = self->known[scan->components[i]];
        if (!self->jpeg->progressive) {
            if (known[0] != UNKNOWN) return 0;
            memset(known, 0, 64);
            continue;
        }
        if (scan->first > 0 && known[0] == UNKNOWN) return 0;
        for (int k = scan->first; k <= scan->last; k++) {
            if (scan->high_bit == 0 ? known[k] > 0 : known[k] != scan->high_bit) return 0;
            known[k] = (int8_t)scan->low_bit;
        }
    }
    return 1;
}

static int is_known(const reading *self) {
    for (int i = 0; i < self->jpeg->num_components; i++)
        for (int k = 0; k < SMOOTHED; k++)
            if (self->known[i][k] != 0) return 0;
    return 1;
}

static int has_all_components(const reading *self) {
    for (int i = 0; i < self->jpeg->num_components; i++)
        if (self->known[i][0] == UNKNOWN) return 0;
    return 1;
}

/* Asks for the memory of all blocks. Each takes a bit of the first scan at least. */
static int allocate(reading *self, char *message) {
    const tfpipe_jpeg *jpeg = self->jpeg;
    uint64_t count = 0;
    for (int i = 0; i < jpeg->num_components; i++)
        count += (uint64_t)jpeg->components[i].mcu_wide * (uint64_t)jpeg->components[i].mcu_high;
    if (count > 8 * (uint64_t)(jpeg->size - jpeg->at))
        return tfpipe_complain(message, TFPIPE_DAMAGED, "it ends among its image data");
    for (int i = 0; i < jpeg->num_components; i++) {
        const tfpipe_component *component = &jpeg->components[i];
        const size_t blocks = (size_t)component->mcu_wide * (size_t)component->mcu_high;
        self->to->blocks[i] = calloc(blocks, 64 * sizeof(int16_t));
        if (self->to->blocks[i] == NULL) return TFPIPE_NO_MEMORY;
    }
    return TFPIPE_OK;
}

/* Returns which tables a scan needs. */
static int find_needs(const tfpipe_jpeg *jpeg) {
    if (!jpeg->progressive) return 1 << TFPIPE_DC | 1 << TFPIPE_PAIRS;
    if (jpeg->scan.first > 0) return 1 << TFPIPE_CODES;
    return jpeg->scan.high_bit == 0 ? 1 << TFPIPE_DC : 0;
}

int tfpipe_read_coefficients(tfpipe_jpeg *jpeg, tfpipe_coefficients *to, int is_strict, int *is_complete,
                             char *message) {
    reading self = {.jpeg = jpeg, .to = to, .is_strict = is_strict};
    memset(to, 0, sizeof *to);
    memset(self.known, UNKNOWN, sizeof self.known);
    int result = allocate(&self, message);
    uint64_t visits = 0;
    while (result == TFPIPE_OK) {
        visits += (uint64_t)jpeg->scan.mcus_per_row * (uint64_t)jpeg->scan.mcu_rows * (uint64_t)jpeg->scan.num_blocks;
        if (visits > MOST_VISITS * (uint64_t)jpeg->size) {
            result = tfpipe_complain(message, TFPIPE_DAMAGED, "it has too many scans for its size");
            break;
        }
        if (!follows(&self)) {
            result = tfpipe_complain(message, TFPIPE_UNSUPPORTED, "its scans do not follow each other");
            break;
        }
        result = tfpipe_get_tables(jpeg, find_needs(jpeg), &self.tables, message);
        if (result == TFPIPE_OK) result = read_scan(&self, message);
        if (result == TFPIPE_OK) result = tfpipe_next_scan(jpeg, message);
    }
    tfpipe_release_tables(&self.tables);
    if (result == TFPIPE_ENDS)
        result = has_all_components(&self) ? TFPIPE_OK
                                           : tfpipe_complain(message, TFPIPE_UNSUPPORTED, "a component has no data");
    if (result != TFPIPE_OK) tfpipe_free_coefficients(to);
    *is_complete = is_known(&self);
    return result;
}

void tfpipe_free_coefficients(tfpipe_coefficients *of) {
    for (int i = 0; i < TFPIPE_MAX_COMPONENTS; i++) {
        free(of->blocks[i]);
        of->blocks[i] = NULL;
    }
}
