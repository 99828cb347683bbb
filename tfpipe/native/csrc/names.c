/* What a plan needs of the names of millions of files: their sizes, and hashes that put them into an order. */

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "tfpipe_native.h"

enum { BLOCK_BYTES = 128, ROUNDS = 12, DIGEST_BYTES = 8 };

static const uint64_t INITIAL[8] = {
    0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
    0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

static const uint8_t ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t rotate(uint64_t word, int bits) { return word >> bits | word << (64 - bits); }

static inline __attribute__((always_inline)) void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 63);
}

/* Takes a block of BLAKE2b into its state. `total` is the number of bytes so far, those of this block among them. */
static void compress(uint64_t *state, const uint8_t *block, uint64_t total, int is_last) {
    uint64_t words[16], v[16];
    memcpy(words, block, BLOCK_BYTES); /* little-endian, as every processor that a wheel is built for */
    memcpy(v, state, 64);
    memcpy(v + 8, INITIAL, 64);
    v[12] ^= total;
    if (is_last) v[14] = ~v[14];
#pragma GCC unroll 12
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *at = ORDER[round % 10];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) mix(v, k, k + 4, k + 8, k + 12, words[at[2 * k]], words[at[2 * k + 1]]);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            mix(v, k, 4 + (k + 1) % 4, 8 + (k + 2) % 4, 12 + (k + 3) % 4, words[at[2 * k + 8]], words[at[2 * k + 9]]);
    }
    for (int k = 0; k < 8; k++) state[k] ^= v[k] ^ v[k + 8];
}

void tfpipe_hash_texts(const uint8_t *texts, const int64_t *offsets, int64_t count, const uint8_t *key,
                       size_t key_bytes, uint64_t *hashes) {
    uint64_t begun[8], keyed[8];
    uint8_t key_block[BLOCK_BYTES] = {0}, block[BLOCK_BYTES];
    memcpy(begun, INITIAL, sizeof begun);
    begun[0] ^= 0x01010000u | (uint64_t)key_bytes << 8 | DIGEST_BYTES;
    memcpy(key_block, key, key_bytes);
    memcpy(keyed, begun, sizeof keyed);
    if (key_bytes) compress(keyed, key_block, BLOCK_BYTES, 0); /* once for all texts */
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *text = texts + offsets[i];
        uint64_t rest = (uint64_t)(offsets[i + 1] - offsets[i]), state[8], total = key_bytes ? BLOCK_BYTES : 0;
        if (!rest && key_bytes) { /* the block of the key is the last one */
            memcpy(state, begun, sizeof state);
            compress(state, key_block, total, 1);
        } else {
            memcpy(state, keyed, sizeof state);
            for (; rest > BLOCK_BYTES; rest -= BLOCK_BYTES, text += BLOCK_BYTES)
                compress(state, text, total += BLOCK_BYTES, 0);
            memset(block, 0, sizeof block);
            memcpy(block, text, rest);
            compress(state, block, total + rest, 1);
        }
        hashes[i] = state[0];
    }
}

void tfpipe_read_sizes(int folder, const char *paths, int64_t count, int64_t *sizes) {
    for (int64_t i = 0; i < count; i++, paths += strlen(paths) + 1) {
        struct stat status;
        const int is_there = !fstatat(folder, paths, &status, 0);
        sizes[i] = !is_there ? TFPIPE_NO_FILE : S_ISREG(status.st_mode) ? (int64_t)status.st_size : TFPIPE_NOT_REGULAR;
    }
}
