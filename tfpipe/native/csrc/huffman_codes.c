/* Huffman codes that are the shortest for symbols that were counted. */

#include <stdlib.h>
#include <string.h>

#include "huffman_tables.h"

enum {
    SYMBOLS = 256,
    LEAVES = SYMBOLS + 1, /* one code more, because none may consist of ones alone */
    MOST_BITS = 16,       /* of a code in a JPEG */
    MOST_DEPTH = 64,      /* of a tree: with 2^32 symbols it is 46, by Fibonacci's numbers */
};

typedef struct {
    uint32_t count;
    int symbol; /* SYMBOLS for the code that is left out */
} leaf;

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

void tfpipe_make_code(const uint32_t frequencies[256], tfpipe_new_code *code) {
    leaf leaves[LEAVES] = {{1, SYMBOLS}};
    int count = 1, depths[MOST_DEPTH] = {0};
    for (int i = 0; i < SYMBOLS; i++)
        if (frequencies[i]) leaves[count++] = (leaf){frequencies[i], i};
    if (count == 1) leaves[count++] = (leaf){1, 0}; /* a table has at least one code, even if nothing uses it */
    qsort(leaves, (size_t)count, sizeof *leaves, compare_leaves);
    count_depths(leaves, count, depths);
    limit_depths(depths);
    int longest = MOST_BITS;
    while (depths[longest] == 0) longest--;
    depths[longest]--;
    memset(code, 0, sizeof *code);
    code->num_symbols = count - 1;
    for (int i = 1; i <= MOST_BITS; i++) code->counts[i - 1] = (uint8_t)depths[i];
    for (int i = 1; i < count; i++) code->symbols[i - 1] = (uint8_t)leaves[count - i].symbol;
    unsigned next = 0;
    int index = 0;
    for (int length = 1; length <= MOST_BITS; length++, next <<= 1)
        for (int i = 0; i < code->counts[length - 1]; i++, index++, next++) {
            code->codes[code->symbols[index]] = (uint16_t)next;
            code->lengths[code->symbols[index]] = (uint8_t)length;
        }
}
