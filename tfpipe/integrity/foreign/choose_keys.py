"""Chooses the features that hold the images, the class and tensors: by the user's options and the first record."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.format.example import Feature
from tfpipe.format.json_reader import parse_json
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, DType, FeatureSpec
from tfpipe.format.tensors.tensor_type import Encoding, TensorType, read_tensor_proto
from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import read_image_header
from tfpipe.integrity.foreign.metadata_files import Metadata
from tfpipe.integrity.foreign.scan_file import Keys
from tfpipe.storage import file_io

SIZES_FILE = "statistics.json"
"""The file beside the records that is asked for sizes by default, as Basenji, Borzoi and Enformer write it."""

LABEL_KEYS = (CLASS_LABEL, "label", "class", "labels", "class_id", "target", "cls")
_IMAGE_KEYS = (IMAGE_ENCODED, "image", "image_raw", "img", "jpeg", "jpg", "png")
_TENSOR = re.compile(r"(?P<name>.+)=\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\[\]]*)\]\s*")
_MAX_BYTES = 2**26
_MAX_SIZE = 2**31 - 1
_MAX_SHOWN = 12


def choose_keys(first: Mapping[str, Feature], named: Keys, metadata: Metadata) -> Keys:
    """Chooses the features of image and label: by the user's options, TFDS's metadata, usual names, or the bytes."""
    tensors = {spec.name for spec in named.tensors}
    others = {key: value for key, value in first.items() if key not in tensors}
    images = named.images or _choose_image(others, metadata)
    usual = (key for key in (*metadata.classes, *LABEL_KEYS) if _is_number(others.get(key), "i"))
    label = named.label or next(usual, None)
    for key in images:
        if not isinstance(others.get(key), list):
            raise ConfigError(f"`image_key` must name a feature with an image; {_name_features(first)}, got {key!r}.")
    if label is not None and not _is_number(others.get(label), "if"):
        raise ConfigError(
            f"`label_key` must name a feature with one int64 or float value; {_name_features(first)}, got {label!r}."
        )
    text = f"{label[: -len('label')]}text" if label is not None and label.endswith("label") else None
    return Keys(images, label, text if text in first else None, named.tensors)


def _choose_image(first: Mapping[str, Feature], metadata: Metadata) -> tuple[str, ...]:
    """Chooses the feature with the image; none of records without one."""
    likely = [key for key in (*metadata.images, *_IMAGE_KEYS) if _may_be_image(first.get(key))]
    readable = [key for key in (*likely, *sorted(first)) if _is_image(first.get(key))]
    candidates = list(dict.fromkeys(readable)) or likely
    if candidates and candidates[0] not in likely and len(candidates) > 1:
        raise ConfigError(f"Name one of several images with `image_key`: {', '.join(candidates[:_MAX_SHOWN])}.")
    return tuple(candidates[:1])


def _is_number(value: Feature, kinds: str) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds and value.size == 1


def _may_be_image(value: Feature) -> bool:
    """Returns whether a value is bytes that are neither a text, such as the name of a file, nor a tensor."""
    if not isinstance(value, list) or not value or read_tensor_proto(value[0]) is not None:
        return False
    return not value[0].decode("utf-8", "replace").replace("\ufffd", "\0").isprintable()


def _is_image(value: Feature) -> bool:
    if not isinstance(value, list) or not value:
        return False
    try:
        read_image_header(value[0])
    except BadImage:
        return False
    return True


def has_values(value: Feature) -> bool:
    """Returns whether a feature has a value."""
    return value is not None and len(value) > 0


def lacks_values(texts: Sequence[str], features: Mapping[str, Feature]) -> bool:
    """Returns whether one of the tensors that `texts` name has no value among these features."""
    names = (match["name"] for match in map(_TENSOR.fullmatch, texts) if match is not None)
    return not all(map(has_values, map(features.get, names)))


def find_tensors(
    texts: Sequence[str], first: Mapping[str, Feature], widths: Mapping[str, int], sizes_file: str
) -> tuple[FeatureSpec, ...]:
    """Finds the types of the tensors that `texts` name, by the first record, its lists of steps, and a JSON file."""
    specs: dict[str, FeatureSpec] = {}
    for text in texts:
        match = _TENSOR.fullmatch(text)
        if match is None or match["name"] in specs:
            raise ConfigError(
                f"`tensors` must name each feature once, as in elevation=float32[64,64], image/encoded=uint8"
                f"[image/shape] or rgb=uint8[?,1024], got {text!r}."
            )
        name, value = match["name"], first.get(match["name"])
        if value is None:
            raise ConfigError(f"`tensors` must name features with values; {_name_features(first)}, got {name!r}.")
        dtype: DType = "bytes" if isinstance(value, list) else "float" if value.dtype.kind == "f" else "int64"
        encoding: Encoding = "raw" if isinstance(value, list) and len(value) == 1 and name not in widths else "list"
        try:
            tensor = _find_type(match["dtype"], match["shape"], encoding, first, sizes_file)
            specs[name] = FeatureSpec.make_tensor(name, tensor, dtype=dtype)
        except ConfigError as error:
            raise ConfigError(f"`tensors` {text}: {error}") from None
    return tuple(specs.values())


def _find_type(dtype: str, text: str, encoding: Encoding, first: Mapping[str, Feature], sizes_file: str) -> TensorType:
    """Returns the type of a tensor whose shape is a list of sizes, or the name of the feature that holds them."""
    sizes = [size.strip() for size in text.split(",")] if text.strip() else []
    key = None
    if len(sizes) == 1 and sizes[0] in first:
        held = first[sizes[0]]
        if not isinstance(held, np.ndarray) or held.dtype != np.int64:
            raise ConfigError(f"{sizes[0]!r} must hold the size of each axis as int64.")
        shape: tuple[int | None, ...] = (None,) * len(held)
        key = sizes[0] if len(held) > 1 else None
    else:
        shape = tuple(_find_size(size, sizes_file) for size in sizes)
        if shape.count(None) > 1:
            raise ConfigError("it has one ? at most. Name the feature that holds the shape in place of sizes.")
    return TensorType(dtype, shape, encoding, key)  # type: ignore[arg-type]  # it checks the dtype


def _find_size(text: str, sizes_file: str) -> int | None:
    """Returns a size that is a number, or the name of one in the JSON file; None for `?`."""
    if text == "?":
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 10:
        return int(text)
    try:
        sizes = parse_json(file_io.read_bytes(sizes_file, _MAX_BYTES).decode(), sizes_file)
    except (FileNotFoundError, UnicodeDecodeError):
        raise ConfigError(
            f"There is no JSON text in {sizes_file}, in which names of sizes are looked up. Name the file with "
            "`sizes`, or the feature that holds the shape."
        ) from None
    return sizes.field(text).count(1, _MAX_SIZE)


def _name_features(features: Mapping[str, Feature]) -> str:
    """Names the features of the first record, for a message."""
    names = sorted(features)
    more = f" and {len(names) - _MAX_SHOWN:,} more" if len(names) > _MAX_SHOWN else ""
    return f"the first record has {', '.join(map(repr, names[:_MAX_SHOWN])) or 'no feature'}{more}"
