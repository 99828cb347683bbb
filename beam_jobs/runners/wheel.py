"""A wheel of this installation, for the machines of a cluster, so that the same code runs there as here."""

import base64
import hashlib
import os
import re
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import beam_jobs
from tfpipe import errors
from tfpipe.errors import DataError

_DISTRIBUTION = "tfpipe"
_TAG = "py3-none-any"
_PILLOW = re.compile(r"^Requires-Dist: pillow\b[^;\n]*", re.MULTILINE)
_WHEEL = f"Wheel-Version: 1.0\nGenerator: tfpipe\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
_PACKAGES = Path(beam_jobs.__file__).parent, Path(errors.__file__).parent
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of a zip file; equal code gives equal bytes


def build_wheel(folder: str) -> str:
    """Writes the wheel. This needs neither the repository nor a build tool nor the network.

    The code comes from the packages that this process imports, installed or editable. Name, version, dependencies and
    commands come from the installed distribution. The wheel requires the version of Pillow that is installed here:
    another one may encode the same pixels as other bytes.

    Args:
        folder: The folder to write to.

    Returns:
        The wheel's path.

    Raises:
        DataError: tfpipe runs from a folder and is not installed, so its dependencies are unknown.
    """
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise DataError(
            "The workers get tfpipe as it is installed here, but it is not installed. Install it with pip, as in "
            "`pip install -e .` in its folder."
        ) from error
    # The wheel format allows no dash in the version of a file's name.
    stem = f"{_DISTRIBUTION}-{re.sub('-+', '_', distribution.version)}"
    path = os.path.join(folder, f"{stem}-{_TAG}.whl")
    record = f"{stem}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in (*_read_code(), *_read_dist_info(distribution, f"{stem}.dist-info")):
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


def _pin_pillow(text: str) -> str:
    version = metadata.version("pillow")
    if "+" in version:  # a local build, which no package index has
        return text
    return _PILLOW.sub(f"Requires-Dist: pillow=={version}", text)


def _read_code() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package.parent)
            if path.is_file() and "__pycache__" not in inside.parts:
                yield inside.as_posix(), path.read_bytes()


def _read_dist_info(distribution: metadata.Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    for name in ("METADATA", "entry_points.txt"):
        text = distribution.read_text(name)
        if text is not None:
            yield f"{folder}/{name}", _pin_pillow(text).encode()
    yield f"{folder}/WHEEL", _WHEEL.encode()
