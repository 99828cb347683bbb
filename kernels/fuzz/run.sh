#!/bin/sh
# Builds the library with AddressSanitizer and UndefinedBehaviorSanitizer and feeds it damaged JPEGs.
#
# fuzz/run.sh SECONDS SEED FILE...
set -e
cd "$(dirname "$0")/.."
mkdir -p build
${CC:-cc} -std=gnu11 -g -O1 -ffp-contract=off -fno-omit-frame-pointer -fsanitize=address,undefined \
    -fno-sanitize-recover=all -DTFPIPE_ONE_VERSION -Wall -Wextra fuzz/fuzz.c csrc/layout.c csrc/splice.c csrc/resize.c \
    csrc/decode.c csrc/jpeg_input.c csrc/scan.c csrc/transcode.c -o build/fuzz -ljpeg -lm
exec build/fuzz "$@"
