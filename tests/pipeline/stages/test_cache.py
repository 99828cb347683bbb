"""Caches in memory: the same order without a second read, and no more than fits."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.source import Source, tfrecord_files
from tfpipe.pipeline.stages.cache import estimate_cache_bytes
from tfpipe.pipeline.stages.list import first_use_runs, record_numbers
from tfpipe.system import host_limits

ORDER = {"global_batch_size": 8, "image_size": 8, "num_streams": 2, "window_records": 4, "run_records": 3}
STEPS = 2  # of an epoch: 23 records


def config_of(**options) -> PipelineConfig:
    return PipelineConfig(**{**ORDER, "extra_features": ("id",), **options})


def ids(batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("kind", ["bytes", "decoded"])
@pytest.mark.parametrize("start_step", [0, 3])
def test_the_order_is_that_without_a_cache_and_no_file_is_read_twice(
    copied: Manifest, few: Manifest, kind: str, start_step: int
) -> None:
    dataset = build_dataset(copied, "train", config_of(cache=kind), start_step=start_step)
    batches = dataset.as_numpy_iterator()
    seen = list(islice(batches, STEPS + 1))
    shutil.rmtree(copied.directory)
    seen += list(islice(batches, 2 * STEPS))
    plan = ReadPlan(Source.from_manifest(few, "train"), config_of())
    expected = []
    for global_step in range(start_step, start_step + len(seen)):
        shard, record = plan.order.batch(*plan.order.locate(global_step, 8), 8).T
        expected.append((plan.source.bases[shard] + record).tolist())
    assert ids(seen) == expected
    assert all((batch["label"] == batch["id"] % 3).all() for batch in seen)
    crops: dict[int, list[bytes]] = {}
    for batch in seen:
        for number, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            crops.setdefault(number, []).append(image.tobytes())
    again = [images for images in crops.values() if len(images) > 1]
    assert len(again) > 10
    assert sum(len(set(images)) == len(images) for images in again) > len(again) / 2  # each a crop of its own


def test_crops_of_cached_bytes_are_those_without_a_cache(few: Manifest) -> None:
    plain, cached = (build_dataset(few, "train", config_of(cache=kind)).take(3) for kind in ("none", "bytes"))
    for one, other in zip(plain, cached, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


def test_a_cache_is_filled_in_the_order_of_its_use(many: Manifest) -> None:
    for num_hosts, host, start_step in ((1, 0, 0), (2, 1, 37)):
        plan = ReadPlan(Source.from_manifest(many, "train"), config_of(), num_hosts, host, num_hosts, start_step)
        numbers = record_numbers(plan, first_use_runs(plan))
        assert sorted(numbers) == list(range(257))
        epoch, step = plan.start
        first = {
            int(plan.source.bases[shard] + record)
            for shard, record in plan.order.batch(epoch, step, 8, plan.streams).tolist()
        }
        window = plan.order.window_records * len(plan.streams)
        assert first <= set(numbers[:window].tolist())


@pytest.mark.parametrize("kind", ["bytes", "decoded"])
@pytest.mark.parametrize(("split", "batch", "on_bad_record"), [("validation", 4, "raise"), ("validation", 4, "skip")])
def test_an_evaluation_is_read_once(copied: Manifest, kind: str, split: str, batch: int, on_bad_record: str) -> None:
    """Also where the last batch is full, and nothing behind it makes the cache find its own end."""
    config = config_of(cache=kind, training=False, global_batch_size=batch, on_bad_record=on_bad_record)
    dataset = build_dataset(copied, split, config)
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
    whole = ids(build_dataset(few, "train", config_of()).take(4).as_numpy_iterator())
    assert [one + other for one, other in zip(*parts, strict=True)] == whole
    assert max(Counter(number for batch in whole[:STEPS] for number in batch).values()) == 1


# how much


@pytest.mark.parametrize(
    ("options", "item"),
    [
        ({"cache": "decoded"}, 9 * 9 * 3),
        ({"cache": "decoded", "decoded_size": (20, 30), "image_dtype": "float32"}, 20 * 30 * 3),
        ({"cache": "decoded", "training": False}, 8 * 8 * 3),
        ({"cache": "decoded", "training": False, "image_dtype": "float32"}, 8 * 8 * 3 * 4),
        ({"cache": "decoded", "training": False, "image_dtype": "bfloat16"}, 8 * 8 * 3 * 2),
        ({"cache": "decoded", "training": False, "augment": "device"}, 9 * 9 * 3),
    ],
)
def test_the_estimate_is_the_size_of_the_images(few: Manifest, options: dict, item: int) -> None:
    config = config_of(**options)
    element = build_stages(few, "train", config).until("cache").dataset().element_spec["image"]
    assert int(np.prod(element.shape)) * element.dtype.size == item
    estimate = estimate_cache_bytes(ReadPlan(Source.from_manifest(few, "train"), config))
    assert estimate is not None
    assert 23 * item <= estimate <= 23 * (item + 200)


def test_the_estimate_of_bytes_is_the_size_of_the_files(few: Manifest) -> None:
    source, size = Source.from_manifest(few, "train"), few.splits["train"].bytes
    assert estimate_cache_bytes(ReadPlan(source, config_of(cache="bytes"))) == size
    for num_hosts, share in ((1, 23), (2, 12), (4, 6)):  # of an evaluation a host keeps what it reads
        plan = ReadPlan(source, config_of(cache="bytes", training=False), num_hosts, 0, num_hosts)
        assert estimate_cache_bytes(plan) == round(share * size / 23)


def test_a_cache_that_does_not_fit_is_refused(few: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = estimate_cache_bytes(ReadPlan(Source.from_manifest(few, "train"), config_of(cache="decoded")))
    assert needed == 23 * (9 * 9 * 3 + 200)
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: round(needed / 0.9) - 2)
    with pytest.raises(ConfigError) as caught:
        build_stages(few, "train", config_of(cache="decoded"))
    assert str(caught.value) == (
        f"`cache` decoded of 'train' of {few.directory} needs 10.2 KB of memory, and 11.3 KB are free, of which it may "
        "take nine tenths. Use a smaller `decoded_size`, a `cache_dir`, or no cache."
    )
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: round(needed / 0.9) + 2)
    assert "cache" in build_stages(few, "train", config_of(cache="decoded")).names


def test_nobody_knows_the_size_of_uncounted_files(foreign: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tfrecord_files(str(foreign / "train-*"))
    caplog.set_level(logging.WARNING, "tfpipe")
    stages = build_stages(source, None, config_of(cache="bytes"))
    assert caplog.messages == [f"Nobody counted the records of {source.name}, so its cache may outgrow the memory."]
    assert stages[stages.names.index("cache")].settings["size"] == "unknown"


def test_decoded_images_need_every_record(few: Manifest) -> None:
    with pytest.raises(ConfigError, match=r"`on_bad_record` skip excludes a cache of decoded images: .* cache='bytes'"):
        build_stages(few, "train", config_of(cache="decoded", on_bad_record="skip"))
