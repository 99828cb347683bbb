"""Unpacks what an input holds compressed as a whole, tar files and foreign shards, so that workers can seek in it."""

from collections.abc import Collection, Iterator
from typing import IO

from beam_jobs.inputs.archive import open_unpacked, unpack_tar
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.merge_manifests import InputDatasets
from tfpipe.errors import FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.manifest import Compression
from tfpipe.format.tfrecord import frame_record
from tfpipe.storage import file_io


def unpack(listing: Listing, location: str, out: IO[bytes]) -> None:
    """Writes the unpacked form of a compressed file, with the offsets that the listing's locations have."""
    if listing.datasets is None:
        unpack_tar(file_io.join(listing.root, location), out)
        return
    path, compression = _find_shard(listing.datasets, location)
    for _, frame in iterate_frames(path, compression):
        out.write(frame)


def unpack_spans(listing: Listing, location: str, spans: Collection[tuple[int, int]], out: IO[bytes]) -> None:
    """Writes some offsets and sizes of the unpacked form, as a sparse file."""
    last, _ = max(spans)
    if listing.datasets is None:
        with open_unpacked(file_io.join(listing.root, location)) as tar:
            for offset, size in sorted(spans):
                tar.seek(offset)
                out.seek(offset)
                out.write(tar.read(size))
    else:
        offsets = {offset for offset, _ in spans}
        path, compression = _find_shard(listing.datasets, location)
        for offset, frame in iterate_frames(path, compression):
            if offset in offsets:
                out.seek(offset)
                out.write(frame)
            if offset == last:
                break


def _find_shard(datasets: InputDatasets, location: str) -> tuple[str, Compression]:
    source, shard = datasets.locate(location)
    assert source.foreign is not None
    return file_io.join(source.directory, shard), source.foreign.compression


def iterate_frames(path: str, compression: Compression) -> Iterator[tuple[int, bytes]]:
    """Yields every record of a compressed file as it stands in the unpacked one: its offset, and all its bytes."""
    offset = 0
    with file_io.explain_os_errors(f"read {path}"), file_io.open_read(path) as file:
        try:
            for payload in scan_compressed(file, compression):
                frame = frame_record(payload)
                yield offset, frame
                offset += len(frame)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
