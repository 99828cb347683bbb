"""Tensors in columns of Parquet files, such as latents: their types, and the tensors of a row.

Most files do not declare how long lists are, so an axis has a fixed size if its size is the same in the first rows.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.schema import RESERVED, FeatureSpec, make_tensor_specs
from tfpipe.format.tensors.tensor_type import DTYPES, TensorType, get_numpy_dtype
from tfpipe.storage import file_io

METADATA = b"tfpipe"
"""The key of the metadata in which `tfpipe export` stores the types of tensors."""

_MAX_METADATA_BYTES = 16 << 20
_LOOK_AT_ROWS = 1000
_LOOK_AT_BYTES = 16 << 20
_BYTES = "bytes"
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}

Value = NDArray[Any] | bytes | str
"""An array, the bytes of one, or words for what is not a tensor."""

Tensors = tuple[tuple[FeatureSpec, ...], dict[str, str]]
"""The features of the tensors of a table and of their sizes, and the dtypes of columns that are converted."""


def find_tensor_columns(schema: Any, *, has_images: bool) -> tuple[str, ...]:
    """Returns the columns of an Arrow schema that hold tensors: lists of numbers, and binaries.

    In a file of `tfpipe export`, only the columns that were tensors count; other lists are plain values.
    """
    metadata = schema.metadata or {}
    if METADATA in metadata:
        types = _read_types(metadata)
        return tuple(field.name for field in schema if field.name in types and is_number(_split_type(field.type)[1]))
    known = _read_features(metadata) if has_images else schema.names
    lists = [field.name for field in schema if _split_type(field.type)[0] and is_number(_split_type(field.type)[1])]
    return tuple(
        field.name for field in schema if field.name in known and (field.name in lists or is_binary(field.type))
    )


def name_feature(column: str) -> str:
    """Returns the feature name of a column, without `image/`: names that begin so are tfpipe's own."""
    return column.removeprefix("image/") or column


def infer_tensors(path: str, columns: Sequence[str], given: Mapping[str, TensorType]) -> Tensors:
    """Infers the features that the tensor columns of a table become, from the first file."""
    import pyarrow.parquet  # slow to import

    with file_io.explain_os_errors(f"read {path}"), file_io.open_read(path) as file:
        table = pyarrow.parquet.ParquetFile(file)
        schema = table.schema_arrow
        for name in given:
            if name not in columns:
                raise ConfigError(f"`tensors` must name columns of tensors ({', '.join(columns)}), got {name!r}.")
        metadata = schema.metadata or {}
        known = _read_features(metadata) | _read_types(metadata) | dict(given)
        unknown = [name for name in columns if name not in known and not is_binary(schema.field(name).type)]
        samples = _look(table, unknown)
    specs: list[FeatureSpec] = []
    dtypes: dict[str, str] = {}
    for column in columns:
        name, kind = name_feature(column), schema.field(column).type
        order = (isinstance(kind, pa.FixedShapeTensorType) and kind.permutation) or []
        if order != sorted(order):
            raise DataError(f"{path}: the axes of column {column!r} must be in their order, got {order}.")
        if name in RESERVED:
            raise DataError(f"{path}: a batch has something else of the name {name!r}. Give the column another name.")
        if column in known:
            dtypes[name] = _BYTES if is_binary(kind) else _get_dtype(kind)
            tensor = known[column]
        else:
            tensor = _infer_type(column, kind, samples.get(column, []), path)
        get_numpy_dtype(tensor.dtype)  # raises an error if what bfloat16 needs is missing
        specs += make_tensor_specs(name, tensor)
    return tuple(specs), dtypes


def _infer_type(column: str, kind: Any, shapes: Sequence[tuple[int, ...]], path: str) -> TensorType:
    if is_binary(kind):
        raise DataError(
            f"{path}: column {column!r} holds bytes, which do not say what they are. Give their dtype and shape with "
            f"`tensors`, as in {column}=float16[4,64,64]. If they are images, name the column 'image'."
        )
    dtype, axes = next((name for name in DTYPES if name == _get_dtype(kind)), None), _split_type(kind)[0]
    if dtype is None:
        raise DataError(f"{path}: column {column!r} must hold {', '.join(DTYPES)}, got {_get_dtype(kind)}.")
    for axis in range(len(axes)):
        sizes = {shape[axis] for shape in shapes}
        if axes[axis] is None and len(sizes) == 1:
            axes[axis] = sizes.pop()
    return TensorType(dtype, _open_first_axes([size or None for size in axes]))


def _open_first_axes(sizes: Sequence[int | None]) -> tuple[int | None, ...]:
    """Returns a shape in which all axes up to the last unknown one are unknown, as records need it."""
    num_unknown = max((axis + 1 for axis, size in enumerate(sizes) if size is None), default=0)
    return (*[None] * num_unknown, *sizes[num_unknown:])


def _look(table: Any, columns: Sequence[str]) -> dict[str, list[tuple[int, ...]]]:
    """Returns the shapes of the tensors in the first readable rows, by column, without those of empty tensors."""
    shapes: dict[str, list[tuple[int, ...]]] = {column: [] for column in columns}
    for number in range(table.num_row_groups if columns else 0):
        group = table.metadata.row_group(number)
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        rows = max(1, min(_LOOK_AT_ROWS, _LOOK_AT_BYTES // row_bytes))
        try:
            batch = next(table.iter_batches(rows, [number], list(columns), use_threads=False), None)
        except (pa.ArrowException, UnicodeDecodeError, OSError):
            continue
        if batch is None:
            continue
        for column in columns:
            values = (read_value(scalar) for scalar in batch.column(column))
            shapes[column] += [value.shape for value in values if isinstance(value, np.ndarray) and value.size]
        if all(shapes.values()):
            break
    return shapes


def read_value(scalar: Any) -> Value:
    """Converts an Arrow scalar to an array or bytes, or to words that say what it is if it is no tensor."""
    if isinstance(scalar, pa.ExtensionScalar):
        value = read_value(scalar.value)
        if isinstance(value, np.ndarray) and isinstance(scalar.type, pa.FixedShapeTensorType):
            value = value.reshape(scalar.type.shape)
        return value
    if scalar is None or not scalar.is_valid:
        return "null"
    if is_binary(scalar.type):
        return bytes(scalar.as_buffer())
    if not is_list(scalar.type):
        number: NDArray[Any] = pa.array([scalar.as_py()], scalar.type).to_numpy(zero_copy_only=False)
        return number.reshape(())
    values, shape = scalar.values, [len(scalar.values)]
    while is_list(values.type):
        if values.null_count:
            return "null in a list"
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) > 1:
            return f"lists of {lengths[0]:,} and {lengths[1]:,} values"
        shape.append(lengths[0] if lengths else 0)
        values = values.flatten()
    if values.null_count:
        return "null in a list"
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array.reshape(shape)


def pack(pieces: Sequence[bytes | memoryview]) -> bytes:
    """Joins pieces of bytes into one: the number of pieces, the size of each, and their bytes."""
    return b"".join((np.array([len(pieces), *map(len, pieces)], "<i8").tobytes(), *pieces))


def unpack(cell: bytes) -> list[bytes]:
    """Returns the pieces that `pack` has joined."""
    (count,) = np.frombuffer(cell, "<i8", 1).tolist()
    ends = (8 + 8 * count + np.cumsum(np.frombuffer(cell, "<i8", count, 8))).tolist()
    return [cell[begin:end] for begin, end in pairwise((8 + 8 * count, *ends))]


def pack_tensors(scalars: Mapping[str, Any]) -> bytes:
    """Returns the tensors of a row in one piece of bytes, which `unpack_tensors` takes apart."""
    header: dict[str, Any] = {}
    pieces: list[bytes] = []
    for column, scalar in scalars.items():
        value = read_value(scalar)
        kind: Any = value if isinstance(value, str) else None
        if isinstance(value, np.ndarray):
            kind, value = (value.dtype.name, value.shape), value.tobytes()
        header[name_feature(column)] = kind
        pieces.append(b"" if isinstance(value, str) else value)
    return pack([json.dumps(header).encode(), *pieces])


def unpack_tensors(cell: bytes) -> dict[str, Value]:
    """Returns the tensors that `pack_tensors` has packed, by feature name."""
    header, *pieces = unpack(cell)
    values: dict[str, Value] = {}
    for (name, kind), data in zip(json.loads(header).items(), pieces, strict=True):
        if isinstance(kind, list):
            dtype, shape = kind
            values[name] = np.frombuffer(data, dtype).reshape(shape)
        else:
            values[name] = data if kind is None else kind
    return values


def fit_tensors(
    specs: Sequence[FeatureSpec], dtypes: Mapping[str, str], values: Mapping[str, Value]
) -> dict[str, NDArray[Any]]:
    """Converts the tensors of a row to the types of their features."""
    types = {spec.name: spec.tensor for spec in specs if spec.tensor is not None}
    unknown = [name for name in values if name not in types]
    if unknown:
        raise ConfigError(f"Feature {unknown[0]!r} must be in the first file of the table, which lacks it.")
    return {name: _fit(name, kind, values.get(name, "nothing"), dtypes.get(name)) for name, kind in types.items()}


def _fit(name: str, tensor: TensorType, value: Value, dtype: str | None) -> NDArray[Any]:
    """Converts a value to its type of tensor. Its dtype is converted only if the column's type was given."""
    try:
        if isinstance(value, bytes):
            if dtype != _BYTES:
                raise ConfigError(f"{tensor}, got {len(value):,} bytes")
            return np.frombuffer(value, get_numpy_dtype(tensor.dtype)).reshape(tensor.find_shape(len(value)))
        if isinstance(value, str):
            raise ConfigError(f"{tensor}, got {value}")
        if dtype == value.dtype.name:
            value = _convert(tensor, value)
        if not value.size and 0 in value.shape[: tensor.num_unknown] and value.ndim == len(tensor.shape):
            value = value.reshape(value.shape[: tensor.num_unknown] + tensor.shape[tensor.num_unknown :])
        return tensor.to_array(value)
    except (ConfigError, FormatError, ValueError) as error:
        raise ConfigError(f"Feature {name!r} must be {error}.") from None


def _convert(tensor: TensorType, array: NDArray[Any]) -> NDArray[Any]:
    dtype = get_numpy_dtype(tensor.dtype)
    if array.dtype != dtype:
        with np.errstate(all="ignore"):
            converted = array.astype(dtype)
        if "float" in tensor.dtype:
            is_lost = bool((np.isfinite(array) != np.isfinite(converted.astype(np.float64))).any())
        else:
            is_lost = bool((converted != array).any())
        if is_lost:
            raise ConfigError(f"{tensor}, got values of {array.dtype.name} beyond it")
        array = converted
    if array.ndim == 1 and len(tensor.shape) > 1 and tensor.num_unknown <= 1:
        try:
            return array.reshape(tensor.find_shape(array.nbytes))
        except FormatError:
            pass  # the error about the original shape says more
    return array


def _read_types(metadata: Mapping[bytes, bytes]) -> dict[str, TensorType]:
    """Returns the types that `tfpipe export` stored in the metadata. Invalid ones count as missing."""
    types: dict[str, TensorType] = {}
    for name, text in read_metadata(metadata, METADATA, "tensors").items():
        with contextlib.suppress(ConfigError):
            types[name] = TensorType.parse(text)
    return types


def _read_features(metadata: Mapping[bytes, bytes]) -> dict[str, TensorType]:
    """Returns the types of the arrays that Hugging Face's `datasets` declares. Invalid ones count as missing."""
    types: dict[str, TensorType] = {}
    for name, feature in read_metadata(metadata, b"huggingface", "info", "features").items():
        if isinstance(feature, dict) and str(feature.get("_type")) in {f"Array{k}D" for k in range(2, 6)}:
            with contextlib.suppress(ConfigError, LookupError, TypeError):
                types[name] = TensorType(feature["dtype"], _open_first_axes(tuple(feature["shape"])))
    return types


def read_metadata(metadata: Mapping[bytes, bytes], key: bytes, *path: str) -> dict[str, Any]:
    """Returns a JSON object in the metadata of a file. Invalid JSON counts as an empty object."""
    data = metadata.get(key, b"")
    try:
        value = json.loads(data) if len(data) <= _MAX_METADATA_BYTES else {}
        for name in path:
            value = value[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def is_number(kind: Any) -> bool:
    """Tests whether an Arrow type is that of numbers or truth values."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_list(kind: Any) -> bool:
    """Tests whether an Arrow type is that of lists, of any length or of a fixed one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_binary(kind: Any) -> bool:
    """Tests whether an Arrow type is that of bytes, of any length or of a fixed one."""
    return str(kind).startswith(("binary", "large_binary", "fixed_size_binary"))


def _split_type(kind: Any) -> tuple[list[int | None], Any]:
    """Returns the axis sizes of a type of nested lists (None if the type gives none), and the type of the values."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return list(kind.shape), kind.value_type
    axes: list[int | None] = []
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    while is_list(kind):
        axes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return axes, kind


def _get_dtype(kind: Any) -> str:
    name = str(_split_type(kind)[1])
    return _FLOATS.get(name, name)
