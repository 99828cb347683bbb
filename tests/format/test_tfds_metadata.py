"""`tfpipe.format.tfds_metadata`: TensorFlow Datasets itself opens what is written here."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.integrity.damaged import framed
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.errors import ConfigError
from tfpipe.format import tfds_metadata as written
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.schema import FeatureSpec, Schema, image_schema

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.needs("tensorflow_datasets")

SCHEMA = image_schema(
    labeled=True,
    boxes=True,
    box_labels=True,
    extra=[
        FeatureSpec("score", "float", ()),
        FeatureSpec("meta/pair", "int64", (2,)),
        FeatureSpec("meta/deep/tags", "bytes", None),
        FeatureSpec("names", "bytes", (2,)),
    ],
)
NAMES = ("daisy", "Löwenzahn")


def manifest(formats, image=None, names=NAMES, schema=SCHEMA):
    shards = tuple(ShardInfo(f"train-{i:05d}-of-00002.tfrecord", 3, 0, "0" * 64) for i in range(2))
    return Manifest(
        name="My Flowers (2)",
        splits={"train": SplitInfo("train", shards, formats, (), ImageSizes(4, 4, 4.0, 4, 4, 4.0))},
        label_names=names,
        schema=schema,
        image=image or {"encoding": "original"},
        tool_version="0.1.0",
    )


def values(i, encoded, form):
    boxes = [0.25] * (i % 3)
    return (
        {"image/encoded": encoded, "image/format": form, "image/height": 4, "image/width": 4, "image/channels": 3}
        | {"image/colorspace": "RGB", "image/filename": f"{i}.jpg", "image/sha256": "0" * 64}
        | {"image/class/label": i % 2, "image/class/text": NAMES[i % 2], "image/object/bbox/xmin": boxes}
        | {"image/object/bbox/xmax": boxes, "image/object/bbox/ymin": boxes, "image/object/bbox/ymax": boxes}
        | {"image/object/class/label": [7] * (i % 3), "score": i / 2, "meta/pair": [i, -i]}
        | {"meta/deep/tags": ["a"] * (i % 2), "names": ["x", "y"]}
    )


def write(folder, info, encoded, forms):
    for shard in range(2):
        numbers = range(3 * shard, 3 * shard + 3)
        payloads = [encode_example(SCHEMA.check(values(i, encoded[i], forms[i]))) for i in numbers]
        (folder / f"train-{shard:05d}-of-00002.tfrecord").write_bytes(framed(payloads))
    files = {"features.json": written.features_json(info), "dataset_info.json": written.dataset_info_json(info)}
    for name, text in {**files, **written.label_files(info)}.items():
        (folder / name).write_text(text, encoding="utf-8")


def opened(folder, split):
    messages = []  # absl is what TFDS logs with
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda entry: messages.append(entry.getMessage())
    logging.getLogger("absl").addHandler(handler)
    try:
        builder = tfds.builder_from_directory(str(folder))
        records = list(builder.as_dataset(split=split).as_numpy_iterator())
    finally:
        logging.getLogger("absl").removeHandler(handler)
    # Reading a Tensor of bytes, TFDS warns of a deprecated property that it uses itself.
    assert [message for message in messages if "FeatureConnector.dtype" not in message] == []
    return builder, records


PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
JPEG = tf.io.encode_jpeg(PIXELS).numpy()
PNG = tf.io.encode_png(PIXELS).numpy()


def test_a_mixed_split(tmp_path):
    write(tmp_path, manifest({"JPEG": 3, "PNG": 3}), [PNG, JPEG] * 3, ["PNG", "JPEG"] * 3)
    builder, records = opened(tmp_path, "train[:50%]")
    assert builder.name == "my_flowers_2"
    assert str(builder.version) == "1.0.0"
    assert (builder.info.splits["train"].num_examples, builder.info.splits["train"].shard_lengths) == (6, [3, 3])
    assert builder.info.features["image"]["class"]["label"].names == list(NAMES)
    assert builder.info.features["image"]["encoded"].encoding_format is None
    assert len(records) == 3
    for i, found in enumerate(records):
        assert found["image"]["encoded"].shape == (4, 4, 3)
        assert (found["image"]["format"], found["image"]["height"]) == (b"JPEG" if i % 2 else b"PNG", 4)
        assert found["image"]["class"]["label"] == i % 2
        assert found["image"]["class"]["text"] == NAMES[i % 2].encode()
        assert found["image"]["object"]["bbox"]["xmin"].tolist() == [0.25] * i
        assert found["image"]["object"]["class"]["label"].tolist() == [7] * i
        assert found["score"] == i / 2
        assert found["meta"]["pair"].tolist() == [i, -i]
        assert found["meta"]["deep"]["tags"].tolist() == [b"a"] * (i % 2)
        assert found["names"].tolist() == [b"x", b"y"]
    np.testing.assert_array_equal(records[0]["image"]["encoded"], PIXELS)


def test_raw_pixels(tmp_path):
    write(tmp_path, manifest({"RAW": 6}, {"encoding": "raw", "square": 4}), [PIXELS.tobytes()] * 6, ["RAW"] * 6)
    builder, records = opened(tmp_path, "train")
    assert builder.info.features["image"]["encoded"].shape == (4, 4, 3)
    assert len(records) == 6
    np.testing.assert_array_equal(records[5]["image"]["encoded"], PIXELS)


def test_features_are_those_that_tfds_writes():
    f = tfds.features
    oracle = f.FeaturesDict(
        {
            "image": {
                "encoded": f.Image(encoding_format="jpeg"),
                **{name: f.Text() for name in ("format", "colorspace", "filename", "sha256")},
                **dict.fromkeys(("height", "width", "channels"), np.int64),
                "class": {"label": f.ClassLabel(num_classes=2), "text": f.Text()},
                "object": {
                    "bbox": {side: f.Sequence(np.float32) for side in ("xmin", "xmax", "ymin", "ymax")},
                    "class": {"label": f.Sequence(np.int64)},
                },
            },
            "score": np.float32,
            "meta": {"pair": f.Tensor(shape=(2,), dtype=np.int64), "deep": {"tags": f.Sequence(f.Text())}},
            "names": f.Tensor(shape=(2,), dtype=np.object_),
        }
    )
    ours = json.loads(written.features_json(manifest({"JPEG": 6, "PNG": 0})))
    theirs = oracle.to_json()
    assert ours == {"pythonClassName": theirs["type"], "featuresDict": theirs["content"]}


@pytest.mark.parametrize(("formats", "kept"), [({"PNG": 6}, "png"), ({"JPEG": 6}, "jpeg"), ({}, None)])
def test_the_encoding_is_kept_where_there_is_one(formats, kept):
    features = json.loads(written.features_json(manifest(formats)))["featuresDict"]["features"]
    assert features["image"]["featuresDict"]["features"]["encoded"]["image"].get("encodingFormat") == kept


def test_label_files():
    assert written.label_files(manifest({})) == {"image-class-label.labels.txt": "daisy\nLöwenzahn\n"}
    assert written.label_files(manifest({}, names=())) == {}
    assert written.label_files(manifest({}, schema=Schema((FeatureSpec("a", "bytes", ()),)))) == {}


@pytest.mark.parametrize("name", ["", " a", "a\nb", "a\rb", "\ud800"])
def test_names_that_would_not_survive_are_left_out(name, caplog):
    assert written.label_files(manifest({}, names=("a", name))) == {}
    assert caplog.messages == [
        "TensorFlow Datasets will show classes by number: a label name is empty, not UTF-8, or has odd white space."
    ]


def test_dataset_names():
    names = ["flowers", "Flowers-5!", "2024", "", "Blüte"]
    legal = ["flowers", "flowers_5", "dataset_2024", "dataset", "bl_te"]
    assert [written.dataset_name(replace(manifest({}), name=name)) for name in names] == legal


def test_names_that_cannot_nest_and_raw_pixels_without_their_side():
    for names in (("a", "a/b"), ("a/b", "a")):
        schema = Schema(tuple(FeatureSpec(name, "int64", ()) for name in names))
        assert "cannot" in refusal(ConfigError, written.features_json, manifest({}, schema=schema))
    raw = manifest({}, {"encoding": "raw"})
    assert "Raw images need `square`, their side in pixels, got None" in refusal(
        ConfigError, written.features_json, raw
    )


def test_tensors_and_text_are_read(tmp_path):
    schema = {"x": fields.Tensor("bfloat16", (None, 2)), "y": fields.Tensor("bool", (2,)), "caption": fields.Text()}
    rows = [{"x": tf.cast(tf.fill([k, 2], k), tf.bfloat16), "y": [k > 1, True], "caption": "é"} for k in range(3)]
    tfpipe.write(rows, tmp_path / "out", schema, num_shards=2, workers=0)
    found = list(tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train"))
    assert {row["x"].dtype.name for row in found} == {"bfloat16"}
    read = {len(row["x"]): (row["x"].numpy().tolist(), row["y"].numpy().tolist()) for row in found}
    assert read == {k: ([[k, k]] * k, [k > 1, True]) for k in range(3)}


@pytest.mark.parametrize(("dtype", "shape"), [("uint32", ()), ("int8", (None, None))])
def test_tensors_that_tfds_cannot_read_leave_its_files_out(tmp_path, dtype, shape):
    array = np.zeros([size or 1 for size in shape], dtype)
    tfpipe.write([{"x": array}], tmp_path / "out", {"x": fields.Tensor(dtype, shape)}, num_shards=1, workers=0)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"index", "manifest.json", "train-00000-of-00001.tfrecord"}
