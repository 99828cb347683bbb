/* The fast transform of all columns of a block, or of several blocks, at once: one source for vectors of each width.

   VECTOR is the type of a row of 16-bit numbers, UNSIGNED the same without signs, MULTIPLY_HIGH(v, number) the upper halves
   of the products, and TRANSFORM_COLUMNS the beginning of the function's definition. All are undefined at the end. */

/* Sums wrap around, as the processor's do. For the compiler that holds for unsigned numbers only. */
#define ADD(a, b) ((VECTOR)((UNSIGNED)(a) + (UNSIGNED)(b)))
#define SUBTRACT(a, b) ((VECTOR)((UNSIGNED)(a) - (UNSIGNED)(b)))
#define SCALE(a) ((VECTOR)((UNSIGNED)(a) << 2))

TRANSFORM_COLUMNS(VECTOR v[8]) {
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

#undef ADD
#undef SUBTRACT
#undef SCALE
#undef VECTOR
#undef UNSIGNED
#undef MULTIPLY_HIGH
#undef TRANSFORM_COLUMNS
