"""The images of an input as a table of Arrow columns, with a row for each image. Columns of defaults are left out.

Ten million images take about 0.6 GB; as Python tuples they would take 4 GB. A column is read and written as a whole
where that is possible: to make a Python object for each cell costs more than all other work.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.image_ref import WHOLE_FILE, ImageLocation, ImageRef, PlannedImage, encode_line
from tfpipe.native.names import hash_texts
from tfpipe.system.extras import importing
from tfpipe.system.progress import Observer, Progress

with importing("A plan", "pyarrow", "tfpipe[shard]"):
    import pyarrow as pa
    import pyarrow.compute as pc

_ROWS_AT_ONCE = 1 << 14
_TELL_EVERY = 1 << 10  # images between two calls of an observer
_ARRAYS_LET_GO = 16  # arrays that are freed before the pool gives their memory back to the system
_Indices = NDArray[np.int64]


def encode_texts(texts: Sequence[str | None]) -> Any:
    """Returns texts as an Arrow array of bytes, which can hold file names that are not valid UTF-8."""
    try:
        return pa.array(texts, pa.large_string()).cast(pa.large_binary())
    except (UnicodeEncodeError, pa.ArrowInvalid):  # a file name that is not valid UTF-8
        data = [None if text is None else text.encode("utf-8", "surrogateescape") for text in texts]
        return pa.array(data, pa.large_binary())


def _decode_texts(array: Any) -> list[str | None]:
    try:
        texts: list[str | None] = _to_list(array.cast(pa.large_string()))
    except pa.ArrowInvalid:
        texts = [None if data is None else data.decode("utf-8", "surrogateescape") for data in _to_list(array)]
    return texts


def match_texts(array: Any, pattern: str) -> NDArray[np.bool_]:
    """Returns whether each text as a whole matches a regular expression, as `re.fullmatch` would."""
    matches: NDArray[np.bool_] = pc.match_substring_regex(array, f"^(?:{pattern})$").to_numpy(zero_copy_only=False)
    return matches


def _to_list(array: Any) -> list[Any]:
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()  # five times as fast as `to_pylist`
    return values


def _encode_few_texts(texts: Sequence[str | None]) -> Any:
    return encode_texts(texts).dictionary_encode()


def _decode_few_texts(array: Any) -> list[str | None]:
    texts = [*_decode_texts(array.dictionary), None]
    return [texts[code] for code in _to_list(array.indices.fill_null(len(texts) - 1))]


def _encode_tuples(values: Sequence[tuple[Any, ...]]) -> Any:
    # Pickled, so that 1 stays 1 and 1.0 stays 1.0 in the lines of the plan.
    data = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if value else b"" for value in values]
    return pa.array(data, pa.large_binary())


def _decode_tuples(array: Any) -> list[Any]:
    return [pickle.loads(data) if data else () for data in _to_list(array)]


def wrap(values: NDArray[Any]) -> Any:
    """Returns numbers or booleans as an Arrow array; `pa.array` would first import NumPy's masked arrays."""
    packed = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(packed)])


@dataclass(frozen=True, slots=True)
class _Column:
    """The default of a column, and its conversions to and from Arrow."""

    default: Any  # of a row in a column that is left out
    encode: Callable[[Sequence[Any]], Any]
    decode: Callable[[Any], list[Any]]

    def repeat_default(self, count: int) -> Any:
        return self.encode([self.default]).take(wrap(np.zeros(count, np.int64)))


# Texts are bytes for Arrow: its own strings refuse file names that are not valid UTF-8. In a column with few different
# texts each text is stored once, and every row has a code of 4 bytes.
_TEXT = _Column("", encode_texts, _decode_texts)
_FEW_TEXTS = _Column("", _encode_few_texts, _decode_few_texts)
_encode_numbers = partial(pa.array, type=pa.int64())
_OPTIONAL_NUMBER = _Column(-1, _encode_numbers, _to_list)
_TUPLES = _Column((), _encode_tuples, _decode_tuples)
_DETAILS = ("boxes", "box_labels", "extra", "mask", "images", "frame")
_COLUMNS = {
    "path": _TEXT,
    "size": _Column(0, _encode_numbers, _to_list),
    # The fields of `location`:
    **{"file": _FEW_TEXTS, **dict.fromkeys(ImageLocation._fields[1:], _OPTIONAL_NUMBER)},
    "split": _FEW_TEXTS,
    "label": _Column(None, _encode_few_texts, _decode_few_texts),
    "group": _TEXT,
    **dict.fromkeys(_DETAILS, _TUPLES),
    "num_images": _OPTIONAL_NUMBER,
}


_USUAL = frozenset(("path", "size", "label", "split", "group", "num_images"))  # no line has the last three
_PLAIN = np.array([32 <= byte < 127 and byte not in b'"\\' for byte in range(256)])  # what JSON does not escape


def _get_buffers(texts: Any) -> tuple[Any, NDArray[np.int64]]:
    """Returns the buffer of all texts, or None, and the offset of each text in it and of the end."""
    _, offsets, values = texts.buffers()
    return values, np.frombuffer(offsets, np.int64, len(texts) + 1, 8 * texts.offset)


def _quote(texts: Any) -> tuple[Any, ...]:
    """Returns texts as JSON, as `encode_line` writes them, in pieces for `join_texts`."""
    values, offsets = _get_buffers(texts)
    if values is None or _PLAIN[np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]]].all():
        return b'"', texts, b'"'
    return (pa.array([json.dumps(text).encode() for text in _decode_texts(texts)], pa.large_binary()),)


def spell(numbers: NDArray[Any]) -> Any:
    """Returns the decimal digits of numbers as an Arrow array of texts."""
    return wrap(numbers).cast(pa.large_string()).cast(pa.large_binary())


def join_texts(*pieces: Any) -> Any:
    """Joins arrays of texts row by row; a piece that is `bytes` is the same in each row."""
    fields: list[Any] = []
    for kind, run in groupby(pieces, type):
        some = list(run)
        fields += [pa.scalar(b"".join(some), pa.large_binary())] if kind is bytes else some
    return pc.binary_join_element_wise(*fields, pa.scalar(b"", pa.large_binary()))


def _concat(arrays: list[Any]) -> Any:
    """Joins Arrow arrays. Each array of bytes is freed once copied, so that no large column is in memory twice."""
    if arrays[0].type != pa.large_binary():
        return pa.concat_arrays(arrays)
    offsets = np.zeros(1 + sum(map(len, arrays)), np.int64)
    spans = [_get_buffers(array)[1][[0, -1]].tolist() for array in arrays]
    values = np.empty(sum(end - begin for begin, end in spans), np.uint8)
    row = offset = 0
    for number, (begin, end) in enumerate(spans):
        array, arrays[number] = arrays[number], None
        data, begins = _get_buffers(array)
        offsets[row + 1 : row + 1 + len(array)] = begins[1:] - begin + offset
        if end > begin:
            values[offset : offset + end - begin] = np.frombuffer(data, np.uint8)[begin:end]
        row, offset = row + len(array), offset + end - begin
        del array, data, begins
        if number % _ARRAYS_LET_GO == 0:
            pa.default_memory_pool().release_unused()  # otherwise the pool keeps the memory of freed arrays
    return pa.Array.from_buffers(pa.large_binary(), row, [None, pa.py_buffer(offsets), pa.py_buffer(values)])


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
        return column.decode(self._columns[name].take(wrap(indices)))

    def _decode_all(self, name: str) -> Iterator[list[Any]]:
        """Yields the values of a column in lists, each for a block of rows."""
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            yield self._decode(name, np.arange(begin, min(begin + _ROWS_AT_ONCE, len(self))))

    def _decode_locations(self, indices: _Indices) -> list[ImageLocation]:
        if self._columns.keys().isdisjoint(ImageLocation._fields):
            return [WHOLE_FILE] * len(indices)
        return list(map(ImageLocation, *(self._decode(name, indices) for name in ImageLocation._fields)))

    @property
    def details(self) -> frozenset[str]:
        """The optional columns, such as `boxes` and `mask`, that some image needs."""
        return frozenset(_DETAILS).intersection(self._columns)

    @property
    def in_row_groups(self) -> NDArray[np.bool_]:
        """Whether each image lies in a row of a Parquet file, so that its exact size is unknown."""
        return self.get_numbers("row_group") >= 0

    def get_numbers(self, name: str) -> NDArray[np.int64]:
        """Returns a column of numbers, such as `size` or `offset`, by its name."""
        if name not in self._columns:
            return np.full(len(self), _COLUMNS[name].default, np.int64)
        numbers: NDArray[np.int64] = self._columns[name].to_numpy()
        return numbers

    def iterate_paths(self) -> Iterator[str]:
        """Yields the path of each image."""
        return chain.from_iterable(self._decode_all("path"))

    def sort_by_path(self) -> NDArray[np.int64]:
        """Returns the indices in the order of the paths. Images of one path keep their order."""
        if "path" not in self._columns:
            return np.arange(len(self))
        try:  # the order of UTF-8 is that of the characters
            order: NDArray[np.int64] = pc.sort_indices(self._columns["path"].cast(pa.large_string())).to_numpy()
        except pa.ArrowInvalid:
            paths = list(self.iterate_paths())
            order = np.array(sorted(range(len(self)), key=paths.__getitem__), np.int64)
        return order.astype(np.int64, copy=False)

    def get_paths(self, indices: _Indices) -> list[str]:
        """Returns the paths of the images at these indices, in this order."""
        return self._decode("path", indices)

    def hash_for_splits(self) -> NDArray[np.uint64]:
        """Returns the hash that decides each image's split: its group's, or its path's if it has no group."""
        hashes = self.hash_texts("path", b"split")
        if "group" not in self._columns:
            return hashes
        has_group = pc.binary_length(self._columns["group"]).to_numpy() > 0
        return np.where(has_group, self.hash_texts("group", b"split"), hashes)

    def hash_texts(self, name: str, key: bytes) -> NDArray[np.uint64]:
        """Returns a keyed BLAKE2b hash of each text in `path` or `group`: 8 bytes, read as a little-endian number."""
        texts = self._columns[name] if name in self._columns else _COLUMNS[name].repeat_default(len(self))
        return hash_texts(*_get_buffers(texts), key)

    def get_codes(self, name: str) -> tuple[NDArray[np.int32], list[str | None]]:
        """Returns, for `file`, `split` or `label`, each row's index into the distinct texts, and these texts."""
        if name not in self._columns:
            return np.zeros(len(self), np.int32), [_COLUMNS[name].default] if len(self) else []
        codes, texts = self._columns[name].indices, _decode_texts(self._columns[name].dictionary)
        if codes.null_count:
            codes = codes.fill_null(len(texts))
            texts.append(None)
        return codes.to_numpy(), texts

    def find_empty(self, name: str) -> NDArray[np.int64]:
        """Returns the indices of the images without a `file`, a `split` or a `label`, as `name` says."""
        codes, texts = self.get_codes(name)
        return np.flatnonzero(np.array([not text for text in texts], bool)[codes])

    def count_values(self, name: str) -> dict[str | None, int]:
        """Returns how often each text occurs in the column `file`, `split` or `label`, as `name` says."""
        codes, texts = self.get_codes(name)
        counts = np.bincount(codes, minlength=len(texts)).tolist()
        return {text: count for text, count in zip(texts, counts, strict=True) if count}

    @classmethod
    def make_empty(cls, details: Iterable[str] = ()) -> "ImageTable":
        """Returns a table without rows that has the optional columns `details`."""
        return cls({name: _COLUMNS[name].encode([]) for name in details}, 0)

    def take(self, indices: _Indices) -> "ImageTable":
        """Returns a table of the images at these indices, in this order."""
        rows = wrap(indices)
        columns = {name: column.take(rows) for name, column in self._columns.items()}
        for name in columns.keys() & set(_DETAILS):
            if not pc.max(pc.binary_length(columns[name])).as_py():
                del columns[name]
        return ImageTable(columns, len(indices))

    def replace_sizes(self, sizes: NDArray[np.int64]) -> "ImageTable":
        """Returns a table with other sizes. The other columns are shared, not copied."""
        return ImageTable({**self._columns, "size": wrap(sizes)}, len(self))

    def replace_texts(self, name: str, codes: NDArray[Any], texts: Sequence[str | None]) -> "ImageTable":
        """Returns a table with another `split` or `label`, where `codes` are indices into `texts`."""
        return ImageTable({**self._columns, name: _COLUMNS[name].encode(texts).take(wrap(codes))}, len(self))

    def iterate_extras(self) -> Iterator[tuple[Any, ...]]:
        """Yields each row's values of the features in `Listing.extra`."""
        return chain.from_iterable(self._decode_all("extra"))

    def replace_tuples(self, name: str, values: Iterable[tuple[Any, ...]]) -> "ImageTable":
        """Returns a table with other values in a column of tuples, such as `extra`. The other columns are shared."""
        rest = iter(values)
        blocks = [_TUPLES.encode(block) for block in iter(lambda: list(islice(rest, _ROWS_AT_ONCE)), [])]
        return ImageTable({**self._columns, name: _concat(blocks or [_TUPLES.encode([])])}, len(self))

    def encode_lines(self, indices: _Indices, labels: NDArray[np.int32]) -> tuple[memoryview, NDArray[np.int64]]:
        """Returns the plan's lines for these images, as `encode_line` makes them, and their offsets.

        `labels` are those of all images, from `number_labels`.
        """
        labels = labels[indices]
        further, rows = self._columns.keys() - _USUAL, wrap(indices)
        is_odd = bool(further)
        if further == {"file", "offset"}:  # then only an image that is a whole file at another path is odd
            lengths = pc.binary_length(self._take("file", rows).dictionary_decode()).to_numpy()
            is_odd = bool(((lengths > 0) & (self.get_numbers("offset")[indices] < 0)).any())
        if is_odd:
            columns = [self.get_paths(indices), self._decode("size", indices), labels.tolist()]
            columns += [self._decode_locations(indices), *(self._decode(name, indices) for name in _DETAILS)]
            lines = list(map(encode_line, map(PlannedImage, *columns)))
            return memoryview(b"".join(lines)), np.cumsum([0, *map(len, lines)])
        pieces = [b"[", *_quote(self._take("path", rows)), b",", spell(self.get_numbers("size")[indices])]
        end = pc.if_else(wrap(labels >= 0), join_texts(b",", spell(labels)), pa.scalar(b"", pa.large_binary()))
        if further:
            offsets = self.get_numbers("offset")[indices]
            file = self._take("file", rows).dictionary_decode()
            location = join_texts(b",", spell(labels), b",", *_quote(file), b",", spell(offsets))
            end = pc.if_else(wrap(offsets >= 0), location, end)
        values, ends = _get_buffers(join_texts(*pieces, end, b"]\n"))
        return memoryview(values or b"")[: int(ends[-1])], ends

    def number_labels(self, label_names: Sequence[str]) -> NDArray[np.int32]:
        """Returns the index in `label_names` of each image's label, or -1 for an image without a label."""
        codes, texts = self.get_codes("label")
        numbers: dict[str | None, int] = {name: number for number, name in enumerate(label_names)}
        return np.array([numbers.get(text, -1) for text in texts], np.int32)[codes]

    def _take(self, name: str, rows: Any) -> Any:
        return self._columns[name].take(rows) if name in self._columns else _COLUMNS[name].repeat_default(len(rows))


class ImageTableBuilder:
    """The builder of a table. It keeps the last rows as tuples, and all others as blocks of Arrow columns."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer or Observer()
        self._rows: list[ImageRef] = []
        self._blocks: list[tuple[dict[str, Any], int]] = []  # columns and number of rows
        self._num_block_rows = 0

    def __len__(self) -> int:
        return self._num_block_rows + len(self._rows)

    def append(self, ref: ImageRef) -> None:
        """Adds an image."""
        self._rows.append(ref)
        if len(self._rows) % _TELL_EVERY == 0:
            self._observer.progress(Progress(len(self)))
            if len(self._rows) == _ROWS_AT_ONCE:
                self._encode_rows()

    def append_files(
        self, paths: Any, sizes: NDArray[np.int64], **others: NDArray[Any] | tuple[_Indices, Sequence[str]]
    ) -> None:
        """Adds files given as columns: paths, sizes, and others, each as numbers or as a pair of codes and texts."""
        self._encode_rows()
        columns = {"path": paths, "size": wrap(sizes)}
        for name, values in others.items():
            if isinstance(values, tuple):
                columns[name] = _COLUMNS[name].encode(values[1]).take(wrap(values[0]))
            else:
                columns[name] = wrap(values)
        self._add_block(columns, len(paths))
        self._observer.progress(Progress(len(self)))

    def extend(self, table: ImageTable) -> None:
        """Adds all images of a table."""
        self._encode_rows()
        self._add_block(dict(table._columns), len(table))
        self._observer.progress(Progress(len(self)))

    def _encode_rows(self) -> None:
        if not self._rows:
            return
        values: dict[str, Sequence[Any]] = dict(zip(ImageRef._fields, zip(*self._rows, strict=True), strict=True))
        locations = values.pop("location")
        if locations.count(WHOLE_FILE) < len(locations):
            values |= zip(ImageLocation._fields, zip(*locations, strict=True), strict=True)
        needed = {name: some for name, some in values.items() if some.count(_COLUMNS[name].default) < len(some)}
        self._add_block({name: _COLUMNS[name].encode(some) for name, some in needed.items()}, len(self._rows))
        self._rows = []

    def _add_block(self, columns: dict[str, Any], num_rows: int) -> None:
        self._blocks.append((columns, num_rows))
        self._num_block_rows += num_rows

    def finish(self) -> ImageTable:
        """Returns the table. The builder is empty afterwards."""
        self._encode_rows()
        blocks, num_rows = self._blocks, self._num_block_rows
        self._blocks, self._num_block_rows = [], 0
        joined = {
            name: _concat(
                [columns.pop(name) if name in columns else kind.repeat_default(count) for columns, count in blocks]
            )
            for name, kind in _COLUMNS.items()
            if any(name in columns for columns, _ in blocks)
        }
        pa.default_memory_pool().release_unused()
        return ImageTable(joined, num_rows)
