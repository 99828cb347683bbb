"""Counts of images: added, merged, stored, and written into a manifest."""

import json
import random

import numpy as np
import pytest

from tfpipe.format.json_reader import read, to_json
from tfpipe.format.manifest import ImageSizes, ShardInfo, SplitInfo
from tfpipe.format.schema import FeatureSpec, Schema
from tfpipe.format.shard_stats import ShardStats, SideStats, merge_stats

IMAGES = [("PNG", 10, 20, 2), ("JPEG", 7, 30, 0), ("JPEG", 12, 5, 2), ("PNG", 10, 41, 1)]


def count(images: list[tuple[str, int, int, int]]) -> ShardStats:
    stats = ShardStats()
    for image in images:
        stats.add(*image)
    return stats


def test_images_are_added_and_what_a_record_does_not_say_is_not() -> None:
    stats = count(IMAGES)
    stats.add(None, None, 100)
    assert (stats.images, stats.formats, stats.labels) == (5, {"PNG": 2, "JPEG": 2}, {2: 2, 0: 1, 1: 1})
    assert stats.heights == SideStats(smallest=7, largest=12, total=39)
    assert stats.widths == SideStats(smallest=5, largest=100, total=196)
    assert ShardStats().to_split_info("train", [], 0).sizes == ImageSizes(0, 0, 0.0, 0, 0, 0.0)


def test_shards_in_any_order_and_cut_make_the_same_sum() -> None:
    rng = random.Random(1)
    images = [
        (rng.choice(["JPEG", "PNG"]), rng.randint(1, 50), rng.randint(1, 50), rng.randint(0, 3)) for _ in range(99)
    ]
    whole = count(images)
    rng.shuffle(images)
    assert merge_stats([count(images[:20]), ShardStats(), count(images[20:21]), count(images[21:])]) == whole


def test_a_split_of_the_manifest() -> None:
    shards = [ShardInfo("train-00000-of-00001.tfrecord", 4, 100, "0" * 64)]
    assert count(IMAGES).to_split_info("train", shards, num_classes=4) == SplitInfo(
        name="train",
        shards=tuple(shards),
        formats={"JPEG": 2, "PNG": 2},
        class_counts=(1, 1, 2, 0),
        sizes=ImageSizes(7, 12, 9.8, 5, 41, 24.0),
    )


@pytest.mark.parametrize("images", [IMAGES, IMAGES[:1], []], ids=len)
def test_json_and_back(images: list[tuple[str, int, int, int]]) -> None:
    stats = count(images)
    stats.changed["resized"] += 3
    stats.seekable_jpegs = 2
    assert read(json.loads(json.dumps(to_json(stats))), ShardStats) == stats


def test_numbers_that_are_not_classes_do_not_count() -> None:
    spec = FeatureSpec("tags", "int64", None, names=("a", "b", "c"))
    stats = ShardStats()
    stats.add_classes(Schema((spec,)), {"tags": np.array([1, 1, -1, 3, 2**62])})
    stats.add_classes(Schema((spec,)), {"tags": None})
    assert read(to_json(stats), ShardStats).label_counts == {"tags": {1: 1}}
    assert stats.to_split_info("train", [], 0).label_counts == {"tags": (0, 1)}
