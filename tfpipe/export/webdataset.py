"""Writes a shard as a tar of WebDataset: the files of a sample lie side by side under its number in the split.

These are `000000017.jpg` (or `.0.jpg` and so on), `.cls`, `.txt` with the first caption, `.latents.npy`, `.mask.png`,
and `.json` with all other features. `"caption": null` there lets `tfpipe shard` find the name of a feature `text`
again.
"""

import base64
import io
import json
import re
import tarfile
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.export.samples import Sample, list_columns
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import IMAGE_MASK, FeatureSpec

_CAPTION, _TEXT = "caption", "text"


def write_webdataset(file: IO[bytes], samples: Iterable[Sample], manifest: Manifest) -> None:
    """Writes a tar, whose bytes depend on the samples alone."""
    columns = list_columns(manifest)
    tensors, caption = name_tensors(columns), find_caption(columns)
    others = [spec for spec in columns if spec.kind in ("values", "text")]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            key = f"{sample.number:09d}"
            for number, (data, ending) in enumerate(sample.files):
                index = f".{number}" if manifest.has_several_images else ""
                _add(tar, f"{key}{index}.{ending}", data)
            if isinstance(mask := sample.features.get(IMAGE_MASK), bytes):
                _add(tar, f"{key}.mask.png", mask)
            if sample.record.label is not None:
                _add(tar, f"{key}.cls", str(sample.record.label).encode())
            row = {spec.name: _to_json(spec, sample.features.get(spec.name)) for spec in others}
            text = _take_caption(row, caption) if caption is not None else None
            if text is not None:
                _add(tar, f"{key}.txt", text.encode())
            _add(tar, f"{key}.json", json.dumps(row).encode())
            for name, ending in tensors.items():
                if name in sample.features:
                    buffer = io.BytesIO()
                    np.save(buffer, sample.features[name], allow_pickle=False)
                    _add(tar, f"{key}.{ending}", buffer.getvalue())


def find_caption(columns: Iterable[FeatureSpec]) -> str | None:
    """Returns the name of the feature that becomes the `.txt` files; None if there is none."""
    named = {spec.name: spec for spec in columns}
    spec = named.get(_CAPTION, named.get(_TEXT))
    return spec.name if spec is not None and _holds_text(spec) else None


def describe_captions(columns: Sequence[FeatureSpec]) -> str | None:
    """Returns a sentence on the texts that the `.txt` files do not have; None if they have all texts."""
    caption = find_caption(columns)
    first = ["all"] if any(spec.name == caption and spec.shape != () for spec in columns) else []
    texts = [spec.name for spec in columns if spec.kind == "text" or (spec.name == _TEXT and _holds_text(spec))]
    others = ", ".join([*first, *(name for name in texts if name != caption)])
    if not others:
        return None
    if caption is None:
        return f"No text is named caption or text, so there are no .txt files. In .json: {others}."
    return f"The .txt files hold the {'first ' * bool(first)}{caption} of each record. In .json: {others}."


def _holds_text(spec: FeatureSpec) -> bool:
    return spec.dtype == "bytes" and spec.kind in ("text", "values")


def _take_caption(row: dict[str, Any], name: str) -> str | None:
    """Returns the content of the `.txt` file, and removes from the JSON what `tfpipe shard` restores from that file."""
    value = row[name]
    text = value[0] if isinstance(value, list) and value else value
    if not isinstance(text, str):  # none, or bytes that are not UTF-8
        return None
    if name != _CAPTION:
        row[_CAPTION] = None
    elif value == text.removeprefix("\ufeff").rstrip("\r\n"):
        del row[name]
    return text


def name_tensors(columns: Iterable[FeatureSpec]) -> dict[str, str]:
    """Returns the ending of each tensor's file, such as `latents.npy`, with `_` for characters that it cannot have."""
    endings: dict[str, str] = {}
    for spec in columns:
        if spec.kind == "tensor":
            name = re.sub(r"[^A-Za-z0-9_-]", "_", spec.name).lower()
            while f"{name}.npy" in endings.values():
                name += "_"
            endings[spec.name] = f"{name}.npy"
    return endings


def _to_json(spec: FeatureSpec, feature: Any) -> Any:
    """Returns a feature as JSON, floats in the fewest digits, bytes that are not UTF-8 as `{"base64": "..."}`."""
    if spec.kind == "text" or feature is None:
        return feature if feature is not None or spec.shape == () else []
    values = [_to_text(value) for value in feature] if isinstance(feature, list) else _list_numbers(feature)
    if spec.shape != ():
        return values
    return values[0] if len(values) == 1 else values or None


def _list_numbers(array: NDArray[Any]) -> list[Any]:
    if array.dtype.kind == "f":
        array = array.astype(str).astype(np.float64)  # 0.1, not 0.10000000149011612
    return list(array.tolist())


def _to_text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
