"""Gets the bytes of one planned image: out of a file, or out of an archive at a known place."""

import struct
import zlib
from collections.abc import Mapping
from types import MappingProxyType

from beam_jobs.plan.image_ref import ImageRef, PlannedImage
from beam_jobs.storage import filesystem

_ZIP_HEADER_BYTES = 30
_ZIP_NAMES_BYTES = 1024  # of the name and the extra fields that stand before the data; more is rare


class UnreadableError(Exception):
    """The bytes cannot be had now; another run may have them."""


def fetch(root: str, image: PlannedImage | ImageRef, unpacked: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """The source's bytes.

    Args:
        root: Folder that relative locations start from.
        image: Which one.
        unpacked: For compressed tar files, by location: where the unpacked one lies.

    Raises:
        UnreadableError: The file is gone, may not be read, or is not what was planned.
    """
    location = image.location or image.path
    path = filesystem.join(root, unpacked.get(location, location))
    try:
        if image.offset < 0:
            if not filesystem.is_remote(path) and filesystem.size(path) < 0 and filesystem.exists(path):
                raise UnreadableError("is no regular file")  # reading a pipe or a device may never end
            return filesystem.read_bytes(path)
        if image.packed < 0:
            data = filesystem.read_range(path, image.offset, image.size)
        else:
            data = _read_zip_member(path, image)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from error
    if len(data) != image.size:
        raise UnreadableError(f"the archive holds {len(data)} of its {image.size} bytes")
    return data


def _read_zip_member(path: str, image: PlannedImage | ImageRef) -> bytes:
    """One member by the place that the archive's directory gave, without reading that directory again."""
    stored = image.packed or image.size
    # One read for header and data, as a rule: at an object store every read is a request.
    part = filesystem.read_range(path, image.offset, _ZIP_HEADER_BYTES + _ZIP_NAMES_BYTES + stored)
    if len(part) < _ZIP_HEADER_BYTES or part[:4] != b"PK\x03\x04":
        raise OSError("the archive has changed or is damaged here")
    name_bytes, extra_bytes = struct.unpack_from("<HH", part, 26)
    begin = _ZIP_HEADER_BYTES + name_bytes + extra_bytes
    data = part[begin : begin + stored]
    if name_bytes + extra_bytes > _ZIP_NAMES_BYTES:
        data = filesystem.read_range(path, image.offset + begin, stored)
    if image.packed:
        try:
            data = zlib.decompressobj(-15).decompress(data, image.size + 1)  # never more than was promised
        except zlib.error as error:
            raise OSError(f"the archive is damaged here ({error})") from error
        if len(data) > image.size:
            raise OSError(f"the archive is damaged here (more than the {image.size} bytes that it promises)")
    if zlib.crc32(data) != image.crc:
        raise OSError("the archive is damaged here (wrong CRC-32)")
    return data
