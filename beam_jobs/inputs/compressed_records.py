"""The records of compressed TFRecord files, as they stand in the unpacked files."""

from collections.abc import Iterator

from tfpipe.errors import FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.manifest import Compression
from tfpipe.format.tfrecord import record_footer, record_header
from tfpipe.storage import file_io


def iterate_frames(path: str, compression: Compression) -> Iterator[tuple[int, bytes]]:
    """Yields every record of a compressed file as it stands in the unpacked one: its offset, and all its bytes."""
    offset = 0
    with file_io.explain_os_errors(f"read {path}"), file_io.open_read(path) as file:
        try:
            for payload in scan_compressed(file, compression):
                frame = b"".join((record_header(len(payload)), payload, record_footer(payload)))
                yield offset, frame
                offset += len(frame)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
