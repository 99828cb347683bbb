#!/bin/sh
# Builds the library with AddressSanitizer and UndefinedBehaviorSanitizer and feeds it damaged JPEGs.
#
# fuzz/run.sh SECONDS SEED FILE...
set -e
kernels=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$kernels/build"
${CC:-cc} -std=gnu11 -g -O1 -ffp-contract=off -fno-omit-frame-pointer -fsanitize=address,undefined \
    -fno-sanitize-recover=all -Wall -Wextra "$kernels/fuzz/fuzz.c" "$kernels/csrc/layout.c" "$kernels/csrc/splice.c" \
    "$kernels/csrc/resize.c" "$kernels/csrc/decode.c" "$kernels/csrc/jpeg_input.c" "$kernels/csrc/scan.c" \
    "$kernels/csrc/huffman.c" "$kernels/csrc/transcode.c" -o "$kernels/build/fuzz" -ljpeg -lm
exec "$kernels/build/fuzz" "$@"
