"""`tfpipe.format.tensors.tensor_type`: arrays to bytes and back, and every way in which an array does not fit."""

import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import refusal
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.tensors.tensor_type import DTYPES, TensorType, get_numpy_dtype, read_tensor_proto


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(dtype: str) -> None:
    kind = TensorType(dtype, (None, 3))
    array = np.array([[0, 1, 1], [1, 0, 0]]).astype(get_numpy_dtype(dtype))
    data = kind.to_array(array).tobytes()
    assert len(data) == 6 * kind.bits.itemsize
    back = kind.read_bits(data).view(get_numpy_dtype(dtype))
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()


def test_row_order_and_little_endian_bytes_of_arrays_lists_and_numbers() -> None:
    turned = np.array([[1, 2], [3, 4]], ">i4").T
    assert TensorType("int32", (2, 2)).to_array(turned).tobytes() == np.array([1, 3, 2, 4], "<i4").tobytes()
    assert TensorType("float32", ()).to_array(0.5).shape == ()
    assert TensorType("uint8", (3,)).to_array([1, 2, 255]).tobytes() == b"\x01\x02\xff"
    assert TensorType("bfloat16", (2,)).to_array([1, 0.5]).tobytes() == b"\x80\x3f\x00\x3f"
    assert TensorType("bool", ()).to_array(True).tobytes() == b"\x01"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (TensorType("float32", (4,)), np.zeros(4), "float32 [4], got float64 [4]"),
        (TensorType("float32", (4,)), np.zeros(5, np.float32), "float32 [4], got float32 [5]"),
        (TensorType("float32", (None, 4)), np.zeros(4, np.float32), "float32 [?, 4], got float32 [4]"),
        (TensorType("uint8", (2,)), [1, 256], "uint8 [2], got int64 [2]"),
        (TensorType("int32", (2,)), [1.5, 2], "int32 [2], got float64 [2]"),
        (TensorType("bool", ()), 1, "bool [], got int64 []"),
        (TensorType("int64", ()), "three", "int64 [], got values of str160"),
        (TensorType("bfloat16", (2,)), np.zeros(2, np.float32), "bfloat16 [2], got float32 [2]"),
    ],
)
def test_what_does_not_fit_is_named(kind: TensorType, value: object, message: str) -> None:
    assert refusal(ConfigError, kind.to_array, value) == message


def test_sizes_that_the_bytes_do_not_tell() -> None:
    frames = TensorType("uint8", (None, None, 3), sizes="frames.sizes")
    assert frames.find_shape(30, [2, 5]) == (2, 5, 3)
    assert frames.find_shape(0, [0, 7]) == (0, 7, 3)
    for sizes, message in (
        ([2, 4], "uint8 [?, ?, 3], got 30 bytes"),
        (None, "uint8 [?, ?, 3], but 'frames.sizes' does not hold 2 sizes"),
        ([-2, -5], "uint8 [?, ?, 3], but 'frames.sizes' does not hold 2 sizes"),
    ):
        with pytest.raises(FormatError, match="^" + message.replace("[", r"\[").replace("?", r"\?")):
            frames.find_shape(30, sizes)
    assert refusal(FormatError, TensorType("int32", (None, 2)).find_shape, 12) == "int32 [?, 2], got 12 bytes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("complex64", ()), "A tensor's dtype must be one of bool, int8,"),
        (("int8", (3, None)), "A tensor must have at most 8 axes of at least 1, the unknown ones (None) first, got"),
        (("int8", (0,)), "A tensor must have at most 8 axes of at least 1"),
        (("int8", (1,) * 9), "A tensor must have at most 8 axes of at least 1"),
        (("int8", (), "text"), "A tensor's encoding must be one of raw, proto, list, got 'text'."),
    ],
)
def test_types_that_cannot_be(arguments: tuple, message: str) -> None:
    assert refusal(ConfigError, TensorType, *arguments).startswith(message)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
def test_what_tensorflow_writes_is_read(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = tf.cast(tf.reshape(tf.range(int(np.prod(shape))) % 2, shape), dtype)
    data = tf.io.serialize_tensor(tensor).numpy()
    proto = read_tensor_proto(data)
    assert proto[:2] == (dtype, shape)
    assert TensorType(dtype, (None,) * len(shape), "proto").read_bits(data).tobytes() == tensor.numpy().tobytes()


def test_anything_else_is_not_a_tensor_and_another_type_is_named() -> None:
    whole = tf.io.serialize_tensor(tf.range(5)).numpy()
    others = [b"", b"\xff\xd8\xff", b"\x08", whole[:-1], whole + b"\x18\x01", tf.io.serialize_tensor(["a"]).numpy()]
    others += [tf.io.serialize_tensor(tf.constant(1j)).numpy(), whole.replace(b"\x08\x03", b"\x08\x63", 1)]
    assert [read_tensor_proto(data) for data in others] == [None] * len(others)
    data = tf.io.serialize_tensor(tf.zeros([2, 3])).numpy()
    for kind, message in (
        (TensorType("float32", (None, 4), "proto"), "float32 [?, 4], got float32 [2, 3]"),
        (TensorType("float16", (2, 3), "proto"), "float16 [2, 3], got float32 [2, 3]"),
    ):
        assert refusal(FormatError, kind.read_bits, data) == message
    with pytest.raises(FormatError, match=r"as `tf\.io\.serialize_tensor` writes it, got 4 other bytes"):
        TensorType("float32", (1,), "proto").read_bits(bytes(4))
