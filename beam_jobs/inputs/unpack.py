"""Unpacks the compressed tar files and foreign shards of an input, so that workers can seek in them."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import IO

from beam_jobs.inputs.archive import open_unpacked
from beam_jobs.plan.listing import Listing
from tfpipe.errors import FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.manifest import Compression
from tfpipe.format.tfrecord import frame_record
from tfpipe.storage import file_io

_READ_BYTES = 1 << 20


def unpack(listing: Listing, location: str, out: IO[bytes], spans: Collection[tuple[int, int]] | None = None) -> None:
    """Writes a compressed file in its unpacked form, in which the offsets of the listing's locations are valid.

    With `spans`, pairs of offset and size, only these bytes are written, as a sparse file.
    """
    for offset, data in _read(listing, location, None if spans is None else dict(spans)):
        if spans is not None:
            out.seek(offset)
        out.write(data)
        if spans is not None and offset == max(spans)[0]:
            break


def _read(listing: Listing, location: str, spans: Mapping[int, int] | None) -> Iterator[tuple[int, bytes]]:
    """Yields the unpacked form of a compressed file in pieces: all in order, or `spans` (sizes by offset)."""
    if listing.datasets is not None:
        source, shard = listing.datasets.locate(location)
        assert source.foreign is not None
        frames = iterate_frames(file_io.join(source.directory, shard), source.foreign.compression)
        yield from (frame for frame in frames if spans is None or frame[0] in spans)
        return
    with open_unpacked(file_io.join(listing.root, location)) as tar:
        if spans is None:
            yield from ((0, data) for data in iter(partial(tar.read, _READ_BYTES), b""))
        for offset, size in sorted((spans or {}).items()):
            tar.seek(offset)
            yield offset, tar.read(size)


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
