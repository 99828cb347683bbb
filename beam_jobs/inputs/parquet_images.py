"""Reads images and masks out of the rows of Parquet files, each row group once for all that is wanted of it."""

import posixpath
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, cast

from beam_jobs.inputs.parquet_rows import ImageColumns, find_image_columns
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import ImageRef, MaskRef, PlannedImage
from beam_jobs.storage import filesystem

_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 1000
_BUFFER_BYTES = 1 << 20  # of a column that is read in a stream, so that a row group is never in memory whole

Found = tuple[int, bytes | UnreadableError]
"""The position of a cell among those that are wanted, and its bytes or the reason why they cannot be read."""


class Cell(NamedTuple):
    """An image or a mask in a Parquet file.

    Attributes:
        file: The file, relative to the input's root or absolute.
        row_group: Its row group, from 0.
        row: Its row in the row group, from 0.
        size: The mean number of bytes of such in the row group.
        is_mask: Whether it is a mask.
        mask_column: The column of the masks; None if the file has none.
    """

    file: str
    row_group: int
    row: int
    size: int
    is_mask: bool = False
    mask_column: str | None = None


def list_cells(images: Sequence[PlannedImage] | Sequence[ImageRef], *, masks: bool = False) -> list[Cell]:
    """Returns the cells of images in Parquet files.

    Args:
        images: The images, whose locations are rows of Parquet files.
        masks: Whether each is followed by the cell of its mask, if the mask lies in a row too.
    """
    cells = []
    for image in images:
        file, row, _, _, group = image.location
        mask = get_row_mask(image)
        cells.append(Cell(file, group, row, image.size, mask_column=mask.path if mask else None))
        if masks and mask:
            cells.append(cells[-1]._replace(size=mask.size, is_mask=True))
    return cells


def get_row_mask(image: PlannedImage | ImageRef) -> MaskRef | None:
    """Returns the mask of an image if it lies in a row of a Parquet file, else None."""
    mask = MaskRef(*cast(Any, image.mask)) if image.mask else None
    return mask if mask is not None and mask.row_group >= 0 else None


def read_cells(root: str, cells: Sequence[Cell], max_bytes: int) -> Iterator[Found]:
    """Yields the bytes of each cell, in the order of their files and rows.

    Args:
        root: The folder that relative locations start from.
        cells: The cells.
        max_bytes: The size from which on an image is refused.
    """
    order = sorted(range(len(cells)), key=lambda position: cells[position][:3])
    for file, positions in groupby(order, lambda position: cells[position].file):
        missing = dict.fromkeys(positions)
        try:
            for position, data in _read_file(root, file, cells, list(missing), max_bytes):
                del missing[position]
                yield position, data
        except OSError as error:
            reason = UnreadableError(f"cannot be read: {_shorten(error)}")
            yield from ((position, reason) for position in missing)


def _read_file(root: str, file: str, cells: Sequence[Cell], positions: list[int], max_bytes: int) -> Iterator[Found]:
    import pyarrow.parquet

    path = filesystem.join(root, file)
    with filesystem.open_read(path) as opened:
        try:
            table = pyarrow.parquet.ParquetFile(opened, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            columns = find_image_columns(table.schema_arrow, cells[positions[0]].mask_column)
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise OSError(f"{file} is damaged ({_shorten(error)})") from error
        if columns is None:
            raise OSError(f"{file} has changed: it holds no images")
        if any(cells[position].is_mask for position in positions) and not columns.mask:
            raise OSError(f"{file} has changed: it holds no masks")
        for group, members in groupby(positions, lambda position: cells[position].row_group):
            missing = dict.fromkeys(members)
            try:
                for position, data in _read_group(table, columns, group, cells, list(missing)):
                    del missing[position]
                    yield position, _check(data, posixpath.dirname(path), max_bytes)
                reason = UnreadableError(f"{file} has changed: row group {group} has no such row")
            except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
                reason = UnreadableError(f"row group {group} of {file} is damaged ({_shorten(error)})")
            yield from ((position, reason) for position in missing)


def _read_group(
    table: Any, columns: ImageColumns, group: int, cells: Sequence[Cell], positions: list[int]
) -> Iterator[tuple[int, Any]]:
    """Yields the position of each cell in a row group, with its struct or its bytes."""
    if group >= table.num_row_groups:
        return
    batch_rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // max(1, cells[positions[0]].size)))
    names = {cells[position].is_mask for position in positions}
    leaves = [name for name in (columns.bytes_leaf, columns.path_leaf) if name and False in names]
    leaves += [columns.mask] if True in names else []
    waiting, begin = deque(positions), 0
    for batch in table.iter_batches(batch_rows, [group], leaves, use_threads=False):
        end = begin + batch.num_rows
        while waiting and cells[waiting[0]].row < end:
            cell = cells[waiting[0]]
            column = batch.column(columns.mask if cell.is_mask else columns.image)
            yield waiting.popleft(), column[cell.row - begin].as_py()
        if not waiting:
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
