"""Several images of a record in batches: against a slow reference, and in all readers alike."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.refusals import refusal
from tests.several_images import LABEL_AND_TEXT, count_images, make_pixels, write_several
from tfpipe import fields
from tfpipe.engine.encoded_images import choose_images
from tfpipe.engine.host import Host
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, FormatError
from tfpipe.pipeline.device.augment import augment
from tfpipe.pipeline.stages import sample_crop_box, sample_flip
from tfpipe.readers.base import open_data
from tfpipe.system.hash_permutation import hash_numbers, make_seeds

SIZE = (12, 9)
STEPS = 4
Batch = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> tfpipe.Manifest:
    """PNGs, so that pixels are exact: 18 records of 3 images."""
    return write_several(tmp_path_factory.mktemp("three") / "out")


@pytest.fixture(scope="module")
def some(tmp_path_factory) -> tfpipe.Manifest:
    return write_several(tmp_path_factory.mktemp("some") / "out", number=None)


def make_config(**options: Any) -> tfpipe.PipelineConfig:
    defaults = {"batch_size": 6, "image_size": SIZE, "seed": 4, "extra_features": ("caption",)}
    return tfpipe.PipelineConfig(**(defaults | options))


def read(manifest: tfpipe.Manifest, config: tfpipe.PipelineConfig, **options: Any) -> list[Batch]:
    dataset = tfpipe.build_dataset(manifest, "train", config, **options)
    return [{name: np.asarray(value) for name, value in batch.items()} for batch in dataset.take(STEPS)]


def get_numbers(batch: Batch) -> list[int]:
    return [int(caption.decode().split()[1]) for caption in batch["caption"].tolist() if caption]


def list_seeds(manifest: tfpipe.Manifest, config: tfpipe.PipelineConfig) -> Iterator[np.ndarray]:
    plan = plan_batches(Source.from_manifest(manifest, "train"), config)
    for step in range(STEPS):
        epoch, place = divmod(step, plan.steps_per_epoch or 1)
        yield from make_seeds(config.seed, epoch, plan.order.list_numbers(epoch, place))


def choose_slowly(seed: np.ndarray, count: int, number: int) -> list[int]:
    """Chooses images by their hashes, one record at a time."""
    state = int(seed.view(np.uint64)[0])
    numbers = [int(hash_numbers(0x13198A2E03707344, np.array([state + k], np.uint64))[0]) for k in range(count)]
    return sorted(sorted(range(count), key=lambda k: numbers[k])[:number])


def make_slowly(record: int, place: int, seed: np.ndarray) -> np.ndarray:
    word = (place * 0x9E3779B1 + 2**31) % 2**32 - 2**31
    own = tf.constant([int(seed[0]) ^ word, int(seed[1])], tf.int32)
    pixels = make_pixels(record, place)
    y, x, height, width = sample_crop_box(own, pixels.shape[:2], None, tfpipe.AugmentOptions()).numpy()
    image = np.floor(tf.image.resize(pixels[y : y + height, x : x + width], SIZE).numpy() + 0.5).astype(np.uint8)
    return image[:, ::-1] if sample_flip(own) else image


def test_images_are_drawn_among_as_many_as_a_record_has(some: tfpipe.Manifest) -> None:
    config, drawn = make_config(images=2), set()
    seeds = list_seeds(some, config)
    for batch in read(some, config):
        for image, number, seed in zip(batch["image"], get_numbers(batch), seeds, strict=False):
            places = choose_slowly(seed, count_images(number, None), 2)
            drawn.add((count_images(number, None), *places))
            np.testing.assert_array_equal(image, [make_slowly(number, place, seed) for place in places])
    assert len(drawn) > 8  # other ones in other records


def test_each_choice_is_as_likely() -> None:
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, (3000, 2)).astype(np.int32)
    chosen = choose_images(seeds, np.full(3000, 4), 2, 5)
    assert chosen[:20].tolist() == [choose_slowly(seed, 4, 2) for seed in seeds[:20]]
    pairs, counts = np.unique(chosen, axis=0, return_counts=True)
    assert pairs.tolist() == [[a, b] for a in range(4) for b in range(a + 1, 4)]
    assert (abs(counts - 500) < 110).all()  # five standard deviations


def test_evaluation_takes_the_first_ones_and_the_middle(some: tfpipe.Manifest) -> None:
    batches = read(some, make_config(training=False, batch_size=7, images=2))
    assert sorted(number for batch in batches for number in get_numbers(batch)[: batch["mask"].sum()]) == [*range(18)]
    assert not batches[-1]["image"][batches[-1]["mask"].sum() :].any()  # the padding
    single = tfpipe.PipelineConfig(batch_size=7, image_size=SIZE, training=False, images="first")
    first = [batch["image"].numpy() for batch in tfpipe.build_dataset(some, "train", single)]
    for batch, images in zip(batches, first, strict=True):
        np.testing.assert_array_equal(batch["image"][:, 0], images)
        for image, number in zip(batch["image"][:, 1], get_numbers(batch)[: batch["mask"].sum()], strict=False):
            assert (image[..., :2] == [10 * number, 60]).all()


def test_whole_images_are_resized_and_the_device_crops_each(three: tfpipe.Manifest) -> None:
    for batch in read(three, make_config(augment="none", images=2)):
        for images, number in zip(batch["image"], get_numbers(batch), strict=True):
            assert (images[..., 0] == 10 * number).all()
            assert images.shape == (2, *SIZE, 3)
    maker = open_data(three, "train", make_config(), Host())
    images = maker.choose_images(maker.read(0, 0))
    (batch, *_) = read(three, make_config(augment="device", decoded_size=20))
    assert batch["image"].shape == (6, 3, 20, 20, 3)
    np.testing.assert_array_equal(batch["crop"].reshape(18, 4), images.list_corners())
    np.testing.assert_array_equal(batch["flip"].reshape(18), images.flips)
    assert len(np.unique(batch["crop"].reshape(18, 4), axis=0)) == 18
    assert augment(*(tf.constant(batch[name]) for name in ("image", "crop", "flip")), SIZE).shape == (6, 3, *SIZE, 3)


NUMBERS, FEWER = '`images` must be "all", "first", or from 1 to 64', "Use first, or a number up to 2."
AT_MOST = "`images` 3 must give at most 64 images, and no more than"
ONE_IMAGE = "`cache` decoded keeps one image a record"
ONE_IN_FILES = "`cache` decoded in files keeps one image a record, and these have several. Use bytes."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, f"`images` all needs the same number of images in every record, and 'train' of {{}} has 2 to 5. {FEWER}"),
        ({"images": 3}, f"{AT_MOST} each record of 'train' of {{}} has, got 3. {FEWER}"),
        ({"images": 2, "cache": "decoded"}, f"{ONE_IMAGE}. Set `cache` to bytes, or `images` to first."),
        ({"images": "first", "cache": "decoded", "cache_dir": "cache"}, ONE_IN_FILES),
        ({"images": 65}, f"{NUMBERS}, got 65."),
        ({"images": True}, f"{NUMBERS}, got True."),
        ({"images": "last"}, f"{NUMBERS}, got 'last'."),
    ],
)
def test_what_cannot_be(some: tfpipe.Manifest, options: dict[str, Any], message: str) -> None:
    found = refusal(ConfigError, lambda: tfpipe.build_dataset(some, "train", make_config(**options)))
    assert found == message.format(some.directory)


def test_a_record_without_the_promised_images_is_named(some: tfpipe.Manifest) -> None:
    maker = open_data(some, "train", make_config(images=2, extra_features=()), Host())
    stored = maker.read(0, 0)
    images = stored.columns["image/encoded"]
    few = {**stored.columns, "image/encoded": images.choose(images.firsts, np.ones(len(images.counts), np.int64))}
    sentence = f"Record {stored.numbers[0]} of 'train': it must have 2 images or more, got 1."
    assert refusal(FormatError, maker.decode, replace(stored, columns=few)) == sentence
    sides = stored.columns["image/height"]
    few = {**stored.columns, "image/height": sides.choose(sides.firsts, np.ones(len(sides.counts), np.int64))}
    row = int(np.flatnonzero(images.counts != 1)[0])
    assert refusal(FormatError, maker.decode, replace(stored, columns=few)) == (
        f"Record {stored.numbers[row]} of 'train': it must have a height and a width for each of {images.counts[row]} "
        "images, got 1."
    )


def test_a_mixture_needs_one_number(some: tfpipe.Manifest, three: tfpipe.Manifest) -> None:
    tfpipe.write(
        ({"image": make_pixels(k, 0), **{"class": 0, "caption": "a"}} for k in range(8)),
        f"{some.directory}-single",
        {"image": fields.Image(), **LABEL_AND_TEXT},
        num_shards=1,
        workers=0,
    )
    mixture = tfpipe.mix({three.directory: 0.5, f"{some.directory}-single": 0.5})
    assert refusal(ConfigError, tfpipe.build_dataset, mixture, "train", make_config(extra_features=())) == (
        "The datasets of a mixture must give the same number of images a record, got 3, 1. Set `images` to first, or "
        "to a number that all have."
    )
    (batch, *_) = tfpipe.build_dataset(mixture, "train", make_config(extra_features=(), images="first")).take(1)
    assert batch["image"].shape == (6, *SIZE, 3)


def test_records_of_one_image_have_no_number(tmp_path: Path) -> None:
    schema = {"image": fields.Image()}
    data = tfpipe.write([{"image": make_pixels(0, 0)}], tmp_path / "out", schema, num_shards=1, workers=0)
    config = make_config(images=2, extra_features=())
    assert refusal(ConfigError, tfpipe.build_dataset, data, "train", config) == (
        f"`images` 2 needs records with several images, and 'train' of {tmp_path}/out has none such."
    )
