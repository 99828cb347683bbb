#!/bin/sh
# Builds a part of the library with AddressSanitizer and UndefinedBehaviorSanitizer, and feeds it what is damaged or lies.
#
# fuzz/run.sh images SECONDS SEED FILE...   JPEGs: decode, check, rewrite
# fuzz/run.sh records SECONDS SEED          records: check, parse
# fuzz/run.sh reads SECONDS SEED            files of records: read, for TensorFlow and for Python
set -e
kernels=$(cd "$(dirname "$0")/.." && pwd)
target=$1
memory="-Wl,--wrap=malloc,--wrap=realloc"
case $target in
images) sources="layout splice resize decode jpeg_input scan huffman transcode" libraries="-ljpeg -lm $memory" ;;
records) sources="crc32c read_records parse_examples parallel" libraries="-pthread" ;;
reads) sources="crc32c read_records tf_read tf_operations parallel" libraries="-pthread -Wl,--wrap=syscall $memory" ;;
*) sed -n '4,6s/# //p' "$0" >&2 && exit 2 ;;
esac
shift
paths=$(printf " csrc/%s.c" $sources)
mkdir -p "$kernels/build"
(
    cd "$kernels"
    ${CC:-cc} -std=gnu11 -g -O1 -ffp-contract=off -fno-omit-frame-pointer -fsanitize=${SANITIZERS:-address,undefined} \
        -fno-sanitize-recover=all -Wall -Wextra "fuzz/$target.c" $paths -o "build/fuzz_$target" $libraries
)
exec "$kernels/build/fuzz_$target" "$@"
