"""The wheel of this installation, for the machines of a cluster, so that the same code runs there as here."""

import base64
import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import beam_jobs
from tfpipe import errors
from tfpipe.errors import DataError

_DISTRIBUTION = "tfpipe"
_WORKERS = "py3-none-linux_x86_64"
_WORKERS_TAG = re.compile(r"py3-none-(?:many)?linux\w*_x86_64")
_ELF_X86_64 = re.compile(rb"\x7fELF.{14}\x3e\x00", re.DOTALL)
_PILLOW = re.compile(r"^Requires-Dist: pillow\b[^;\n]*", re.MULTILINE)
_WHEEL_TAG = re.compile(r"^Tag: (\S+)$", re.MULTILINE)
_PACKAGES = Path(beam_jobs.__file__).parent, Path(errors.__file__).parent
_SOURCES = Path("tfpipe", "native", "csrc")
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of a zip file; equal code gives equal bytes

_Files = Iterable[tuple[str, bytes]]


def build_wheel(folder: str) -> str:
    """Writes the wheel of tfpipe. This needs neither the repository nor a build tool nor the network.

    The code comes from the packages that this process imports, installed or editable. Name, version, dependencies and
    commands come from the installed distribution, and so does the platform. The wheel requires the version of Pillow
    that is installed here: another one may encode the same pixels as other bytes. It also requires obstore, which reads
    and writes gs://.

    Args:
        folder: The folder to write to.

    Returns:
        The wheel's path.

    Raises:
        DataError: tfpipe runs from a folder and is not installed, so its dependencies are unknown. Or its native
            library is not one for Linux on x86-64, which the workers run.
    """
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise DataError(
            "The workers get tfpipe as it is installed here, but it is not installed. Install it with pip, as in "
            "`pip install -e .` in its folder."
        ) from error
    tag = _choose_tag(distribution)
    stem = _make_stem(distribution)
    info = {name: distribution.read_text(name) for name in ("METADATA", "entry_points.txt")}
    texts = {name: _pin_packages(text) for name, text in info.items() if text is not None}
    texts["WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tfpipe\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return _write_wheel(folder, stem, tag, (*_read_code(_PACKAGES), *_make_dist_info(stem, texts)))


def _choose_tag(distribution: metadata.Distribution) -> str:
    """Returns the tag of the wheel for the workers. An editable installation names no platform.

    Raises:
        DataError: The native library here is not one for the workers.
    """
    library = Path(errors.__file__).parent / "native" / "libtfpipe_native.so"
    if not (library.exists() and _ELF_X86_64.match(library.read_bytes())):
        raise DataError(
            "The workers run Linux on x86-64, and get tfpipe as it is installed here, without a native library for "
            "that system. Start the job on Linux, or let `sdk_location` be a container."
        )
    tags = _WHEEL_TAG.findall(distribution.read_text("WHEEL") or "")
    return next(filter(_WORKERS_TAG.fullmatch, tags), _WORKERS)


def _make_stem(distribution: metadata.Distribution) -> str:
    """Returns the beginning of a wheel's name. The format allows no dash in name and version."""
    return "-".join(re.sub("-+", "_", part) for part in (distribution.metadata["Name"], distribution.version))


def _write_wheel(folder: str, stem: str, tag: str, files: _Files) -> str:
    path = os.path.join(folder, f"{stem}-{tag}.whl")
    record = f"{stem}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files:
            wheel.writestr(_make_entry(name), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        wheel.writestr(_make_entry(record), "".join([*lines, f"{record},,\n"]))
    return path


def _make_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EARLIEST_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _pin_packages(text: str) -> str:
    version, client = metadata.version("pillow"), f"Requires-Dist: obstore=={metadata.version('obstore')}\n"
    if client not in text:
        text = _PILLOW.sub(rf"{client}\g<0>", text)
    if "+" in version:  # a local build, which no package index has
        return text
    return _PILLOW.sub(f"Requires-Dist: pillow=={version}", text)


def _read_code(packages: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for package in packages:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package.parent)
            if path.is_file() and "__pycache__" not in inside.parts and _SOURCES not in inside.parents:
                yield inside.as_posix(), path.read_bytes()


def _make_dist_info(stem: str, texts: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    for name, text in texts.items():
        yield f"{stem}.dist-info/{name}", text.encode()
