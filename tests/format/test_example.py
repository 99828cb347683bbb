"""`tfpipe.format.example` against TensorFlow's own protocol buffers, both ways, and against hostile bytes."""

import contextlib
import enum
import math
import time

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.refusals import refusal
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import decode_example, encode_example

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.none(),
    st.lists(st.binary(max_size=20), max_size=5),
    st.lists(INT64, min_size=1, max_size=40),
    st.lists(st.floats(), min_size=1, max_size=5),
    st.lists(INT64, max_size=40).map(lambda v: np.array(v, np.int64)),
    st.lists(st.floats(width=32), max_size=5).map(lambda v: np.array(v, np.float32)),
)
FEATURES = st.dictionaries(st.text(max_size=4), VALUES, max_size=6)


def tensorflow_bytes(features):
    """The same features written by TensorFlow."""
    example = tf.train.Example(features=tf.train.Features(feature={}))
    for key, value in features.items():
        feature = example.features.feature[key]
        if value is None:
            feature.SetInParent()
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
            feature.float_list.value.extend(value.tolist())
            feature.float_list.SetInParent()
        elif isinstance(value, np.ndarray) or (value and isinstance(value[0], int)):
            feature.int64_list.value.extend(value)
            feature.int64_list.SetInParent()
        elif value and isinstance(value[0], float):
            feature.float_list.value.extend(value)
        else:
            feature.bytes_list.value.extend(value)
            feature.bytes_list.SetInParent()
    return example.SerializeToString(deterministic=True)


def comparable(features):
    """Decoded features with arrays as (dtype, bytes), so that -0.0 compares, and NaN of any payload."""

    def plain(value):
        if not isinstance(value, np.ndarray):
            return value
        same = np.where(np.isnan(value), np.float32("nan"), value) if value.dtype.kind == "f" else value
        return value.dtype.str, same.tobytes()

    return {key: plain(value) for key, value in features.items()}


def from_tensorflow(data):
    """Decoded by TensorFlow into the forms of `decode_example`."""
    out = {}
    for key, feature in tf.train.Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else None
        if kind == "bytes_list":
            out[key] = list(values)
        else:
            out[key] = kind and np.array(list(values), np.int64 if kind == "int64_list" else np.float32)
    return out


@settings(deadline=None, max_examples=40)
@given(FEATURES)
def test_bytes_are_those_of_tensorflow(features):
    assert encode_example(features) == tensorflow_bytes(features)


@settings(deadline=None, max_examples=40)
@given(FEATURES)
def test_decode_is_the_inverse(features):
    data = tensorflow_bytes(features)
    decoded = decode_example(data)
    assert comparable(decoded) == comparable(from_tensorflow(data))
    assert comparable(decode_example(memoryview(data))) == comparable(decoded)


def test_scalars_and_arrays_of_every_dtype():
    class Color(enum.IntEnum):
        RED = 300

    values = [Color.RED, np.int8(-1), np.bool_(True), np.float32(0.5), np.float64(2.0), np.str_("a"), np.bytes_(b"b")]
    values += [3, 0.25, True, "grün", bytes(200_000)]
    plain = [300, -1, 1, 0.5, 2.0, b"a", b"b", 3, 0.25, 1, "grün".encode(), bytes(200_000)]
    for value, same in zip(values, plain, strict=True):
        assert encode_example({"k": value}) == tensorflow_bytes({"k": [same]})
        assert encode_example({"k": [value]}) == tensorflow_bytes({"k": [same]})
    for dtype in (np.bool_, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, ">i4"):
        assert encode_example({"k": np.array([[0, 1], [1, 1]], dtype)}) == tensorflow_bytes({"k": [0, 1, 1, 1]})
    for dtype in (np.float16, np.float32, np.float64, ">f8"):
        assert encode_example({"k": np.array([0.5, -2], dtype)}) == tensorflow_bytes({"k": [0.5, -2.0]})
    assert encode_example({"k": []}) == b"\n\t\n\x07\n\x01k\x12\x02\n\x00"
    assert encode_example({"k": np.empty(0, np.int64)}) == b"\n\t\n\x07\n\x01k\x12\x02\x1a\x00"
    assert encode_example({"k": np.empty(0, np.float32)}) == b"\n\t\n\x07\n\x01k\x12\x02\x12\x00"
    assert encode_example({"k": None}) == b"\n\x07\n\x05\n\x01k\x12\x00"
    assert encode_example({}) == b"\n\x00"


def test_key_order_is_that_of_protobuf():
    features = {key: [1] for key in ["z", "é", "\U0001f600", "\uffee", "a", "ab", "", "image/a", "image"]}
    assert encode_example(features) == tensorflow_bytes(features)
    assert list(decode_example(encode_example(features))) == [
        "ab", "a", "image/a", "image", "z", "é", "\uffee", "\U0001f600", "",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [1e39, -1e39, 3.4028236e38, 3.4028235e38, math.inf, -math.inf, -0.0, 1e-46])
def test_floats_at_the_edge_of_float32(value):
    assert encode_example({"k": value}) == tensorflow_bytes({"k": [value]})
    assert encode_example({"k": np.array([value])}) == tensorflow_bytes({"k": [value]})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**63, "Feature 'k' must fit int64, got 0x8000000000000000."),
        (-(2**63) - 1, "Feature 'k' must fit int64, got -0x8000000000000001."),
        ([1, 10**5000], "Feature 'k' must fit int64, got 0x"),
        (np.array([2**63], np.uint64), "Feature 'k' must fit int64, got 0x8000000000000000."),
        ([1, 2.0], "The list of feature 'k' must hold one kind of value, got float, int."),
        ([b"a", 1], "The list of feature 'k' must hold one kind of value, got bytes, int."),
        ([None], "The list of feature 'k' must hold bytes, text or numbers, got a NoneType."),
        ([[1]], "The list of feature 'k' must hold bytes, text or numbers, got a list."),
        ("\ud800", "Feature 'k': text must be valid Unicode, got '\\ud800'."),
        (np.array(["a"]), "The array of feature 'k' must be of integers or floats, got <U1;"),
        (np.array([1j]), "The array of feature 'k' must be of integers or floats, got complex128;"),
        ({}, "Feature 'k' must be bytes, text, a number, or a list or array of one of them"),
        (bytearray(b"a"), "Feature 'k' must be bytes, text, a number, or a list or array of one of them"),
    ],
)
def test_values_that_cannot_be_encoded(value, message):
    assert refusal(ConfigError, encode_example, {"k": value}).startswith(message)


def test_keys_that_cannot_be_encoded():
    assert "A feature's key must be text, got 3" in refusal(ConfigError, encode_example, {3: 1})
    assert "text must be valid Unicode" in refusal(ConfigError, encode_example, {"\udc80": 1})


def part(field, wire, body):
    """One field, with its length where the wire type has one."""
    return bytes([field << 3 | wire]) + (bytes([len(body)]) + body if wire == 2 else body)


def example_of(feature, key=b"k"):
    """An Example of one feature, given the bytes of its message."""
    return part(1, 2, part(1, 2, part(1, 2, key) + part(2, 2, feature)))


def ints(body):
    return part(3, 2, part(1, 2, body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\x80\x00",  # a length with a byte more than it needs
        example_of(part(3, 2, part(1, 0, b"\x05") + part(1, 2, b"\x01\x02") + part(1, 0, b"\x07"))),
        example_of(part(2, 2, part(1, 5, b"abcd") + part(1, 2, b"efgh"))),
        example_of(ints(b"\x01") + ints(b"\x02")),  # parts of one list
        example_of(ints(b"\x01") + part(1, 2, part(1, 2, b"x"))),  # another kind starts anew
        example_of(ints(b"\x01") + part(1, 2, part(1, 2, b"x")) + ints(b"\x05")),
        part(1, 2, part(1, 2, part(1, 2, b"k") + part(2, 2, ints(b"\x01")) + part(2, 2, ints(b"\x02")))),
        part(1, 2, part(1, 2, part(1, 2, b"k") + part(2, 2, ints(b"\x01"))) * 2),  # the last wins
        example_of(ints(b"\x01")) + example_of(ints(b"\x02"), b"j"),  # two Features messages
        part(1, 2, part(1, 2, b"")),  # neither key nor value
        part(1, 2, part(1, 2, part(1, 2, b"k"))),
        part(9, 0, b"\x96\x01") + part(9, 1, bytes(8)) + part(9, 5, bytes(4)) + example_of(ints(b"\x01")),
        example_of(ints(b"\x01") + part(4, 2, b"xyz")),  # an unknown field
        example_of(ints(b"\xff" * 9 + b"\x01")),
        example_of(ints(b"\xff" * 9 + b"\x7f")),
        example_of(ints(b"\x01" * 17)),
        example_of(ints(b"\xff" * 9 + b"\x7f" + b"\x80\x01\x05" * 4)),
    ],
)
def test_reads_what_protobuf_reads(data):
    assert comparable(decode_example(data)) == comparable(from_tensorflow(data))


def test_long_runs_of_integers_cross_windows():
    values = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 50_000) >> np.arange(50_000) % 63
    np.testing.assert_array_equal(decode_example(encode_example({"k": values}))["k"], values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n", "an integer is cut off, at byte 1"),
        (b"\n\x05\n\x00", "field 1 says it has 5 bytes, but 2 are left, at byte 0"),
        (b"\n" + b"\xff" * 9 + b"\x01", "field 1 says it has 18446744073709551615 bytes, but 0 are left, at byte 0"),
        (b"\n" + b"\x80" * 11, "an integer is longer than 10 bytes, at byte 1"),
        (b"\x80\x80\x80\x80\x80\x01\x00", "an integer is longer than 5 bytes, at byte 0"),
        (b"\xf8\xff\xff\xff\x1f\x00", "field number 1073741823 does not exist, at byte 0"),
        (b"\x00\x00", "field number 0 does not exist, at byte 0"),
        (b"\x0e", "field 1 has wire type 6, which no Example has, at byte 0"),
        (b"\x4b" * 5000, "field 9 has wire type 3, which no Example has, at byte 0"),  # groups
        (b"\x08\x01", "Example.features has wire type 0, at byte 1"),
        (example_of(b"", b"a\xff"), "a feature's key is not UTF-8, at byte 7"),
        (example_of(part(2, 2, part(1, 2, b"abc"))), "packed floats must be a multiple of 4 bytes, got 3, at byte 13"),
        (example_of(part(2, 2, part(1, 0, b"\x01"))), "FloatList.value has wire type 0, at byte 12"),
        (example_of(ints(b"\x80")), "an integer is cut off, at byte 14"),
        (example_of(ints(b"\x01" * 20 + b"\x80")), "an integer is cut off, at byte 34"),
        (example_of(ints(b"\x80" * 20)), "an integer is cut off, at byte 33"),
        (example_of(ints(b"\x01" + b"\x80" * 19 + b"\x01")), "an integer is longer than 10 bytes, at byte 14"),
    ],
)
def test_hostile_bytes(data, message):
    with pytest.raises(DecodeError):
        tf.train.Example.FromString(data) if "wire type" not in message else tf.train.Example.FromString(b"\n")
    assert refusal(FormatError, decode_example, data) == f"Not a tf.train.Example: {message}."


@settings(deadline=None, max_examples=100)
@given(st.one_of(st.binary(max_size=60), st.tuples(FEATURES, st.data())))
def test_any_bytes_are_read_as_protobuf_does_or_refused(source):
    if isinstance(source, tuple):
        features, draw = source
        data = bytearray(tensorflow_bytes(features))
        for _ in range(draw.draw(st.integers(1, 3))):
            data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
        source = bytes(data)
    try:
        decoded = decode_example(source)
    except FormatError as error:
        assert ", at byte " in str(error)
        return
    example = tf.train.Example.FromString(source)
    # Python's protobuf keeps a map entry with a field it does not know as unknown; C++ and tfpipe read it.
    assume(all(field.field_number != 1 for field in UnknownFieldSet(example.features)))
    assert comparable(decoded) == comparable(from_tensorflow(source))


def test_hostile_bytes_take_linear_time():
    size = 200_000
    message = b"\x1a\x00\x0a\x00" * (size // 4)  # a list that changes its kind at each step
    for tag in (b"\x12", b"\x0a", b"\x0a"):
        message = tag + bytes([len(message) & 127 | 128, len(message) >> 7 & 127 | 128, len(message) >> 14]) + message
    start = time.process_time()
    for data in (b"\x0a\0" * size, b"\x80" * size, message):  # the first has empty Features
        with contextlib.suppress(FormatError):
            decode_example(data)
    assert time.process_time() - start < 5  # quadratic time would be hours


def test_the_number_of_fields_is_bounded():
    fits = encode_example({"texts": [b""] * 99_995})
    assert len(decode_example(fits)["texts"]) == 99_995  # Features, the entry, its key, its value and the list
    for data in (encode_example({"texts": [b""] * 99_996}), b"\x10\x00" * 100_001):
        message = refusal(FormatError, decode_example, data)
        assert message.startswith("Not a tf.train.Example: it has more than 100,000 fields, at byte ")
    assert decode_example(encode_example({"ints": list(range(300_000))}))["ints"].size == 300_000  # one field


def sequence_bytes(context, lists):
    """A SequenceExample written by TensorFlow; a step is a list of bytes, of whole numbers or of floats."""
    made = tf.train.SequenceExample()
    for key, values in context.items():
        made.context.feature[key].int64_list.value.extend(values)
    for key, steps in lists.items():
        made.feature_lists.feature_list[key].SetInParent()
        for step in steps:
            feature = made.feature_lists.feature_list[key].feature.add()
            if step:
                kind = {bytes: feature.bytes_list, int: feature.int64_list, float: feature.float_list}[type(step[0])]
                kind.value.extend(step)
    return made.SerializeToString()


def of_steps(values, *, width=None):
    sizes = {"max_size": 3} if width is None else {"min_size": width, "max_size": width}
    return st.lists(st.lists(values, **sizes), max_size=6)


VALUES_OF_STEPS = (st.binary(max_size=20), INT64, st.floats(width=32), st.binary(min_size=3, max_size=3))
STEPS = st.one_of([of_steps(values, width=width) for values in VALUES_OF_STEPS for width in (None, 1, 2)])


@given(
    st.dictionaries(st.sampled_from("ab"), st.lists(INT64, min_size=1)), st.dictionaries(st.sampled_from("cd"), STEPS)
)
def test_lists_of_steps_are_features_with_the_values_of_all_steps(context, lists):
    widths = {}
    features = decode_example(sequence_bytes(context, lists), widths)
    assert set(features) == {*context, *lists}
    assert all(features[key].tolist() == values for key, values in context.items())
    for key, steps in lists.items():
        values = [value for step in steps for value in step]
        found = features[key]
        if values and isinstance(values[0], float):
            assert found.tobytes() == np.array(values, np.float32).tobytes() or any(map(math.isnan, values))
            assert found.size == len(values)
        else:
            assert (list(found) if found is not None else []) == values
        counts = {len(step) for step in steps}
        assert widths[key] == (-1 if len(counts) > 1 else max(counts, default=0))


def test_steps_that_cannot_be_are_named():
    for context, steps, message in (
        ({}, [[1], [2.0]], "the steps of a list are of different kinds"),
        ({"x": [1]}, [[1]], "'x' is both a feature of the context and a list of steps"),
    ):
        found = refusal(FormatError, decode_example, sequence_bytes(context, {"x": steps}))
        assert found.startswith(f"Not a tf.train.Example: {message}, at byte ")
    whole = sequence_bytes({"a": [1]}, {"x": [[b"abc"]] * 4, "y": [[1.0, 2.0]] * 3})
    for end in range(len(whole)):
        with contextlib.suppress(FormatError):
            decode_example(whole[:end])
    many = sequence_bytes({}, {"x": [[b""]] * 34_000})
    assert "it has more than 100,000 fields" in refusal(FormatError, decode_example, many)
