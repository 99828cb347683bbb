/* The transforms of all columns of a block, or of several blocks, at once: one source for vectors of each width.

   VECTOR is the type of a row of 16-bit numbers, INTS that of half a row of 32-bit numbers, each also with UNSIGNED_ in
   front; MULTIPLY_HIGH(v, number) gives the upper halves of the products, MULTIPLY_PAIRS(v, x, y) the sums of two products
   of neighbors; MIX_LOW and MIX_HIGH take numbers of two vectors in turn, and TO_SHORTS limits two to 16 bits. BEGIN begins
   the definition of a function, and NAME(name) is its name. All are undefined at the end. */

/* Sums wrap around, as the processor's do. For the compiler that holds for unsigned numbers only. */
#define ADD(a, b) ((VECTOR)((UNSIGNED_VECTOR)(a) + (UNSIGNED_VECTOR)(b)))
#define SUBTRACT(a, b) ((VECTOR)((UNSIGNED_VECTOR)(a) - (UNSIGNED_VECTOR)(b)))
#define SCALE(a) ((VECTOR)((UNSIGNED_VECTOR)(a) << 2))
#define ADD_INTS(a, b) ((INTS)((UNSIGNED_INTS)(a) + (UNSIGNED_INTS)(b)))
#define SUBTRACT_INTS(a, b) ((INTS)((UNSIGNED_INTS)(a) - (UNSIGNED_INTS)(b)))

/* Does the fast transform. */
BEGIN void NAME(fast)(VECTOR v[8]) {
    /* With 8 bits of fraction, and 6 more so that the upper half of the product with a number times 4 is rounded down. */
    enum { F_1_082 = 277 << 6, F_1_414 = 362 << 6, F_1_613 = 413 << 6, F_1_848 = 473 << 6 };
    const VECTOR sum = ADD(v[0], v[4]), difference = SUBTRACT(v[0], v[4]);
    const VECTOR second = ADD(v[2], v[6]);
    const VECTOR third = SUBTRACT(MULTIPLY_HIGH(SCALE(SUBTRACT(v[2], v[6])), F_1_414), second);
    const VECTOR e0 = ADD(sum, second), e3 = SUBTRACT(sum, second);
    const VECTOR e1 = ADD(difference, third), e2 = SUBTRACT(difference, third);

    const VECTOR z13 = ADD(v[5], v[3]), z10 = SUBTRACT(v[5], v[3]);
    const VECTOR z11 = ADD(v[1], v[7]), z12 = SUBTRACT(v[1], v[7]);
    const VECTOR scaled_10 = SCALE(z10), scaled_12 = SCALE(z12);
    const VECTOR o7 = ADD(z11, z13);
    const VECTOR o11 = MULTIPLY_HIGH(SCALE(SUBTRACT(z11, z13)), F_1_414);
    const VECTOR z5 = MULTIPLY_HIGH(ADD(scaled_10, scaled_12), F_1_848);
    const VECTOR o10 = SUBTRACT(MULTIPLY_HIGH(scaled_12, F_1_082), z5);
    const VECTOR o12 = ADD(SUBTRACT(MULTIPLY_HIGH(scaled_10, -F_1_613), z10), z5);
    const VECTOR o6 = SUBTRACT(o12, o7), o5 = SUBTRACT(o11, o6), o4 = ADD(o10, o5);

    v[0] = ADD(e0, o7);
    v[7] = SUBTRACT(e0, o7);
    v[1] = ADD(e1, o6);
    v[6] = SUBTRACT(e1, o6);
    v[2] = ADD(e2, o5);
    v[5] = SUBTRACT(e2, o5);
    v[4] = ADD(e3, o4);
    v[3] = SUBTRACT(e3, o4);
}

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

/* Does the accurate transform. */
BEGIN void NAME(accurate)(VECTOR v[8], int bits) {
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
#undef SCALE
#undef ADD_INTS
#undef SUBTRACT_INTS
#undef VECTOR
#undef UNSIGNED_VECTOR
#undef INTS
#undef UNSIGNED_INTS
#undef MULTIPLY_HIGH
#undef MULTIPLY_PAIRS
#undef MIX_LOW
#undef MIX_HIGH
#undef TO_SHORTS
#undef BEGIN
#undef NAME
