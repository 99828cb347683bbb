"""Lists the members of tar and zip archives, with the place where each one's bytes begin.

Nothing is ever extracted: a worker reads a member at its offset, so no name out of an archive becomes a path on
this disk. Names that point outside are refused all the same, because such an archive was made to do harm.
"""

import bz2
import contextlib
import gzip
import lzma
import posixpath
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, BinaryIO, NamedTuple

from beam_jobs.storage import filesystem
from tfpipe.errors import DataError

_TAR_SUFFIXES = (".tar",)
_COMPRESSED_TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SUFFIXES = (*_TAR_SUFFIXES, *_COMPRESSED_TAR_SUFFIXES, ".zip")
_FORGET_EVERY = 1000
_MAX_BYTES = 2**63 - 1  # of a file anywhere; the formats can name more


class Member(NamedTuple):
    """One file of a tree; fields as in `ImageRef`, and why it is to be skipped, if it is."""

    path: str
    size: int
    location: str = ""
    offset: int = -1
    packed: int = -1
    crc: int = -1
    skip: str = ""


def is_archive(path: str) -> bool:
    """Whether the name is that of an archive that can be read."""
    return path.lower().endswith(_SUFFIXES)


def is_compressed_tar(path: str) -> bool:
    """Whether members can be reached only by unpacking everything before them."""
    return path.lower().endswith(_COMPRESSED_TAR_SUFFIXES)


def strip_archive_suffix(path: str) -> str:
    """The path without `.tar`, `.tar.gz`, `.zip` and the like."""
    suffix = max((suffix for suffix in _SUFFIXES if path.lower().endswith(suffix)), key=len, default="")
    return path[: len(path) - len(suffix)]


def list_archive(path: str, location: str) -> Iterator[Member]:
    """The members of an archive, in its order.

    Args:
        path: Where the archive lies.
        location: What its members shall name as their location.

    Raises:
        DataError: It is damaged, encrypted, or holds a name that points outside.
    """
    try:
        with filesystem.open_read(path) as file:
            members = _list_zip if path.lower().endswith(".zip") else _list_tar
            for member in members(file, path, location):
                if max(member.size, member.offset, member.packed) > _MAX_BYTES:
                    raise ValueError(f"{member.path} would have {member.size} bytes")
                yield member
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
        raise DataError(f"{path} is damaged or no archive of its kind ({error}).") from error


@contextlib.contextmanager
def open_unpacked(path: str) -> Iterator[IO[bytes]]:
    """The tar file inside a compressed one, to be read forwards; offsets from `list_archive` hold in it."""
    opener = next(opener for suffix, opener in _OPENERS.items() if path.lower().endswith(suffix))
    with filesystem.open_read(path) as file, opener(file) as tar:
        yield tar


def unpack_tar(path: str, out: IO[bytes]) -> None:
    """Writes the uncompressed tar file inside a compressed one."""
    with open_unpacked(path) as tar:
        shutil.copyfileobj(tar, out, 1 << 20)


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".tbz2": bz2.open,
    ".xz": lzma.open,
    ".txz": lzma.open,
}


def _list_tar(file: BinaryIO, path: str, location: str) -> Iterator[Member]:
    """Members of a tar file, of tar files in it too (one level: ImageNet's training archive)."""
    # "r|*" reads a stream, so a compressed file is unpacked once; "r:" seeks from header to header.
    with tarfile.open(fileobj=file, mode="r|*" if is_compressed_tar(path) else "r:") as tar:
        yield from _tar_members(tar, path, location)


def _tar_members(tar: tarfile.TarFile, path: str, location: str, inside: str = "", begin: int = 0) -> Iterator[Member]:
    """Members of an open tar file; `inside` and `begin` are the folder and the place that it has in another."""
    places: dict[str, tuple[int, int]] = {}
    for info in _members(tar):
        name = _checked_name(info.name, path)
        if info.issym() or info.islnk():
            base = posixpath.dirname(name) if info.issym() else ""
            target = _checked_name(posixpath.join(base, info.linkname), path, link=info.name)
            if target in places:
                offset, size = places[target]
                yield Member(inside + name, size, location, offset)
            else:
                yield Member(inside + name, 0, skip="link without a target before it")
        elif not info.isreg():
            if not info.isdir():
                yield Member(inside + name, 0, skip="not a regular file")
        elif info.issparse():
            raise DataError(f"{path} holds the sparse file {info.name!r}, which cannot be read in place; unpack it.")
        elif not inside and name.lower().endswith(_TAR_SUFFIXES):
            folder = strip_archive_suffix(name) + "/"
            inner = tar.extractfile(info)
            assert inner is not None  # it is a regular file
            with tarfile.open(fileobj=inner, mode="r|" if is_compressed_tar(path) else "r:") as nested:
                yield from _tar_members(nested, path, location, folder, info.offset_data)
        else:
            places[name] = begin + info.offset_data, info.size
            yield Member(inside + name, info.size, location, begin + info.offset_data)


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Iterates without tarfile's list of all members, a kilobyte each."""
    for count, info in enumerate(iter(tar.next, None)):
        yield info
        if count % _FORGET_EVERY == _FORGET_EVERY - 1:
            tar.members = []  # type: ignore[attr-defined]  # not in the stubs; tarfile itself only appends to it


def _list_zip(file: BinaryIO, path: str, location: str) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = _checked_name(info.filename, path)
            if info.is_dir():
                continue
            if info.flag_bits & 0x1:
                raise DataError(f"{path} is encrypted; unpack it first.")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                method = zipfile.compressor_names.get(info.compress_type, info.compress_type)  # type: ignore[attr-defined]
                raise DataError(
                    f"{path} holds {info.filename!r} compressed by {method}; deflate and store can be read."
                )
            if stat.S_ISLNK(info.external_attr >> 16):
                yield Member(name, 0, skip="link in a zip archive")
                continue
            packed = info.compress_size if info.compress_type == zipfile.ZIP_DEFLATED else 0
            yield Member(name, info.file_size, location, info.header_offset, packed, info.CRC)


def _checked_name(name: str, path: str, link: str = "") -> str:
    """A member's name in plain form; refuses one that points outside the archive."""
    parts = re.split(r"[/\\]", name)
    normal = posixpath.normpath(name.replace("\\", "/"))
    outside = normal.startswith("../") or normal == ".." if link else ".." in parts
    if outside or normal.startswith("/") or re.match(r"[A-Za-z]:", normal):
        what = f"the link {link!r} to {name!r}" if link else f"the member {name!r}"
        raise DataError(f"{path} holds {what}, which points outside of it; such an archive is refused.")
    return normal
