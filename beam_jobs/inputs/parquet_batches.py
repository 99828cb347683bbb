"""Reads batches of Parquet files, whose memory is bounded by their decoded bytes.

A value that stands once in a file may stand in any number of rows, so a file of a kilobyte can decode to gigabytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tfpipe.system.budget import Budget

_MEAN_BYTES = 16 << 20  # of a batch, as far as the footer tells
_MOST_BYTES = 64 << 20  # of a batch in which each row has the longest text of the file
_IMAGES_BYTES = 256 << 20  # of a batch in which each row is as large as the whole column
_VALUE_BYTES = 24  # of a number in a list, which becomes an object


def read_batches(
    table: Any, file: Any, groups: Sequence[int], columns: Sequence[str] | None, most_rows: int, budget: Budget
) -> Iterator[Any]:
    """Yields batches of rows. `file` is None for columns of images, whose longest value takes long to find."""
    for group in groups:
        rows = _choose_rows(table, file, group, columns, most_rows)
        for batch in table.iter_batches(rows, [group], columns, use_threads=False):
            budget.take(bytes=sum(map(_measure, batch.columns)))
            yield batch


def _choose_rows(table: Any, file: Any, group: int, columns: Sequence[str] | None, most_rows: int) -> int:
    metadata = table.metadata.row_group(group)
    mean = longest = 0
    for chunk in (metadata.column(k) for k in range(metadata.num_columns)):
        leaf, num_bytes = chunk.path_in_schema, chunk.total_uncompressed_size
        if columns is not None and not any(leaf == name or leaf.startswith(f"{name}.") for name in columns):
            continue
        num_values = max(1, -(-chunk.num_values // max(1, metadata.num_rows)))  # of a row
        mean += max(num_bytes // max(1, metadata.num_rows), num_values * _VALUE_BYTES)
        if chunk.physical_type != "BYTE_ARRAY" or not any("DICTIONARY" in kind for kind in chunk.encodings):
            continue
        if file is not None and most_rows * num_values * num_bytes > _MOST_BYTES:
            num_bytes = _find_longest(table, file, group, leaf)
        longest += num_values * num_bytes
    most_bytes = _IMAGES_BYTES if file is None else _MOST_BYTES
    return max(1, min(most_rows, _MEAN_BYTES // max(1, mean), most_bytes // max(1, longest)))


def _find_longest(table: Any, file: Any, group: int, leaf: str) -> int:
    """Returns the bytes of the longest value in the dictionary of a column, which one row brings along."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(file, metadata=table.metadata, read_dictionary=[leaf])
    for batch in reader.iter_batches(1, [group], [leaf], use_threads=False):
        lengths = [pc.max(pc.binary_length(values)).as_py() for values in map(_find_values, batch.columns)]
        return max((length or 0 for length in lengths), default=0)
    return 0


def _find_values(array: Any) -> Any:
    """Returns the dictionary in lists and structs that have one leaf."""
    import pyarrow.types as types

    while not types.is_dictionary(array.type):
        array = array.field(0) if types.is_struct(array.type) else array.values
    return array.dictionary


def _measure(array: Any) -> int:
    """Returns the bytes of an array, with each text of a dictionary as often as rows have it."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    if types.is_struct(array.type):
        return sum(map(_measure, array.flatten()))
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        values = array.flatten()
        return max(_measure(values), len(values) * _VALUE_BYTES)
    if types.is_dictionary(array.type) and not types.is_primitive(array.type.value_type):
        return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    size: int = array.nbytes
    return size
