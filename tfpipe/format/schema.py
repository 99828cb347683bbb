"""The names, kinds and shapes of features. One `Schema` drives the encoder here and the parser of every reader."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import Feature, FeatureLike
from tfpipe.format.json_reader import to_json
from tfpipe.format.tensors.tensor_type import SIZE, TensorType, get_numpy_dtype

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
BBOX_TEXT = "image/object/class/text"
IMAGE_MASK = "image/mask"
_NAME_KEYS = (IMAGE_FILENAME, "file_name", "filename")  # those of this format, of TFDS and of others

BOX_COLUMNS = {BBOX_XMIN: "xmin", BBOX_YMIN: "ymin", BBOX_XMAX: "xmax", BBOX_YMAX: "ymax", BBOX_LABEL: "box_label"}
"""The columns of a table for the features of boxes."""
DERIVED = frozenset((IMAGE_FORMAT, IMAGE_HEIGHT, IMAGE_WIDTH, IMAGE_CHANNELS, IMAGE_COLORSPACE))
DERIVED |= {IMAGE_FILENAME, IMAGE_SHA256, CLASS_LABEL, CLASS_TEXT}
"""The features that a job computes anew when it writes records."""

DType: TypeAlias = Literal["bytes", "int64", "float"]
Kind: TypeAlias = Literal["values", "text", "tensor", "mask"]
"""The meaning of a feature's stored values."""
RESERVED = ("image", "label", "mask", "height", "width", "seed", "encoded", "crop", "flip", "number")
"""The names that the input pipeline gives to entries of a batch, so that no other feature of a batch can have them."""

_BEYOND = 2.0**128 - 2.0**103  # the first number that float32 rounds to infinity
_MAX_DIMENSIONS = 8
_MAX_DIMENSION = 2**31 - 1

# Scalars of these exact types go to the encoder unchanged. A lookup by type is the fast way through `Schema.check`.
_SCALARS: dict[DType, frozenset[type]] = {
    "bytes": frozenset({bytes, str}),
    "int64": frozenset({int, bool}),
    "float": frozenset(),  # which may be beyond float32
}
_KINDS: dict[DType, tuple[type, ...]] = {
    "bytes": (bytes, str),
    "int64": (int, np.integer, np.bool_),
    "float": (float, int, np.floating, np.integer),  # a whole number is a valid float; a float is not a valid int64
}
_LIST_DTYPES = {"int64": "int64", "float": "float32"}
_ARRAY_KINDS: dict[DType, str] = {"bytes": "", "int64": "iub", "float": "fiu"}
_EMPTY: dict[DType, FeatureLike] = {"bytes": [], "int64": np.empty(0, np.int64), "float": np.empty(0, np.float32)}


@dataclass(frozen=True)
class FeatureSpec:
    """A feature that every record has."""

    name: str  # the key in the Example. Readers that nest features nest them at `/`
    dtype: DType  # `float` is float32 on disk
    shape: tuple[Annotated[int, SIZE], ...] | None  # `()` for one value, `(n,)` for n, None for any number, also 0
    doc: str = ""  # the meaning of the values, for people
    kind: Kind = "values"  # "text" is UTF-8, "mask" a PNG with the class of each pixel
    tensor: TensorType | None = None  # of the kind "tensor"
    names: tuple[str, ...] = ()  # the class names, if the values are classes; empty for the class of an image
    optional = ("kind", "tensor", "names")  # left out of the JSON if default, so that other manifests keep their bytes

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ConfigError(f"A feature's name must be printable text, got {self.name!r}.")
        if (fault := self._find_fault()) is not None:
            raise ConfigError(f"Feature {self.name!r}: {fault}")

    def _find_fault(self) -> str | None:
        """Returns a sentence about an invalid field, or fields that contradict each other; None if there are none."""
        if self.dtype not in get_args(DType):
            return f"dtype must be one of {', '.join(get_args(DType))}, got {self.dtype!r}."
        if self.shape is not None and (
            len(self.shape) > _MAX_DIMENSIONS
            or not all(type(n) is int and 1 <= n <= _MAX_DIMENSION for n in self.shape)
        ):
            return f"every dimension must be at least 1, got {self.shape}."
        if (self.kind == "tensor") != (self.tensor is not None):
            return f"`tensor` belongs to the kind tensor, got {self.kind!r}."
        tensor = self.tensor
        is_list = tensor is not None and tensor.encoding == "list"
        if self.kind != "values" and self.dtype != "bytes" and not is_list:
            return f"{self.kind} is stored as bytes, got {self.dtype!r}."
        if self.kind == "mask" and self.shape != ():
            return f"a mask is one value, got the shape {self.shape}."
        if tensor is not None and is_list and tensor.dtype != _LIST_DTYPES.get(self.dtype, tensor.dtype):
            return f"a list of {self.dtype} holds {_LIST_DTYPES[self.dtype]}, got {tensor.dtype}."
        is_stored_so = tensor is None or self.shape == _get_stored_shape(tensor, self.dtype)
        if tensor is not None and not (is_stored_so and tensor.needs_sizes == bool(tensor.sizes)):
            return (
                "a tensor is one value, or a list of its shape, and with two unknown axes or more it names the feature "
                "of their `sizes`."
            )
        if self.names and (self.dtype, self.kind) != ("int64", "values"):
            return f"`names` belong to values of int64, got {self.kind} {self.dtype}."
        if len(self._numbers) < len(self.names):
            twice = Counter(self.names).most_common(1)[0][0]
            return f"the names of classes must be different, got {twice!r} twice."
        return None

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @classmethod
    def make_tensor(cls, name: str, tensor: TensorType, doc: str = "", dtype: DType = "bytes") -> "FeatureSpec":
        """Makes the feature that stores a tensor as values of this dtype."""
        return cls(name, dtype, _get_stored_shape(tensor, dtype), doc, "tensor", tensor)

    @classmethod
    def make_text(cls, name: str, doc: str = "") -> "FeatureSpec":
        """Makes the feature that holds one text."""
        return cls(name, "bytes", (), doc, "text")

    def decode(self, features: Mapping[str, Feature]) -> Any:
        """Returns the value of this feature in a decoded record; None if the record lacks it.

        A tensor becomes a read-only array, text a str or a list of str, and a mask the bytes of its PNG. Other values
        stay as stored.
        """
        value = self.check_stored(features)
        return value if self.tensor is None else value.view(get_numpy_dtype(self.tensor.dtype))

    def check_stored(self, features: Mapping[str, Feature]) -> Any:
        """Returns what `decode` returns, but bfloat16 as its bits in uint16; raises the same `FormatError`."""
        value = features.get(self.name)
        if self.kind == "values":
            return value
        try:
            if self.tensor is not None and self.tensor.encoding == "list":
                if value is None or not len(value):  # a record without values has an empty tensor
                    value = [] if self.dtype == "bytes" else np.empty(0, self.tensor.bits)
                if isinstance(value, list) != (self.dtype == "bytes"):
                    raise FormatError(f"a list of {self.dtype}")
                return self.tensor.read_list(value, get_sizes(self.tensor, features))
            if not isinstance(value, list) or (self.shape == () and len(value) != 1):
                raise FormatError(f"{'one value' if self.shape == () else 'a list'} of bytes")
            if self.kind == "mask":
                return value[0]
            if self.tensor is not None:
                return self.tensor.read_bits(value[0], get_sizes(self.tensor, features))
            texts = [text.decode() for text in value]
        except UnicodeDecodeError as error:
            raise FormatError(f"Feature {self.name!r} must be UTF-8 text, got {_describe_bytes(error)}.") from None
        except FormatError as error:
            raise FormatError(f"Feature {self.name!r} must be {error}.") from None
        return texts[0] if self.shape == () else texts

    def check(self, value: Any) -> FeatureLike:
        """Returns `value` in a form that `encode_example` writes with this dtype."""
        if self.tensor is not None:
            return self._check_tensor(value)
        if self.names:
            return self._check_classes(value)
        if self.shape == ():
            self._check_kind(value)
            scalar: FeatureLike = self._float(value) if self.dtype == "float" else value
            return scalar
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in _ARRAY_KINDS[self.dtype]:
                raise ConfigError(f"Feature {self.name!r} must be {self.dtype}, got an array of {value.dtype}.")
            if value.ndim != 1 and value.shape != self.shape:
                raise self._wrong_shape(f"an array of shape {value.shape}")
            count = value.size
            value = value.astype(np.float32) if self.dtype == "float" and value.dtype.kind != "f" else value
            for number in value[np.abs(value) >= _BEYOND] if value.dtype.kind == "f" and value.itemsize > 4 else ():
                self._float(number)
        elif isinstance(value, list | tuple):
            for element in value:
                self._check_kind(element)
            count = len(value)
            value = [self._float(element) for element in value] if self.dtype == "float" else value
        else:
            raise self._wrong_shape(f"a {type(value).__name__}")
        if self.shape is not None and count != prod(self.shape):
            raise self._wrong_shape(f"{count} values")
        return value if count else _EMPTY[self.dtype]

    def _check_classes(self, value: Any) -> FeatureLike:
        """Converts classes, given as numbers or as names, to their numbers."""
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise self._wrong_shape(f"a {type(value).__name__}")
        numbers = [self._find_class(element) for element in value]
        if self.shape is not None and len(numbers) != prod(self.shape):
            raise self._wrong_shape(f"{len(numbers)} values")
        return numbers or _EMPTY[self.dtype]

    def _find_class(self, value: Any) -> int:
        number = self._numbers.get(value) if isinstance(value, str) else value
        if isinstance(number, int | np.integer) and 0 <= number < len(self.names):
            return int(number)
        raise ConfigError(
            f"Feature {self.name!r} must be a list of classes from 0 to {len(self.names) - 1} or their names, got "
            f"{value!r:.80}."
        )

    def _check_kind(self, value: Any) -> None:
        if not isinstance(value, bytes if self.kind == "mask" else _KINDS[self.dtype]):
            kind, what = self.kind if self.kind == "text" else self.dtype, "one value" if self.shape == () else "values"
            raise ConfigError(f"Feature {self.name!r} must be {what} of {kind}, got a {type(value).__name__}.")
        if self.kind == "text" and isinstance(value, bytes):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                raise ConfigError(f"Feature {self.name!r} must be UTF-8 text, got {_describe_bytes(error)}.") from None

    def _check_tensor(self, value: Any) -> FeatureLike:
        assert self.tensor is not None
        try:
            if self.tensor.encoding == "raw":
                return self.tensor.to_array(value).tobytes()
            if self.tensor.encoding == "list":
                array = self.tensor.to_array(value)
                return [step.tobytes() for step in array] if self.dtype == "bytes" else array.reshape(-1)
            if not isinstance(value, bytes):  # such a tensor is copied from another program's records
                raise ConfigError(f"{self.tensor} in bytes, got a {type(value).__name__}")
            self.tensor.read_bits(value)
            return value
        except (ConfigError, FormatError) as error:
            raise ConfigError(f"Feature {self.name!r} must be {error}.") from None

    def _float(self, value: Any) -> float:
        try:
            number = float(value)
        except OverflowError:
            raise ConfigError(f"Feature {self.name!r} must be float, got a whole number beyond it.") from None
        if _BEYOND <= abs(number) < math.inf:
            raise ConfigError(f"Feature {self.name!r} must be float of 32 bits, got {number}, which is beyond it.")
        return number

    def _wrong_shape(self, got: str) -> ConfigError:
        must = "a list" if self.shape is None else f"{prod(self.shape)} values"
        return ConfigError(f"Feature {self.name!r} must be {must}, got {got}.")


@dataclass(frozen=True)
class Schema:
    """The features of every record of a dataset."""

    features: tuple[FeatureSpec, ...]

    def __post_init__(self) -> None:
        if len(self._by_name) != len(self.features):
            twice = Counter(spec.name for spec in self.features).most_common(1)[0][0]
            raise ConfigError(f"A schema must name each feature once, got {twice!r} twice.")
        for spec in self.features:
            if spec.tensor is not None and spec.tensor.sizes is not None:
                sizes, count = self._by_name.get(spec.tensor.sizes), spec.tensor.num_unknown
                if sizes is None or (sizes.dtype, sizes.shape) != ("int64", (count,)):
                    raise ConfigError(
                        f"The sizes of feature {spec.name!r} must lie in a feature of int64 with shape ({count},), got "
                        f"{spec.tensor.sizes!r}."
                    )

    @cached_property
    def _by_name(self) -> dict[str, FeatureSpec]:
        return {spec.name: spec for spec in self.features}

    @cached_property
    def _scalars(self) -> dict[str, frozenset[type]]:
        plain = [spec for spec in self.features if spec.shape == () and not spec.names]
        values = {spec.name: _SCALARS[spec.dtype] for spec in plain if spec.kind == "values"}
        return values | {spec.name: frozenset({str}) for spec in plain if spec.kind == "text"}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(self._by_name)

    def __getitem__(self, name: str) -> FeatureSpec:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def tensors(self) -> tuple[FeatureSpec, ...]:
        """The features that hold tensors."""
        return tuple(spec for spec in self.features if spec.kind == "tensor")

    @cached_property
    def masks(self) -> tuple[FeatureSpec, ...]:
        """The features that hold masks."""
        return tuple(spec for spec in self.features if spec.kind == "mask")

    @cached_property
    def class_lists(self) -> tuple[FeatureSpec, ...]:
        """The features that hold lists of classes with names."""
        return tuple(spec for spec in self.features if spec.names)

    @property
    def has_several_images(self) -> bool:
        """Whether every record has a list of images. It can be wrong for the schema of another program's records."""
        return IMAGE_ENCODED in self and self[IMAGE_ENCODED].shape != ()

    @property
    def name_key(self) -> str | None:
        """The feature that holds the path of an image's source file; None if there is none."""
        return next((key for key in _NAME_KEYS if key in self and self[key].dtype == "bytes"), None)

    @cached_property
    def sizes_keys(self) -> frozenset[str]:
        """The features that hold the unknown sizes of tensors. Writers add them, and a reader need not ask for them."""
        return frozenset(spec.tensor.sizes for spec in self.features if spec.tensor and spec.tensor.sizes)

    @property
    def further_names(self) -> list[str]:
        """The features other than the image, the class, the boxes, the mask and the sizes of tensors."""
        usual = {*IMAGE_KEYS, *class_schema().names, *BOX_COLUMNS, BBOX_TEXT, IMAGE_MASK, *self.sizes_keys}
        return [name for name in self.names if name not in usual]

    @cached_property
    def _written(self) -> frozenset[str]:
        return frozenset(self._by_name.keys() - self.sizes_keys)

    def check(self, values: Mapping[str, Any]) -> dict[str, FeatureLike]:
        """Returns the values of a record in a form that `encode_example` writes, with the sizes of tensors."""
        if values.keys() != self._written:
            expected = self._written
            missing = ", ".join(map(repr, sorted(expected - values.keys())))
            unknown = ", ".join(map(repr, sorted(values.keys() - expected, key=str)))
            raise ConfigError(
                "A record must have exactly the schema's features: "
                + "; ".join(filter(None, [missing and f"{missing} missing", unknown and f"{unknown} unknown"]))
                + "."
            )
        checked: dict[str, FeatureLike] = {}
        for name in values:
            value = values[name]
            checked[name] = value if type(value) in self._scalars.get(name, ()) else self._by_name[name].check(value)
        for spec in self.tensors:
            assert spec.tensor is not None
            if spec.tensor.sizes is not None:
                checked[spec.tensor.sizes] = list(np.shape(values[spec.name])[: spec.tensor.num_unknown])
        return checked

    def to_json(self) -> dict[str, object]:
        """Returns the schema as JSON values."""
        schema: dict[str, object] = to_json(self)
        return schema


def find_tensors(schema: Schema, features: Mapping[str, Any]) -> Iterator[tuple[FeatureSpec, NDArray[Any]]]:
    """Yields each tensor feature of a checked or decoded record with its values, bfloat16 as bits in uint16."""
    for spec in schema.tensors:
        assert spec.tensor is not None
        value = features.get(spec.name)
        if spec.tensor.encoding == "list":
            yield spec, spec.check_stored(features)
            continue
        data = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(data, bytes):
            yield spec, spec.tensor.read_bits(data, get_sizes(spec.tensor, features))


def get_sizes(tensor: TensorType, features: Mapping[str, Any]) -> Sequence[int] | None:
    """Returns the sizes of a tensor's unknown axes that a record holds; None if there are none."""
    sizes = features.get(tensor.sizes) if tensor.sizes is not None else None
    return None if sizes is None or not len(sizes) or isinstance(sizes[0], bytes) else [int(size) for size in sizes]


def _get_stored_shape(tensor: TensorType, dtype: DType) -> tuple[int, ...] | None:
    """Returns the `shape` of the feature that stores a tensor; None for any number of values."""
    if tensor.encoding != "list":
        return ()
    known = tuple(size for size in tensor.shape if size is not None)
    return None if tensor.num_unknown else known[:1] if dtype == "bytes" else known


def _describe_bytes(error: UnicodeDecodeError) -> str:
    return f"the byte 0x{error.object[error.start]:02x} at {error.start}"


def make_tensor_specs(name: str, tensor: TensorType, doc: str = "") -> list[FeatureSpec]:
    """Returns the feature of a tensor, and that of its sizes if a record must hold them."""
    if not tensor.needs_sizes:
        return [FeatureSpec.make_tensor(name, tensor, doc)]
    tensor = TensorType(tensor.dtype, tensor.shape, sizes=f"{name}.sizes")
    sizes = FeatureSpec(f"{name}.sizes", "int64", (tensor.num_unknown,), f"sizes of the unknown axes of {name}")
    return [FeatureSpec.make_tensor(name, tensor, doc), sizes]


def class_schema() -> Schema:
    """Returns the features of a class."""
    return Schema(_CLASS)


def image_schema(
    *,
    labeled: bool,
    boxes: bool,
    box_labels: bool,
    box_names: bool = False,
    masks: bool = False,
    images: tuple[int, ...] | None = (),
    extra: Sequence[FeatureSpec] = (),
) -> Schema:
    """Returns the schema of a dataset of images; `images` is their shape in a record, None for any number."""
    if box_labels and not boxes:
        raise ConfigError("Box labels need boxes: set `boxes` too.")
    features = [replace(spec, shape=images) for spec in _IMAGE]
    if labeled:
        features += _CLASS
    if boxes:
        features += _BOXES
    if box_labels:
        features.append(FeatureSpec(BBOX_LABEL, "int64", None, "class of each box, counted from 0"))
    if box_names:
        features.append(FeatureSpec(BBOX_TEXT, "bytes", None, "name of the class of each box", "text"))
    if masks:
        features.append(MASK)
    check_names(extra)
    return Schema((*features, *extra))


def check_names(extra: Sequence[FeatureSpec]) -> None:
    """Checks the names of features that are not tfpipe's own."""
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
IMAGE_KEYS = tuple(spec.name for spec in _IMAGE)
"""The features of an image. In a record with several images, each is a list with one value per image."""
MAX_IMAGES = 1024
"""The most images of a record, as a reader has a whole record in memory."""
MASK = FeatureSpec(IMAGE_MASK, "bytes", (), "PNG with the class of each pixel", "mask")
"""The feature that holds the mask of an image."""
