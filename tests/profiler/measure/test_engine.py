"""The engine's clocks as stages, by hand-made figures; and a service, with a worker in a thread of this process."""

import json
from pathlib import Path

import pytest

from tests.profiler.profiles import make_profile, make_stage
from tests.service.workers import start_workers
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.clocks import PhaseTime
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.measure import profile as profile_module
from tfpipe.profiler.measure import simulated_accelerator
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.measure.engine import Reading, Shape, time_phases
from tfpipe.profiler.measure.facts import find_held
from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.report.text_json import to_json
from tfpipe.profiler.types import Held, Spread

SHAPE = Shape(images_per_second=1000.0, reads=2, threads=4, calls=8, record_bytes=60e3, image_bytes=150e3)


def read(at: float, decode_cpu_s: float) -> Reading:
    """Returns clocks by which reading waits for half of its time."""
    times = {"read": PhaseTime(9, 0.2 * at, 0.1 * at), "decode": PhaseTime(9, at, decode_cpu_s)}
    return Reading(at, times)  # type: ignore[arg-type]


def test_phases_are_stages_with_their_time_for_an_image() -> None:
    readings = [read(0.0, 0.0), read(1.0, 0.5), read(2.0, 2.0)]
    reading, decoding = time_phases(readings, HostTime(0.0, 0.0, None), HostTime(2.0, 2.0, None), SHAPE)
    assert (reading.name, decoding.name) == ("read", "decode")  # what was not passed is left out
    assert decoding.cpu_us_per_image == Spread(1000.0, pytest.approx(600.0), pytest.approx(1400.0))
    assert (reading.cpu_us_per_image.median, reading.wait_us_per_image) == (pytest.approx(100), pytest.approx(100))
    assert (reading.parallelism, decoding.parallelism, decoding.wait_us_per_image) == (2, 4, 0.0)
    assert (reading.bytes_out_per_image, decoding.bytes_out_per_image) == (60e3, 150e3)


def test_each_batch_that_is_decoded_has_threads_for_a_transform() -> None:
    times = {"transform": PhaseTime(9, 8.0, 0.1)}
    readings = [Reading(0.0, {}), Reading(1.0, times)]  # type: ignore[arg-type]
    (transform,) = time_phases(readings, HostTime(0.0, 0.0, None), HostTime(1.0, 0.1, None), SHAPE)
    assert (transform.name, transform.parallelism) == ("transform", 8)


def test_a_wait_for_a_core_is_no_wait_for_storage() -> None:
    """Threads waited for a core as long as they ran."""
    after = HostTime(2.0, 2.0, None, queue=2.0)
    reading, _ = time_phases([read(0.0, 0.0), read(2.0, 2.0)], HostTime(0.0, 0.0, None), after, SHAPE)
    assert reading.wait_us_per_image == pytest.approx(0.0)


def test_batches_and_caches_are_held() -> None:
    config = {"prefetch_batches": 3, "cache": "decoded"}
    profile = make_profile(stages=(make_stage("decode", 1, bytes_out_per_image=150e3),), config=config)
    cache, prefetch = find_held(profile, [], {})
    assert cache == Held("cache", "images", 1_000_000, 1_000_000 * 256 * 256 * 3)
    assert prefetch == Held("prefetch", "batches", 3, 3 * 100 * 150e3)
    assert find_held(make_profile(config={"prefetch_batches": 0}), [], {}) == ()


@pytest.mark.parametrize("training", [True, False])
def test_a_profile_with_a_service(small_dataset: Path, training: bool, monkeypatch) -> None:
    monkeypatch.setattr(simulated_accelerator, "MIN_WARM_UP_S", 0.2)
    monkeypatch.setattr(profile_module, "measure_storage_rate", lambda _: 1e9)
    (address,) = start_workers(1)
    config = PipelineConfig(batch_size=4, image_size=8, training=training, service=ServiceOptions(workers=(address,)))
    run = ProfileConfig(seconds=0.3, max_warm_up_s=0.3)
    profile = profile_pipeline(load_manifest(str(small_dataset)), "train", config, Accelerator(0.001, 4), run)
    assert profile.host.storage_limit_bytes_per_second is None  # the workers have storage of their own
    report = make_report(profile)
    assert profile.stages == ()
    assert report.bottleneck.stage in ("service", "cpu")  # of a busy machine
    json.dumps(to_json(report), allow_nan=False)
