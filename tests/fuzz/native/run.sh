#!/bin/sh
# Builds a part of the library with AddressSanitizer and UndefinedBehaviorSanitizer, and feeds it what is damaged or lies.
#
# tests/fuzz/native/run.sh jpegs SECONDS SEED FILE...    JPEGs: decode, check, rewrite
# tests/fuzz/native/run.sh records SECONDS SEED          records: check, parse
# tests/fuzz/native/run.sh reads SECONDS SEED            files of records: read
#
# `python -m tests.native.jpeg_writer FOLDER COUNT SEED` writes files for the first.
set -e
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
csrc=$root/tfpipe/native/csrc
target=$1
wrap="-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc"
case $target in
jpegs) sources=$(cd "$csrc" && ls ./*.c) libraries="-pthread -lm $wrap" ;;
records) sources="crc32c.c read_records.c parse_examples.c parallel.c" libraries="-pthread" ;;
reads) sources="crc32c.c read_records.c parallel.c" libraries="-pthread -Wl,--wrap=syscall" ;;
*) sed -n '4,6s/# //p' "$0" >&2 && exit 2 ;;
esac
shift
mkdir -p "$root/build"
(
    cd "$csrc"
    ${CC:-cc} -std=gnu11 -g -O1 -ffp-contract=off -fno-omit-frame-pointer -fsanitize=${SANITIZERS:-address,undefined} \
        -fno-sanitize-recover=all -Wall -Wextra -I. "$here/$target.c" $sources -o "$root/build/fuzz_$target" $libraries
)
# To ask for more memory at once than any image of the allowed size needs is a finding too.
ASAN_OPTIONS=max_allocation_size_mb=512:hard_rss_limit_mb=4096:${ASAN_OPTIONS:-} exec "$root/build/fuzz_$target" "$@"
