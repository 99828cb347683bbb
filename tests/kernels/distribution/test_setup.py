"""A build of the kernels: one sentence if something is missing, and no warning of a compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "kernels"
INSTALL = "on Debian and Ubuntu: apt-get install gcc libc6-dev libjpeg62-turbo-dev (libjpeg-turbo8-dev on Ubuntu).\n"


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
        f"tfpipe-kernels needs libjpeg-turbo with its headers, and {compiler} finds none; {INSTALL}"
    )
    assert result.returncode == 1


@pytest.mark.parametrize("compiler", [*filter(finds_jpeglib, ("gcc", "clang"))])
@pytest.mark.parametrize("flags", ["", "-DTFPIPE_ONE_VERSION"])
def test_a_compiler_has_nothing_to_say(tmp_path: Path, compiler: str, flags: str) -> None:
    result = build(tmp_path, CC=compiler, CFLAGS=f"-Werror {flags}")
    assert result.stderr == ""
    assert result.returncode == 0
    assert {path.name for path in tmp_path.glob("build/lib*/tfpipe_kernels/*.so")} == {
        "libtfpipe_kernels.so",
        "tfpipe_operation.so",
    }
