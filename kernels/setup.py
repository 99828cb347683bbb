"""Builds the two shared libraries with the system's C compiler and libjpeg-turbo.

They are not Python extensions: Python opens one by ctypes and TensorFlow the other, so one wheel serves every Python.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.dist import Distribution

HERE = Path(__file__).parent
SOURCES = HERE / "csrc"
KERNELS = (
    *("layout.c", "splice.c", "resize.c", "decode.c", "jpeg_input.c", "scan.c", "huffman.c", "transcode.c"),
    *("crc32c.c", "read_records.c", "parse_examples.c", "crops.c", "batches.c", "parallel.c"),
)
OPERATIONS = ("tf_operations.c", "tf_decode.c", "tf_crops.c", "tf_read.c")

# Products must not be fused with sums: results equal TensorFlow's to the bit.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wextra",
)
JPEG = ("-Wl,-z,defs", "-ljpeg")  # without `-z defs` a shared library may lack what it calls
DEBIAN = "on Debian and Ubuntu: apt-get install gcc libc6-dev libjpeg62-turbo-dev (libjpeg-turbo8-dev on Ubuntu)"
PROBE = """
#include <stdio.h>
#include <jpeglib.h>
#define JPEG_INTERNALS
#include <jpegint.h>
#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error not libjpeg-turbo
#endif
void probe(j_decompress_ptr jpeg) { JDIMENSION side = 1; jpeg_crop_scanline(jpeg, &side, &side); }
"""

# The operation's functions are in these libraries, which TensorFlow has opened before it opens the operation.
TENSORFLOW = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


class BuildLibraries(Command):
    """Compiles the libraries into the package."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        """Declares the options; setuptools calls it."""
        self.build_lib: str | None = None  # setuptools sets it
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Takes the folder of the build; setuptools calls it."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Compiles; setuptools calls it."""
        package = HERE / "src" / "tfpipe_kernels" if self.editable_mode else Path(str(self.build_lib), "tfpipe_kernels")
        package.mkdir(parents=True, exist_ok=True)
        compiler = find_compiler()
        compile_shared(compiler, package / "libtfpipe_kernels.so", KERNELS, [*JPEG, "-lm"])
        beside = [f"-L{package}", "-ltfpipe_kernels", "-Wl,-rpath,$ORIGIN"]
        with tempfile.TemporaryDirectory() as folder:
            stubs = make_stubs(compiler, Path(folder))
            compile_shared(compiler, package / "tfpipe_operation.so", OPERATIONS, [*beside, *stubs])


class Build(build):
    """A build that compiles the libraries too."""

    sub_commands: ClassVar[list[tuple[str, Callable[[Any], bool] | None]]] = [
        *build.sub_commands,
        ("build_libraries", None),
    ]


class AnyPython(bdist_wheel):
    """A wheel of this platform for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tag of the wheel's name; setuptools calls it."""
        return ("py3", "none", super().get_tag()[2])


class WithLibraries(Distribution):
    """A distribution for one platform."""

    def has_ext_modules(self) -> bool:
        """Returns True; setuptools calls it."""
        return True


def find_compiler() -> list[str]:
    """Finds a C compiler that finds libjpeg-turbo, or ends with a sentence that says what is missing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        sys.exit(f"tfpipe-kernels needs a C compiler, and {compiler[0]} is not there; {DEBIAN}.")
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text(PROBE)
        command = [*compiler, "-shared", "-fPIC", *get_flags(), str(probe), "-o", str(probe.with_suffix(".so"))]
        if subprocess.run([*command, *JPEG], capture_output=True, check=False).returncode:
            needed = "libjpeg-turbo with jpeglib.h and jpegint.h"
            sys.exit(f"tfpipe-kernels needs {needed}, and {compiler[0]} does not find it; {DEBIAN}.")
    return compiler


def get_flags() -> list[str]:
    """Returns the flags that the user gave."""
    return [*shlex.split(os.environ.get("CFLAGS", "")), *shlex.split(os.environ.get("LDFLAGS", ""))]


def make_stubs(compiler: list[str], folder: Path) -> list[str]:
    """Makes empty libraries with the names of TensorFlow's, so that the operation is built without TensorFlow.

    The operation then asks for its functions by the libraries' names. Older releases of TensorFlow do not offer them
    to libraries that name none.
    """
    stubs = [str(folder / name) for name in TENSORFLOW]
    for name, stub in zip(TENSORFLOW, stubs, strict=True):
        command = [*compiler, "-shared", "-nostdlib", "-x", "c", os.devnull, f"-Wl,-soname,{name}", "-o", stub]
        subprocess.run(command, check=True)
    return ["-Wl,--no-as-needed", *stubs]


def compile_shared(compiler: list[str], target: Path, sources: tuple[str, ...], libraries: list[str]) -> None:
    """Compiles and links one library."""
    paths = [str(SOURCES / source) for source in sources]
    subprocess.run([*compiler, *FLAGS, *get_flags(), *paths, "-o", str(target), *libraries], check=True)


setup(
    cmdclass={"build": Build, "build_libraries": BuildLibraries, "bdist_wheel": AnyPython},
    distclass=WithLibraries,
)
