"""The names, kinds and shapes of features. One `Schema` drives the encoder here and the parser of every reader."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.format.example import FeatureLike, encode_example
from tfpipe.format.json_reader import Node

IMAGE_ENCODED = "image/encoded"
IMAGE_FORMAT = "image/format"
IMAGE_HEIGHT = "image/height"
IMAGE_WIDTH = "image/width"
IMAGE_CHANNELS = "image/channels"
IMAGE_COLORSPACE = "image/colorspace"
IMAGE_FILENAME = "image/filename"
IMAGE_SHA256 = "image/sha256"
CLASS_LABEL = "image/class/label"
CLASS_TEXT = "image/class/text"
BBOX_XMIN = "image/object/bbox/xmin"
BBOX_XMAX = "image/object/bbox/xmax"
BBOX_YMIN = "image/object/bbox/ymin"
BBOX_YMAX = "image/object/bbox/ymax"
BBOX_LABEL = "image/object/class/label"

DType: TypeAlias = Literal["bytes", "int64", "float"]
_DTYPES: dict[str, DType] = {dtype: dtype for dtype in get_args(DType)}
_MAX_DIMENSIONS = 8
_MAX_DIMENSION = 2**31 - 1

# Scalars of these exact types go to the encoder unchanged. A lookup by type is the fast way through `Schema.encode`.
_SCALARS: dict[DType, frozenset[type]] = {
    "bytes": frozenset({bytes, str}),
    "int64": frozenset({int, bool}),
    "float": frozenset({float}),
}
_KINDS: dict[DType, tuple[type, ...]] = {
    "bytes": (bytes, str),
    "int64": (int, np.integer, np.bool_),
    "float": (float, int, np.floating, np.integer),  # a whole number is a valid float; a float is not a valid int64
}
_ARRAY_KINDS: dict[DType, str] = {"bytes": "", "int64": "iub", "float": "fiu"}
_EMPTY: dict[DType, FeatureLike] = {
    "bytes": [],
    "int64": np.empty(0, np.int64),
    "float": np.empty(0, np.float32),
}


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A feature that every record has.

    Attributes:
        name: The key in the Example. Readers that nest features nest them at `/`.
        dtype: The kind of the values. `float` is float32 on disk.
        shape: The shape: `()` for one value, `(n,)` for exactly n values, None for a list of any length, 0 included.
        doc: The meaning of the values, for people.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    doc: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ConfigError(f"A feature's name must be printable text, got {self.name!r}.")
        if self.dtype not in _DTYPES:
            raise ConfigError(f"Feature {self.name!r}: dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}.")
        if self.shape is not None and (
            len(self.shape) > _MAX_DIMENSIONS
            or not all(type(n) is int and 1 <= n <= _MAX_DIMENSION for n in self.shape)
        ):
            raise ConfigError(f"Feature {self.name!r}: every dimension must be at least 1, got {self.shape}.")

    def check(self, value: Any) -> FeatureLike:
        """Returns `value` in a form that `encode_example` writes with this dtype.

        Raises:
            ConfigError: The kind or the number of values does not fit this feature.
        """
        if self.shape == ():
            scalar: FeatureLike = self._check_scalar(value)
            return scalar
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in _ARRAY_KINDS[self.dtype]:
                raise ConfigError(f"Feature {self.name!r} must be {self.dtype}, got an array of {value.dtype}.")
            if value.ndim != 1 and value.shape != self.shape:
                raise self._wrong_shape(f"an array of shape {value.shape}")
            count = value.size
            value = value.astype(np.float32) if self.dtype == "float" and value.dtype.kind != "f" else value
        elif isinstance(value, list | tuple):
            kinds = _KINDS[self.dtype]
            for element in value:
                if not isinstance(element, kinds):
                    raise self._wrong_kind(element)
            count = len(value)
            value = [self._float(element) for element in value] if self.dtype == "float" else value
        else:
            raise self._wrong_shape(f"a {type(value).__name__}")
        if self.shape is not None and count != prod(self.shape):
            raise self._wrong_shape(f"{count} values")
        return value if count else _EMPTY[self.dtype]

    def _check_scalar(self, value: Any) -> Any:
        if not isinstance(value, _KINDS[self.dtype]):
            raise self._wrong_kind(value)
        return self._float(value) if self.dtype == "float" else value

    def _float(self, value: Any) -> float:
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"Feature {self.name!r} must be float, got a whole number beyond it.") from None

    def _wrong_kind(self, value: object) -> ConfigError:
        what = "one value" if self.shape == () else "values"
        return ConfigError(f"Feature {self.name!r} must be {what} of {self.dtype}, got a {type(value).__name__}.")

    def _wrong_shape(self, got: str) -> ConfigError:
        must = "a list" if self.shape is None else f"{prod(self.shape)} values"
        return ConfigError(f"Feature {self.name!r} must be {must}, got {got}.")


@dataclass(frozen=True)
class Schema:
    """The features of every record of a dataset.

    Attributes:
        features: The features in the order in which they are shown.
    """

    features: tuple[FeatureSpec, ...]
    _by_name: dict[str, FeatureSpec] = field(init=False, repr=False, compare=False)
    _scalars: dict[str, frozenset[type]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {spec.name: spec for spec in self.features}
        if len(by_name) != len(self.features):
            twice = Counter(spec.name for spec in self.features).most_common(1)[0][0]
            raise ConfigError(f"A schema must name each feature once, got {twice!r} twice.")
        object.__setattr__(self, "_by_name", by_name)
        scalars = {s.name: _SCALARS[s.dtype] if s.shape == () else frozenset() for s in self.features}
        object.__setattr__(self, "_scalars", scalars)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(self._by_name)

    def __getitem__(self, name: str) -> FeatureSpec:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Encodes one record.

        Args:
            values: A value for every feature, and for no other key. A feature whose shape is not `()` takes lists and
                NumPy arrays. A float feature takes whole numbers too.

        Returns:
            The serialized `tf.train.Example`.

        Raises:
            ConfigError: A feature is missing or unknown, or the kind or the number of its values does not fit.
        """
        if values.keys() != self._by_name.keys():
            missing = ", ".join(map(repr, self._by_name.keys() - values.keys()))
            unknown = ", ".join(map(repr, values.keys() - self._by_name.keys()))
            raise ConfigError(
                "A record must have exactly the schema's features: "
                + "; ".join(filter(None, [missing and f"{missing} missing", unknown and f"{unknown} unknown"]))
                + "."
            )
        checked: dict[str, FeatureLike] = {}
        for name, scalars in self._scalars.items():
            value = values[name]
            checked[name] = value if type(value) in scalars else self._by_name[name].check(value)
        return encode_example(checked)

    def to_json(self) -> dict[str, object]:
        """Returns the schema as JSON values."""
        return {
            "features": [
                {
                    "name": spec.name,
                    "dtype": spec.dtype,
                    "shape": None if spec.shape is None else list(spec.shape),
                    "doc": spec.doc,
                }
                for spec in self.features
            ]
        }

    @classmethod
    def from_json(cls, obj: object) -> "Schema":
        """Inverts `to_json`, from a JSON value or its `Node`. Raises `FormatError` for any other value."""
        node = obj if isinstance(obj, Node) else Node(obj, "schema")
        features = node.field("features")
        specs = tuple(_spec_from_json(spec) for spec in features.elements())
        try:
            return cls(specs)
        except ConfigError as error:
            raise features.refuse(error) from None


def _spec_from_json(node: Node) -> FeatureSpec:
    shape = node.field("shape")
    dimensions = None
    if shape.value is not None:
        dimensions = tuple(n.count(1, _MAX_DIMENSION) for n in shape.elements())
    dtype = node.field("dtype")
    if dtype.text() not in _DTYPES:
        raise dtype.error(f"one of {', '.join(_DTYPES)}")
    try:
        return FeatureSpec(node.field("name").text(), _DTYPES[dtype.text()], dimensions, node.field("doc").text())
    except ConfigError as error:
        raise node.refuse(error) from None


def image_schema(*, labeled: bool, boxes: bool, box_labels: bool, extra: Sequence[FeatureSpec] = ()) -> Schema:
    """Returns the schema of a dataset of images.

    Args:
        labeled: Whether every image has one class.
        boxes: Whether every image has a list of boxes, which may be empty.
        box_labels: Whether every box has a class. This needs `boxes`.
        extra: The user's own columns, which come after the others.

    Raises:
        ConfigError: The name of an extra column belongs to the format, cannot nest beside the others, or occurs twice;
            or `box_labels` comes without `boxes`.
    """
    if box_labels and not boxes:
        raise ConfigError("Box labels need boxes: set `boxes` too.")
    features = list(_IMAGE)
    if labeled:
        features += _CLASS
    if boxes:
        features += _BOXES
    if box_labels:
        features.append(FeatureSpec(BBOX_LABEL, "int64", None, "class of each box, counted from 0"))
    _check_extra(extra)
    return Schema((*features, *extra))


def _check_extra(extra: Sequence[FeatureSpec]) -> None:
    names = [spec.name for spec in extra]
    for name in names:
        if name == "image" or name.startswith("image/"):
            raise ConfigError(f"An extra column must not be named 'image' or begin with 'image/', got {name!r}.")
        if "" in name.split("/"):
            raise ConfigError(f"An extra column's name must have text on both sides of each '/', got {name!r}.")
        # A reader that nests by '/' cannot hold a value and a group of values under one name.
        inner = next((other for other in names if other.startswith(name + "/")), None)
        if inner:
            raise ConfigError(f"Extra columns {name!r} and {inner!r} cannot both be: one would lie inside the other.")


_IMAGE = (
    FeatureSpec(IMAGE_ENCODED, "bytes", (), "the image file, or raw uint8 pixels [square, square, 3]"),
    FeatureSpec(IMAGE_FORMAT, "bytes", (), "JPEG, PNG or RAW"),
    FeatureSpec(IMAGE_HEIGHT, "int64", (), "pixels"),
    FeatureSpec(IMAGE_WIDTH, "int64", (), "pixels"),
    FeatureSpec(IMAGE_CHANNELS, "int64", (), "channels as stored"),
    FeatureSpec(IMAGE_COLORSPACE, "bytes", (), "RGB or grayscale, as stored"),
    FeatureSpec(IMAGE_FILENAME, "bytes", (), "where the image came from"),
    FeatureSpec(IMAGE_SHA256, "bytes", (), "SHA-256 of the source file, lower-case hexadecimal"),
)
_CLASS = (
    FeatureSpec(CLASS_LABEL, "int64", (), "class, counted from 0"),
    FeatureSpec(CLASS_TEXT, "bytes", (), "name of the class"),
)
_BOXES = tuple(
    FeatureSpec(name, "float", None, f"{side} of each box, as a fraction of the image's {extent}")
    for name, side, extent in (
        (BBOX_XMIN, "left side", "width"),
        (BBOX_XMAX, "right side", "width"),
        (BBOX_YMIN, "top", "height"),
        (BBOX_YMAX, "bottom", "height"),
    )
)
