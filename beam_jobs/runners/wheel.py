"""This installation as one wheel, for the machines of a cluster: what runs there is what runs here."""

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
_FIRST_MOMENT = (1980, 1, 1, 0, 0, 0)  # of a zip file; the same code then gives the same bytes


def build_wheel(folder: str) -> str:
    """Writes the wheel; needs neither the sources' repository nor a build tool nor the network.

    The code is that of the packages which this process imports, installed or editable; name, version, dependencies
    and commands are those of the installed distribution. Pillow is asked for in the version that is here: another one
    may encode the same pixels as other bytes.

    Args:
        folder: Where to.

    Returns:
        The wheel's path.

    Raises:
        DataError: tfpipe runs out of a folder and is not installed, so that nothing says what it depends on.
    """
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise DataError(
            "The workers get tfpipe as it is installed here, but it is not installed. Install it with pip, as in "
            "`pip install -e .` in its folder."
        ) from error
    # By the wheel format, a version has no dash in a file's name.
    stem = f"{_DISTRIBUTION}-{re.sub('-+', '_', distribution.version)}"
    path = os.path.join(folder, f"{stem}-{_TAG}.whl")
    record = f"{stem}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in (*_code(), *_dist_info(distribution, f"{stem}.dist-info")):
            wheel.writestr(_entry(name), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        wheel.writestr(_entry(record), "".join([*lines, f"{record},,\n"]))
    return path


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _FIRST_MOMENT)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _with_same_pillow(text: str) -> str:
    version = metadata.version("pillow")
    if "+" in version:  # somebody's own build, which no index has
        return text
    return _PILLOW.sub(f"Requires-Dist: pillow=={version}", text)


def _code() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package.parent)
            if path.is_file() and "__pycache__" not in inside.parts:
                yield inside.as_posix(), path.read_bytes()


def _dist_info(distribution: metadata.Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    for name in ("METADATA", "entry_points.txt"):
        text = distribution.read_text(name)
        if text is not None:
            yield f"{folder}/{name}", _with_same_pillow(text).encode()
    yield f"{folder}/WHEEL", _WHEEL.encode()
