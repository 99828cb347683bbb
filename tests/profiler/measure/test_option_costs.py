"""The costs of other options and of smaller images: real stages over a few real records."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.profiler.measure import option_costs, record_sample
from tfpipe.profiler.measure.option_costs import measure_option_costs
from tfpipe.profiler.types import OptionCosts

CONFIG = PipelineConfig(global_batch_size=4, image_size=16)

MakeStage = Callable[[ReadPlan], Stage]


@pytest.fixture(scope="module")
def source(small_dataset: Path) -> Source:
    return Source.from_manifest(load_manifest(str(small_dataset)), "train")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_costs, "_SECONDS", 0.01)
    monkeypatch.setattr(option_costs, "RECORDS", 16)
    monkeypatch.setattr(record_sample, "RECORDS", 16)
    monkeypatch.setattr(option_costs, "BATCH", 16)


def list_tried(costs: OptionCosts) -> list[str]:
    return [name for name, cost in asdict(costs).items() if cost is not None]


def plant(make_stage: MakeStage, work_us: Callable[[ReadPlan], float]) -> MakeStage:
    """Returns the stage with a map behind it that computes for a known time in each image.

    The time is processor time: the thread runs in Python until its own clock says that it is over.
    """

    def compute(us: float, image: Any) -> Any:
        until = time.thread_time() + us / 1e6
        while time.thread_time() < until:
            pass
        return image

    def planted(plan: ReadPlan) -> Stage:
        stage, us = make_stage(plan), work_us(plan)

        def add_work(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            image = tf.numpy_function(lambda image: compute(us, image), [features["image"]], features["image"].dtype)
            return {**features, "image": tf.ensure_shape(image, features["image"].shape)}

        return replace(stage, apply=lambda dataset: stage.apply(dataset).map(add_work))

    return planted


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.6, 0.25])  # 0.25 on a quiet machine
def test_a_planted_cost_is_measured_where_it_was_planted(
    source: Source, monkeypatch: pytest.MonkeyPatch, tolerance: float
) -> None:
    """1 ms of work for each image in `decode`; in `augment` 2 ms for each float image, 0.5 ms for each one of bytes.

    Compared with no work in the same places: the image itself and the calls of Python take some 0.5 ms. A fixed cost,
    or one that is not of a single image, would fail.
    """
    work_us = {"float32": 2_000.0, "uint8": 500.0}
    share = 0.0
    monkeypatch.setattr(option_costs, "_MIN_TURNS", 11)  # a few turns beside other work do not move the median
    augment = plant(option_costs.augment_images, lambda plan: share * work_us[plan.config.image_dtype])
    monkeypatch.setattr(option_costs, "augment_images", augment)
    monkeypatch.setattr(option_costs, "decode_images", plant(option_costs.decode_images, lambda plan: share * 1_000.0))
    config = replace(CONFIG, image_dtype="float32", decoder="pillow")  # the native one would leave both stages out
    without = measure_option_costs(source, config, None)
    share = 1.0
    costs = measure_option_costs(source, config, None)
    assert list_tried(costs) == list_tried(without) == ["now", "uint8", "device", "cached"]
    planted_us = {"now": 3_000, "cached": 2_000, "uint8": 1_500, "device": 1_500}  # a cache saves decoding, not floats
    for name, expected_us in planted_us.items():
        assert getattr(costs, name) - getattr(without, name) == pytest.approx(expected_us, rel=tolerance), name
    assert max(costs.uint8 or 0, costs.device or 0) < (costs.now or 0)


def test_everything_that_the_config_leaves_open_is_tried(source: Source) -> None:
    config = replace(CONFIG, image_dtype="float32", dct_scaling=False)
    costs = measure_option_costs(source, config, None, late_cache=True)
    assert list_tried(costs) == ["now", "uint8", "device", "dct_scaling", "cached", "cached_device"]


def test_smaller_images_are_made_of_the_records(source: Source) -> None:
    costs = measure_option_costs(source, replace(CONFIG, augment="device"), 16)
    assert list_tried(costs) == ["now", "cached", "smaller"]
    payloads = record_sample.sample_records(source)
    assert len(payloads) == option_costs.RECORDS  # of 12 records: some come again
    smaller = option_costs._shrink_images(source, payloads, 16)
    assert len(smaller) == len(payloads)
    assert smaller != payloads


def test_a_thread_that_never_rests_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on while the test sleeps, and all of its time is processor time."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    clock = SimpleNamespace(perf_counter=lambda: now_s, process_time=lambda: now_s, sleep=sleep)
    monkeypatch.setattr(option_costs, "time", clock)
    rest, waited_s = option_costs._Rest(), []
    for _ in range(3):
        began_s = now_s
        rest.wait()
        waited_s.append(now_s - began_s)
    limits = [option_costs._MAX_REST_S, *2 * [option_costs._SHORT_REST_S]]
    assert waited_s == pytest.approx(limits, abs=option_costs._REST_S)


def test_a_process_does_not_rest_while_a_thread_waits_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes in the second pause, a thread waits for a core in the third, and the fourth is a rest."""
    now_s, spent_s, computes, waits = 0.0, 0.0, [0, 1, 0, 0, 0], [True, True, False, False]

    def sleep(seconds: float) -> None:
        nonlocal now_s, spent_s
        now_s, spent_s = now_s + seconds, spent_s + seconds * computes.pop(0)

    clock = SimpleNamespace(
        perf_counter=lambda: now_s, process_time=lambda: spent_s, thread_time=lambda: 0.0, sleep=sleep
    )
    monkeypatch.setattr(option_costs, "time", clock)
    monkeypatch.setattr(option_costs, "has_ready_thread", lambda: waits.pop(0))
    assert option_costs._Rest().wait() == pytest.approx(option_costs._REST_S)
    assert (computes, waits) == ([0], [False])


def test_nothing_is_tried_where_no_image_is_decoded_in_training(source: Source) -> None:
    assert measure_option_costs(source, replace(CONFIG, training=False), None) == OptionCosts()
    assert measure_option_costs(source, replace(CONFIG, cache="decoded"), None) == OptionCosts()


def test_a_damaged_record_is_left_to_the_pipeline(source: Source, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tfrecord"
    data = bytearray(Path(source.files[0]).read_bytes())
    data[40] ^= 1
    damaged.write_bytes(data)
    assert measure_option_costs(replace(source, files=(str(damaged),)), CONFIG, None) == OptionCosts()
