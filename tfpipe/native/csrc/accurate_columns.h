/* The accurate transform of all columns of a block, or of several blocks, at once: one source for vectors of each width.

   Beside what transform_columns.h needs: INTS is the type of half a row of 32-bit numbers, UNSIGNED_INTS the same without
   signs, MIX_LOW and MIX_HIGH take numbers in turn, MULTIPLY_PAIRS(v, x, y) adds up the products of two neighbors, and
   TO_SHORTS limits two vectors to 16 bits. NAME(name) is the name of a function. All are undefined at the end. */

#define ADD(a, b) ((VECTOR)((UNSIGNED)(a) + (UNSIGNED)(b)))
#define SUBTRACT(a, b) ((VECTOR)((UNSIGNED)(a) - (UNSIGNED)(b)))
#define ADD_INTS(a, b) ((INTS)((UNSIGNED_INTS)(a) + (UNSIGNED_INTS)(b)))
#define SUBTRACT_INTS(a, b) ((INTS)((UNSIGNED_INTS)(a) - (UNSIGNED_INTS)(b)))

/* Makes eight numbers of half of the columns. `bits` of fraction are lost.

   sum, difference  of the numbers 0 and 4, each behind a zero
   tilting          the numbers 2 and 6 in turn
   turning          3 + 7 and 1 + 5 in turn
   outer, inner     7 and 1, and 5 and 3, in turn */
BEGIN void NAME(half)(VECTOR sum, VECTOR difference, VECTOR tilting, VECTOR turning, VECTOR outer, VECTOR inner, int bits,
                      INTS out[8]) {
    const INTS half = (INTS){0} + (1 << (bits - 1)), a = (INTS)sum >> 3, b = (INTS)difference >> 3;
    const INTS wide = MULTIPLY_PAIRS(tilting, 10703, 4433), narrow = MULTIPLY_PAIRS(tilting, 4433, -10704);
    const INTS z3 = MULTIPLY_PAIRS(turning, -6436, 9633), z4 = MULTIPLY_PAIRS(turning, 9633, 6437);
    const INTS even[4] = {ADD_INTS(a, wide), ADD_INTS(b, narrow), SUBTRACT_INTS(b, narrow), SUBTRACT_INTS(a, wide)};
    const INTS odd[4] = {ADD_INTS(MULTIPLY_PAIRS(outer, -7373, 4926), z4), ADD_INTS(MULTIPLY_PAIRS(inner, -20995, 4177), z3),
                         ADD_INTS(MULTIPLY_PAIRS(inner, -4176, -20995), z4), ADD_INTS(MULTIPLY_PAIRS(outer, -4927, -7373), z3)};
    for (int i = 0; i < 4; i++) {
        const INTS rounded = ADD_INTS(even[i], half);
        out[i] = ADD_INTS(rounded, odd[i]) >> bits;
        out[7 - i] = SUBTRACT_INTS(rounded, odd[i]) >> bits;
    }
}

BEGIN void NAME(columns)(VECTOR v[8], int bits) {
    const VECTOR none = {0}, sum = ADD(v[0], v[4]), difference = SUBTRACT(v[0], v[4]);
    const VECTOR z3 = ADD(v[3], v[7]), z4 = ADD(v[1], v[5]);
    INTS low[8], high[8];
    NAME(half)(MIX_LOW(none, sum), MIX_LOW(none, difference), MIX_LOW(v[2], v[6]), MIX_LOW(z3, z4), MIX_LOW(v[7], v[1]),
               MIX_LOW(v[5], v[3]), bits, low);
    NAME(half)(MIX_HIGH(none, sum), MIX_HIGH(none, difference), MIX_HIGH(v[2], v[6]), MIX_HIGH(z3, z4),
               MIX_HIGH(v[7], v[1]), MIX_HIGH(v[5], v[3]), bits, high);
    for (int i = 0; i < 8; i++) v[i] = TO_SHORTS(low[i], high[i]);
}

#undef ADD
#undef SUBTRACT
#undef ADD_INTS
#undef SUBTRACT_INTS
#undef VECTOR
#undef UNSIGNED
#undef INTS
#undef UNSIGNED_INTS
#undef MIX_LOW
#undef MIX_HIGH
#undef MULTIPLY_PAIRS
#undef TO_SHORTS
#undef BEGIN
#undef NAME
