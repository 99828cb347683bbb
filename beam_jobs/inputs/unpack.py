"""Unpacks the compressed tar files and foreign shards of an input, so that workers can seek in them."""

import shutil
from collections.abc import Iterator
from typing import IO

from beam_jobs.inputs.archive import open_unpacked
from beam_jobs.plan.listing import Listing
from tfpipe.errors import FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.manifest import Compression
from tfpipe.format.tfrecord import frame_record
from tfpipe.storage import file_io

_READ_BYTES = 1 << 20


def unpack(listing: Listing, location: str, out: IO[bytes]) -> None:
    """Writes a compressed file in its unpacked form, in which the offsets of the listing's locations are valid."""
    if listing.datasets is None:
        with open_unpacked(file_io.join(listing.root, location)) as tar:
            shutil.copyfileobj(tar, out, _READ_BYTES)
        return
    source, shard = listing.datasets.locate(location)
    assert source.foreign is not None
    for _, frame in iterate_frames(file_io.join(source.directory, shard), source.foreign.compression):
        out.write(frame)


def iterate_frames(path: str, compression: Compression) -> Iterator[tuple[int, bytes]]:
    """Yields every record of a compressed TFRecord file: its offset in the unpacked file, and its framed bytes."""
    offset = 0
    with file_io.explain_os_errors(f"read {path}"), file_io.open_read(path) as file:
        try:
            for payload in scan_compressed(file, compression):
                frame = frame_record(payload)
                yield offset, frame
                offset += len(frame)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
