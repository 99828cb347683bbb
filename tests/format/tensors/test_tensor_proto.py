"""`tfpipe.format.tensors.tensor_type`, compared with the bytes that TensorFlow writes."""

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.errors import FormatError
from tfpipe.format.tensors.tensor_type import DTYPES, TensorType, read_tensor_proto


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
def test_what_tensorflow_writes_is_read(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = tf.cast(tf.reshape(tf.range(int(np.prod(shape))) % 2, shape), dtype)
    data = tf.io.serialize_tensor(tensor).numpy()
    proto = read_tensor_proto(data)
    assert proto is not None
    assert proto[:2] == (dtype, shape)
    assert TensorType(dtype, (None,) * len(shape), "proto").read_bits(data).tobytes() == tensor.numpy().tobytes()


def test_anything_else_is_not_a_tensor() -> None:
    whole = tf.io.serialize_tensor(tf.range(5)).numpy()
    others = [b"", b"\xff\xd8\xff", b"\x08", whole[:-1], whole + b"\x18\x01", tf.io.serialize_tensor(["a"]).numpy()]
    others += [tf.io.serialize_tensor(tf.constant(1j)).numpy(), whole.replace(b"\x08\x03", b"\x08\x63", 1)]
    assert [read_tensor_proto(data) for data in others] == [None] * len(others)


def test_another_dtype_or_shape_is_named() -> None:
    data = tf.io.serialize_tensor(tf.zeros([2, 3])).numpy()
    for kind, message in (
        (TensorType("float32", (None, 4), "proto"), "float32 [?, 4], got float32 [2, 3]"),
        (TensorType("float16", (2, 3), "proto"), "float16 [2, 3], got float32 [2, 3]"),
    ):
        with pytest.raises(FormatError) as error:
            kind.read_bits(data)
        assert str(error.value) == message
    with pytest.raises(FormatError, match=r"as `tf\.io\.serialize_tensor` writes it, got 4 other bytes"):
        TensorType("float32", (1,), "proto").read_bits(bytes(4))
