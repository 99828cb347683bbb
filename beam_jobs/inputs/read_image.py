"""Reads the bytes of one planned image: from a file, or from an archive at a known offset."""

import struct
import zlib
from collections.abc import Mapping
from types import MappingProxyType

from beam_jobs.plan.image_ref import ImageLocation, ImageRef, PlannedImage
from tfpipe.storage import file_io

# A protocol buffer cannot exceed 2 GiB, and a worker holds one source image whole.
MAX_SOURCE_BYTES = 512 * 2**20

_ZIP_HEADER_BYTES = 30
_ZIP_NAMES_BYTES = 1024  # for the name and the extra fields that stand before the data; more is rare


class UnreadableError(Exception):
    """The error of an image whose bytes cannot be read now. Another run may be able to read them."""


def read_image(root: str, image: PlannedImage | ImageRef, unpacked: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Returns the bytes of an image as they are in the input."""
    location = image.location
    file = location.file or image.path
    path = file_io.join(root, unpacked.get(file, file))
    try:
        if location.offset < 0:
            data = file_io.read_regular(path)
            if data is None:
                raise UnreadableError("is not a regular file")
            return data
        if location.packed < 0:
            data = file_io.read_range(path, location.offset, image.size)
        else:
            data = _read_zip_member(path, location, image.size)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from error
    if len(data) != image.size:
        raise UnreadableError(f"the archive holds {len(data)} of its {image.size} bytes")
    return data


def _read_zip_member(path: str, location: ImageLocation, size: int) -> bytes:
    """Reads one member at the offset that the archive's directory gave, without reading that directory again."""
    stored_bytes = location.packed or size
    # Usually one read gets header and data: at an object store every read is a request.
    head = file_io.read_range(path, location.offset, _ZIP_HEADER_BYTES + _ZIP_NAMES_BYTES + stored_bytes)
    if len(head) < _ZIP_HEADER_BYTES or head[:4] != b"PK\x03\x04":
        raise OSError("the archive has changed or is damaged here")
    name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
    begin = _ZIP_HEADER_BYTES + name_bytes + extra_bytes
    data = head[begin : begin + stored_bytes]
    if name_bytes + extra_bytes > _ZIP_NAMES_BYTES:
        data = file_io.read_range(path, location.offset + begin, stored_bytes)
    if location.packed:
        try:
            data = zlib.decompressobj(-15).decompress(data, size + 1)  # one byte too many shows that the size is wrong
        except zlib.error as error:
            raise OSError(f"the archive is damaged here ({error})") from error
        if len(data) > size:
            raise OSError(f"the archive is damaged here (more than the {size} bytes that it promises)")
    if zlib.crc32(data) != location.crc:
        raise OSError("the archive is damaged here (wrong CRC-32)")
    return data
