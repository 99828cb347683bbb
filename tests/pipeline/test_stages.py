"""The stages of the textbook pipeline: what each decodes, crops, batches and gives of a record."""

import functools
import io
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.beam_jobs.images import save_image
from tests.format.tensors.datasets import RECORDS, write_tensors
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import StoredImages, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import RESERVED
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.device import augment
from tfpipe.pipeline.stages import (
    augment_on_host,
    center_crop_box,
    choose_crop,
    convert_values,
    crop,
    decode_crop,
    decode_image,
    decode_jpeg_crop,
    find_crop,
    masked_sum,
    read_image_size,
    resize_image,
    sample_crop_box,
    sample_flip,
)

JPEG, PNG, MIXED, FOREIGN = (StoredImages(frozenset(names)) for names in (["JPEG"], ["PNG"], ["JPEG", "PNG"], []))


def draw(height: int, width: int) -> np.ndarray:
    """Waves of several lengths and a little noise: about as hard to compress as a photograph."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + y / 29), np.cos(x / 11 - y / 23), np.sin((x + y) / 7)]
    noise = np.random.default_rng(0).normal(0, 4, (height, width, 3))
    return np.clip(128 + 60 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def save(pixels: np.ndarray, kind: str = "JPEG", **options: Any) -> bytes:
    return save_image(Image.fromarray(pixels), kind, **options)


def jpeg(pixels: np.ndarray, subsampling: int = 0) -> bytes:
    return save(pixels, quality=95, subsampling=subsampling)


ENCODED, CROP_BOX = tf.TensorSpec([], tf.string), tf.TensorSpec([4], tf.int32)
"""What the graphs below take. Each is traced once for its options and then serves every image."""


@functools.cache
def decoder(stored: StoredImages) -> Any:
    return tf.function(lambda e: decode_image(e, stored), [ENCODED], autograph=False)


@functools.cache
def cutter(stored: StoredImages) -> Any:

    def cut(encoded: tf.Tensor, crop_box: tf.Tensor) -> tf.Tensor:
        return decode_crop(encoded, crop_box, read_image_size({"encoded": encoded}, stored), stored)

    return tf.function(cut, [ENCODED, CROP_BOX], autograph=False)


@functools.cache
def measurer(stored: StoredImages, *sizes: int) -> Any:
    return tf.function(lambda e: read_image_size(make_record(e, *sizes), stored), [ENCODED], autograph=False)


def make_record(encoded: Any, *sizes: int) -> dict[str, Any]:
    names = ("height", "width")
    return {"encoded": encoded, **{n: tf.constant(s, tf.int64) for n, s in zip(names, sizes, strict=False)}}


def cut(encoded: bytes, crop_box: tuple[int, ...], stored: StoredImages = JPEG) -> np.ndarray:
    return cutter(stored)(encoded, np.int32(crop_box)).numpy()


FORMS = {"JPEG": (JPEG, MIXED, FOREIGN), "PNG": (PNG, MIXED, FOREIGN), "GIF": (FOREIGN,)}


@pytest.mark.parametrize(("kind", "stored"), [(kind, stored) for kind in FORMS for stored in FORMS[kind]])
@pytest.mark.parametrize("size", [(1, 1), (37, 53)])
@pytest.mark.parametrize("gray", [False, True])
def test_every_format_becomes_three_channels(kind, stored, size, gray):
    encoded = save(draw(*size)[..., 0] if gray else draw(*size), kind)
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    whole = decoder(stored)(encoded).numpy()
    assert whole.dtype == np.uint8
    assert whole.shape == (*size, 3)
    # libjpeg's versions round differently, more so where color is stored at half the size.
    np.testing.assert_allclose(whole.astype(int), expected, atol=4 if kind == "JPEG" else 0)
    if gray:
        np.testing.assert_array_equal(whole[..., 0], whole[..., 2])
    np.testing.assert_array_equal(cut(encoded, (0, 0, *size), stored), whole)
    assert [int(n) for n in measurer(stored)(encoded)] == list(size)


def test_raw_pixels_and_fixed_sizes_have_static_shapes():
    pixels = draw(6, 9)
    raw, fixed = StoredImages(frozenset(["RAW"]), (6, 9)), StoredImages(frozenset(["PNG"]), (6, 9))
    for stored, encoded in ((raw, pixels.tobytes()), (fixed, save(pixels, "PNG"))):
        dataset = tf.data.Dataset.from_tensors(encoded).map(decoder(stored))
        assert dataset.element_spec == tf.TensorSpec((6, 9, 3), tf.uint8)
        np.testing.assert_array_equal(next(iter(dataset)), pixels)
        np.testing.assert_array_equal(cut(encoded, (1, 2, 4, 5), stored), pixels[1:5, 2:7])
        # The record's height and width are the original's here.
        assert [int(n) for n in read_image_size(make_record(encoded, 600, 900), stored)] == [6, 9]
    for stored in (JPEG, PNG, MIXED, FOREIGN):
        for function in (
            lambda e, w, stored=stored: decode_image(e, stored),
            lambda e, w, stored=stored: decode_crop(e, w, (37, 53), stored),
        ):
            specs = (tf.TensorSpec([], tf.string), tf.TensorSpec([4], tf.int32))
            shape = tf.function(function, autograph=False).get_concrete_function(*specs).output_shapes
            assert shape.as_list() == [None, None, 3]


def test_sizes_come_from_the_record_only_where_tfpipe_wrote_it():
    encoded = jpeg(draw(30, 20))
    # A wrong height shows where the answer is from.
    height, width = read_image_size(make_record(encoded, 7, 8), JPEG)
    assert (int(height), int(width)) == (7, 8)
    assert [int(n) for n in measurer(FOREIGN, 7, 8)(encoded)] == [30, 20]
    assert height.dtype == width.dtype == tf.int32


def test_damage_and_wrong_sizes_are_errors():
    encoded, error = jpeg(draw(40, 40)), tf.errors.InvalidArgumentError
    for bad, stored in ((encoded[:300], JPEG), (b"", JPEG), (b"<html>", FOREIGN), (encoded[:300], FOREIGN)):
        with pytest.raises(error):
            decoder(stored)(bad)
        with pytest.raises(error):
            cut(bad, (0, 0, 9, 9), stored)
    with pytest.raises(error):
        decoder(StoredImages(frozenset(["JPEG"]), (40, 41)))(encoded)
    with pytest.raises(error):
        decoder(StoredImages(frozenset(["RAW"]), (4, 4)))(bytes(47))
    assert "crop window" in refusal(error, cut, encoded, (0, 1, 40, 40))


@pytest.mark.parametrize("crop_box", [(0, 0, 1, 1), (36, 52, 1, 1), (0, 0, 37, 53), (9, 17, 20, 30), (0, 52, 37, 1)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_crop_box_is_a_slice(crop_box, kind):
    pixels = draw(37, 53)
    encoded = jpeg(pixels) if kind == "JPEG" else save(pixels, "PNG")
    y, x, height, width = crop_box
    for stored in (StoredImages(frozenset([kind])), MIXED, FOREIGN):
        whole = decode_image(tf.constant(encoded), stored)
        expected = whole[y : y + height, x : x + width].numpy()
        np.testing.assert_array_equal(cut(encoded, crop_box, stored), expected)
        np.testing.assert_array_equal(crop(whole, tf.constant(crop_box)), expected)


@pytest.mark.parametrize("subsampling", [1, 2], ids=["4:2:2", "4:2:0"])
@pytest.mark.parametrize("ratio", [1, 2])
def test_colour_at_half_width_is_that_of_the_whole_image(rng: random.Random, subsampling: int, ratio: int) -> None:
    encoded, size = jpeg(draw(120, 150), subsampling=subsampling), (120 // ratio, 150 // ratio)
    whole = tf.io.decode_jpeg(encoded, channels=3, ratio=ratio).numpy()
    decode = tf.function(lambda e, box: decode_jpeg_crop(e, box, size[1], ratio), [ENCODED, CROP_BOX], autograph=False)
    for _ in range(20):
        height, width = (rng.randint(1, side) for side in size)
        top, left = rng.randint(0, size[0] - height), rng.randint(0, size[1] - width)
        expected = whole[top : top + height, left : left + width]
        crop_box = np.int32((top, left, height, width))
        np.testing.assert_array_equal(decode(encoded, crop_box), expected, str(crop_box))


def test_what_cannot_be_is_refused():
    alone = "Raw images need a fixed `size` and no other format beside them, got"
    assert refusal(ConfigError, StoredImages, frozenset(["RAW"])) == f"{alone} RAW of size None."
    assert refusal(ConfigError, StoredImages, frozenset(["RAW", "JPEG"]), (8, 8)).startswith(f"{alone} JPEG, RAW of ")
    assert "must be of JPEG, PNG and RAW, got WEBP" in refusal(ConfigError, StoredImages, frozenset(["WEBP"]))


RAW = StoredImages(frozenset(["RAW"]), (32, 32))
OPTIONS = AugmentOptions()


def seeds_of(count: int) -> Any:
    return tf.constant(np.random.default_rng(0).integers(-(2**31), 2**31, (count, 2)), tf.int32)


def config(**options: Any) -> PipelineConfig:
    return PipelineConfig(**{"batch_size": 8, "image_size": 16, **options})


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("crop_box", [(0, 0, 40, 50), (3, 7, 30, 22), (39, 0, 1, 50), (5, 40, 35, 10)])
def test_host_and_device_agree(crop_box, antialias) -> None:
    encoded, out = jpeg(draw(40, 50)), (24, 28)
    host = resize_image(decode_crop(tf.constant(encoded), tf.constant(crop_box), (40, 50), JPEG), out, antialias)
    y, x, height, width = crop_box
    box = np.array([[y / 40, x / 50, (y + height) / 40, (x + width) / 50]], np.float32)
    image = decode_image(encoded, JPEG)[None]
    other = augment.crop_and_resize(image, tf.constant(box), None, out, antialias=antialias)[0]
    assert host.dtype == tf.float32
    np.testing.assert_allclose(host, other, atol=1)
    assert np.abs(host - other).mean() < 0.05


def test_uint8_is_the_nearest_and_floats_are_the_devices() -> None:
    image = tf.constant(np.random.default_rng(0).uniform(0, 255, (5, 7, 3)), tf.float32)
    np.testing.assert_array_equal(convert_values(image, "uint8", OPTIONS), np.floor(image.numpy() + np.float32(0.5)))
    ends = tf.constant([[[0.0, 254.5, 255.0]]])
    assert convert_values(ends, "uint8", OPTIONS).numpy().tolist() == [[[0, 255, 255]]]
    options = AugmentOptions(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))
    for dtype in (tf.float32, tf.bfloat16):
        expected = augment.normalize(image, dtype, options.mean, options.std)
        result = convert_values(image, dtype.name, options)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("dtype", "training", "flip"),
    [("uint8", True, True), ("float32", True, False), ("bfloat16", True, True), ("uint8", False, True)],
)
def test_host_mode(dtype, training, flip) -> None:
    options = AugmentOptions(flip=flip)
    run_config = config(image_dtype=dtype, training=training, image_size=(12, 16), augment_options=options)
    features = make_record(jpeg(draw(60, 90)), 60, 90)

    @tf.autograph.experimental.do_not_convert
    def whole(seed: Any) -> Any:
        crop_box, flipped, size = find_crop(features, seed, JPEG, run_config)
        assert (flipped is not None) == (training and flip)
        return augment_on_host(decode_crop(features["encoded"], crop_box, size, JPEG), flipped, run_config)

    dataset = tf.data.Dataset.from_tensor_slices(seeds_of(6)).map(whole)
    assert dataset.element_spec == tf.TensorSpec((12, 16, 3), tf.as_dtype(dtype))
    results = np.stack([image.numpy() for image in dataset])
    assert len({image.tobytes() for image in results}) == (6 if training else 1)
    if training:
        seed = seeds_of(6)[4]
        crop_box = sample_crop_box(seed, (60, 90), None, options)
    else:
        seed, crop_box = None, center_crop_box((60, 90), None, (12, 16), 0.875)
    image = resize_image(decode_crop(features["encoded"], crop_box, (60, 90), JPEG), (12, 16))
    image = convert_values(image, dtype, options)
    is_mirrored = training and flip and sample_flip(seed)
    np.testing.assert_array_equal(results[4], image[:, ::-1] if is_mirrored else image)


@pytest.mark.parametrize("size", [(1, 1), (37, 500), (256, 512), (256, 513)], ids=str)
@pytest.mark.parametrize("is_static", [True, False], ids=["static", "dynamic"])
def test_what_is_converted_before_the_resize_comes_out_the_same(size: tuple[int, int], is_static: bool) -> None:
    image = np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), np.uint8)
    expected = tf.image.resize(tf.constant(image), (120, 101)).numpy()
    spec = tf.TensorSpec((*size, 3) if is_static else (None, None, 3), tf.uint8)
    resize = tf.function(lambda pixels: resize_image(pixels, (120, 101)), [spec], autograph=False)
    np.testing.assert_array_equal(resize(image).numpy().view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("training", [True, False])
def test_a_squeezed_image_is_cropped_in_the_shape_of_its_original(training: bool) -> None:
    features, run_config, seed = make_record(bytes(32 * 32 * 3), 100, 300), config(training=training), seeds_of(1)[0]
    stored, flip, size = find_crop(features, seed, RAW, run_config)
    assert [int(side) for side in size] == [32, 32]
    cached, again = choose_crop((32, 32), (100, 300), seed, run_config)
    np.testing.assert_array_equal(stored, cached)
    assert stored[2] > stored[3]  # squeezed as the whole is
    assert (flip is None, again is None) == (not training, not training)
    if training:
        assert bool(flip) == bool(again) == bool(sample_flip(seed))
    alone, _, _ = find_crop({"encoded": features["encoded"]}, seed, RAW, run_config)
    np.testing.assert_array_equal(alone, choose_crop((32, 32), None, seed, run_config)[0])


def test_random_crops_need_a_seed() -> None:
    assert refusal(ConfigError, find_crop, make_record(jpeg(draw(9, 9)), 9, 9), None, JPEG, config()) == (
        "Random crops need a seed for each record, got None. Give two int32, or set `training` off."
    )


EVALUATION = {"training": False, "image_size": 8, "batch_size": 8}


def first(manifest: Manifest, split: str = "train", **options):
    return next(build_dataset(manifest, split, PipelineConfig(**{**EVALUATION, **options})).as_numpy_iterator())


def test_labels_and_tuples(few: Manifest) -> None:
    batch = first(few)
    assert batch["label"].dtype == np.int32
    assert batch["label"].tolist() == [i % 3 for i in range(8)]
    batch = first(few, one_hot=True)
    assert batch["label"].dtype == np.float32
    np.testing.assert_array_equal(batch["label"], np.eye(3)[np.arange(8) % 3])
    image, label, mask = first(few, "validation", as_supervised=True, batch_size=6)
    assert (image.shape, label.tolist(), mask.tolist()) == ((6, 8, 8, 3), [0, 1, 2, 0, 1, 2], [1.0] * 6)
    assert mask.dtype == np.float32
    inputs, _, mask = first(
        few, "validation", as_supervised=True, augment="device", extra_features=("id",), batch_size=10
    )
    assert set(inputs) == {"image", "crop", "flip", "id"}
    assert inputs["image"].shape == (8, 9, 9, 3)  # in its true size
    assert mask.tolist() == [1.0] * 8
    batch = first(few, "validation", augment="device", extra_features=("id",), batch_size=10)
    middle, whole = [0, 2 / 14, 0.9, 11 / 14], [0, 0, 1, 1]  # 9 x 9 of 10 x 14 pixels; and where no record is
    np.testing.assert_array_equal(batch["crop"], np.float32([middle] * 8 + [whole] * 2))
    assert not batch["flip"].any()
    inputs, label = first(few, as_supervised=True, augment="device", training=True)
    assert set(inputs) == {"image", "crop", "flip"}
    assert (inputs["crop"].shape, inputs["crop"].dtype) == ((8, 4), np.float32)
    assert (inputs["flip"].shape, inputs["flip"].dtype) == ((8,), np.uint8)
    assert label.shape == (8,)


@pytest.mark.parametrize("order", ["exact", "throughput"])
def test_pairs_of_one_replica_have_each_record_once_and_nothing_else(few: Manifest, context, order: str) -> None:
    config = PipelineConfig(**EVALUATION, as_supervised=True, order=order, extra_features=("id", "pair"))
    one = build_dataset(few, "train", config)
    assert int(one.cardinality()) in (3, tf.data.UNKNOWN_CARDINALITY)
    assert [(x["id"].tolist(), y.shape, mask.tolist()) for x, y, mask in one.as_numpy_iterator()] == [
        (list(range(first, end)), (end - first,), [1.0] * (end - first)) for first, end in ((0, 8), (8, 16), (16, 23))
    ]
    for hosts, replicas in ((1, 2), (2, 2)):
        batches = build_dataset(few, "train", config, context(hosts, 0, replicas)).as_numpy_iterator()
        assert {len(mask) for _, _, mask in batches} == {4}


def test_a_host_with_several_replicas_has_a_batch_for_each(few: Manifest, context) -> None:
    config = PipelineConfig(**{**EVALUATION, "batch_size": 12}, extra_features=("id",))
    hosts = [build_dataset(few, "train", config, context(2, host, 4)) for host in range(2)]
    assert [dataset.cardinality() for dataset in hosts] == [4, 4]  # two steps
    batches = [batch for dataset in hosts for batch in dataset.as_numpy_iterator()]
    assert [len(batch["id"]) for batch in batches] == [3] * 8
    assert sorted(int(i) for batch in batches for i in batch["id"][batch["mask"]]) == list(range(23))


def test_training_is_endless(few: Manifest) -> None:
    dataset = build_dataset(few, "train", PipelineConfig(batch_size=4, image_size=8))
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec["image"] == tf.TensorSpec([4, 8, 8, 3], tf.uint8)
    assert dataset.element_spec["label"] == tf.TensorSpec([4], tf.int32)
    assert set(dataset.element_spec) == {"image", "label"}


def test_the_mean_over_real_examples() -> None:
    values = tf.constant([1.0, 3.0, np.nan, np.inf])
    for mask in (tf.constant([True, True, False, False]), tf.constant([1.0, 1.0, 0.0, 0.0])):
        total, count = masked_sum(values, mask)
        assert (float(total), float(count)) == (4.0, 2.0)
        assert total.dtype == count.dtype == tf.float32
    total, count = masked_sum(tf.constant([True, False, True]), tf.constant([True, True, False]))
    assert (float(total), float(count)) == (1.0, 2.0)
    total, count = masked_sum(tf.constant([7, 9]), tf.constant([False, False]))
    assert (float(total), float(count)) == (0.0, 0.0)


def test_boxes_and_lists_with_a_size_are_padded_and_cut(few: Manifest) -> None:
    extra_features = ("id", "pair", "marks", "words", "image/object/bbox/xmin", "image/filename", "image/height")
    config = PipelineConfig(**EVALUATION, extra_features=extra_features, max_boxes=3, pad_to={"marks": 3, "words": 3})
    batch = next(build_dataset(few, "train", config).as_numpy_iterator())
    assert set(batch) == {*extra_features, "marks.sizes", "words.sizes", "image", "label", "mask"}
    assert batch["id"].tolist() == list(range(8))
    assert batch["pair"].tolist() == [[float(i), -0.5] for i in range(8)]
    assert batch["marks"].tolist() == [[j if j < i % 6 else -1 for j in range(3)] for i in range(8)]
    assert batch["words"].tolist() == [[b"w%d" % j if j < i % 3 else b"" for j in range(3)] for i in range(8)]
    sides = [[0.125 * (j + 1) if j < i % 4 else 0.0 for j in range(3)] for i in range(8)]
    assert batch["image/object/bbox/xmin"].tolist() == sides
    assert batch["image/filename"].tolist() == [b"%d.jpg" % i for i in range(8)]
    assert batch["image/height"].tolist() == [10] * 8
    assert batch["marks.sizes"].tolist() == [[i % 6] for i in range(8)]
    assert batch["words.sizes"].tolist() == [[i % 3] for i in range(8)]


def test_features_of_one_size_are_those_of_the_record_in_the_textbook_too(few: Manifest) -> None:
    config = PipelineConfig(**EVALUATION, extra_features=("id", "pair", "image/filename"), order="throughput")
    batch = next(build_dataset(few, "train", config).as_numpy_iterator())
    assert set(batch) == {"id", "pair", "image/filename", "image", "label", "mask"}
    assert batch["id"].tolist() == list(range(8))
    assert batch["pair"].tolist() == [[float(i), -0.5] for i in range(8)]
    assert batch["image/filename"].tolist() == [b"%d.jpg" % i for i in range(8)]
    assert batch["label"].tolist() == [i % 3 for i in range(8)]


def test_a_list_without_a_size_is_not_cut(few: Manifest) -> None:
    config = PipelineConfig(**EVALUATION, extra_features=("marks", "words"), max_boxes=1)
    *_, batch = build_dataset(few, "train", config)
    whole = [list(range(i % 6)) for i in range(16, 23)]
    assert isinstance(batch["marks"], tf.RaggedTensor)
    assert batch["marks"].to_list() == [*whole, []]
    assert batch["words"].to_list() == [*([b"w%d" % j for j in range(i % 3)] for i in range(16, 23)), []]
    assert batch["words"].shape == (8, None)


def test_features_that_cannot_be_included(few: Manifest, foreign) -> None:
    for name in RESERVED:
        with pytest.raises(ConfigError, match=f"`extra_features` must not name '{name}': the pipeline uses"):
            build_stages(few, "train", PipelineConfig(**EVALUATION, extra_features=("id", name)))
    found = refusal(ConfigError, build_stages, few, "train", **EVALUATION, extra_features=("nothing",))
    assert re.search(r"features of 'train' of .*, got 'nothing'; it has image/encoded, .*, pair\.", found)
    with pytest.raises(ConfigError, match=r"`one_hot` needs the number of classes of .*: give `num_classes`\."):
        build_stages(tfrecord_files(str(foreign / "flat-*")), None, PipelineConfig(**EVALUATION, one_hot=True))


SMALL = {"batch_size": 2, "training": False}


@pytest.fixture
def dataset(tmp_path: Path):
    write_tensors(tmp_path)
    return load_manifest(str(tmp_path))


def test_without_images_a_batch_has_all_features(dataset) -> None:
    stages = build_stages(dataset, "train", PipelineConfig(**SMALL))
    assert stages.names == ("list", "read", "decode", "batch", "prefetch")
    (batch,) = stages.dataset()
    assert set(batch) == {"tokens", "frames", "caption", "mask"}
    assert batch["caption"].numpy().tolist() == [record["caption"].encode() for record in RECORDS]
    for name in ("tokens", "frames"):
        assert isinstance(batch[name], tf.RaggedTensor)
        for k, record in enumerate(RECORDS):
            value = batch[name][k]
            value = value.to_tensor() if isinstance(value, tf.RaggedTensor) else value
            np.testing.assert_array_equal(value, record[name])


def test_padding_cuts_and_fills_and_keeps_the_sizes(dataset) -> None:
    config = PipelineConfig(**SMALL, extra_features=("tokens", "frames"), pad_to={"tokens": 1, "frames": (2, 2)})
    data = build_dataset(dataset, "train", config)
    assert data.element_spec["frames"].shape == (2, 2, 2, 3)
    (batch,) = data
    assert batch["tokens"].numpy().tolist() == [[[1, 2]], [[3, 4]]]
    assert batch["tokens.sizes"].numpy().tolist() == [[1], [2]]
    assert batch["frames.sizes"].numpy().tolist() == [[1, 2], [2, 1]]
    assert batch["frames"].numpy()[1].tolist() == [[[0, 1, 2], [0, 0, 0]], [[3, 4, 5], [0, 0, 0]]]


SIZES_BY_NAMES = (
    "`pad_to` must have sizes from 1 by the names of features, such as {'tokens': 77} or {'frames': (16, 128)}"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_to": ("tokens",)}, f"{SIZES_BY_NAMES}, got ('tokens',)."),
        ({"pad_to": {"tokens": 0}}, SIZES_BY_NAMES),
        (
            {"pad_to": {"frames": 3}},
            "`pad_to` must give 'frames' a size for each unknown axis, got 1 for float32 [?, ?, 3].",
        ),
        ({"pad_to": {"caption": 3}}, "`pad_to` must give 'caption' a size for each unknown axis, got 1 for text."),
        ({"pad_to": {"x": 3}}, "`pad_to` must name features of the batch, got 'x'; it has tokens, frames, caption."),
        ({"augment": "device"}, "`augment` device needs images, and 'train' of "),
        ({"cache": "decoded"}, "`cache` decoded needs images, and 'train' of "),
    ],
)
def test_options_that_do_not_fit_are_refused(dataset, options: dict, message: str) -> None:
    assert refusal(ConfigError, build_dataset, dataset, "train", **SMALL, **options).startswith(message)
