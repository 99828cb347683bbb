"""Lists the members of tar and zip archives, with the offsets at which workers read them.

No member is unpacked under its name. Names that point outside of the archive are still refused: they are an attack.
"""

import bz2
import contextlib
import gzip
import io
import logging
import lzma
import posixpath
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, BinaryIO, NamedTuple

from beam_jobs.plan.image_ref import WHOLE_FILE, ImageLocation
from tfpipe.errors import DataError
from tfpipe.storage import file_io
from tfpipe.system.budget import GROWTH, UNPACKED, OverBudget

_logger = logging.getLogger("tfpipe.beam_jobs.archive")  # whose warnings the command shows

_TAR_SUFFIXES = (".tar",)
_COMPRESSED_TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SUFFIXES = (*_TAR_SUFFIXES, *_COMPRESSED_TAR_SUFFIXES, ".zip")
_FORGET_EVERY = 1000
_MAGICS = (tarfile.POSIX_MAGIC, tarfile.GNU_MAGIC)
_OCTAL = re.compile(rb"[0-7]{1,11}")
_UTF8_FLAG = 0x800
_MAX_BYTES = 2**63 - 1  # the largest size of any file; the formats can name larger ones


class ListedFile(NamedTuple):
    """One file of a folder or an archive."""

    path: str
    size: int  # in bytes once unpacked; 0: unknown
    location: ImageLocation = WHOLE_FILE
    skip: str = ""  # the reason to skip it
    content: bytes | None = None  # the bytes, if they were wanted


Wants = Callable[[str, int], bool]
"""A function that tells by the name and the size of a member whether its bytes are read when it is listed."""


def is_archive(path: str) -> bool:
    """Tests whether a name has the ending of an archive that can be read."""
    return path.lower().endswith(_SUFFIXES)


def is_tar(path: str) -> bool:
    """Tests whether a name has the ending of a tar file, compressed or not."""
    return is_archive(path) and not path.lower().endswith(".zip")


def is_compressed_tar(path: str) -> bool:
    """Tests whether a name has the ending of a compressed tar, of which all before a member must be unpacked."""
    return path.lower().endswith(_COMPRESSED_TAR_SUFFIXES)


def strip_archive_suffix(path: str) -> str:
    """Returns the path without `.tar`, `.tar.gz`, `.zip` and the like."""
    suffix = max((suffix for suffix in _SUFFIXES if path.lower().endswith(suffix)), key=len, default="")
    return path[: len(path) - len(suffix)]


def list_archive(path: str, location: str, wants: Wants | None = None) -> Iterator[ListedFile]:
    """Yields the members of an archive, in its order; `location` becomes the file in their locations."""
    with _naming_damage(path), file_io.open_read(path) as file:
        members = _list_tar(file, path, location, wants) if is_tar(path) else _list_zip(file, path, location)
        for member in members:
            if max(member.size, member.location.offset, member.location.packed) > _MAX_BYTES:
                raise ValueError(f"{member.path} would have {member.size} bytes")
            yield member


@contextlib.contextmanager
def _naming_damage(path: str) -> Iterator[None]:
    """Turns the errors that the libraries raise for a damaged archive into a DataError that names the archive."""
    try:
        yield
    except _DAMAGES as error:
        raise DataError(f"{path} is damaged or is not a valid archive of its kind ({error}).") from error


@contextlib.contextmanager
def open_unpacked(path: str) -> Iterator[IO[bytes]]:
    """Opens the tar file inside a compressed one for reading forwards. Offsets from `list_archive` are valid in it.

    The first bytes tell the compression, as they do for `list_archive`: a file may have been unpacked and not renamed.
    """
    with _naming_damage(path), file_io.open_read(path) as file:
        begin = file.read(_MOST_MAGIC)
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        opener = next((opener for magic, opener in _OPENERS.items() if begin.startswith(magic)), contextlib.nullcontext)
        budget = UNPACKED.renew(GROWTH * size)
        try:
            with opener(file) as tar:
                yield budget.limit(tar)
        except OverBudget:
            raise DataError(
                f"{path} unpacks to more than {GROWTH} times its {size:,} bytes, as if it were made to fill a disk. "
                "Unpack it, if it is meant so."
            ) from None


_OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_MOST_MAGIC = max(map(len, _OPENERS))
_OF_ARCHIVES = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
_DAMAGES = (*_OF_ARCHIVES, EOFError, ValueError, OverflowError, MemoryError)  # a header may name any number of bytes


def _list_tar(file: BinaryIO, path: str, location: str, wants: Wants | None) -> Iterator[ListedFile]:
    """Yields the members of a tar file and of the tar files in it (one level, as in ImageNet's training archive)."""
    begin, is_stream = file.read(_MOST_MAGIC), is_compressed_tar(path)
    file.seek(0)
    if begin.startswith(tuple(_OPENERS)) and not is_stream:
        raise DataError(f"{path} is compressed as a whole. Let its name end in .tar.gz, .tar.bz2 or .tar.xz.")
    # "r:" seeks from header to header; "r|" reads a stream, so a compressed file is unpacked once.
    with (
        open_unpacked(path) if is_stream else contextlib.nullcontext(file) as opened,
        tarfile.open(fileobj=opened, mode="r|" if is_stream else "r:", tarinfo=_Header) as tar,
    ):
        yield from _list_open_tar(tar, path, location, wants)


def _list_open_tar(
    tar: tarfile.TarFile, path: str, location: str, wants: Wants | None, folder: str = "", begin: int = 0
) -> Iterator[ListedFile]:
    """Yields the members of an open tar file; `folder` and `begin` are its name and offset in an outer tar file."""
    members: dict[str, tuple[int, ImageLocation]] = {}  # size and location of each regular file, for links to it
    for info in _iterate_infos(tar, seeks=not is_compressed_tar(path)):
        name = _check_name(info.name, path)
        if info.issym() or info.islnk():
            base = posixpath.dirname(name) if info.issym() else ""
            target = _check_name(posixpath.join(base, info.linkname), path, link=info.name)
            if target in members:
                yield ListedFile(folder + name, *members[target])
            else:
                yield ListedFile(folder + name, 0, skip="link without a target before it")
        elif not info.isreg():
            if not info.isdir():
                yield ListedFile(folder + name, 0, skip="not a regular file")
        elif info.issparse():
            raise DataError(f"{path} holds the sparse file {info.name!r}, which cannot be read in place; unpack it.")
        elif not folder and name.lower().endswith(_TAR_SUFFIXES):
            inner = tar.extractfile(info)
            assert inner is not None  # it is a regular file
            with tarfile.open(fileobj=inner, mode="r|" if is_compressed_tar(path) else "r:", tarinfo=_Header) as nested:
                inner_folder = strip_archive_suffix(name) + "/"
                yield from _list_open_tar(nested, path, location, wants, inner_folder, info.offset_data)
        else:
            members[name] = info.size, ImageLocation(location, begin + info.offset_data)
            is_wanted = wants is not None and wants(name, info.size)
            content = _read_member(tar, info) if is_wanted else None
            yield ListedFile(folder + name, *members[name], content=content)
    if location and tar.fileobj is not None and 0 < tar.offset == tar.fileobj.tell():  # "": it is only looked into
        _logger.warning("%s lacks a tar's end mark. If it was cut off, images are missing: copy it again.", path)


class _Header(tarfile.TarInfo):
    """A header that is whole, where tarfile takes one that is cut off or damaged as the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_Header":
        """Reads the next header; tarfile calls it."""
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            is_end = type(error).__name__ in ("EmptyHeaderError", "EOFHeaderError")  # nothing more, or zeros
            raise error if is_end else tarfile.ReadError(str(error)) from None


def _read_member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    """Reads the member that was listed last, in a third of the time of `extractfile`."""
    assert tar.fileobj is not None
    tar.fileobj.seek(info.offset_data)
    data = tar.fileobj.read(info.size)
    if len(data) != info.size:
        raise tarfile.ReadError("unexpected end of data")
    return data


def _iterate_infos(tar: tarfile.TarFile, *, seeks: bool) -> Iterator[tarfile.TarInfo]:
    """Yields the members of a newly opened tar file; drops tarfile's list of them, which takes a kilobyte for each."""
    if tar.offset == 0:  # there is no member, and Python 3.10 would look for one at -1
        return
    info, count = tar.next(), 0
    while info is not None:
        yield info
        count += 1
        if count % _FORGET_EVERY == 0:
            tar.members = []  # type: ignore[attr-defined]  # not in the stubs; tarfile itself only appends to it
        info = (_read_plain_header(tar) if seeks else None) or tar.next()


def _read_plain_header(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    """Reads the header of a regular file with a short name, in a third of tarfile's time; returns None for others."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset - 1)  # the byte there shows whether the member before is complete
    block = tar.fileobj.read(1 + tarfile.BLOCKSIZE)
    header = block[1:]
    if len(header) != tarfile.BLOCKSIZE or tar.pax_headers:  # global pax headers may change any member
        return None
    if header[156:157] != tarfile.REGTYPE or header[257:265] not in _MAGICS or header[345]:
        return None
    size, checksum = (field.split(b"\0", 1)[0].strip(b" ") for field in (header[124:136], header[148:156]))
    if not (_OCTAL.fullmatch(size) and _OCTAL.fullmatch(checksum)):
        return None
    if int(checksum, 8) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        return None
    info = tarfile.TarInfo(header[:100].split(b"\0", 1)[0].decode(tar.encoding or "utf-8", tar.errors or "strict"))
    info.size, info.offset, info.offset_data = int(size, 8), tar.offset, tar.offset + tarfile.BLOCKSIZE
    tar.offset = info.offset_data + -(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return info


def _list_zip(file: BinaryIO, path: str, location: str) -> Iterator[ListedFile]:
    with zipfile.ZipFile(file) as archive:
        for info, decoded in _decode_names(archive.infolist(), path):
            name = _check_name(decoded, path)
            if decoded.endswith(("/", "\\")):  # a folder; PowerShell writes backslashes
                continue
            if info.flag_bits & 0x1:
                raise DataError(f"{path} is encrypted; unpack it first.")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                method = zipfile.compressor_names.get(info.compress_type, info.compress_type)  # type: ignore[attr-defined]
                raise DataError(
                    f"{path} holds {info.filename!r} compressed by {method}; deflate and store can be read."
                )
            if stat.S_ISLNK(info.external_attr >> 16):
                yield ListedFile(name, 0, skip="link in a zip archive")
                continue
            packed = info.compress_size if info.compress_type == zipfile.ZIP_DEFLATED else 0
            yield ListedFile(name, info.file_size, ImageLocation(location, info.header_offset, packed, info.CRC))


def _decode_names(infos: list[zipfile.ZipInfo], path: str) -> list[tuple[zipfile.ZipInfo, str]]:
    """Decodes the names of a zip's members. Programs for Linux and macOS write UTF-8 without setting its flag."""
    silent = [info for info in infos if not info.flag_bits & _UTF8_FLAG and not info.orig_filename.isascii()]
    names = {id(info): name for info in silent if (name := _read_unicode_path(info)) is not None}
    unknown = [info for info in silent if id(info) not in names]
    raw = b"\n".join(info.orig_filename.encode("cp437") for info in unknown)
    encoding = next(encoding for encoding in ("utf-8", "gbk", "cp437") if _fits(raw, encoding))
    names |= {id(info): info.orig_filename.encode("cp437").decode(encoding) for info in unknown}
    if encoding != "utf-8":
        shown = names[id(unknown[0])]
        _logger.warning("%s has names without an encoding. They are read as %s: %r.", path, encoding.upper(), shown)
    return [(info, names.get(id(info), info.orig_filename).split("\0", 1)[0]) for info in infos]


def _fits(names: bytes, encoding: str) -> bool:
    """Tests whether names can be in an encoding. For GBK high bytes must come in pairs, as in its usual characters."""
    try:
        names.decode(encoding)
    except UnicodeDecodeError:
        return False
    return encoding != "gbk" or all(len(high) % 2 == 0 for high in re.findall(rb"[\x80-\xff]+", names))


def _read_unicode_path(info: zipfile.ZipInfo) -> str | None:
    """Returns the name in Info-ZIP's extra field 0x7075, if its checksum is that of the name in the header."""
    extra = info.extra
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + size], extra[4 + size :]
        is_path = kind == 0x7075 and len(field) == size > 5 and field[0] == 1
        if is_path and int.from_bytes(field[1:5], "little") == zlib.crc32(info.orig_filename.encode("cp437")):
            with contextlib.suppress(UnicodeDecodeError):
                return field[5:].decode()
    return None


def _check_name(name: str, path: str, link: str = "") -> str:
    """Returns a member's normalized name, or raises `DataError` if the name points outside the archive."""
    folders = re.split(r"[/\\]", name)
    normal = posixpath.normpath(name.replace("\\", "/"))
    outside = normal.startswith("../") or normal == ".." if link else ".." in folders
    if outside or normal.startswith("/") or re.match(r"[A-Za-z]:", normal):
        culprit = f"the link {link!r} to {name!r}" if link else f"the member {name!r}"
        raise DataError(f"{path} holds {culprit}, which points outside of it; such an archive is refused.")
    return normal
