"""Lists the rows of Parquet files that hold the images themselves, as Hugging Face's `datasets` writes them.

A row is yielded as a row of a table. Images and masks are not read here: a row has only their positions in the file.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.config import USUAL_COLUMNS, TableColumns
from beam_jobs.inputs.column_types import to_text
from beam_jobs.inputs.parquet_tensors import find_tensor_columns, is_binary, is_list, is_number, read_metadata
from beam_jobs.plan.image_ref import NO_IMAGE, SINGLE, UNKNOWN_NUMBER
from tfpipe.errors import DataError
from tfpipe.format import schema as keys
from tfpipe.system.budget import Budget

_MAX_MEAN_BYTES = 512 << 20
_MAX_NAME = 200
_HALF_PAIR = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # half a surrogate pair, except for the escapes of bytes

_OF_IMAGES = frozenset(("image", "images", *keys.BOX_COLUMNS.values()))  # a file with such a column is about images
_MASK_COLUMNS = ("image/mask", "mask")  # structs like those of images, or the bytes alone
_LIKELY_MASK_COLUMNS = ("annotation", "label", "segmentation", "segmentation_mask")  # structs like those of images


class EmbeddedImage(NamedTuple):
    """An image or a mask in a row of a Parquet file."""

    name: str  # of the file without a folder, or of the column of a mask
    size: int  # the mean number of bytes in the row group
    row_group: int
    row: int
    num_images: int = SINGLE  # as `ImageRef.num_images`


@dataclass(frozen=True)
class ImageColumns:
    """The columns of a Parquet file that holds images, tensors, or both."""

    image: str  # empty if there are only tensors
    bytes_leaf: str  # the leaf column of the images' bytes
    path_leaf: str  # the leaf column of the images' paths; empty if there is none
    mask: str  # empty if there is none, as for `label`
    label: str
    class_names: tuple[str, ...]
    others: tuple[str, ...]
    is_list: bool = False  # whether a row has a list of images
    tensors: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()  # of image bytes and tensors, which are most of a row's bytes
    named: Mapping[str, str] = field(default_factory=dict)  # the usual names of columns that options name, by column


def find_image_columns(table: Any, given: TableColumns = USUAL_COLUMNS) -> ImageColumns | None:
    """Finds the columns of a Parquet file that holds images, or tensors and no images; returns None for others."""
    schema = table.schema_arrow
    kinds: dict[str, Any] = {field.name: field.type for field in schema}
    if len(kinds) < len(schema.names):
        return None
    mask = _find_mask(kinds, given)
    image = _find_image(kinds, mask, given.image_column)
    mask = mask if image else ""
    classes = {name: names for name, names in _read_classes(schema.metadata or {}).items() if name in kinds}
    likely = ["label", *(classes if len(classes) == 1 else ())]
    labels = likely if given.label_column is None else [given.label_column]
    label = next((name for name in labels if name in kinds and name != mask), "")
    named = {column: name for name, column in given.named.items() if column not in (image, mask, label)}
    tensors = find_tensor_columns(schema, has_images=bool(image))
    tensors = tuple(name for name in tensors if name not in (image, mask, label, *named, *keys.BOX_COLUMNS))
    if not image and (not tensors or given.image_column in kinds or _OF_IMAGES.intersection(kinds)):
        return None
    kind: Any = kinds.get(image, pa.null())
    has_lists = is_list(kind)
    kind = kind.value_type if has_lists else kind
    is_struct = _is_struct(kind)
    has_paths = is_struct and kind.get_field_index("path") >= 0
    bytes_leaves = [_find_leaf(table, image, "bytes" if is_struct else "")] if image else []
    return ImageColumns(
        image,
        "".join(bytes_leaves),
        _find_leaf(table, image, "path") if has_paths else "",
        mask,
        label,
        classes.get(label, ()),
        tuple(name for name in kinds if name not in (image, mask, label, *tensors)),
        has_lists,
        tensors,
        (*bytes_leaves, *(_find_leaf(table, name, "") for name in tensors)),
        named,
    )


def _find_image(kinds: Mapping[str, Any], mask: str, given: str | None) -> str:
    """Returns the column of the images; empty if there is none, or if there are several candidates."""
    structs = [name for name, kind in kinds.items() if _is_struct(kind) and name != mask]
    lists = [name for name, kind in kinds.items() if is_list(kind) and _is_struct(kind.value_type)]
    if given is not None or "image" in kinds:
        image = given or "image"
        return image if image != mask and (image in (*structs, *lists) or is_binary(kinds.get(image))) else ""
    if not structs and "images" in lists:
        return "images"
    candidates = structs or lists
    return candidates[0] if len(candidates) == 1 else ""


def _find_leaf(table: Any, column: str, field: str) -> str:
    """Returns the leaf column that holds a column's values, or those of a field in the column's structs."""
    leaves = [table.schema.column(k).path for k in range(len(table.schema.names))]
    own = [leaf for leaf in leaves if leaf == column or leaf.startswith(f"{column}.")]
    return next((leaf for leaf in own if not field or leaf.endswith(f".{field}")), column)


def _find_mask(kinds: Mapping[str, Any], given: TableColumns) -> str:
    """Returns the column of the masks; empty if there is none."""
    sure: tuple[str, ...] = _MASK_COLUMNS if given.mask_column is None else (given.mask_column,)
    likely = _LIKELY_MASK_COLUMNS if given.mask_column is None else ()
    others = {column for name, column in given.named.items() if name != "mask"}
    for name in sure + likely:
        kind = kinds.get(name)
        if name not in others and (_is_struct(kind) or (name in sure and is_binary(kind))):
            return name
    return ""


def _is_struct(kind: Any) -> bool:
    """Checks whether a type is the one that Hugging Face's `datasets` gives to images."""
    return (
        isinstance(kind, pa.StructType) and kind.get_field_index("bytes") >= 0 and is_binary(kind.field("bytes").type)
    )


def _read_classes(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes in each column of type `ClassLabel`. Invalid entries count as missing."""
    classes: dict[str, tuple[str, ...]] = {}
    for name, feature in read_metadata(metadata, b"huggingface", "info", "features").items():
        names: Any = (
            feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        )
        are_texts = isinstance(names, list) and names and all(isinstance(each, str) and each for each in names)
        if are_texts and len(set(names)) == len(names) and not _HALF_PAIR.search("".join(names)):
            classes[name] = tuple(names)
    return classes


def read_embedded_rows(
    table: Any, file: IO[bytes], path: str, columns: ImageColumns, given: TableColumns, budget: Budget
) -> Iterator[dict[str, Any] | None]:
    """Yields the rows of a file, with an `EmbeddedImage` as `image`. A damaged row is None."""
    num_rows, num_bytes = table.metadata.num_rows, file.seek(0, os.SEEK_END)
    if num_rows > num_bytes:  # a damaged file may claim any number
        raise DataError(f"{path} must have a byte for each image at least, but claims {num_rows:,} in {num_bytes:,}.")
    if columns.is_list and columns.mask:
        raise DataError(
            f"{path}: a mask belongs to a single image, and column {columns.image!r} holds lists of images. Write the "
            f"table without the column {columns.mask!r}."
        )
    given.check(path, table.schema_arrow.names)
    for name in columns.others:
        check_type(table.schema_arrow.field(name), path)
    listed = [name for name in (columns.path_leaf, columns.label, *columns.others) if name]
    for group in range(table.num_row_groups):
        metadata, row = table.metadata.row_group(group), 0
        size, mask_size = (get_mean_size(metadata, names) for names in (columns.leaves, (columns.mask,)))
        try:
            for batch in read_batches(table, file, [group], listed, budget):
                for values in _read_batch(batch, columns):
                    file_path, num_images = values["image"]
                    name = (file_path or "").replace("\\", "/").rpartition("/")[2]
                    name = name if len(name) <= _MAX_NAME and name.isprintable() else ""  # it becomes part of a path
                    values["image"] = EmbeddedImage(name, size, group, row, num_images)
                    if columns.mask:
                        values["mask"] = EmbeddedImage(columns.mask, mask_size, group, row)
                    yield values
                    row += 1
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the store failed, not the file
        yield from [None] * (metadata.num_rows - row)


def get_mean_size(group: Any, names: Sequence[str]) -> int:
    """Returns the mean bytes per row of some columns, or of their fields `bytes`, in a row group; at least 1."""
    chunks = [group.column(k) for k in range(group.num_columns)]
    paths = {*names, *(f"{name}.bytes" for name in names)}
    num_bytes = sum(max(0, chunk.total_uncompressed_size) for chunk in chunks if chunk.path_in_schema in paths)
    mean: int = num_bytes // max(1, group.num_rows)
    return max(1, min(mean, _MAX_MEAN_BYTES))


def check_type(field: Any, path: str) -> None:
    """Checks that the values of a column can be stored as numbers or texts."""
    if not _is_flat(field.type) and _has_binary(field.type):
        raise DataError(
            f"{path}: column {field.name!r} must hold numbers, texts, or lists and structs of such, got {field.type}. "
            "Only one column can hold images, and one masks, which `mask_column` names; write the table without the "
            "others."
        )


def _has_binary(kind: Any) -> bool:
    return is_binary(kind) or any(_has_binary(kind.field(k).type) for k in range(kind.num_fields))


def _is_flat(kind: Any) -> bool:
    """Checks whether the values of a type are numbers or texts, or lists of such."""
    kind = kind.value_type if is_list(kind) else kind
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return is_number(kind) or is_binary(kind) or str(kind) in ("string", "large_string", "null")


def _read_batch(batch: Any, columns: ImageColumns) -> Iterator[dict[str, Any]]:
    """Yields the rows of a batch with the columns of a table; `image` is the path and the number of images."""
    cells: dict[str, list[Any]] = {"image": [(None, SINGLE if columns.image else NO_IMAGE)] * batch.num_rows}
    if columns.mask:
        cells["mask"] = [None] * batch.num_rows  # the caller sets its position
    if columns.is_list and columns.path_leaf:
        lengths = pc.list_value_length(batch.column(columns.image)).to_pylist()
        cells["image"] = [(None, length or 0) for length in lengths]
    elif columns.is_list:  # only the bytes of the images would tell, which are not read here
        cells["image"] = [(None, UNKNOWN_NUMBER)] * batch.num_rows
    elif columns.path_leaf:
        cells["image"] = [(image and image.get("path"), SINGLE) for image in batch.column(columns.image).to_pylist()]
    if columns.label:
        labels = batch.column(columns.label).to_pylist()
        cells["label"] = [None if label == -1 else label for label in labels]  # -1: a class that is not known
    for name in sorted(columns.others, key=lambda name: name not in columns.named):  # those that options name first
        if name in keys.DERIVED:  # `tfpipe export` writes these, and they are computed anew
            continue
        usual = columns.named.get(name, name)
        usual = keys.BOX_COLUMNS.get(usual) or usual.removeprefix("image/") or usual  # `image/` is tfpipe's own
        while usual in cells:
            usual += "_"
        cells[usual] = list_cells(batch.column(name))
    for row in zip(*cells.values(), strict=True):
        yield dict(zip(cells, row, strict=True))


def list_cells(column: Any) -> list[Any]:
    """Returns the values of a column. Those that are neither numbers, texts nor lists of such become texts."""
    values: list[Any] = column.to_pylist()
    return values if _is_flat(column.type) else [None if value is None else to_text(value) for value in values]


_MEAN_BYTES = 16 << 20  # of a batch, by the mean sizes in the footer
_MOST_BYTES = 64 << 20  # of a batch if each row had the longest text of the file
_IMAGES_BYTES = 256 << 20  # of a batch if each row were as large as the whole column
_VALUE_BYTES = 24  # of a number in a list, which becomes a Python object


def read_batches(
    table: Any, file: Any, groups: Sequence[int], columns: Sequence[str] | None, budget: Budget, most_rows: int = 10_000
) -> Iterator[Any]:
    """Yields batches of bounded size. `file` is None for columns of images, whose longest value takes long to find."""
    for group in groups:
        metadata = table.metadata.row_group(group)
        mean = longest = 0
        for chunk in (metadata.column(k) for k in range(metadata.num_columns)):
            leaf, num_bytes = chunk.path_in_schema, chunk.total_uncompressed_size
            if columns is not None and not any(leaf == name or leaf.startswith(f"{name}.") for name in columns):
                continue
            num_values = max(1, -(-chunk.num_values // max(1, metadata.num_rows)))  # per row
            mean += max(num_bytes // max(1, metadata.num_rows), num_values * _VALUE_BYTES)
            if chunk.physical_type != "BYTE_ARRAY" or not any("DICTIONARY" in kind for kind in chunk.encodings):
                continue
            if file is not None and most_rows * num_values * num_bytes > _MOST_BYTES:
                num_bytes = _find_longest(table, file, group, leaf)
            longest += num_values * num_bytes
        most_bytes = _IMAGES_BYTES if file is None else _MOST_BYTES
        rows = max(1, min(most_rows, _MEAN_BYTES // max(1, mean), most_bytes // max(1, longest)))
        for batch in table.iter_batches(rows, [group], columns, use_threads=False):
            budget.take(bytes=sum(map(_measure, batch.columns)))
            yield batch


def _find_longest(table: Any, file: Any, group: int, leaf: str) -> int:
    """Returns the bytes of the longest value in the dictionary of a column, which is read with the first row."""
    import pyarrow.parquet as pq  # slow to import

    reader = pq.ParquetFile(file, metadata=table.metadata, read_dictionary=[leaf])
    for batch in reader.iter_batches(1, [group], [leaf], use_threads=False):
        (array,) = batch.columns
        while not isinstance(array, pa.DictionaryArray):  # the only leaf lies in lists and structs
            array = array.field(0) if isinstance(array, pa.StructArray) else array.values
        return pc.max(pc.binary_length(array.dictionary)).as_py() or 0
    return 0


def _measure(array: Any) -> int:
    """Counts the bytes of an array, in which a text of a dictionary counts for each row that has it."""
    if isinstance(array, pa.StructArray):
        return sum(map(_measure, array.flatten()))
    if is_list(array.type):
        values = array.flatten()
        return max(_measure(values), len(values) * _VALUE_BYTES)
    if isinstance(array, pa.DictionaryArray) and not pa.types.is_primitive(array.type.value_type):
        return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    size: int = array.nbytes
    return size
