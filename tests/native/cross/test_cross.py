"""Results of the C sources as other compilers make them, without AVX2, and for aarch64 under an emulator.

Each build runs the cases that `draw_cases` draws and must print what this machine's own build prints. For aarch64 the
tests need QEMU (Debian's `qemu-user`), and zig from the package index. The seed is printed; `TFPIPE_FUZZ_SEED=N`
repeats a run.
"""

import itertools
import os
import platform
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hatch_build import _FLAGS, find_compiler
from tests.conftest import ROOT
from tests.fuzz.jpegs import change_jpeg, draw_file, split
from tests.integrity.damaged import framed
from tests.native.jpeg_writer import draw_jpeg
from tfpipe.format.example import encode_example
from tfpipe.native.jpeg import RATIOS, Request

CSRC = ROOT / "tfpipe" / "native" / "csrc"
PROGRAM = Path(__file__).with_name("cases.c")
SOURCES = [PROGRAM, *sorted(CSRC.glob("*.c"))]
WITHOUT_AVX2 = "-DTFPIPE_ONE_VERSION"

EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

FEW, MANY = 16, 300
"""The drawn JPEGs of each kind; many take a quarter of a minute under QEMU."""

COMPILER = find_compiler()

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
needs_emulator = pytest.mark.skipif(EMULATOR is None, reason="needs qemu-aarch64, as of Debian's qemu-user")


def build(compiler: Sequence[str], folder: Path, *flags: str) -> Path:
    target = folder / "cases"
    words = [*compiler, *_FLAGS, "-Werror", *flags, f"-I{CSRC}", *map(str, SOURCES), "-o", str(target), "-lm"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return target


def run(cases: Path, *program: str | Path) -> list[str]:
    return subprocess.check_output([*program, cases], text=True).splitlines()


def write_cases(path: Path, count: int) -> Path:
    seed = int(os.environ.get("TFPIPE_FUZZ_SEED") or random.randrange(2**31))
    print(f"TFPIPE_FUZZ_SEED={seed}")
    path.write_bytes(draw_cases(seed, count))
    return path


def compare(lines: Sequence[str], expected: Sequence[str]) -> None:
    different = [pair for pair in itertools.zip_longest(expected, lines) if pair[0] != pair[1]]
    assert different[:5] == [], f"{len(different)} of {len(expected)} lines differ"


@pytest.fixture(scope="module")
def own_build(tmp_path_factory) -> Path:
    return build(COMPILER or [], tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Path:
    return write_cases(tmp_path_factory.mktemp("cases") / "cases", MANY)


@pytest.fixture(scope="module")
def expected(cases: Path, own_build: Path) -> list[str]:
    return run(cases, own_build)


@pytest.fixture(scope="module")
def zig(tmp_path_factory) -> Iterator[str]:
    """The path of zig, which makes static programs for every machine."""
    folder = tmp_path_factory.mktemp("zig")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "ziglang"]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("needs zig, and the package index did not give ziglang")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
            patch.setenv(name, str(folder / "cache"))
        yield str(folder / "ziglang" / "zig")


@pytest.mark.slow
@needs_compiler
def test_results_are_the_same_without_avx2(own_build: Path, tmp_path: Path) -> None:
    cases = write_cases(tmp_path / "drawn", FEW)
    expected = run(cases, own_build)
    compare(run(cases, build(COMPILER or [], tmp_path, WITHOUT_AVX2)), expected)
    assert len([line for line in expected if " decode" in line and ": 0 " in line]) > 12 * len(VARIANTS)


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(platform.system() != "Linux", reason="needs Linux, for which zig makes the program")
@pytest.mark.parametrize("flags", [(), (WITHOUT_AVX2,)], ids=["every version", "one version"])
def test_zig_makes_the_same_results(flags: tuple[str, ...], zig: str, cases: Path, expected: list[str], tmp_path: Path):
    machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    command = [zig, "cc", "-target", f"{machine}-linux-musl", "-static"]
    compare(run(cases, build(command, tmp_path, *flags)), expected)


@pytest.mark.slow
@needs_compiler
@needs_emulator
def test_aarch64_has_the_same_results_by_zig(zig: str, cases: Path, expected: list[str], tmp_path: Path) -> None:
    program = build([zig, "cc", "-target", "aarch64-linux-musl", "-static"], tmp_path)
    compare(run(cases, str(EMULATOR), program), expected)


JPEG, BATCH, CROPS, RECORDS = range(4)

MAX_PIXELS = 1 << 20
FAMILIES = ("baseline", "extended", "progressive")
UINT8, FLOAT32, BFLOAT16 = range(3)
VARIANTS = [*itertools.product(RATIOS, (UINT8, FLOAT32, BFLOAT16), (0, 1), (0, 1))]
"""The ratio, the type of values, whether to mirror, and whether to seek, of each kind of request."""

REQUESTS = 13
"""The requests of a file: not a divisor of the number of variants, so that every kind of file meets each of them."""

OFFSET, FACTOR = (123.675, 116.28, 103.53), (0.017124753, 0.017507002, 0.017429193)


def draw_cases(seed: int, count: int) -> bytes:
    rng = random.Random(seed)
    files = [*_draw_files(rng, count)]
    variants = itertools.cycle(VARIANTS)
    cases = [_make_jpeg_case(data, variants, rng) for data in files]
    cases += [_draw_batch(files, dtype, ratio, rng) for dtype in (UINT8, FLOAT32, BFLOAT16) for ratio in (1, 8)]
    cases += [_draw_crops(stored, 50 * count, rng) for stored in ((0, 0), (256, 256), (31, 500)) for _ in range(4)]
    cases += [_draw_records(rng) for _ in range(3)]
    return b"".join(cases)


def _draw_files(rng: random.Random, count: int) -> Iterator[bytes]:
    for k in range(count):
        yield draw_file(rng.getrandbits(48)).data
        yield draw_jpeg(rng.getrandbits(48), family=FAMILIES[k % 3], extreme=True).data
        yield draw_jpeg(rng.getrandbits(48), family=FAMILIES[k % 3], wild=True).data
        yield change_jpeg(draw_jpeg(rng.getrandbits(48), family=FAMILIES[k % 3]).data, rng)[0]
    yield from [path.read_bytes() for path in sorted((ROOT / "sample_data").glob("*/*.jpg"))]


def _make_jpeg_case(data: bytes, variants: Iterator[tuple[int, ...]], rng: random.Random) -> bytes:
    size = _read_size(data)
    requests = [_draw_request(size, variant, rng) for variant in itertools.islice(variants, REQUESTS)]
    return struct.pack("<3q", JPEG, len(data), len(requests)) + data + b"".join(map(bytes, requests))


def _read_size(data: bytes) -> tuple[int, int]:
    for one in split(data):
        if 0xC0 <= one.marker <= 0xC2 and len(one.body) >= 5:
            height, width = struct.unpack_from(">HH", one.body, 1)
            return max(1, height), max(1, width)
    return 1, 1


def _draw_request(size: tuple[int, int], variant: Sequence[int], rng: random.Random) -> Request:
    ratio, dtype, flip, seeks = variant
    box = [_draw_side(side, ratio, rng) for side in size]
    out = (rng.randint(1, 60), rng.randint(1, 60)) if dtype != UINT8 or rng.random() < 0.5 else (0, 0)
    offset, factor = (
        (OFFSET, FACTOR) if rng.random() < 0.7 else ((rng.uniform(-9, 300),) * 3, (rng.uniform(-2, 2),) * 3)
    )
    (y, height), (x, width) = box
    return Request(y, x, height, width, ratio, *out, flip, dtype, seeks, MAX_PIXELS, offset, factor)


def _draw_side(side: int, ratio: int, rng: random.Random) -> tuple[int, int]:
    """Draws the begin and the size of a box that has a pixel of the reduced image. A few leave the image."""
    most = min(side, 512)
    size = most if rng.random() < 0.4 else rng.randint(min(ratio, most), most)
    return rng.randint(0, side - size) + (rng.random() < 0.01), size


def _draw_batch(files: Sequence[bytes], dtype: int, max_ratio: int, rng: random.Random) -> bytes:
    chosen = rng.sample(files, min(32, len(files)))
    boxes = []
    for data in chosen:
        (y, height), (x, width) = (_draw_side(side, max_ratio, rng) for side in _read_size(data))
        boxes.append((y, x, height, width))
    request = Request(0, 0, 0, 0, 1, 13, 17, 0, dtype, 1, MAX_PIXELS, OFFSET, FACTOR)
    sizes = np.array([len(data) for data in chosen], np.int64)
    flips = bytes(rng.randrange(2) for _ in chosen)
    arrays = (sizes.tobytes(), b"".join(chosen), np.array(boxes, np.int32).tobytes(), flips, bytes(request))
    return struct.pack("<3q", BATCH, len(chosen), max_ratio) + b"".join(arrays)


def _draw_crops(stored: tuple[int, int], count: int, rng: random.Random) -> bytes:
    numbers = np.random.default_rng(rng.getrandbits(64))
    area, aspect = rng.choice((0.001, 0.08, 0.5, 1.0)), rng.choice((0.1, 0.75, 0.9, 1.0))
    crops = struct.pack("<4f2i", area, 1.0, aspect, 1 / aspect, *stored)
    seeds = numbers.integers(-(2**31), 2**31, (count, 2)).astype(np.int32)
    sizes = np.exp(numbers.uniform(0, np.log(70_000), (count, 2))).astype(np.int32)
    return struct.pack("<3q", CROPS, count, 0) + crops + seeds.tobytes() + sizes.tobytes()


def _draw_records(rng: random.Random) -> bytes:
    """Draws records with Examples, some of them damaged, and with bytes of many sizes."""
    numbers = np.random.default_rng(rng.getrandbits(64))
    frames = []
    for k in range(300):
        payload = rng.randbytes(rng.choice((*range(40), 255, 256, 257, 767, 768, 769, 5000)))
        if k % 3:
            floats = numbers.normal(size=rng.randrange(9)).astype(np.float32)
            ints = numbers.integers(-(2**63), 2**63 - 1, rng.randrange(9)) >> rng.randrange(64)
            payload = encode_example({"image": [payload], "floats": floats, f"ints{k % 5}": ints})
        one = bytearray(framed([payload]))
        if k % 3 == 2 and rng.random() < 0.5:
            one[rng.randrange(len(one))] ^= 1 << rng.randrange(8)
        frames.append(bytes(one))
    sizes = np.array([len(one) for one in frames], np.int64)
    places = np.stack((np.cumsum(sizes) - sizes, sizes), axis=1)
    return struct.pack("<3q", RECORDS, len(frames), int(sizes.sum())) + places.tobytes() + b"".join(frames)
