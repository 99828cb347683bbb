"""Reads images, masks and tensors from the rows of Parquet files, each row group once for all its wanted cells.

Before a shuffled job each file is copied to HASH.rows, and beside it HASH.rows.spans, int64: the number of row groups
and of columns, the first row of each group and the number of rows, and each cell's offset and size or -1.
"""

import contextlib
import posixpath
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from beam_jobs.config import TableColumns
from beam_jobs.inputs.parquet_rows import ImageColumns, find_image_columns, get_mean_size, read_batches
from beam_jobs.inputs.parquet_tensors import pack, pack_tensors
from beam_jobs.inputs.read_image import MAX_SOURCE_BYTES, UnreadableError, read_image
from beam_jobs.plan.image_ref import FileRef, ImageRef, PlannedImage, get_mask
from tfpipe.format.schema import MAX_IMAGES
from tfpipe.storage import file_io
from tfpipe.system.budget import GROWTH, UNPACKED, OverBudget

_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 1000
_SPANS = ".spans"
_BUFFER_BYTES = 1 << 20  # per column: columns are read as streams, so a row group is never whole in memory

Found = tuple[int, memoryview | UnreadableError]
"""The index of a cell in the list of wanted cells, and its bytes or the reason why they cannot be read.

A list of images is packed into one piece of bytes, and so is an image with the tensors of its row.

The bytes share the memory of many cells: copy those that are kept for long.
"""


class Cell(NamedTuple):
    """A cell of a Parquet file: an image with the tensors of its row, a mask, or the tensors of a row without image."""

    file: str
    row_group: int
    row: int
    size: int  # the mean number of bytes in the row group
    is_mask: bool = False


def list_cells(images: Sequence[PlannedImage] | Sequence[ImageRef], *, masks: bool = False) -> list[Cell]:
    """Returns the cells of images in Parquet files. With `masks`, the cell of a mask follows that of its image."""
    cells = []
    for image in images:
        file, row, _, _, group = image.location
        mask = get_row_mask(image)
        cells.append(Cell(file, group, row, image.size))
        if masks and mask:
            cells.append(cells[-1]._replace(size=mask.size, is_mask=True))
    return cells


def get_row_mask(image: PlannedImage | ImageRef) -> FileRef | None:
    """Returns the mask of an image if it lies in a row of a Parquet file, else None."""
    mask = get_mask(image)
    return mask if mask is not None and mask.row_group >= 0 else None


def read_cells(root: str, columns: TableColumns, cells: Sequence[Cell]) -> Iterator[Found]:
    """Yields the bytes of each cell, in the order of their files and rows; `columns` are those that the user names."""
    order = sorted(range(len(cells)), key=lambda position: cells[position][:3])
    for file, positions in groupby(order, lambda position: cells[position].file):
        of_file, path = list(positions), file_io.join(root, file)
        try:
            with file_io.open_read(path) as opened:
                table, found = _open_table(opened, file, columns)
                if any(cells[position].is_mask for position in of_file) and not found.mask:
                    raise UnreadableError(f"cannot be read: {file} has changed: it holds no masks")
                for _, members in groupby(of_file, lambda position: cells[position].row_group):
                    yield from _read_members(table, found, cells, list(members), path)
        except (OSError, UnreadableError) as error:  # on opening the file; `_read_members` raises none
            reason = UnreadableError(f"cannot be read: {_shorten(error)}") if isinstance(error, OSError) else error
            yield from ((position, reason) for position in of_file)


def _open_table(opened: Any, file: str, given: TableColumns) -> tuple[Any, ImageColumns]:
    """Opens a Parquet file with Arrow, and finds its columns of images, masks and tensors."""
    import pyarrow.parquet  # slow to import

    try:
        table = pyarrow.parquet.ParquetFile(opened, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        columns = find_image_columns(table, given)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UnreadableError(f"cannot be read: {file} is damaged ({_shorten(error)})") from error
    if columns is None:
        raise UnreadableError(f"cannot be read: {file} has changed: it holds no images")
    return table, columns


def _read_members(
    table: Any, columns: ImageColumns, cells: Sequence[Cell], positions: list[int], path: str
) -> Iterator[Found]:
    """Yields the bytes of cells that lie in one row group, or why they cannot be read."""
    waiting, (file, group, _, size, _) = deque(positions), cells[positions[0]]
    reason = UnreadableError(f"{file} has changed: row group {group} has no such row")
    are_masks = {cells[position].is_mask for position in positions}
    leaves = [name for name in (columns.bytes_leaf, columns.path_leaf) if name and False in are_masks]
    leaves += [columns.mask] if True in are_masks else []
    leaves += columns.tensors if False in are_masks else ()
    groups, begin = [group] if group < table.num_row_groups else [], 0
    try:
        chunks = (
            table.metadata.row_group(group).column(k) for group in groups for k in range(table.metadata.num_columns)
        )
        budget = UNPACKED.renew(GROWTH * sum(chunk.total_compressed_size for chunk in chunks))
        batch_rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // max(1, size)))
        for batch in read_batches(table, None, groups, leaves, budget, batch_rows):
            end = begin + batch.num_rows
            while waiting and cells[waiting[0]].row < end:
                cell = cells[waiting[0]]
                name, row = columns.mask if cell.is_mask else columns.image, cell.row - begin
                tensors = {} if cell.is_mask else {tensor: batch.column(tensor)[row] for tensor in columns.tensors}
                image = batch.column(name)[row] if name else None
                data = _try_to_read(image, tensors, posixpath.dirname(path))
                yield waiting.popleft(), data
            if not waiting:
                return
            begin = end
    except (pa.ArrowException, UnicodeDecodeError, OSError, OverBudget) as error:
        reason = UnreadableError(f"row group {group} of {file} is damaged ({_shorten(error)})")
    yield from ((position, reason) for position in waiting)


def _try_to_read(image: Any, tensors: Mapping[str, Any], folder: str) -> memoryview | UnreadableError:
    """Returns the bytes of an image or of a packed list of images, packed with the tensors if there are any."""
    pieces: list[bytes | memoryview] = []
    try:
        if image is not None:
            read = _read_list if isinstance(image, pa.ListScalar) else _read_one
            pieces.append(read(image, folder))
        if tensors:
            pieces.append(pack_tensors(tensors))
        data = pieces[0] if len(pieces) == 1 else pack(pieces)
        _check_size(len(data))
        return memoryview(data)
    except UnreadableError as error:
        return error


def _read_one(scalar: Any, folder: str) -> bytes | memoryview:
    """Returns the bytes of an image in a cell, or of the file that the cell names."""
    path = None
    if isinstance(scalar, pa.StructScalar):
        path = scalar["path"].as_py() if scalar.type.get_field_index("path") >= 0 else None
        scalar = scalar["bytes"]
    if scalar.is_valid:
        data = memoryview(scalar.as_buffer()).cast("B")
        _check_size(len(data))
        return data
    if not path or "\0" in path:
        raise UnreadableError("the row holds neither bytes nor a path")
    if not file_io.lies_below(path, folder):
        raise UnreadableError(f"the row holds no bytes, and its path {path} lies outside of the table's folder")
    _check_size(file_io.get_size(file_io.join(folder, path)))
    return read_image(folder, ImageRef(path))


def _check_size(size: int) -> None:
    if size > MAX_SOURCE_BYTES:
        raise UnreadableError(f"{size} bytes, more than the {MAX_SOURCE_BYTES} that one record can hold")


def _read_list(scalar: Any, folder: str) -> bytes:
    values = scalar.values if scalar.is_valid else ()
    if not 1 <= len(values) <= MAX_IMAGES:
        raise UnreadableError(f"the row holds {len(values):,} images, and a record has 1 to {MAX_IMAGES:,}")
    images = list[bytes | memoryview]()
    for value in values:
        try:
            images.append(_read_one(value, folder))
        except UnreadableError as error:
            raise UnreadableError(f"image {len(images)}: {error}") from error
        _check_size(sum(map(len, images)))
    return pack(images)


def _shorten(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")


def copy_rows(root: str, columns: TableColumns, file: tuple[str, str]) -> None:
    """Copies the images and the masks of a Parquet file, so that each can be read alone; nothing of a damaged file.

    A file counts as damaged if its footer claims more rows than the file has bytes.
    """
    (location, target), path = file, file_io.join(root, file[0])
    if file_io.exists(target + _SPANS):  # an earlier run copied it
        return
    begins, spans, num_columns = [0], list[NDArray[np.int64]](), 1
    with (
        file_io.create(target, makes_folders=True) as out,
        file_io.open_read(path) as opened,
        contextlib.suppress(UnreadableError),
    ):
        table, found = _open_table(opened, location, columns)
        num_columns = 2 if found.mask else 1
        groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
        is_sound = sum(group.num_rows for group in groups) <= file_io.get_size(path)
        for number, group in enumerate(groups if is_sound else ()):
            sizes = [get_mean_size(group, names) for names in (found.leaves, (found.mask,))][:num_columns]
            rows = product(range(group.num_rows), enumerate(sizes))  # each mask behind its image
            cells = [Cell(location, number, row, size, bool(column)) for row, (column, size) in rows]
            of_cells, positions = np.full((len(cells), 2), -1, np.int64), list(range(len(cells)))
            for position, data in _read_members(table, found, cells, positions, path) if cells else ():
                if not isinstance(data, UnreadableError):
                    of_cells[position] = out.tell(), len(data)
                    out.write(data)
            begins.append(begins[-1] + len(cells) // num_columns)
            spans.append(of_cells.ravel())
    header = [len(begins) - 1, num_columns, *begins]
    file_io.write_file(target + _SPANS, np.concatenate([header, *spans]).astype("<i8").tobytes(), makes_folders=True)


class CopiedRows:
    """The images and masks of a Parquet file that `copy_rows` copied to a path."""

    def __init__(self, path: str) -> None:
        numbers = np.memmap(path + _SPANS, "<i8", "r")  # 16 bytes a row, which the workers of a machine share
        num_groups, num_columns = numbers[:2].tolist()
        end = 3 + num_groups
        self._path, self._group_begins = path, numbers[2:end]  # the last one is the number of all rows
        self._spans = numbers[end:].reshape(-1, num_columns, 2)  # offset and size

    def read(self, cell: Cell) -> bytes | None:
        """Returns the bytes of a cell; None if they were not copied."""
        if cell.row_group >= len(self._group_begins) - 1 or cell.is_mask >= self._spans.shape[1]:
            return None
        row = int(self._group_begins[cell.row_group]) + cell.row
        if row >= self._group_begins[cell.row_group + 1]:
            return None
        offset, size = self._spans[row, int(cell.is_mask)].tolist()
        if size < 0:
            return None
        data = file_io.read_range(self._path, offset, size)
        return data if len(data) == size else None
