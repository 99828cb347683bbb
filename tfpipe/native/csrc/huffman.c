#include "huffman.h"

#include <stdlib.h>
#include <string.h>

enum {
    SYMBOLS = 256,
    LEAVES = SYMBOLS + 1, /* one code more, because none may consist of ones alone */
    MOST_BITS = 16,       /* of a code in a JPEG */
    MOST_DEPTH = 64,      /* of a tree: with 2^32 symbols it is 46, by Fibonacci's numbers */
};

typedef uint32_t counts[SYMBOLS];

/* The blocks of a component, in the order of the MCUs. */
typedef struct {
    JDIMENSION across, down;         /* the blocks that exist */
    JDIMENSION mcu_across, mcu_down; /* the blocks of an MCU */
    JDIMENSION mcus, mcu_rows;
} grid;

typedef struct {
    uint32_t count;
    int symbol; /* SYMBOLS for the code that is left out */
} leaf;

/* The places of coefficients in the order in which they are coded. */
static const uint8_t PLACES[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60,
    61, 54, 47, 55, 62, 63,
};

/* Counts the symbols of all coefficients but the first. Returns the bits of the largest one. No zero costs a branch. */
static inline int count_ac(const JCOEF *block, uint32_t *ac) {
    uint64_t left = 0;
#pragma GCC unroll 63
    for (int k = 1; k < 64; k++) left |= (uint64_t)(block[PLACES[k]] != 0) << k;
    int last = 0, most = 0;
    while (left) {
        const int k = __builtin_ctzll(left), bits = tfpipe_count_bits(block[PLACES[k]]);
        int run = k - last - 1;
        for (; run > 15; run -= 16) ac[0xF0]++;
        ac[(run << 4 | bits) & 255]++;
        if (bits > most) most = bits;
        last = k;
        left &= left - 1;
    }
    if (last < 63) ac[0]++;
    return most;
}

static grid find_grid(const struct jpeg_decompress_struct *input, const jpeg_component_info *component) {
    grid blocks = {.across = component->width_in_blocks, .down = component->height_in_blocks};
    /* A single component is not interleaved: its MCU is a block. */
    const int single = input->num_components == 1;
    blocks.mcu_across = single ? 1 : (JDIMENSION)component->h_samp_factor;
    blocks.mcu_down = single ? 1 : (JDIMENSION)component->v_samp_factor;
    const JDIMENSION width = 8 * (JDIMENSION)(single ? 1 : input->max_h_samp_factor);
    const JDIMENSION height = 8 * (JDIMENSION)(single ? 1 : input->max_v_samp_factor);
    blocks.mcus = single ? blocks.across : (input->image_width + width - 1) / width;
    blocks.mcu_rows = single ? blocks.down : (input->image_height + height - 1) / height;
    return blocks;
}

/* Counts the symbols of one row of MCUs. Returns 0, or -1 if a coefficient is too large. */
static int count_row(JBLOCKARRAY rows, JDIMENSION mcu_row, const grid *blocks, unsigned interval, uint32_t *dc,
                     uint32_t *ac) {
    int last = 0, most_dc = 0, most_ac = 0;
    for (JDIMENSION mcu = 0; mcu < blocks->mcus; mcu++) {
        if (mcu % interval == 0) last = 0;
        for (JDIMENSION y = 0; y < blocks->mcu_down; y++) {
            for (JDIMENSION x = 0; x < blocks->mcu_across; x++) {
                const JDIMENSION across = mcu * blocks->mcu_across + x, down = mcu_row * blocks->mcu_down + y;
                if (across >= blocks->across || down >= blocks->down) {
                    /* A block that fills up an MCU repeats the one before, and is zero beyond its first coefficient. */
                    dc[0]++;
                    ac[0]++;
                    continue;
                }
                const JCOEF *block = rows[y][across];
                const int bits = tfpipe_count_bits(block[0] - last), ac_bits = count_ac(block, ac);
                last = block[0];
                dc[bits & 255]++;
                if (bits > most_dc) most_dc = bits;
                if (ac_bits > most_ac) most_ac = ac_bits;
            }
        }
    }
    return most_dc > TFPIPE_MOST_DC_BITS || most_ac > TFPIPE_MOST_AC_BITS ? -1 : 0;
}

/* Puts rare symbols first, and the code that is left out before all. */
static int compare_leaves(const void *left, const void *right) {
    const leaf *a = left, *b = right;
    if (a->count != b->count) return a->count < b->count ? -1 : 1;
    return a->symbol > b->symbol ? -1 : 1;
}

/* Counts the leaves of each depth in Huffman's tree. `leaves` are in order, two or more. */
static void count_depths(const leaf *leaves, int count, int *depths) {
    uint64_t sums[2 * LEAVES];
    int parents[2 * LEAVES], distances[2 * LEAVES];
    /* Leaves and then sums each come in rising order, so the two smallest are always at the front of one of the two. */
    int leaf_at = 0, sum_at = count;
    for (int i = 0; i < count; i++) sums[i] = leaves[i].count;
    for (int next = count; next < 2 * count - 1; next++) {
        sums[next] = 0;
        for (int i = 0; i < 2; i++) {
            const int takes_leaf = leaf_at < count && (sum_at == next || sums[leaf_at] <= sums[sum_at]);
            const int child = takes_leaf ? leaf_at++ : sum_at++;
            sums[next] += sums[child];
            parents[child] = next;
        }
    }
    distances[2 * count - 2] = 0;
    for (int i = 2 * count - 3; i >= 0; i--) {
        distances[i] = distances[parents[i]] + 1;
        if (i < count) depths[distances[i]]++;
    }
}

/* Shortens codes of more than MOST_BITS: one of a pair becomes a bit shorter, and the other takes the place beside a
   shorter code, which becomes a bit longer (figure K.3 of the standard). */
static void limit_depths(int *depths) {
    for (int depth = MOST_DEPTH - 1; depth > MOST_BITS; depth--) {
        while (depths[depth] > 0) {
            int shorter = depth - 2;
            while (depths[shorter] == 0) shorter--;
            depths[depth] -= 2;
            depths[depth - 1]++;
            depths[shorter + 1] += 2;
            depths[shorter]--;
        }
    }
}

static void make_code(const uint32_t *symbols, JHUFF_TBL *code) {
    leaf leaves[LEAVES] = {{1, SYMBOLS}};
    int count = 1, depths[MOST_DEPTH] = {0};
    for (int i = 0; i < SYMBOLS; i++)
        if (symbols[i]) leaves[count++] = (leaf){symbols[i], i};
    if (count == 1) leaves[count++] = (leaf){1, 0}; /* a table has at least one code, even if nothing uses it */
    qsort(leaves, (size_t)count, sizeof *leaves, compare_leaves);
    count_depths(leaves, count, depths);
    limit_depths(depths);
    int longest = MOST_BITS;
    while (depths[longest] == 0) longest--;
    depths[longest]--;
    memset(code, 0, sizeof *code);
    for (int i = 1; i <= MOST_BITS; i++) code->bits[i] = (UINT8)depths[i];
    for (int i = 1; i < count; i++) code->huffval[i - 1] = (UINT8)leaves[count - i].symbol;
}

static JHUFF_TBL *get_table(struct jpeg_compress_struct *output, JHUFF_TBL **table) {
    if (*table == NULL) *table = jpeg_alloc_huff_table((j_common_ptr)output);
    return *table;
}

void tfpipe_make_codes_of(struct jpeg_compress_struct *output, counts *dc, counts *ac) {
    for (int i = 0; i < output->num_components; i++) {
        const jpeg_component_info *to = &output->comp_info[i];
        make_code(dc[to->dc_tbl_no], get_table(output, &output->dc_huff_tbl_ptrs[to->dc_tbl_no]));
        make_code(ac[to->ac_tbl_no], get_table(output, &output->ac_huff_tbl_ptrs[to->ac_tbl_no]));
    }
}

int tfpipe_make_codes(struct jpeg_decompress_struct *input, struct jpeg_compress_struct *output,
                      jvirt_barray_ptr *coefficients) {
    counts dc[NUM_HUFF_TBLS] = {{0}}, ac[NUM_HUFF_TBLS] = {{0}};
    for (int i = 0; i < input->num_components; i++) {
        const grid blocks = find_grid(input, &input->comp_info[i]);
        const jpeg_component_info *to = &output->comp_info[i];
        for (JDIMENSION row = 0; row < blocks.mcu_rows; row++) {
            JBLOCKARRAY rows = input->mem->access_virt_barray((j_common_ptr)input, coefficients[i],
                                                              row * blocks.mcu_down, blocks.mcu_down, FALSE);
            if (count_row(rows, row, &blocks, output->restart_interval, dc[to->dc_tbl_no], ac[to->ac_tbl_no]) != 0)
                return -1;
        }
    }
    tfpipe_make_codes_of(output, dc, ac);
    return 0;
}
