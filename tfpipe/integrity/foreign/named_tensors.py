"""The tensors that the user of `tfpipe index` names: `NAME=DTYPE[SHAPE]`, with sizes from several places."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.format.example import Feature
from tfpipe.format.json_reader import Node, parse_json
from tfpipe.format.schema import DType, FeatureSpec
from tfpipe.format.tensors.tensor_type import Encoding, TensorType
from tfpipe.storage import file_io

SIZES_FILE = "statistics.json"
"""The file beside the records that is asked for sizes by default, as Basenji, Borzoi and Enformer write it."""

_TEXT = re.compile(r"(?P<name>.+)=\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\[\]]*)\]\s*")
_MAX_BYTES = 2**26
_MAX_SIZE = 2**31 - 1
_MAX_SHOWN = 12


def name_features(features: Mapping[str, Feature]) -> str:
    """Names the features of the first record, for a message."""
    names = sorted(features)
    more = f" and {len(names) - _MAX_SHOWN:,} more" if len(names) > _MAX_SHOWN else ""
    return f"the first record has {', '.join(map(repr, names[:_MAX_SHOWN])) or 'no feature'}{more}"


def lacks_values(texts: Sequence[str], features: Mapping[str, Feature]) -> bool:
    """Returns whether one of the tensors that `texts` name has no value among these features."""
    names = (match["name"] for match in map(_TEXT.fullmatch, texts) if match is not None)
    return any(value is None or not len(value) for value in map(features.get, names))


def find_tensors(
    texts: Sequence[str], first: Mapping[str, Feature], widths: Mapping[str, int], sizes_file: str
) -> tuple[FeatureSpec, ...]:
    """Finds the types of the tensors that `texts` name, by the first record, its lists of steps, and a JSON file."""

    @cache
    def read_sizes() -> Node:
        try:
            return parse_json(file_io.read_bytes(sizes_file, _MAX_BYTES).decode(), sizes_file)
        except (FileNotFoundError, UnicodeDecodeError):
            raise ConfigError(
                f"There is no JSON text in {sizes_file}, in which names of sizes are looked up. Name the file with "
                "`sizes`, or the feature that holds the shape."
            ) from None

    specs: dict[str, FeatureSpec] = {}
    for text in texts:
        match = _TEXT.fullmatch(text)
        if match is None or match["name"] in specs:
            raise ConfigError(
                f"`tensors` must name each feature once, as in elevation=float32[64,64], image/encoded=uint8"
                f"[image/shape] or rgb=uint8[?,1024], got {text!r}."
            )
        name, value = match["name"], first.get(match["name"])
        if value is None:
            raise ConfigError(f"`tensors` must name features with values; {name_features(first)}, got {name!r}.")
        dtype: DType = "bytes"
        if isinstance(value, np.ndarray):
            dtype = "float" if value.dtype.kind == "f" else "int64"
        is_raw = isinstance(value, list) and len(value) == 1 and name not in widths
        sizes = [size.strip() for size in match["shape"].split(",")] if match["shape"].strip() else []
        encoding: Encoding = "raw" if is_raw else "list"
        try:
            if len(sizes) == 1 and sizes[0] in first:
                tensor = _type_by_feature(match["dtype"], sizes[0], first[sizes[0]], encoding)
            else:
                shape = tuple(None if size == "?" else _find_size(size, read_sizes) for size in sizes)
                if shape.count(None) > 1:
                    raise ConfigError("it has one ? at most. Name the feature that holds the shape in place of sizes.")
                tensor = TensorType(match["dtype"], shape, encoding)  # type: ignore[arg-type]  # which checks it
            specs[name] = FeatureSpec.make_tensor(name, tensor, dtype=dtype)
        except ConfigError as error:
            raise ConfigError(f"`tensors` {text}: {error}") from None
    return tuple(specs.values())


def _type_by_feature(dtype: str, name: str, value: Feature, encoding: Encoding) -> TensorType:
    """Returns the type of tensors whose shape each record holds in the feature `name`."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int64:
        raise ConfigError(f"{name!r} must hold the size of each axis as int64.")
    return TensorType(dtype, (None,) * len(value), encoding, name if len(value) > 1 else None)  # type: ignore[arg-type]


def _find_size(text: str, read_sizes: Callable[[], Node]) -> int:
    """Returns a size that is a number, or the name of one in the JSON file."""
    if text.isascii() and text.isdecimal() and len(text) <= 10:
        return int(text)
    return read_sizes().field(text).count(1, _MAX_SIZE)
