"""The build of the wheel: which compiler it takes, what the wheel is for, and what it says where nothing compiles."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfpipe import __version__

NATIVE = "libtfpipe_native.so"
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="needs a C compiler")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A tfpipe of a few files, whose two C sources compile in no time."""
    folder = tmp_path / "project"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore", "tfpipe/_version.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("tfpipe/__init__.py", "tfpipe/native/__init__.py", "beam_jobs/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    sources = folder / "tfpipe" / "native" / "csrc"
    (sources / "deeper").mkdir(parents=True)
    export = '#include <stdint.h>\n__attribute__((visibility("default"))) '
    (sources / "a.c").write_text(f"{export}int32_t first(void) {{ return 1; }}\n")
    (sources / "deeper" / "a.c").write_text(f"{export}int32_t second(void) {{ return 2; }}\n")
    return folder


def build(project: Path, kind: str = "wheel", **env: object) -> subprocess.CompletedProcess[str]:
    """Builds into the folder `dist`, as a package tool does, without a network."""
    steps = f"os.makedirs('dist', exist_ok=True); build.get_requires_for_build_wheel(); build.build_{kind}('dist')"
    code = f"import os, hatchling.build as build; {steps}"
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS", "LDFLAGS")}
    environment = kept | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""} | {name: str(value) for name, value in env.items()}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def open_wheel(project: Path) -> tuple[str, dict[str, bytes]]:
    """Returns the platform of the only wheel, and its files in `tfpipe/native`."""
    (path,) = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("tfpipe/native/")]
        return path.stem.removeprefix(f"tfpipe-{__version__}-py3-none-"), {Path(n).name: wheel.read(n) for n in names}


def call(library: Path, function: str) -> int:
    return int(getattr(ctypes.CDLL(str(library)), function)())


@pytest.fixture
def without_compiler(tmp_path: Path) -> Path:
    folder = tmp_path / "no programs"
    folder.mkdir()
    return folder


@needs_compiler
@pytest.mark.parametrize("compiler", ["", "false", "gcc -pipe" if "gcc" in COMPILERS else "/nowhere/cc"])
def test_a_compiler_that_works_is_taken(project: Path, compiler: str, tmp_path: Path) -> None:
    (project / "tfpipe" / "native" / NATIVE).write_bytes(b"of an editable installation")
    done = build(project, CC=compiler, CFLAGS="-Werror")
    assert (done.returncode, done.stderr) == (0, "")
    platform, files = open_wheel(project)
    assert (platform, sorted(files)) == (PLATFORM, ["__init__.py", NATIVE])
    (tmp_path / NATIVE).write_bytes(files[NATIVE])
    assert [call(tmp_path / NATIVE, name) for name in ("first", "second")] == [1, 2]


@needs_compiler
def test_a_source_distribution_makes_the_same_wheel(project: Path) -> None:
    package = project / "tfpipe" / "native"
    assert build(project, "editable").returncode == 0
    assert {path.name for path in package.iterdir() if path.is_file()} == {"__init__.py", NATIVE}
    shutil.rmtree(project / "dist")
    assert build(project).returncode == 0
    expected = open_wheel(project)
    assert build(project, "sdist").returncode == 0
    (archive,) = (project / "dist").glob("*.tar.gz")
    shutil.unpack_archive(archive, project.with_name("unpacked"), filter="data")
    (unpacked,) = project.with_name("unpacked").iterdir()
    assert (unpacked / "hatch_build.py").is_file()
    assert sorted(path.name for path in unpacked.rglob("*.c")) == ["a.c", "a.c"]
    assert [path for path in unpacked.rglob("*") if path.suffix == ".so"] == []
    assert build(unpacked).returncode == 0
    assert open_wheel(unpacked) == expected


def test_without_a_compiler_the_build_says_what_to_install(project: Path, without_compiler: Path) -> None:
    done = build(project, PATH=without_compiler)
    assert (done.returncode, list((project / "dist").iterdir())) == (1, [])
    assert done.stderr == (
        "No C compiler was found, which tfpipe needs: install one such as gcc or clang, or `pip install ziglang`.\n"
    )


def test_a_platform_that_zig_does_not_compile_for(project: Path) -> None:
    done = build(project, TFPIPE_NATIVE="windows")
    assert done.returncode == 1
    assert re.fullmatch(
        r"TFPIPE_NATIVE must be a platform that zig compiles for, \w+(, \w+){5}; got windows\.\n", done.stderr
    )


@needs_compiler
def test_sources_that_the_compiler_refuses(project: Path) -> None:
    (project / "tfpipe" / "native" / "csrc" / "a.c").write_text("#include <nowhere.h>\n")
    done = build(project)
    assert (done.returncode, list((project / "dist").iterdir())) == (1, [])
    assert re.fullmatch(r"The C compiler failed: .*nowhere\.h.*", done.stderr.splitlines()[-1])


# With the package index: zig, 100 MB


@pytest.mark.slow
def test_zig_compiles_where_no_compiler_is(project: Path, without_compiler: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CC"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", "."]
    subprocess.run(command, cwd=project, env={**environment, "PATH": str(without_compiler)}, check=True)
    platform, files = open_wheel(project)
    assert re.fullmatch(r"manylinux_2_17_(\w+)\.manylinux2014_\1|musllinux_1_1_\w+|macosx_\w+", platform)
    assert sorted(files) == ["__init__.py", NATIVE]
    (tmp_path / NATIVE).write_bytes(files[NATIVE])
    assert call(tmp_path / NATIVE, "second") == 2


def copy_checkout(folder: Path) -> Path:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("tfpipe", "beam_jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_each_compiler_takes_all_sources_without_a_warning(compiler: str, tmp_path: Path) -> None:
    done = build(copy_checkout(tmp_path / "checkout"), CC=compiler, CFLAGS="-Werror")
    assert (done.returncode, done.stderr) == (0, "")
