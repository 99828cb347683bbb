"""A service as the profiler measures it: by hand, on servers of TensorFlow in this process, and with a slow worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tfpipe.data_service import Service, ServiceConfig, claim_ports
from tfpipe.pipeline.plan.step_shares import StepShares
from tfpipe.pipeline.service_client import announce_workers
from tfpipe.pipeline.service_measure import Compression

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.manifest import Manifest
from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline import service_measure
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.measure import simulated_accelerator
from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
from tfpipe.profiler.measure.service_use import ServedRun, describe_service
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.report.text_json import to_json
from tfpipe.profiler.types import Spread, Step, StepTiming, WorkerTiming

CONFIG = PipelineConfig(global_batch_size=4, image_size=8, order="exact", service_timeout_s=60)
COMPRESSION = Compression(1000.0, 0.5, 0.002, 0.001)


@pytest.fixture
def manifest(small_dataset: Path) -> Manifest:
    return load_manifest(str(small_dataset))


def make_run(waits: list[float], shares: StepShares | None, first_step: int = 0) -> ServedRun:
    """Returns steps of a tenth of a second each, in batches of 10 images."""
    none = Spread(0.0, 0.0, 0.0)
    timing = StepTiming("simulated", len(waits), 10, none, 0.1 * len(waits), none, none)
    return ServedRun([Step(0.1 * k, 0.0, wait) for k, wait in enumerate(waits)], first_step, timing, shares)


def test_each_wait_counts_to_the_worker_of_its_step() -> None:
    run = make_run([0.08, 0.0, 0.08, 0.0, 0.06, 0.0], StepShares.from_share(0), first_step=7)
    use = describe_service(run, ["a:1", "b:1"], {"a:1": 50.0, "b:1": 9.0}, [0.01, 0.03], COMPRESSION)
    assert use.workers == (
        WorkerTiming("a:1", 0.5, 0.0, 500.0, late=False),
        WorkerTiming("b:1", 0.5, pytest.approx(0.22 / 0.6), 90.0, late=True),
    )
    assert (use.local_fraction, use.batch_bytes, use.wire_bytes_per_second) == (0.0, 1000.0, pytest.approx(10_000))
    assert use.wire_limit_images_per_second == pytest.approx(10 * 2 / 0.02)  # two workers, 20 ms a batch
    assert use.hand_over_s is not None
    assert use.hand_over_s.median == pytest.approx(0.02)
    assert (use.compressed_fraction, use.compress_s, use.uncompress_s) == (0.5, 0.002, 0.001)


def test_a_low_rate_of_a_worker_for_whom_nobody_waits_is_not_late() -> None:
    run = make_run([0.0, 0.08, 0.0, 0.08], StepShares.from_share(0))
    use = describe_service(run, ["a:1", "b:1"], {"a:1": 9.0, "b:1": 50.0}, [], COMPRESSION)
    assert use.late_worker is None
    assert (use.hand_over_s, use.wire_limit_images_per_second) == (None, None)


def test_steps_of_the_trainer_itself_belong_to_no_worker() -> None:
    run = make_run([0.08, 0.01, 0.02, 0.03], StepShares.from_share(0.5))  # steps 0, 2, ... are made here
    use = describe_service(run, ["a:1", "b:1"], {}, [], COMPRESSION)
    assert [worker.wait_fraction for worker in use.workers] == [pytest.approx(0.025), pytest.approx(0.075)]
    assert [worker.batch_fraction for worker in use.workers] == [0.25, 0.25]
    assert (use.local_fraction, use.wire_bytes_per_second) == (0.5, pytest.approx(5000))


def test_without_exact_order_nobody_knows_who_made_a_batch() -> None:
    use = describe_service(make_run([0.08, 0.0], None), ["a:1"], {}, [0.01], COMPRESSION)
    assert use.workers == (WorkerTiming("a:1", None, None, None),)


@contextmanager
def serve_here(workers: int) -> Iterator[str]:
    """Runs a dispatcher and workers of TensorFlow in this process."""
    dispatcher, *names = [f"127.0.0.1:{port}" for port in claim_ports([(0, "port")] * (workers + 1))]
    service = tf.data.experimental.service
    config = service.DispatcherConfig(port=int(dispatcher.split(":")[1]), worker_addresses=names)
    held: list[object] = [service.DispatchServer(config)]
    for name in names:
        held.append(service.WorkerServer(service.WorkerConfig(dispatcher, name, port=int(name.split(":")[1]))))
    announce_workers(f"grpc://{dispatcher}", names)
    yield f"grpc://{dispatcher}"
    held.clear()


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_measure, "_MEASURE_S", 0.15)
    monkeypatch.setattr(simulated_accelerator, "MIN_WARM_UP_S", 0.1)


@pytest.mark.usefixtures("_short")
def test_a_profile_without_exact_order_knows_the_wire(manifest: Manifest) -> None:
    with serve_here(1) as dispatcher:
        config = replace(CONFIG, service=dispatcher, order="throughput")
        profile = profile_pipeline(manifest, "train", config, Accelerator(1e-5, 4), ProfileConfig(0.2, 0.2))
    use = profile.service
    assert use is not None
    assert use.workers == (WorkerTiming(use.workers[0].address, None, None, None),)
    assert use.hand_over_s is not None
    assert use.batch_bytes == 4 * (8 * 8 * 3 + 4)  # pixels and an int32 label
    assert [stage.name for stage in profile.stages] == ["prefetch"]
    assert profile.stages[0].bytes_out_per_second == pytest.approx(use.wire_bytes_per_second)
    assert profile.host.storage_limit_bytes_per_second is None


@pytest.mark.slow
@pytest.mark.usefixtures("_short")
def test_a_profile_has_the_figures_of_each_worker(manifest: Manifest) -> None:
    with serve_here(2) as dispatcher:
        config = replace(CONFIG, service=dispatcher, service_share=0.2)
        profile = profile_pipeline(manifest, "train", config, Accelerator(1e-5, 4), ProfileConfig(0.3, 0.2))
    assert profile.service is not None
    assert profile.service.local_fraction == pytest.approx(0.2, abs=0.1)
    fractions = [worker.batch_fraction or 0 for worker in profile.service.workers]
    assert sum(fractions) == pytest.approx(1 - profile.service.local_fraction)
    assert all((worker.images_per_second or 0) > 0 for worker in profile.service.workers)
    assert 0 < sum(worker.wait_fraction or 0 for worker in profile.service.workers) <= 1
    assert profile.stages[0].cpu_us_per_image.median > 0
    assert to_json(make_report(profile))["service"]["needed_workers"] >= 1


@pytest.mark.slow
def test_a_worker_that_is_slowed_is_named(manifest: Manifest) -> None:
    # Real processes, because only they can be stopped.
    with Service(ServiceConfig(host="127.0.0.1", port=0, workers=2)) as service:
        slow = service.workers[1]
        loop = f"while kill -STOP {slow.pid}; do sleep 0.3; kill -CONT {slow.pid}; sleep 0.03; done"
        with subprocess.Popen(["sh", "-c", loop], stderr=subprocess.DEVNULL) as slowing:
            config = replace(CONFIG, service=service.dispatcher)
            profile = profile_pipeline(manifest, "train", config, Accelerator(1e-5, 4), ProfileConfig(3.0, 1.0))
            slowing.kill()
        os.kill(slow.pid or 0, signal.SIGCONT)  # or it could not end
    report = make_report(replace(profile, first_batch_s=1.0))  # a small dataset has short epochs
    assert profile.service is not None
    late = profile.service.late_worker
    assert late is not None
    assert late.address == slow.address
    assert (late.wait_fraction or 0) > (profile.service.workers[0].wait_fraction or 0)
    assert report.bottleneck.reason.startswith(f"The worker {slow.address} is late: it makes ")
    assert report.fixes[0].action == "mend_worker"
    json.dumps(to_json(report), allow_nan=False)
