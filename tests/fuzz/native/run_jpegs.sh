#!/bin/sh
# Builds the JPEG functions with AddressSanitizer and UndefinedBehaviorSanitizer, and feeds them valid, damaged and lying
# files.
#
# tests/fuzz/native/run_jpegs.sh SECONDS SEED FILE...    python -m tests.native.jpeg_writer FOLDER COUNT SEED writes files
#
# CSRC is the folder of the sources, HEADER its public header, LIBRARIES what they need besides.
set -e
[ $# -ge 3 ] || { sed -n '5s/# //p' "$0" >&2 && exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
csrc=${CSRC:-$(ls -d "$root/tfpipe/native/csrc" "$root/kernels/csrc" 2>/dev/null | head -n 1)}
header=${HEADER:-$(ls "$csrc/tfpipe_native.h" "$csrc/tfpipe_kernels.h" 2>/dev/null | head -n 1)}
sources=$(ls "$csrc"/*.c | grep -v '/tf_[^/]*\.c$')
libraries=${LIBRARIES-$(grep -q jpeglib.h $sources && echo -ljpeg || true)}
wrap="-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=posix_memalign"
target=${TARGET:-$root/build/fuzz_jpegs}
mkdir -p "$root/build"
${CC:-cc} -std=gnu11 -g -O1 -ffp-contract=off -fno-omit-frame-pointer -fsanitize=${SANITIZERS:-address,undefined} \
    -fno-sanitize-recover=all -Wall -Wextra -I"$csrc" "-DHEADER=\"$header\"" "$here/jpegs.c" $sources -o "$target" \
    $libraries -lm -pthread $wrap
# More memory at once than any image of the allowed size needs is a finding too.
ASAN_OPTIONS=max_allocation_size_mb=${MAX_MB:-512}:hard_rss_limit_mb=4096:${ASAN_OPTIONS:-} exec "$target" "$@"
