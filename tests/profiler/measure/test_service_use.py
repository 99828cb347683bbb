"""A service as the profiler measures it: by hand, and with a worker in a thread of this process."""

import json
from pathlib import Path

import pytest

from tests.service.workers import start_workers
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.measure import profile as profile_module
from tfpipe.profiler.measure import service_use, simulated_accelerator
from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
from tfpipe.profiler.measure.service_use import describe_service
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.report.text_json import to_json
from tfpipe.profiler.types import ServiceUse, Spread, StepTiming, WorkerTiming
from tfpipe.service.client import WorkerClock

NONE = Spread(0.0, 0.0, 0.0)
TIMING = StepTiming("loop", 20, 10, NONE, 4.0, NONE, NONE)


def test_rates_of_batches_become_rates_of_images() -> None:
    begin, end = WorkerClock("a:1", 2, 0.5, 500), WorkerClock("a:1", 12, 4.0, 10_500)  # in two seconds
    clocks = [(begin, end), (WorkerClock("b:1"), WorkerClock("b:1", 2, 0.8, 2_000))]
    assert describe_service(clocks, 16, 2.0, TIMING, "auto") == ServiceUse(
        workers=(WorkerTiming("a:1", 50.0, 0.875), WorkerTiming("b:1", 10.0, 0.2)),
        local_fraction=0.25,
        batch_bytes=1000.0,
        wire_bytes_per_second=5 * 0.75 * 1000,
    )
    assert describe_service(clocks, 16, 2.0, TIMING, "auto").images_per_second == 80
    assert describe_service(clocks, 12, 2.0, TIMING, "auto").local_fraction == 0
    assert describe_service(clocks, 16, 2.0, TIMING, 0.5).local_fraction == 0.5  # as it is set, whatever came meanwhile


@pytest.mark.parametrize("training", [True, False])
def test_a_profile_with_a_service(small_dataset: Path, training: bool, monkeypatch) -> None:
    monkeypatch.setattr(service_use, "_MEASURE_S", 0.2)
    monkeypatch.setattr(simulated_accelerator, "MIN_WARM_UP_S", 0.2)
    monkeypatch.setattr(profile_module, "measure_storage_rate", lambda _: 1e9)
    (address,) = start_workers(1)
    config = PipelineConfig(batch_size=4, image_size=8, training=training, service=ServiceOptions(workers=(address,)))
    run = ProfileConfig(seconds=0.3, max_warm_up_s=0.3)
    profile = profile_pipeline(load_manifest(str(small_dataset)), "train", config, Accelerator(0.001, 4), run)
    use = profile.service
    assert use is not None
    assert [worker.address for worker in use.workers] == [address]
    assert use.workers[0].images_per_second > 0
    assert 0 < use.workers[0].busy_fraction <= 1
    assert use.local_fraction == 0
    assert profile.host.storage_limit_bytes_per_second is None  # the workers have storage of their own
    assert use.batch_bytes >= 4 * 8 * 8 * 3
    assert [stage.name for stage in profile.stages] == ["prefetch"]
    json.dumps(to_json(make_report(profile)), allow_nan=False)
