"""Epochs from a cache in memory: the order and the crops of a run without one, and no file is read twice."""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset
from tfpipe.pipeline.plan.read_plan import ReadPlan

ORDER = {"global_batch_size": 8, "image_size": 8, "num_streams": 2, "lanes": 4, "run_records": 3}
STEPS = 2  # of an epoch: 23 records


def config_of(**options) -> PipelineConfig:
    return PipelineConfig(**{**ORDER, "extra_features": ("id",), **options})


def ids(batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def order_of(manifest: Manifest, first_step: int, steps: int) -> list[list[int]]:
    """Lists the ids of each step's global batch by `tfpipe.order`."""
    plan = ReadPlan(Source.from_manifest(manifest, "train"), config_of())
    batches = []
    for global_step in range(first_step, first_step + steps):
        shard, record = plan.order.batch(*plan.order.locate(global_step, 8), 8).T
        batches.append((plan.source.bases[shard] + record).tolist())
    return batches


@pytest.mark.parametrize(
    ("kind", "start_step"),
    [
        ("bytes", 0),
        ("decoded", 3),
        pytest.param("bytes", 3, marks=pytest.mark.slow),
        pytest.param("decoded", 0, marks=pytest.mark.slow),
    ],
)
def test_the_order_is_that_without_a_cache_and_no_file_is_read_twice(
    copied: Manifest, few: Manifest, kind: str, start_step: int
) -> None:
    dataset = build_dataset(copied, "train", config_of(cache=kind), start_step=start_step)
    batches = dataset.as_numpy_iterator()
    seen = list(islice(batches, STEPS + 1))
    shutil.rmtree(copied.directory)
    seen += list(islice(batches, 2 * STEPS))
    assert ids(seen) == order_of(few, start_step, len(seen))
    assert all((batch["label"] == batch["id"] % 3).all() for batch in seen)
    crops: dict[int, list[bytes]] = {}
    for batch in seen:
        for number, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            crops.setdefault(number, []).append(image.tobytes())
    again = [images for images in crops.values() if len(images) > 1]
    assert len(again) > 10
    assert sum(len(set(images)) == len(images) for images in again) > len(again) / 2  # each a crop of its own
    if kind == "bytes":  # the crops are those without a cache
        plain = build_dataset(few, "train", config_of(), start_step=start_step)
        for one, other in zip(plain.take(3).as_numpy_iterator(), seen, strict=False):
            np.testing.assert_array_equal(one["image"], other["image"])


@pytest.mark.parametrize(
    ("kind", "on_bad_record"),
    [
        ("bytes", "raise"),
        ("decoded", "skip"),
        pytest.param("bytes", "skip", marks=pytest.mark.slow),
        pytest.param("decoded", "raise", marks=pytest.mark.slow),
    ],
)
def test_an_evaluation_is_read_once(copied: Manifest, kind: str, on_bad_record: str) -> None:
    """Also where the last batch is full, and nothing behind it makes the cache find its own end."""
    config = config_of(cache=kind, training=False, global_batch_size=4, on_bad_record=on_bad_record)
    dataset = build_dataset(copied, "validation", config)
    assert dataset.cardinality() == 2
    first = list(dataset.as_numpy_iterator())
    shutil.rmtree(copied.directory)
    second = list(dataset.as_numpy_iterator())
    assert ids(first) == ids(second) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


def test_two_hosts_cache_what_each_needs(few: Manifest, context) -> None:
    parts = [
        ids(build_dataset(few, "train", config_of(cache="bytes"), context(2, host, 2)).take(4).as_numpy_iterator())
        for host in range(2)
    ]
    whole = order_of(few, 0, 4)
    assert [one + other for one, other in zip(*parts, strict=True)] == whole
    assert max(Counter(number for batch in whole[:STEPS] for number in batch).values()) == 1
