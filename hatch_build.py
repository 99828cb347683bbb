"""Compiles `tfpipe/native/csrc` into the wheel.

```
pip install .                          # by $CC, cc, gcc or clang; else by zig, which pip fetches
TFPIPE_NATIVE=macosx_11_0_arm64 pip wheel --no-deps .      # by zig, for another machine
```

The library is no extension of Python, so one wheel serves every Python 3.
"""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "libtfpipe_native.so"

_LIBRARIES = ("-lm",)

# Products must not be fused with sums: results equal TensorFlow's to the bit.
_FLAGS = (
    *("-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-pthread", "-Wall", "-Wextra"),
    *("-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
)

# Without `-z defs` a shared library may lack what it calls.
_LINUX_LINK = ("-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,defs", f"-Wl,-soname,{NATIVE}")
_MACOS_LINK = (f"-Wl,-install_name,@rpath/{NATIVE}",)

_ZIG_TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_1_x86_64": "x86_64-linux-musl",
    "musllinux_1_1_aarch64": "aarch64-linux-musl",
    "macosx_10_13_x86_64": "x86_64-macos.10.13",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""The platforms of the wheels that zig can make, and zig's name of each."""

_SECOND_TAGS = {"manylinux_2_17": "manylinux2014"}  # the name that pip had for it before 20.3

_PROBE = "#include <stdint.h>\n#include <stdlib.h>\nuint8_t *probe(void) { return malloc(1); }\n"


class NotBuilt(Exception):
    """The library cannot be built. The message is a sentence that says why, and what to do."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler, and what it compiles for.

    Attributes:
        command: The words before its options.
        platform: The tag of the wheel's platform.
        strips: Whether a library is made without what debuggers need; zig's own parts hold 1 MB of it.
    """

    command: tuple[str, ...]
    platform: str
    strips: bool = False

    @property
    def link(self) -> tuple[str, ...]:
        """Its options for a library."""
        system = _MACOS_LINK if self.platform.startswith("macosx") else _LINUX_LINK
        return ("-s", *system) if self.strips else system


class NativeHook(BuildHookInterface[Any]):
    """Adds the library to a wheel, or lays it into the source tree for an editable installation."""

    def dependencies(self) -> list[str]:
        """Returns what the build needs from the package index: zig, 100 MB, where it is to compile; pip asks for it."""
        needs_zig = os.environ.get("TFPIPE_NATIVE") in _ZIG_TARGETS or (get_zig_platform() and find_compiler() is None)
        return ["ziglang"] if needs_zig else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles; hatchling calls it before it collects the files."""
        package = Path(self.root, "tfpipe", "native")
        self._temporary = tempfile.TemporaryDirectory(prefix="tfpipe-build-")  # until the wheel is written
        work = Path(self._temporary.name)
        out = package if version == "editable" else work / "out"
        out.mkdir(exist_ok=True)
        (out / NATIVE).unlink(missing_ok=True)
        try:
            compiler = choose_compiler(os.environ.get("TFPIPE_NATIVE", ""))
            build_library(compiler, package / "csrc", work, out / NATIVE)
        except NotBuilt as error:
            sys.exit(str(error))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{add_second_tag(compiler.platform)}"
        if version != "editable":
            build_data["force_include"] |= {str(path): f"tfpipe/native/{path.name}" for path in out.iterdir()}
            docs = Path(self.root, "docs")  # what `tfpipe help` prints
            pages = [page for name in ("howto/*", "symptoms", "start/install") for page in docs.glob(f"{name}.md")]
            build_data["force_include"] |= {str(path): f"tfpipe/pages/{path.relative_to(docs)}" for path in pages}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the temporary files; hatchling calls it after the build."""
        self._temporary.cleanup()


def choose_compiler(setting: str) -> Compiler:
    """Returns the compiler that `TFPIPE_NATIVE` asks for, or the one that is there.

    Args:
        setting: The value of `TFPIPE_NATIVE`; empty if it is not set.

    Raises:
        NotBuilt: Nothing can compile the library.
    """
    if setting in _ZIG_TARGETS:
        return find_zig(setting)
    if setting:
        platforms = ", ".join(_ZIG_TARGETS)
        raise NotBuilt(f"TFPIPE_NATIVE must be a platform that zig compiles for, {platforms}; got {setting}.")
    system = platform.system()
    if system not in ("Linux", "Darwin"):
        raise NotBuilt(f"tfpipe is written for Linux and macOS, not for {system}.")
    command = find_compiler()
    if command is None:
        return find_zig(get_zig_platform())
    if system == "Linux":
        return Compiler((*command,), sysconfig.get_platform().replace("-", "_").replace(".", "_"))
    arch = "arm64" if platform.machine() == "arm64" else "x86_64"
    oldest = "11.0" if arch == "arm64" else "10.13"
    return Compiler(
        (*command, "-arch", arch, f"-mmacosx-version-min={oldest}"), f"macosx_{oldest.replace('.', '_')}_{arch}"
    )


def find_compiler() -> list[str] | None:
    """Returns the first C compiler that compiles a small program; None if there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        command = shlex.split(name or "")
        if command and shutil.which(command[0]) and _can_compile(command):
            return command
    return None


def _can_compile(command: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(_PROBE, encoding="utf-8")
        options = ("-shared", "-fPIC", str(source), "-o", str(source.with_suffix(".so")))
        return subprocess.run([*command, *options], capture_output=True, check=False).returncode == 0


def get_zig_platform() -> str:
    """Returns the tag of the wheel that zig makes for this machine; empty if there is none."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if platform.system() == "Darwin":
        return "macosx_11_0_arm64" if machine == "aarch64" else "macosx_10_13_x86_64"
    libc = "manylinux_2_17" if platform.libc_ver()[0] == "glibc" else "musllinux_1_1"
    return f"{libc}_{machine}" if f"{libc}_{machine}" in _ZIG_TARGETS else ""


def add_second_tag(name: str) -> str:
    """Returns the tag of a platform with the older name that it has, if any."""
    for begin, second in _SECOND_TAGS.items():
        if name.startswith(begin):
            return f"{name}.{second}{name.removeprefix(begin)}"
    return name


def find_zig(name: str) -> Compiler:
    """Returns zig, which brings the headers and libraries of each platform.

    Args:
        name: One of `_ZIG_TARGETS`; empty where zig compiles for none that would do.

    Raises:
        NotBuilt: It is not installed.
    """
    spec = importlib.util.find_spec("ziglang")
    if not name or spec is None or spec.origin is None:
        zig = ", or `pip install ziglang`" if name else ""
        raise NotBuilt(f"No C compiler was found, which tfpipe needs: install one such as gcc or clang{zig}.")
    command = (str(Path(spec.origin).with_name("zig")), "cc", "-target", _ZIG_TARGETS[name])
    return Compiler(command, name, strips=True)


def build_library(compiler: Compiler, sources: Path, work: Path, target: Path) -> None:
    """Compiles all sources into the library.

    Args:
        compiler: The compiler.
        sources: The folder with the sources.
        work: A folder for the object files.
        target: The path of the library.

    Raises:
        NotBuilt: The compiler fails.
    """
    paths = sorted(sources.rglob("*.c"))
    objects = [work / f"{number}.o" for number in range(len(paths))]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(_compile, [compiler] * len(paths), paths, objects))
    words = ("-shared", "-pthread", *compiler.link, *_read_flags("CFLAGS"), "-o", str(target), *map(str, objects))
    _run(compiler, work, (*words, *_LIBRARIES, *_read_flags("LDFLAGS")))


def _compile(compiler: Compiler, source: Path, made: Path) -> None:
    _run(compiler, made.parent, (*_FLAGS, *_read_flags("CFLAGS"), "-c", str(source), "-o", str(made)))


def _read_flags(name: str) -> list[str]:
    """Returns the flags that the user gave."""
    return shlex.split(os.environ.get(name, ""))


def _run(compiler: Compiler, work: Path, words: Iterable[str]) -> None:
    """Runs the compiler, and shows what it prints."""
    caches = {name: str(work / "cache") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    command = [*compiler.command, *words]
    done = subprocess.run(command, env={**caches, **os.environ}, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise NotBuilt(f"The C compiler failed: {errors[0] if errors else f'exit code {done.returncode}'}")


if __name__ == "__main__":
    sys.stdout.write("\n".join(_ZIG_TARGETS) + "\n")
