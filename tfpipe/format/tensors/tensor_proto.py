"""Reads the bytes that `tf.io.serialize_tensor` makes of a tensor of numbers, without TensorFlow.

```
TensorProto  { 1: dtype, 2: TensorShapeProto, 4: the values in row order, little endian }
TensorShapeProto { 2: Dim, repeated }
Dim              { 1: size }
```
"""

from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from tfpipe.errors import FormatError
from tfpipe.format.protobuf_wire import LENGTH, VARINT, Budget, fields, read_varint

TensorDType: TypeAlias = Literal[
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
"""The types of a tensor's values, by the names that NumPy, TensorFlow, PyTorch and JAX give them."""

_DTYPES: dict[int, TensorDType] = {
    **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool"},
    **{14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32"},
}
_DTYPE_TAG = 8  # the first byte, by which nearly everything else is told apart
_MAX_AXES = 8


class TensorProto(NamedTuple):
    """A tensor in the bytes of its protocol buffer.

    Attributes:
        dtype: The type of its values.
        shape: The size of each axis.
        begin: The byte at which its values begin.
    """

    dtype: TensorDType
    shape: tuple[int, ...]
    begin: int


def read_tensor_proto(data: bytes) -> TensorProto | None:
    """Reads where the values of a serialized tensor lie; None if the bytes are anything else.

    A tensor of text or complex numbers is something else, and so is one whose values are not a run of bytes.
    """
    if not data or data[0] != _DTYPE_TAG:
        return None
    dtype, content = None, None
    shape: tuple[int, ...] = ()
    try:
        for field, wire, start, stop in fields(data, 0, len(data), Budget()):
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
    if dtype is None or len(shape) > _MAX_AXES or min(shape, default=0) < 0:
        return None
    begin, end = content or (len(data), len(data))
    item_bytes = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return TensorProto(dtype, shape, begin) if prod(shape) * item_bytes == end - begin else None


def _read_shape(data: bytes, pos: int, end: int) -> tuple[int, ...]:
    shape = []
    for field, wire, start, stop in fields(data, pos, end, Budget()):
        if (field, wire) != (2, LENGTH):
            raise FormatError("A shape must have sizes only.")
        sizes = [
            read_varint(data, at, to, 10)[0] for dim, kind, at, to in fields(data, start, stop, Budget()) if dim == 1
        ]
        size = sizes[-1] if sizes else 0
        shape.append(size if size < 2**63 else -1)
    return tuple(shape)
