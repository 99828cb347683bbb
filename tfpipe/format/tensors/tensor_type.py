"""The type of a feature's tensors, and the conversion between arrays and the bytes of a record."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.json_reader import whole
from tfpipe.format.protobuf_wire import LENGTH, VARINT, fields, read_varint
from tfpipe.system.budget import FIELDS
from tfpipe.system.extras import importing

TensorDType: TypeAlias = Literal[
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64"
]
"""The types of a tensor's values, by the names that NumPy, TensorFlow, PyTorch and JAX give them."""

Encoding: TypeAlias = Literal["raw", "proto", "list"]
"""The form of a tensor in a record: its values as bytes, the bytes of `tf.io.serialize_tensor`, or the feature's list.

A list holds float32 or int64 values, or bytes with the values of each step of the first axis.
"""

MAX_AXES = 8
_MAX_SIZE = 2**31 - 1
SIZE = whole(1, _MAX_SIZE)
"""The rule for the size of an axis."""

_MAX_EMPTY_SIZE = 2**16  # the largest size beside an axis of size 0, where no bytes prove the size
_TEXT = re.compile(r"\s*(\w+)\s*\[([\d?,\s]*)\]\s*", re.ASCII)
DTYPES: tuple[TensorDType, ...] = get_args(TensorDType)
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)

# NumPy has no bfloat16 of its own, so its values travel as their bits until somebody wants the numbers.
_BITS = {name: np.dtype("<u2" if name == "bfloat16" else name).newbyteorder("<") for name in DTYPES}
_DTYPES: dict[int, TensorDType] = {
    **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool"},
    **{14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32"},
}
_DTYPE_TAG = 8  # the first byte of a TensorProto, which other data rarely begins with


class TensorProto(NamedTuple):
    """The dtype and shape of a serialized tensor, and the offset of its values in the bytes."""

    dtype: TensorDType
    shape: tuple[int, ...]
    begin: int  # the byte at which its values begin


@dataclass(frozen=True)
class TensorType:
    """The type of the tensors of a feature."""

    dtype: TensorDType
    # None for an axis whose size differs between records; such axes come first.
    shape: tuple[Annotated[int, SIZE] | None, ...]
    encoding: Encoding = "raw"  # "raw": the values in row order, little endian, as one piece of bytes
    sizes: str | None = None  # the feature with the sizes of two or more unknown axes; the byte count tells one
    optional = ("sizes",)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"A tensor's dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")
        if self.encoding not in ENCODINGS:
            raise ConfigError(f"A tensor's encoding must be one of {', '.join(ENCODINGS)}, got {self.encoding!r}.")
        known = self.shape[self.num_unknown :]
        if len(self.shape) > MAX_AXES or not all(type(n) is int and 1 <= n <= _MAX_SIZE for n in known):
            raise ConfigError(
                f"A tensor must have at most {MAX_AXES} axes of at least 1, the unknown ones (None) first, got "
                f"{self.shape}."
            )

    @classmethod
    def parse(cls, text: str) -> "TensorType":
        """Returns the type of a text such as "float16 [?, 4, 64]". It is the inverse of `str`."""
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        sizes = [size.strip() for size in match[2].split(",")] if match is not None and match[2].strip() else []
        if match is None or not all(size == "?" or (size.isdecimal() and len(size) <= 10) for size in sizes):
            raise ConfigError(f"A tensor's type must be a dtype and a shape, as in float16[?,4,64], got {text!r}.")
        dtype: Any = match[1]
        return cls(dtype, tuple(None if size == "?" else int(size) for size in sizes))

    @cached_property
    def num_unknown(self) -> int:
        """The number of axes whose size differs between records."""
        return next((k for k, size in enumerate(self.shape) if size is not None), len(self.shape))

    @cached_property
    def needs_sizes(self) -> bool:
        """Whether each record must hold the sizes of the unknown axes, because its bytes do not tell them."""
        return self.encoding != "proto" and self.num_unknown > 1

    @cached_property
    def bits(self) -> np.dtype[Any]:
        """The dtype in which NumPy reads the bytes: that of the values, but uint16 for bfloat16."""
        bits: np.dtype[Any] = _BITS[self.dtype]
        return bits

    @cached_property
    def row_bytes(self) -> int:
        """The bytes of the known axes together: the product of their sizes and the bytes of a value."""
        return self.bits.itemsize * prod(size for size in self.shape if size is not None)

    @cached_property
    def _native(self) -> np.dtype[Any] | None:
        return None if self.dtype == "bfloat16" else self.bits

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join('?' if size is None else str(size) for size in self.shape)}]"

    def to_array(self, value: Any) -> NDArray[Any]:
        """Returns a value of this dtype as an array in row order; converts lists and numbers by `_convert_plain`."""
        if type(value) is np.ndarray and value.shape == self.shape and value.dtype == self._native:
            return value if value.flags.c_contiguous else np.ascontiguousarray(value)  # the usual case
        array = np.asarray(value)
        if not hasattr(value, "dtype") and array.dtype.name != self.dtype:
            array = self._convert_plain(array)
        if array.dtype.name != self.dtype or not self._fits(array.shape):
            is_number = array.dtype.kind not in "OSUV" or array.dtype.name == "bfloat16"
            got = f"{array.dtype.name} {list(array.shape)}" if is_number else f"values of {array.dtype.name}"
            raise ConfigError(f"{self}, got {got}")
        if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and self.bits.byteorder == ">"):
            array = array.astype(array.dtype.newbyteorder("<"))
        return np.ascontiguousarray(array).reshape(array.shape)  # `ascontiguousarray` adds an axis to a single number

    def _convert_plain(self, array: NDArray[Any]) -> NDArray[Any]:
        """Converts Python numbers to a float dtype, or exactly to an integer dtype; returns others as they are."""
        dtype = get_numpy_dtype(self.dtype)
        if array.dtype.kind not in "biuf" or (self.dtype == "bool") != (array.dtype.kind == "b"):
            return array
        is_float = "float" in self.dtype
        if array.dtype.kind == "f" and not is_float and array.size:
            return array
        with np.errstate(all="ignore"):
            converted = array.astype(dtype)
        is_same = np.isfinite(converted) == np.isfinite(array) if is_float else converted.astype(array.dtype) == array
        return converted if is_same.all() else array

    @cached_property
    def _static_bytes(self) -> int:
        return -1 if self.num_unknown else self.row_bytes

    def find_shape(self, num_bytes: int, sizes: Sequence[int] | None = None, got: str = "") -> tuple[int, ...]:
        """Returns the shape of a raw tensor from the length of its bytes and the stored sizes of its unknown axes.

        `got` says in an error what was found, by default the number of bytes.
        """
        if num_bytes == self._static_bytes:
            return self.shape  # type: ignore[return-value]  # no size is unknown
        if self.needs_sizes:
            most = max(num_bytes, _MAX_EMPTY_SIZE)
            if sizes is None or len(sizes) != self.num_unknown or min(sizes) < 0 or max(sizes) > most:
                raise FormatError(f"{self}, but {self.sizes!r} does not hold {self.num_unknown} sizes")
            leading = tuple(map(int, sizes))
        else:
            leading = (num_bytes // self.row_bytes,) * self.num_unknown
        if prod(leading) * self.row_bytes != num_bytes:
            raise FormatError(f"{self}, got {got or f'{num_bytes:,} bytes'}")
        return leading + tuple(size for size in self.shape if size is not None)

    def read_bits(self, data: bytes, sizes: Sequence[int] | None = None) -> NDArray[Any]:
        """Reads a stored tensor without a copy, bfloat16 as uint16; the array must not be written to."""
        if self.encoding == "raw":
            shape = self.find_shape(len(data), sizes)
            return np.frombuffer(data, self.bits).reshape(shape)
        proto = read_tensor_proto(data)
        if proto is None:
            raise FormatError(f"{self} as `tf.io.serialize_tensor` writes it, got {len(data):,} other bytes")
        if not self.admits(proto):
            raise FormatError(f"{self}, got {proto.dtype} {list(proto.shape)}")
        return np.frombuffer(data, self.bits, prod(proto.shape), proto.begin).reshape(proto.shape)

    def read_list(self, values: list[bytes] | NDArray[Any], sizes: Sequence[int] | None = None) -> NDArray[Any]:
        """Reads a tensor stored as a list of values, as `read_bits` reads one stored as bytes."""
        if not isinstance(values, list):
            if values.dtype != self.bits:
                raise FormatError(f"{self}, got values of {values.dtype.name}")
            return values.reshape(self.find_shape(values.nbytes, sizes, f"{values.size:,} values"))
        lengths = sorted(set(map(len, values)))
        ends = " to ".join(f"{length:,}" for length in dict.fromkeys((*lengths[:1], *lengths[-1:])))
        got = f"{len(values):,} values of {ends or 0} bytes"
        data = b"".join(values)
        shape = self.find_shape(len(data), sizes, got)
        if len(lengths) > 1 or len(values) != shape[0]:
            raise FormatError(f"{self}, got {got}")
        return np.frombuffer(data, self.bits).reshape(shape)

    def admits(self, proto: TensorProto) -> bool:
        """Returns whether a tensor has this dtype and fits this shape."""
        return proto.dtype == self.dtype and self._fits(proto.shape)

    def _fits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(map(lambda own, size: own in (None, size), self.shape, shape))


def get_numpy_dtype(dtype: TensorDType) -> np.dtype[Any]:
    """Returns NumPy's dtype of this name; bfloat16 needs the package ml_dtypes."""
    if dtype == "bfloat16":
        with importing("bfloat16 in NumPy", "ml_dtypes", "ml_dtypes"):
            import ml_dtypes
    numpy_dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return numpy_dtype


def read_tensor_proto(data: bytes) -> TensorProto | None:
    """Reads where the values of a serialized tensor lie; None if the bytes are anything else.

    ```
    TensorProto      { 1: dtype, 2: TensorShapeProto, 4: the values in row order, little endian }
    TensorShapeProto { 2: Dim, repeated }
    Dim              { 1: size }
    ```

    A tensor of text or complex numbers is something else, and so is one whose values are not a run of bytes.
    """
    if not data or data[0] != _DTYPE_TAG:
        return None
    dtype, content = None, None
    shape: tuple[int, ...] = ()
    try:
        for field, wire, start, stop in fields(data, 0, len(data), FIELDS.renew()):
            if (field, wire) == (1, VARINT):
                dtype = _DTYPES.get(read_varint(data, start, stop, 10)[0])
            elif (field, wire) == (2, LENGTH):
                shape = _read_shape(data, start, stop)
            elif (field, wire) == (4, LENGTH):
                content = start, stop
            else:
                return None
    except FormatError:
        return None
    if dtype is None or len(shape) > MAX_AXES or min(shape, default=0) < 0:
        return None
    if max(shape, default=0) > max(len(data), _MAX_EMPTY_SIZE):
        return None
    begin, end = content or (len(data), len(data))
    item_bytes = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return TensorProto(dtype, shape, begin) if prod(shape) * item_bytes == end - begin else None


def _read_shape(data: bytes, pos: int, end: int) -> tuple[int, ...]:
    shape = []
    for field, wire, start, stop in fields(data, pos, end, FIELDS.renew()):
        if (field, wire) != (2, LENGTH):
            raise FormatError("A shape must have sizes only.")
        dims = fields(data, start, stop, FIELDS.renew())
        sizes = [read_varint(data, at, to, 10)[0] for dim, _, at, to in dims if dim == 1]
        size = sizes[-1] if sizes else 0
        shape.append(size if size < 2**63 else -1)
    return tuple(shape)
