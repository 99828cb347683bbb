"""Caches in memory: their size, and that no more is cached than fits."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.plan.memory_cache import estimate_cache_bytes
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system import host_limits

ORDER = {"global_batch_size": 8, "image_size": 8, "num_streams": 2, "lanes": 4, "run_records": 3}


def config_of(**options) -> PipelineConfig:
    return PipelineConfig(**{**ORDER, "extra_features": ("id",), **options})


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
        "take nine tenths. Set `cache_bytes` to keep what fits, use a smaller `decoded_size`, a `cache_dir`, or "
        "no cache."
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
