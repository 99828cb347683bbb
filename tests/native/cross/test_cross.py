"""Results of the C sources as other compilers make them, without AVX2, and for aarch64 under an emulator.

Each build runs the cases of `draw_cases.py` and must print what this machine's own build prints. For aarch64 the tests
need QEMU (Debian's `qemu-user`), and zig from the package index. The seed is printed; `TFPIPE_FUZZ_SEED=N` repeats
a run.
"""

import itertools
import os
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hatch_build import _FLAGS, find_compiler
from tests.conftest import ROOT
from tests.native.cross.draw_cases import VARIANTS, draw_cases

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
