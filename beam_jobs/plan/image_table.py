"""The images of an input as a table: one row for each image, in Arrow columns.

    builder = ImageTableBuilder()
    for ref in refs: builder.append(ref)
    images = builder.finish()
    images[0]                       # an ImageRef, made when it is read
    images.sizes, images.hash_texts("path", key), images.count_values("split")

A column in which every row holds its default takes no memory: the table leaves it out. Most inputs have only `path`,
`size`, `split` and `label`, so ten million images take about 0.6 GB. The same images as Python tuples would take 4 GB.
Boxes, captions and other details are in a temporary file once they are large: see `large_column`.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.image_ref import WHOLE_FILE, ImageLocation, ImageRef, PlannedImage
from beam_jobs.plan.large_column import LargeColumn
from tfpipe.system.extras import importing

with importing("A plan", "pyarrow", "tfpipe[shard]"):
    import pyarrow as pa
    import pyarrow.compute as pc

TELL_EVERY = 1000
"""The number of listed images between two calls of an observer."""

_ROWS_AT_ONCE = 1 << 14
_Indices = NDArray[np.int64]


def _encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _decode_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _encode_tuple(value: tuple[Any, ...]) -> bytes:
    # Pickled, so that 1 stays 1 and 1.0 stays 1.0 in the lines of the plan.
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if value else b""


def _decode_tuple(data: bytes) -> Any:
    return pickle.loads(data) if data else ()


@dataclass(frozen=True, slots=True)
class _Column:
    """The kind of a column.

    Attributes:
        default: The value of a row in a column that is left out.
        arrow_type: The type of Arrow's values.
        to_arrow: The function that converts a value for Arrow; None if Arrow takes it as it is.
        from_arrow: The inverse of `to_arrow`.
    """

    default: Any
    arrow_type: Any
    to_arrow: Callable[[Any], Any] | None = None
    from_arrow: Callable[[Any], Any] | None = None

    def encode(self, values: Sequence[Any]) -> Any:
        given = values if self.to_arrow is None else list(map(self.to_arrow, values))
        if pa.types.is_dictionary(self.arrow_type):  # pyarrow before 25 cannot make these at once
            return pa.array(given, self.arrow_type.value_type).dictionary_encode()
        return pa.array(given, self.arrow_type)

    def decode(self, array: Any) -> list[Any]:
        values: list[Any] = array.to_pylist()
        return values if self.from_arrow is None else list(map(self.from_arrow, values))

    def repeat_default(self, count: int) -> Any:
        return self.encode([self.default]).take(pa.array(np.zeros(count, np.int64)))


# Texts are bytes for Arrow: its own strings refuse file names that are not valid UTF-8. In a column with few different
# texts each text is stored once, and every row has a code of 4 bytes.
_TEXT = _Column("", pa.large_binary(), _encode_text, _decode_text)
_FEW_TEXTS = _Column("", pa.dictionary(pa.int32(), pa.large_binary()), _encode_text, _decode_text)
_LABELS = _Column(None, pa.dictionary(pa.int32(), pa.large_binary()), _encode_text, _decode_text)
_OPTIONAL_NUMBER = _Column(-1, pa.int64())
_TUPLES = _Column((), pa.large_binary(), _encode_tuple, _decode_tuple)
_DETAILS = ("boxes", "box_labels", "extra", "mask", "images", "frame")
_COLUMNS = {
    "path": _TEXT,
    "size": _Column(0, pa.int64()),
    # The fields of `location`:
    **{"file": _FEW_TEXTS, **dict.fromkeys(ImageLocation._fields[1:], _OPTIONAL_NUMBER)},
    "split": _FEW_TEXTS,
    "label": _LABELS,
    "group": _TEXT,
    **dict.fromkeys(_DETAILS, _TUPLES),
    "num_images": _OPTIONAL_NUMBER,
}


def _finish(column: LargeColumn) -> Any:
    offsets, values = column.finish()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _concat(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


class ImageTable:
    """The images of an input. An `ImageRef` is made from a row when the row is read."""

    def __init__(self, columns: dict[str, Any], num_rows: int) -> None:
        self._columns, self._num_rows = columns, num_rows

    @classmethod
    def from_refs(cls, refs: Iterable[ImageRef]) -> "ImageTable":
        """Returns a table of these images."""
        builder = ImageTableBuilder()
        for ref in refs:
            builder.append(ref)
        return builder.finish()

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[ImageRef]:
        return self.iterate(np.arange(len(self)))

    def __getitem__(self, index: int) -> ImageRef:
        return next(self.iterate(np.array([range(len(self))[index]])))

    def iterate(self, indices: _Indices) -> Iterator[ImageRef]:
        """Yields the images at these indices, in this order. This is much faster than reading one at a time."""
        for begin in range(0, len(indices), _ROWS_AT_ONCE):
            rows = indices[begin : begin + _ROWS_AT_ONCE]
            path, size, *others = (self._decode(name, rows) for name in ("path", "size", "split", "label", "group"))
            details = (self._decode(name, rows) for name in (*_DETAILS, "num_images"))
            yield from map(ImageRef, path, size, self._decode_locations(rows), *others, *details)

    def _decode(self, name: str, indices: _Indices) -> list[Any]:
        column = _COLUMNS[name]
        if name not in self._columns:
            return [column.default] * len(indices)
        return column.decode(self._columns[name].take(pa.array(indices, pa.int64())))

    def _decode_all(self, name: str) -> Iterator[list[Any]]:
        """Yields the values of a column in parts."""
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            yield self._decode(name, np.arange(begin, min(begin + _ROWS_AT_ONCE, len(self))))

    def _decode_locations(self, indices: _Indices) -> list[ImageLocation]:
        if self._columns.keys().isdisjoint(ImageLocation._fields):
            return [WHOLE_FILE] * len(indices)
        return list(map(ImageLocation, *(self._decode(name, indices) for name in ImageLocation._fields)))

    @property
    def details(self) -> frozenset[str]:
        """The columns beside the usual ones that some image needs."""
        return frozenset(_DETAILS).intersection(self._columns)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The size of each image in bytes."""
        return self._get_numbers("size")

    @property
    def in_row_groups(self) -> NDArray[np.bool_]:
        """Whether each image lies in a row of a Parquet file, so that its exact size is unknown."""
        return self._get_numbers("row_group") >= 0

    @property
    def nums_images(self) -> NDArray[np.int64]:
        """The number of images of each record, as `ImageRef.num_images`."""
        return self._get_numbers("num_images")

    def _get_numbers(self, name: str) -> NDArray[np.int64]:
        if name not in self._columns:
            return np.full(len(self), _COLUMNS[name].default, np.int64)
        numbers: NDArray[np.int64] = self._columns[name].to_numpy()
        return numbers

    def iterate_paths(self) -> Iterator[str]:
        """Yields the path of each image."""
        for paths in self._decode_all("path"):
            yield from paths

    def get_paths(self, indices: _Indices) -> list[str]:
        """Returns the paths of the images at these indices, in this order."""
        return self._decode("path", indices)

    def hash_for_splits(self) -> NDArray[np.uint64]:
        """Returns the hash that decides each image's split: that of its group, or of its path if it has none."""
        hashes = self.hash_texts("path", b"split")
        if "group" not in self._columns:
            return hashes
        has_group = pc.binary_length(self._columns["group"]).to_numpy() > 0
        return np.where(has_group, self.hash_texts("group", b"split"), hashes)

    def hash_texts(self, name: str, key: bytes) -> NDArray[np.uint64]:
        """Returns a keyed BLAKE2b hash of each text in `path` or `group`: 8 bytes, read as a little-endian number."""
        digests = bytearray()
        texts = self._columns[name] if name in self._columns else _COLUMNS[name].repeat_default(len(self))
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            for text in texts.slice(begin, _ROWS_AT_ONCE).to_pylist():
                digests += blake2b(text, digest_size=8, key=key).digest()
        return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)

    def get_codes(self, name: str) -> tuple[NDArray[np.int32], list[str | None]]:
        """Returns the code of each row in a column of few texts: `file`, `split` or `label`.

        Returns:
            A position in the texts for each row, and the different texts. Some of them may occur in no row.
        """
        if name not in self._columns:
            return np.zeros(len(self), np.int32), [_COLUMNS[name].default] if len(self) else []
        codes, texts = self._columns[name].indices, _FEW_TEXTS.decode(self._columns[name].dictionary)
        if codes.null_count:
            codes = codes.fill_null(len(texts))
            texts.append(None)
        return codes.to_numpy(), texts

    def count_values(self, name: str) -> dict[str | None, int]:
        """Returns how often each text occurs in a column of few texts."""
        codes, texts = self.get_codes(name)
        counts = np.bincount(codes, minlength=len(texts)).tolist()
        return {text: count for text, count in zip(texts, counts, strict=True) if count}

    def dump(self) -> bytes:
        """Returns the table as compressed bytes, which `load` reads on any machine."""
        # A dictionary would be stored with every small part of a table, so each row gets its text back.
        columns = {"path": _TEXT.repeat_default(0 if "path" in self._columns else len(self)), **self._columns}
        arrays = [
            column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in columns.values()
        ]
        batch, sink = pa.record_batch(arrays, names=list(columns)), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_batch(batch)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def load(cls, data: Any) -> "ImageTable":
        """Returns the table that `dump` wrote."""
        table = pa.ipc.open_stream(data).read_all().combine_chunks()
        columns = {}
        for name in table.column_names:
            column = pa.concat_arrays(table.column(name).chunks)
            is_coded = pa.types.is_dictionary(_COLUMNS[name].arrow_type)
            columns[name] = column.dictionary_encode() if is_coded else column
        return cls(columns, table.num_rows)

    @classmethod
    def make_empty(cls, details: Iterable[str] = ()) -> "ImageTable":
        """Returns a table without rows, whose `details` are these."""
        return cls({name: _COLUMNS[name].encode([]) for name in details}, 0)

    def take(self, indices: _Indices) -> "ImageTable":
        """Returns a table of the images at these indices, in this order."""
        rows = pa.array(indices, pa.int64())
        columns = {name: column.take(rows) for name, column in self._columns.items() if name not in _DETAILS}
        columns |= {name: self._take_details(name, rows) for name in self._columns if name in _DETAILS}
        for name in columns.keys() & set(_DETAILS):
            if not pc.max(pc.binary_length(columns[name])).as_py():
                del columns[name]
        return ImageTable(columns, len(indices))

    def _take_details(self, name: str, rows: Any) -> Any:
        column = LargeColumn()
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            column.append(self._columns[name].take(rows.slice(begin, _ROWS_AT_ONCE)))
        return _finish(column)

    def replace_sizes(self, sizes: NDArray[np.int64]) -> "ImageTable":
        """Returns a table with other sizes. The other columns are shared, not copied."""
        return ImageTable({**self._columns, "size": pa.array(sizes, pa.int64())}, len(self))

    def replace_texts(self, name: str, codes: NDArray[Any], texts: Sequence[str | None]) -> "ImageTable":
        """Returns a table with other texts in one column. The other columns are shared, not copied.

        Args:
            name: The column: `split` or `label`.
            codes: A position in `texts` for each row.
            texts: The texts. Equal ones become one.
        """
        column = _COLUMNS[name].encode(texts).take(pa.array(codes, pa.int32()))
        return ImageTable({**self._columns, name: column}, len(self))

    def get_extras(self, position: int) -> Iterator[Any]:
        """Yields the values of one further column."""
        return (row[position] for row in self.iterate_extras())

    def convert_extras(self, converters: Sequence[Callable[[Any], Any]]) -> "ImageTable":
        """Returns a table in which every value of a further column went through its column's function."""
        rows = self.iterate_extras()
        return self.replace_extras(
            tuple(convert(x) for convert, x in zip(converters, row, strict=True)) for row in rows
        )

    def iterate_extras(self) -> Iterator[tuple[Any, ...]]:
        """Yields the values of the further columns of each row."""
        for rows in self._decode_all("extra"):
            yield from rows

    def replace_extras(self, rows: Iterable[tuple[Any, ...]]) -> "ImageTable":
        """Returns a table with these values of the further columns, one tuple for each row; the others are shared."""
        return self._replace_details("extra", rows)

    def replace_masks(self, masks: Iterable[tuple[str | int, ...]]) -> "ImageTable":
        """Returns a table in which the images have these masks, one for each; the other columns are shared."""
        return self._replace_details("mask", masks)

    def _replace_details(self, name: str, values: Iterable[tuple[Any, ...]]) -> "ImageTable":
        rest, column = iter(values), LargeColumn()
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            column.append(_TUPLES.encode(list(islice(rest, min(_ROWS_AT_ONCE, len(self) - begin)))))
        return ImageTable({**self._columns, name: _finish(column)}, len(self))

    def iterate_planned(self, indices: _Indices, label_names: Sequence[str]) -> Iterator[PlannedImage]:
        """Yields the lines of the plan for the images at these indices, in this order."""
        labels: dict[str | None, int] = {name: label for label, name in enumerate(label_names)}
        codes, texts = self.get_codes("label")
        label_of_code = np.array([labels.get(text, -1) for text in texts], np.int64)
        columns = [self.get_paths(indices), self._decode("size", indices), label_of_code[codes[indices]].tolist()]
        if not self._columns.keys().isdisjoint((*ImageLocation._fields, *_DETAILS)):  # most inputs have none of these
            columns += [self._decode_locations(indices), *(self._decode(name, indices) for name in _DETAILS)]
        return map(PlannedImage, *columns)


class ImageTableBuilder:
    """The builder of a table. It keeps the last rows as tuples, and all others as parts of Arrow columns."""

    def __init__(self) -> None:
        self._rows: list[ImageRef] = []
        self._parts: list[tuple[dict[str, Any], int]] = []  # columns and number of rows
        self._details: dict[str, LargeColumn] = {}
        self._num_part_rows = 0

    def __len__(self) -> int:
        return self._num_part_rows + len(self._rows)

    def append(self, ref: ImageRef) -> None:
        """Adds an image."""
        self._rows.append(ref)
        if len(self._rows) == _ROWS_AT_ONCE:
            self._encode_rows()

    def extend(self, table: ImageTable) -> None:
        """Adds all images of a table."""
        self._encode_rows()
        self._add_part(dict(table._columns), len(table))

    def _encode_rows(self) -> None:
        if not self._rows:
            return
        values: dict[str, Sequence[Any]] = dict(zip(ImageRef._fields, zip(*self._rows, strict=True), strict=True))
        locations = values.pop("location")
        if locations.count(WHOLE_FILE) < len(locations):
            values |= zip(ImageLocation._fields, zip(*locations, strict=True), strict=True)
        is_needed = {name: column.count(_COLUMNS[name].default) < len(column) for name, column in values.items()}
        columns = {name: _COLUMNS[name].encode(column) for name, column in values.items() if is_needed[name]}
        self._add_part(columns, len(self._rows))
        self._rows = []

    def _add_part(self, columns: dict[str, Any], num_rows: int) -> None:
        for name in columns.keys() - self._details.keys():
            if name in _DETAILS:
                self._details[name] = LargeColumn()
                self._details[name].append(_TUPLES.repeat_default(self._num_part_rows))
        for name, column in self._details.items():
            column.append(columns.pop(name) if name in columns else _TUPLES.repeat_default(num_rows))
        self._parts.append((columns, num_rows))
        self._num_part_rows += num_rows

    def finish(self) -> ImageTable:
        """Returns the table. The builder is empty afterwards."""
        self._encode_rows()
        parts, num_rows = self._parts, self._num_part_rows
        self._parts, self._num_part_rows = [], 0
        # Each part lets a column go as it is joined, so only one column is in memory twice.
        joined = {
            name: _concat(
                [columns.pop(name) if name in columns else kind.repeat_default(count) for columns, count in parts]
            )
            for name, kind in _COLUMNS.items()
            if any(name in columns for columns, _ in parts)
        }
        joined |= {name: _finish(column) for name, column in self._details.items()}
        self._details = {}
        pa.default_memory_pool().release_unused()  # otherwise it keeps the memory of the parts to itself
        return ImageTable(joined, num_rows)
