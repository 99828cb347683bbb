"""A build of the kernels: one sentence if something is missing, no warning, and the same pixels from every compiler."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.conftest import Draw

KERNELS = Path(__file__).parents[3] / "kernels"
INSTALL = "on Debian and Ubuntu: apt-get install gcc libc6-dev libjpeg62-turbo-dev (libjpeg-turbo8-dev on Ubuntu).\n"

DECODE = """
import sys
from pathlib import Path
from tfpipe_kernels import decode
image = memoryview(bytearray(4 * 31 * 33 * 3)).cast("f", (31, 33, 3))
decode(Path(sys.argv[1]).read_bytes(), (3, 5, 80, 60), image, dtype="float32")
sys.stdout.buffer.write(image)
"""


def finds_jpeglib(compiler: str) -> bool:
    if shutil.which(compiler) is None:
        return False
    command = [compiler, "-fsyntax-only", "-x", "c", "-"]
    source = b"#include <stdio.h>\n#include <jpeglib.h>\n"
    return subprocess.run(command, input=source, capture_output=True, check=False).returncode == 0


def build(folder: Path, **env: object) -> subprocess.CompletedProcess[str]:
    """Builds a copy of the sources below a folder."""
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(KERNELS / name, folder)
    for name in ("csrc", "src"):
        shutil.copytree(KERNELS / name, folder / name, ignore=shutil.ignore_patterns("*.so", "*.egg-info"))
    # Otherwise setuptools warns that it is set.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | {name: str(value) for name, value in env.items()}
    command = [sys.executable, "setup.py", "-q", "build"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_no_compiler(tmp_path: Path) -> None:
    result = build(tmp_path, PATH=tmp_path, CC="cc -m64")
    assert result.stderr == f"tfpipe-kernels needs a C compiler, and cc is not there; {INSTALL}"
    assert result.returncode == 1


def test_no_headers(tmp_path: Path) -> None:
    compiler = tmp_path / "mine"
    compiler.write_text("#!/bin/sh\necho 'fatal error: jpeglib.h: No such file or directory' >&2\nexit 1\n")
    compiler.chmod(0o755)
    result = build(tmp_path, CC=compiler)
    assert result.stderr == (
        f"tfpipe-kernels needs libjpeg-turbo with jpeglib.h and jpegint.h, and {compiler} does not find it; {INSTALL}"
    )
    assert result.returncode == 1


COMPILERS = [*filter(finds_jpeglib, ("gcc", "clang"))]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason="needs a C compiler and libjpeg-turbo's headers")
def test_each_compiler_makes_the_same_pixels_without_a_warning(tmp_path: Path, draw_jpeg: Draw) -> None:
    jpeg = tmp_path / "image.jpg"
    jpeg.write_bytes(draw_jpeg(90, 70, subsampling=2))
    pixels = {}
    for compiler, flags in itertools.product(COMPILERS, ("", "-DTFPIPE_ONE_VERSION")):  # the second: without AVX2
        folder = tmp_path / f"{compiler}{flags}"
        folder.mkdir()
        result = build(folder, CC=compiler, CFLAGS=f"-Werror {flags}")
        assert (result.returncode, result.stderr) == (0, "")
        (package,) = folder.glob("build/lib*")
        libraries = {path.name for path in package.glob("tfpipe_kernels/*.so")}
        assert libraries == {"libtfpipe_kernels.so", "tfpipe_operation.so"}
        command = [sys.executable, "-c", DECODE, str(jpeg)]
        pixels[compiler, flags] = subprocess.check_output(command, env=os.environ | {"PYTHONPATH": str(package)})
    assert set(map(len, pixels.values())) == {3 * 31 * 33 * 4}
    assert len(set(pixels.values())) == 1, {name: hash(value) for name, value in pixels.items()}
