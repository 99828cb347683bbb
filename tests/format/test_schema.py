"""`tfpipe.format.schema`: what a record must hold."""

import json

import numpy as np
import pytest

from tests.refusals import refusal
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import schema as s
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.json_reader import read
from tfpipe.format.schema import FeatureSpec, Schema, image_schema
from tfpipe.format.tensors.tensor_type import TensorType

SMALL = Schema(
    (
        *(FeatureSpec("text", "bytes", ()), FeatureSpec("count", "int64", ()), FeatureSpec("score", "float", ())),
        *(FeatureSpec("pair", "int64", (2,)), FeatureSpec("matrix", "float", (2, 2))),
        *(FeatureSpec("ids", "int64", None), FeatureSpec("xs", "float", None, "left sides")),
        FeatureSpec("tags", "bytes", None),
    )
)
GOOD = {
    "text": "a",
    "count": 3,
    "score": 0.5,
    "pair": [1, 2],
    "matrix": np.zeros((2, 2)),
    "ids": [],
    "xs": (),
    "tags": [],
}
RICH = Schema(
    (
        FeatureSpec.make_tensor("latents", TensorType("float16", (2, 3)), "of the autoencoder"),
        FeatureSpec.make_tensor("frames", TensorType("uint8", (None, None), sizes="frames.sizes")),
        FeatureSpec("frames.sizes", "int64", (2,)),
        FeatureSpec.make_text("caption"),
        FeatureSpec("words", "bytes", None, kind="text"),
    )
)
RICH_GOOD = {
    "latents": np.arange(6, dtype=np.float16).reshape(2, 3),
    "frames": np.uint8([[1, 2, 3]]),
    "caption": "ein Hündchen",
    "words": ["ein", b"Hund"],
}


def test_empty_lists_and_whole_numbers_are_encoded():
    same = {**GOOD, "ids": np.empty(0, np.int64), "xs": np.empty(0, np.float32)}
    assert encode_example(SMALL.check(GOOD)) == encode_example(same)
    whole = {**GOOD, "score": 2, "matrix": np.arange(4), "xs": [1, True, np.int64(3)]}
    decoded = decode_example(encode_example(SMALL.check(whole)))
    assert decoded["score"].tolist() == [2.0]
    assert decoded["matrix"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert decoded["xs"].tolist() == [1.0, 1.0, 3.0]
    assert decoded["score"].dtype == decoded["matrix"].dtype == decoded["xs"].dtype == np.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 1.0}, "Feature 'count' must be one value of int64, got a float."),
        ({"count": [1]}, "Feature 'count' must be one value of int64, got a list."),
        ({"count": None}, "Feature 'count' must be one value of int64, got a NoneType."),
        ({"count": 2**63}, "Feature 'count' must fit int64, got 0x8000000000000000."),
        ({"text": 1}, "Feature 'text' must be one value of bytes, got a int."),
        ({"score": "0.5"}, "Feature 'score' must be one value of float, got a str."),
        ({"score": -1e39}, "Feature 'score' must be float of 32 bits, got -1e+39, which is beyond it."),
        ({"score": 10**400}, "Feature 'score' must be float, got a whole number beyond it."),
        ({"pair": [1]}, "Feature 'pair' must be 2 values, got 1 values."),
        ({"pair": 1}, "Feature 'pair' must be 2 values, got a int."),
        ({"pair": [1, 2.0]}, "Feature 'pair' must be values of int64, got a float."),
        ({"pair": np.zeros((1, 2), int)}, "Feature 'pair' must be 2 values, got an array of shape (1, 2)."),
        ({"matrix": np.zeros((4, 1))}, "Feature 'matrix' must be 4 values, got an array of shape (4, 1)."),
        ({"ids": np.zeros(2)}, "Feature 'ids' must be int64, got an array of float64."),
        ({"ids": 5}, "Feature 'ids' must be a list, got a int."),
        ({"xs": [0.5, "a"]}, "Feature 'xs' must be values of float, got a str."),
        ({"tags": "ab"}, "Feature 'tags' must be a list, got a str."),
        ({"tags": np.array([1])}, "Feature 'tags' must be bytes, got an array of int64."),
        ({"new": 1}, "A record must have exactly the schema's features: 'new' unknown."),
        ({"latents": np.zeros((2, 3))}, "Feature 'latents' must be float16 [2, 3], got float64 [2, 3]."),
        ({"frames": np.zeros(3, np.uint8)}, "Feature 'frames' must be uint8 [?, ?], got uint8 [3]."),
        ({"caption": b"ab\xff"}, "Feature 'caption' must be UTF-8 text, got the byte 0xff at 2."),
        ({"caption": 3}, "Feature 'caption' must be one value of text, got a int."),
        ({"words": ["a", b"\x80"]}, "Feature 'words' must be UTF-8 text, got the byte 0x80 at 0."),
    ],
)
def test_what_is_refused(change, message):
    schema, good = (RICH, RICH_GOOD) if change.keys() & RICH_GOOD.keys() else (SMALL, GOOD)
    assert refusal(ConfigError, lambda: encode_example(schema.check({**good, **change}))) == message


def one(**change):
    return {"features": [{"name": "a", "dtype": "bytes", "shape": [], "doc": "", **change}]}


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({}, "schema.features is missing."),
        (one(dtype="x"), "schema.features[0].dtype must be one of bytes, int64, float, got 'x'."),
        (one(shape=[True]), "schema.features[0].shape[0] must be a whole number of at least 1 and at most 2147483647"),
        (one(shape=[10**5000]), "schema.features[0].shape[0] must be a whole number of at least 1"),
        (one(shape=[1] * 9), "schema.features[0]: Feature 'a': every dimension must be at least 1"),
        (one(name="\0"), "schema.features[0]: A feature's name must be printable text, got '\\x00'."),
        ({"features": one()["features"] * 2}, "schema: A schema must name each feature once, got 'a' twice."),
    ],
)
def test_hostile_json(obj, message):
    assert refusal(FormatError, read, obj, Schema, "", "schema").startswith(message)


def test_image_schema():
    assert image_schema(labeled=False, boxes=False, box_labels=False).names == (
        *("image/encoded", "image/format", "image/height", "image/width", "image/channels", "image/colorspace"),
        *("image/filename", "image/sha256"),
    )
    full = image_schema(labeled=True, boxes=True, box_labels=True, extra=[FeatureSpec("price", "float", ())])
    assert full.names[8:] == (
        *("image/class/label", "image/class/text", "image/object/bbox/xmin", "image/object/bbox/xmax"),
        *("image/object/bbox/ymin", "image/object/bbox/ymax", "image/object/class/label", "price"),
    )
    assert full[s.BBOX_YMAX].dtype == "float"
    assert full[s.BBOX_LABEL].shape is None
    assert full[s.CLASS_LABEL].shape == ()


def test_tensors_and_text_come_back():
    features = decode_example(encode_example(RICH.check(RICH_GOOD)))
    assert features["frames.sizes"].tolist() == [1, 3]
    decoded = {spec.name: spec.decode(features) for spec in RICH.features if spec.kind != "values"}
    assert decoded["latents"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert decoded["frames"].tolist() == [[1, 2, 3]]
    assert (decoded["caption"], decoded["words"]) == ("ein Hündchen", ["ein", "Hund"])
    assert [spec.name for spec in RICH.tensors] == ["latents", "frames"]
    assert RICH.sizes_keys == {"frames.sizes"}


def test_json_comes_back():
    assert read(SMALL.to_json(), Schema) == SMALL
    assert SMALL.to_json()["features"][3:7:3] == [
        {"name": "pair", "dtype": "int64", "shape": [2], "doc": ""},
        {"name": "xs", "dtype": "float", "shape": None, "doc": "left sides"},
    ]
    document = json.loads(json.dumps(RICH.to_json()))
    assert read(document, Schema) == RICH
    assert [spec.get("kind") for spec in document["features"]] == ["tensor", "tensor", None, "text", "text"]
    tensor = {"dtype": "uint8", "shape": [None, None], "encoding": "raw", "sizes": "frames.sizes"}
    assert document["features"][1]["tensor"] == tensor


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"latents": [b"123"]}, "Feature 'latents' must be float16 [2, 3], got 3 bytes."),
        ({"latents": None}, "Feature 'latents' must be one value of bytes."),
        ({"frames": [b"1234"], "frames.sizes": np.int64([3, 1])}, "Feature 'frames' must be uint8 [?, ?], got 4"),
        ({"caption": [b"\xc3"]}, "Feature 'caption' must be UTF-8 text, got the byte 0xc3 at 0."),
    ],
)
def test_stored_bytes_that_do_not_fit(features, message):
    assert refusal(FormatError, RICH[next(iter(features))].decode, features).startswith(message)


KIND = "Feature 'x': `tensor` belongs to the kind tensor"
SIZES = "The sizes of feature 'frames' must lie in a feature of int64 with shape"
ONE_VALUE = (
    "Feature 'x': a tensor is one value, or a list of its shape, and with two unknown axes or more it names the "
    "feature of their `sizes`."
)
NO_IMAGE = "An extra column must not be named 'image' or begin with 'image/', got"


def with_columns(*names):
    extra = [FeatureSpec(name, "bytes", ()) for name in names]
    return image_schema(labeled=False, boxes=False, box_labels=False, extra=extra)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SMALL.check({name: value for name, value in {**GOOD, "new": 1}.items() if name != "count"}),
            "A record must have exactly the schema's features: 'count' missing; 'new' unknown.",
        ),
        (lambda: FeatureSpec("", "bytes", ()), "A feature's name must be printable text, got ''."),
        (lambda: FeatureSpec("a\n", "bytes", ()), "A feature's name must be printable text, got 'a\\n'."),
        (lambda: FeatureSpec("a", "int32", ()), "Feature 'a': dtype must be one of bytes, int64, float, got 'int32'."),
        (lambda: FeatureSpec("a", "bytes", (0,)), "Feature 'a': every dimension must be at least 1, got (0,)."),
        (lambda: with_columns("image"), f"{NO_IMAGE} 'image'."),
        (lambda: with_columns("image/x"), f"{NO_IMAGE} 'image/x'."),
        (lambda: with_columns("a//b"), "An extra column's name must have text on both sides of each '/', got 'a//b'."),
        (lambda: with_columns("a/"), "An extra column's name must have text on both sides of each '/', got 'a/'."),
        (
            lambda: with_columns("a/b", "a"),
            "Extra columns 'a' and 'a/b' cannot both be: one would lie inside the other.",
        ),
        (lambda: with_columns("a", "a"), "A schema must name each feature once, got 'a' twice."),
        (lambda: image_schema(labeled=False, boxes=False, box_labels=True), "Box labels need boxes: set `boxes` too."),
        (lambda: FeatureSpec("x", "int64", (), kind="text"), "Feature 'x': text is stored as bytes, got 'int64'."),
        (lambda: FeatureSpec("x", "bytes", (), kind="tensor"), f"{KIND}, got 'tensor'."),
        (lambda: FeatureSpec.make_tensor("x", TensorType("int8", (None, None))), ONE_VALUE),
        (lambda: Schema((RICH["frames"],)), f"{SIZES} (2,), got 'frames.sizes'."),
    ],
)
def test_what_cannot_be(make, message):
    assert refusal(ConfigError, make) == message
