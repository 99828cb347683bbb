"""Reads images out of the rows of Parquet files, each row group once for all images of it that are wanted."""

import posixpath
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from beam_jobs.inputs.parquet_rows import ImageColumns, find_image_columns
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import ImageRef, PlannedImage
from beam_jobs.storage import filesystem

_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 1000
_BUFFER_BYTES = 1 << 20  # of a column that is read in a stream, so that a row group is never in memory whole

Images = Sequence[PlannedImage] | Sequence[ImageRef]
Found = tuple[int, bytes | UnreadableError]
"""The position of an image among those that are wanted, and its bytes or the reason why they cannot be read."""


def read_row_images(root: str, images: Images, max_bytes: int) -> Iterator[Found]:
    """Yields the bytes of each image, in the order of their files and rows.

    Args:
        root: The folder that relative locations start from.
        images: The images, whose locations are rows of Parquet files.
        max_bytes: The size from which on an image is refused.
    """

    def get_place(position: int) -> tuple[str, int, int]:
        location = images[position].location
        return location.file, location.row_group, location.offset

    order = sorted(range(len(images)), key=get_place)
    for file, positions in groupby(order, lambda position: images[position].location.file):
        missing = list(positions)
        try:
            for position, data in _read_file(root, file, images, missing.copy(), max_bytes):
                missing.remove(position)
                yield position, data
        except OSError as error:
            reason = UnreadableError(f"cannot be read: {_shorten(error)}")
            yield from ((position, reason) for position in missing)


def _read_file(root: str, file: str, images: Images, positions: list[int], max_bytes: int) -> Iterator[Found]:
    import pyarrow.parquet

    path = filesystem.join(root, file)
    with filesystem.open_read(path) as opened:
        try:
            table = pyarrow.parquet.ParquetFile(opened, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            columns = find_image_columns(table.schema_arrow)
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise OSError(f"{file} is damaged ({_shorten(error)})") from error
        if columns is None:
            raise OSError(f"{file} has changed: it holds no images")
        for group, members in groupby(positions, lambda position: images[position].location.row_group):
            missing = list(members)
            try:
                for position, data in _read_group(table, columns, group, images, missing.copy()):
                    missing.remove(position)
                    yield position, _check(data, posixpath.dirname(path), max_bytes)
                reason = UnreadableError(f"{file} has changed: row group {group} has no such row")
            except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
                reason = UnreadableError(f"row group {group} of {file} is damaged ({_shorten(error)})")
            yield from ((position, reason) for position in missing)


def _read_group(
    table: Any, columns: ImageColumns, group: int, images: Images, positions: list[int]
) -> Iterator[tuple[int, Any]]:
    """Yields the position of each image in a row group, with its struct or its bytes."""
    if group >= table.num_row_groups:
        return
    size = max(1, images[positions[0]].size)
    batch_rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // size))
    leaves = [name for name in (columns.bytes_leaf, columns.path_leaf) if name]
    begin = 0
    for batch in table.iter_batches(batch_rows, [group], leaves, use_threads=False):
        column, end = batch.column(columns.image), begin + batch.num_rows
        while positions and images[positions[0]].location.offset < end:
            position = positions.pop(0)
            yield position, column[images[position].location.offset - begin].as_py()
        if not positions:
            return
        begin = end


def _check(cell: Any, folder: str, max_bytes: int) -> bytes | UnreadableError:
    """Returns the bytes of an image's cell, or those of the file that it names."""
    data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
    try:
        if data is None:
            if not path or "\0" in path:
                raise UnreadableError("the row holds neither bytes nor a path")
            size = filesystem.get_size(filesystem.join(folder, path))
            data = b"" if size > max_bytes else read_image(folder, ImageRef(path))
        else:
            size = len(data)
    except UnreadableError as error:
        return error
    if size > max_bytes:
        return UnreadableError(f"{size} bytes, more than the {max_bytes} that one record can hold")
    return bytes(data)


def _shorten(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")
