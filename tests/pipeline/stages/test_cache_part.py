"""A cache of what fits: the order, the resumption and the images are those of a pipeline without a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.mixture import mix
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.stages import read

STEPS = 9
LANES = {"num_streams": 2, "lanes": 4, "run_records": 3}
IMAGE = 9 * 9 * 3 + 200


def config_of(**options: Any) -> PipelineConfig:
    return PipelineConfig(**{"global_batch_size": 8, "image_size": 8, "extra_features": ("id",), **LANES, **options})


def read_steps(data: Any, config: PipelineConfig, start_step: int = 0) -> list[dict[str, np.ndarray]]:
    dataset = build_dataset(data, "train", config, start_step=start_step).take(STEPS - start_step)
    return list(dataset.as_numpy_iterator())


def assert_equal(batches: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]]) -> None:
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"cache": "bytes", "cache_bytes": 9_000},
        pytest.param({"cache": "bytes", "cache_bytes": 9_000, "on_bad_record": "skip"}, marks=pytest.mark.slow),
        pytest.param({"cache": "bytes", "cache_bytes": 9_000, "run_records": 1, "lanes": None}, marks=pytest.mark.slow),
        {"cache": "decoded", "augment": "device", "cache_bytes": 7 * IMAGE},
        pytest.param(
            {"cache": "decoded", "augment": "device", "cache_bytes": 22 * IMAGE, "order": "throughput"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_batches_are_those_without_a_cache_from_any_step_on(few: Manifest, options: dict[str, Any]) -> None:
    config = config_of(**options)
    without = {"cache": "none", "cache_bytes": None, "order": "exact"}
    expected = read_steps(few, config_of(**{**options, **without}))
    assert_equal(read_steps(few, config), expected)
    assert_equal(read_steps(few, config, start_step=4), expected[4:])


@pytest.mark.slow
def test_an_image_is_the_same_in_every_run(few: Manifest) -> None:
    """Kept ones are those of a whole cache, and the others are those without a cache."""
    options = {"cache": "decoded", "cache_bytes": 7 * IMAGE}
    batches = read_steps(few, config_of(**options))
    assert_equal(read_steps(few, config_of(**options), start_step=4), batches[4:])
    whole, none = read_steps(few, config_of(cache="decoded")), read_steps(few, config_of())
    kept = set()
    for batch, cached, fresh in zip(batches, whole, none, strict=True):
        np.testing.assert_array_equal(batch["id"], fresh["id"])
        for number, image, cached_image, fresh_image in zip(
            batch["id"], batch["image"], cached["image"], fresh["image"], strict=True
        ):
            if not np.array_equal(image, fresh_image):
                np.testing.assert_array_equal(image, cached_image)
                kept.add(number)
    assert 0 < len(kept) <= 7


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_an_evaluation_is_the_same_every_time(few: Manifest, cache: str) -> None:
    expected = list(build_dataset(few, "train", config_of(training=False)).as_numpy_iterator())
    dataset = build_dataset(few, "train", config_of(training=False, cache=cache, cache_bytes=3_000))
    for _ in range(2):
        assert_equal(list(dataset.as_numpy_iterator()), expected)


@pytest.mark.slow
def test_a_mixture_keeps_a_part_of_each_dataset(few: Manifest) -> None:
    config = config_of(lanes=None, run_records=None, num_streams=None)
    mixture = mix({few.directory: 1.0})
    limited = config_of(lanes=None, run_records=None, num_streams=None, cache="bytes", cache_bytes=18_000)
    assert_equal(read_steps(mixture, limited), read_steps(mixture, config))


@pytest.mark.slow
def test_runs_that_are_kept_are_not_read_again(few: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    counter, read_from = tf.Variable(0, dtype=tf.int64), read._read_from

    def count(paths: tf.Tensor, offsets: tf.Tensor, buffer_bytes: tf.Tensor) -> tf.data.Dataset:
        with tf.control_dependencies([counter.assign_add(tf.size(paths, tf.int64))]):
            return read_from(tf.identity(paths), offsets, buffer_bytes)

    monkeypatch.setattr(read, "_read_from", count)
    options = {"lanes": None, "run_records": 1, "cache": "decoded"}
    opened = []
    for cache_bytes in (IMAGE, 20 * IMAGE):
        counter.assign(0)
        read_steps(few, config_of(**options, cache_bytes=cache_bytes))
        opened.append(int(counter))
    assert opened[1] < opened[0] / 2


def test_the_stage_says_what_is_kept(few: Manifest) -> None:
    stages = build_stages(few, "train", config_of(cache="decoded", cache_bytes=7 * IMAGE))
    assert stages.names == ("repeat", "list", "read", "parse", "decode", "augment", "cache", "batch", "prefetch")
    assert stages[6].settings == {"kind": "decoded", "where": "memory", "size": "3.1 KB", "records": "7 of 23"}
    names = build_stages(few, "train", config_of(cache="bytes", cache_bytes=9_000)).names
    assert names == ("repeat", "list", "read", "cache", "parse", "decode", "augment", "batch", "prefetch")
