"""Wheels of this installation, for the machines of a cluster, so that the same code runs there as here."""

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
from tfpipe.system import kernels

_DISTRIBUTION = "tfpipe"
_TAG = "py3-none-any"
_PILLOW = re.compile(r"^Requires-Dist: pillow\b[^;\n]*", re.MULTILINE)
_WHEEL = f"Wheel-Version: 1.0\nGenerator: tfpipe\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
_WHEEL_TAG = re.compile(r"^Tag: (\S+)$", re.MULTILINE)
_PACKAGES = Path(beam_jobs.__file__).parent, Path(errors.__file__).parent
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of a zip file; equal code gives equal bytes

_Files = Iterable[tuple[str, bytes]]


def build_wheel(folder: str) -> str:
    """Writes the wheel of tfpipe. This needs neither the repository nor a build tool nor the network.

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
    stem = _make_stem(distribution)
    info = {name: distribution.read_text(name) for name in ("METADATA", "entry_points.txt")}
    texts = {name: _pin_pillow(text) for name, text in info.items() if text is not None}
    files = *_read_code(_PACKAGES), *_make_dist_info(stem, {**texts, "WHEEL": _WHEEL})
    return _write_wheel(folder, stem, _TAG, files)


def build_kernels_wheel(folder: str) -> str:
    """Writes the wheel of tfpipe-kernels, with the libraries that are installed here.

    Args:
        folder: The folder to write to.

    Returns:
        The wheel's path.

    Raises:
        DataError: The libraries are not for Linux, which the workers run.
    """
    import tfpipe_kernels

    distribution = metadata.distribution(kernels.DISTRIBUTION)
    wheel = distribution.read_text("WHEEL") or ""
    tags = _WHEEL_TAG.findall(wheel)
    tag = next((tag for tag in tags if "linux" in tag), None)
    if tag is None:
        raise DataError(
            f"The workers run Linux and get {kernels.DISTRIBUTION} as it is installed here, but it is installed for "
            f"{', '.join(tags) or 'an unknown system'}. Start the job on Linux, or let `sdk_location` be a container."
        )
    package = Path(tfpipe_kernels.__file__).parent
    # Libraries that a wheel brings along lie beside its package, by the convention of wheel tools.
    packages = [path for path in (package, package.with_name("tfpipe_kernels.libs")) if path.is_dir()]
    stem = _make_stem(distribution)
    texts = {"METADATA": distribution.read_text("METADATA") or "", "WHEEL": wheel}
    return _write_wheel(folder, stem, tag, (*_read_code(packages), *_make_dist_info(stem, texts)))


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


def _pin_pillow(text: str) -> str:
    version = metadata.version("pillow")
    if "+" in version:  # a local build, which no package index has
        return text
    return _PILLOW.sub(f"Requires-Dist: pillow=={version}", text)


def _read_code(packages: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for package in packages:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package.parent)
            if path.is_file() and "__pycache__" not in inside.parts:
                yield inside.as_posix(), path.read_bytes()


def _make_dist_info(stem: str, texts: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    for name, text in texts.items():
        yield f"{stem}.dist-info/{name}", text.encode()
