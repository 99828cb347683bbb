"""Writes a shard as a Parquet file in the layout of Hugging Face's `datasets`, which the file's metadata describes.

`image` is a struct of `bytes` and `path`, several images are a list of these in `images`, and `label` counts from 0.
"""

import json
from collections.abc import Iterable, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.export.samples import Sample, list_columns
from tfpipe.format import schema as keys
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import FeatureSpec
from tfpipe.system.units import human_text

# A reader unpacks a whole group for one row of it, so a group is small.
_GROUP_ROWS = 100
_GROUP_BYTES = 32 << 20
_TEXTS = frozenset((keys.IMAGE_FORMAT, keys.IMAGE_COLORSPACE, keys.IMAGE_FILENAME, keys.IMAGE_SHA256, keys.CLASS_TEXT))


def write_parquet(file: IO[bytes], samples: Iterable[Sample], manifest: Manifest) -> None:
    """Writes a Parquet file with a row group for each hundred rows or 32 MiB of images."""
    import pyarrow.parquet

    columns: dict[str, FeatureSpec] = {}
    reserved = {"image", "label", *(["images"] if manifest.has_several_images else [])}
    for spec in list_columns(manifest):
        name = spec.name
        while name in reserved or name in columns:  # a name that the layout uses itself
            name += "_"
        columns[name] = spec
    schema = _make_schema(columns, manifest)
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        rows: list[dict[str, Any]] = []
        num_bytes = 0
        for sample in samples:
            rows.append(_make_row(columns, sample))
            num_bytes += sum(len(data) for data, _ in sample.files)
            if len(rows) == _GROUP_ROWS or num_bytes >= _GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                rows, num_bytes = [], 0
        if rows:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))


def _make_schema(columns: Mapping[str, FeatureSpec], manifest: Manifest) -> Any:
    import pyarrow

    fields: list[Any] = []
    features: dict[str, Any] = {}
    image = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    if manifest.has_several_images:
        fields.append(pyarrow.field("images", pyarrow.list_(image)))
        features["images"] = [{"_type": "Image"}]
    elif manifest.image_key is not None:
        fields.append(pyarrow.field("image", image))
        features["image"] = {"_type": "Image"}
    if manifest.label_key is not None:
        fields.append(pyarrow.field("label", pyarrow.int64()))
        if manifest.label_names:
            features["label"] = {"_type": "ClassLabel", "names": list(manifest.label_names)}
    for name, spec in columns.items():
        fields.append(pyarrow.field(name, _get_type(spec)))
        if spec.kind == "mask":
            features[name] = {"_type": "Image"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    tensors = {name: str(spec.tensor) for name, spec in columns.items() if spec.tensor is not None}
    if tensors:  # the type of a column says neither all sizes nor bfloat16
        metadata["tfpipe"] = json.dumps({"tensors": tensors})
    return pyarrow.schema(fields, metadata)


def _get_type(spec: FeatureSpec) -> Any:
    """Returns the type of a column; a tensor becomes nested lists, because its sizes may differ between records."""
    import pyarrow

    if spec.tensor is not None:
        kind = pyarrow.from_numpy_dtype("float32" if spec.tensor.dtype == "bfloat16" else spec.tensor.dtype)
        for _ in spec.tensor.shape:
            kind = pyarrow.list_(kind)
        return kind
    if spec.kind == "mask":
        return pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    kinds = {"bytes": pyarrow.binary(), "int64": pyarrow.int64(), "float": pyarrow.float32()}
    kind = pyarrow.string() if spec.kind == "text" or spec.name in _TEXTS else kinds[spec.dtype]
    return kind if spec.shape == () else pyarrow.list_(kind)


def _list_numbers(array: NDArray[Any]) -> Any:
    """Returns an array as nested lists. Arrow before release 21 takes float16 as NumPy's numbers only."""
    if array.dtype != np.float16:
        return array.tolist()
    return [_list_numbers(row) for row in array] if array.ndim > 1 else list(array) if array.ndim else array[()]


def _make_row(columns: Mapping[str, FeatureSpec], sample: Sample) -> dict[str, Any]:
    path = human_text(sample.record.name.rpartition("/")[2]) or None
    images = [{"bytes": data, "path": path} for data, _ in sample.files]
    row: dict[str, Any] = {"image": images[0] if images else None, "images": images, "label": sample.record.label}
    return row | {name: _make_cell(spec, sample.features.get(spec.name)) for name, spec in columns.items()}


def _make_cell(spec: FeatureSpec, feature: Any) -> Any:
    if spec.kind == "mask":
        return {"bytes": feature, "path": None}
    if spec.kind != "values":
        return _list_numbers(feature) if spec.tensor is not None and feature is not None else feature
    values: list[Any] = [] if feature is None else list(feature)
    if spec.name in _TEXTS:
        values = [human_text(value) for value in values]
    if spec.shape != ():
        return values
    return values[0] if len(values) == 1 else None
