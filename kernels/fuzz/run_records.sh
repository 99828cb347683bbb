#!/bin/sh
# Builds the readers of records with AddressSanitizer and UndefinedBehaviorSanitizer and feeds them damaged records.
#
# fuzz/run_records.sh SECONDS SEED
set -e
cd "$(dirname "$0")/.."
mkdir -p build
${CC:-cc} -std=gnu11 -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Wextra \
    fuzz/fuzz_records.c csrc/crc32c.c csrc/read_records.c csrc/parse_examples.c -o build/fuzz_records
exec build/fuzz_records "$@"
