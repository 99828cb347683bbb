"""Features as values that JSON and a table hold."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.export.samples import Sample
from tfpipe.format import schema as keys
from tfpipe.format.schema import FeatureSpec


def to_json(spec: FeatureSpec, feature: Any) -> Any:
    """Returns a feature as a JSON value: one value, a list, or nested lists of a tensor; None if a record has none.

    A float has the fewest digits that give the same float32. Bytes that are not UTF-8 become `{"base64": "..."}`.
    """
    if spec.kind == "text" or feature is None:
        return feature if feature is not None or spec.shape == () else []
    if spec.kind == "tensor":
        return _list_numbers(feature)
    values = _list_values(feature)
    if spec.shape != ():
        return values
    return values[0] if len(values) == 1 else values or None


def make_json_row(columns: Sequence[FeatureSpec], sample: Sample) -> dict[str, Any]:
    """Returns the features of a sample but its tensors and masks as JSON values, by their names in the record."""
    return {
        spec.name: to_json(spec, sample.features.get(spec.name)) for spec in columns if spec.kind in ("values", "text")
    }


def name_table_columns(columns: Sequence[FeatureSpec], image: str) -> dict[str, FeatureSpec]:
    """Returns the features that a row of a table holds, by the names of its columns.

    Boxes have the names that `tfpipe shard` reads. Further columns must not begin with `image/` there, so they lose
    this. What the writing job finds out anew is left out.
    """
    named: dict[str, FeatureSpec] = {}
    reserved = {"image", image, "label", "split", "mask", *keys.BOX_COLUMNS.values()}
    for spec in columns:
        if spec.name in keys.DERIVED or spec.kind == "mask":  # a mask is a file of its own
            continue
        name = keys.BOX_COLUMNS.get(spec.name)
        if name is None:
            name = spec.name.removeprefix("image/") or spec.name
            while name in reserved or name in named:
                name += "_"
        named[name] = spec
    return named


def make_table_row(columns: Mapping[str, FeatureSpec], label_names: Sequence[str], sample: Sample) -> dict[str, Any]:
    """Returns a row for `tfpipe shard`, without the columns `image` and `split`."""
    row: dict[str, Any] = {}
    if sample.label is not None:
        # A name that is a number would be read as the number of a class.
        named = 0 <= sample.label < len(label_names) and not all(name.isdecimal() for name in label_names)
        row["label"] = label_names[sample.label] if named else sample.label
    return row | {name: to_json(spec, sample.features.get(spec.name)) for name, spec in columns.items()}


def _list_values(feature: Any) -> list[Any]:
    return [_to_text(value) for value in feature] if isinstance(feature, list) else list(_list_numbers(feature))


def _list_numbers(array: NDArray[Any]) -> Any:
    if array.dtype.kind == "f":
        return array.astype(str).astype(np.float64).tolist()  # 0.1, not 0.10000000149011612
    return array.tolist()


def _to_text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
