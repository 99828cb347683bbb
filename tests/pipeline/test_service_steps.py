"""Exact order by a service: the batches of a local run, for any number of workers, hosts and replicas."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Literal

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from tests.several_images import write_several
from tfpipe.data_service import Service, ServiceConfig, claim_ports
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.mixture import mix
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, TfpipeError, explain_pipeline_error
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline import service_steps
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.service_client import announce_workers, find_workers
from tfpipe.pipeline.stage import Stage, Stages

CONFIG = PipelineConfig(global_batch_size=16, image_size=8, extra_features=("id",), order="exact", service_timeout_s=60)
STEPS = 40
"""More than two epochs of `many`: 257 records are 16 batches."""


@dataclass(frozen=True)
class Host:
    """A host among others, as `tf.distribute` describes it."""

    num_input_pipelines: int
    input_pipeline_id: int
    num_replicas_in_sync: int


SERVERS = """
import json, sys
import tensorflow as tf
from tfpipe.data_service import claim_ports
from tfpipe.pipeline.service_client import announce_workers
service = tf.data.experimental.service
servers, addresses = [], []
for workers in (1, 2, 3):
    dispatcher, *names = [f"127.0.0.1:{port}" for port in claim_ports([(0, "port")] * (workers + 1))]
    config = service.DispatcherConfig(port=int(dispatcher.split(":")[1]), worker_addresses=names)
    servers.append(service.DispatchServer(config))
    for name in names:
        port = int(name.split(":")[1])
        config = service.WorkerConfig(dispatcher_address=dispatcher, worker_address=name, port=port)
        servers.append(service.WorkerServer(config))
    announce_workers("grpc://" + dispatcher, names)
    addresses.append("grpc://" + dispatcher)
print(json.dumps(addresses), flush=True)
sys.stdin.read()  # until the tests end
"""


@pytest.fixture(scope="module")
def services() -> Iterator[list[str]]:
    """Dispatchers with one, two and three workers, all in one process."""
    with subprocess.Popen([sys.executable, "-c", SERVERS], stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.kill()


@pytest.fixture
def three(services: list[str]) -> str:
    return services[2]


def read(
    manifest: Manifest, config: PipelineConfig, host: Host | None = None, start: int = 0, count: int = STEPS
) -> list[list[np.ndarray[Any, Any]]]:
    batches = build_dataset(manifest, "train", config, host, start).take(count)
    return [[part.numpy() for part in tf.nest.flatten(batch)] for batch in batches]


def check_same(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert [part.dtype for part in batch] == [part.dtype for part in other]
        assert all(map(np.array_equal, batch, other))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_batches_of_a_local_run(
    many: Manifest, services: list[str], workers: int
) -> None:
    check_same(read(many, replace(CONFIG, service=services[workers - 1])), read(many, CONFIG))


@pytest.mark.parametrize(
    ("host", "start", "options"),
    [
        pytest.param(*(Host(2, 0, 4), 29, {}), marks=pytest.mark.slow),
        pytest.param(
            *(Host(1, 0, 4), 3, {"as_supervised": True, "one_hot": True, "extra_features": ()}), marks=pytest.mark.slow
        ),
        pytest.param(  # turns that hosts cut apart
            *(Host(4, 2, 4), 5, {"run_records": 4, "lanes": 1, "num_streams": 2}), marks=pytest.mark.slow
        ),
        pytest.param(  # turns of four
            *(None, 7, {"run_records": 4, "lanes": 2, "num_streams": 2}), marks=pytest.mark.slow
        ),
        (None, 77, {"service_share": 0.4}),
        pytest.param(*(Host(2, 1, 4), 30, {"service_share": 0.5, "augment": "device"}), marks=pytest.mark.slow),
    ],
)
def test_any_host_and_start_gives_the_batches_of_a_local_run(
    many: Manifest, three: str, host: Host | None, start: int, options: dict[str, Any]
) -> None:
    local = replace(CONFIG, **{name: value for name, value in options.items() if name != "service_share"})
    served = replace(CONFIG, service=three, **options)
    check_same(read(many, served, host, start), read(many, local, host, start))


@pytest.mark.slow
@pytest.mark.parametrize("images", ["all", 2])
def test_several_images_a_record_are_those_of_a_local_run(three: str, tmp_path: Path, images: Any) -> None:
    manifest = write_several(tmp_path / "out", 24)
    local = replace(CONFIG, global_batch_size=8, extra_features=(), images=images)
    served = replace(local, service=three)
    check_same(read(manifest, served, start=2, count=10), read(manifest, local, start=2, count=10))


@pytest.mark.slow
def test_a_share_that_is_measured_keeps_the_order_and_is_shown(
    many: Manifest, three: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tfpipe.pipeline.service_measure._MEASURE_S", 0.3)
    caplog.set_level("INFO", "tfpipe.pipeline.service_steps")
    stages = build_stages(many, "train", replace(CONFIG, service=three, service_share="auto"), None, 5)
    assert stages[-1].settings["service_share"] == "auto"
    batches = [[part.numpy() for part in tf.nest.flatten(batch)] for batch in stages.dataset().take(STEPS)]
    check_same(batches, read(many, CONFIG, None, 5))
    share = stages[-1].settings["service_share"]
    assert caplog.messages[0].startswith(f"This host makes {share} steps itself: it made ")


def test_the_rates_decide_the_share(
    many: Manifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Job:
        """A job whose batches are numbers."""

        def build(self, steps: tf.data.Dataset) -> tf.data.Dataset:
            return steps

        def read(self) -> tf.data.Dataset:
            return tf.data.Dataset.range(9)

    monkeypatch.setattr(service_steps, "_begin_job", lambda *_: Job())
    monkeypatch.setattr(
        service_steps, "measure_rates", lambda sides, limit_s: dict(zip(sides, (1.0, 3.0), strict=True))
    )
    caplog.set_level("INFO", service_steps.__name__)
    config = replace(CONFIG, service="grpc://127.0.0.1:9", service_share="auto")
    shares = service_steps.choose_shares(ReadPlan(Source.from_manifest(many, "train"), config), Stages(()))
    assert (shares.period, shares.local) == (4, (0,))
    assert caplog.messages == [
        "This host makes 1 of 4 steps itself: it made 1.00 batches a second beside the service, which made 3.00."
    ]


@pytest.mark.slow
def test_a_dataset_can_be_read_twice_at_once(many: Manifest, three: str) -> None:
    dataset = build_dataset(many, "train", replace(CONFIG, service=three))
    pairs = tf.data.Dataset.zip((dataset, dataset)).take(5)
    assert all(np.array_equal(one["id"], other["id"]) for one, other in pairs)


def test_workers_read_the_records_of_their_own_steps_only(many: Manifest, three: str) -> None:
    stages = build_stages(many, "train", replace(CONFIG, service=three))
    steps = tf.data.Dataset.range(5, 40, 7)
    records = [int(number[0]) % 257 for _, number in stages.until("read").apply_to(steps)]
    batches = read(many, CONFIG)[5:40:7]
    assert records == [number for batch in batches for number in batch[0]]


@pytest.mark.slow
def test_a_lost_worker_that_comes_back_costs_no_batch_and_one_that_stays_away_is_named(many: Manifest) -> None:
    # Real processes, because only they can be killed. `run_until` starts the worker again.
    with Service(ServiceConfig(host="127.0.0.1", port=0, workers=2)) as service:
        stop = threading.Event()
        starter = threading.Thread(target=service.run_until, args=(stop,))
        starter.start()
        batches = iter(build_dataset(many, "train", replace(CONFIG, service=service.dispatcher)))
        got = []
        for step in range(2 * STEPS):
            if step == 10:
                os.kill(service.workers[1].pid or 0, signal.SIGKILL)
            got.append([part.numpy() for part in tf.nest.flatten(next(batches))])
        stop.set()
        starter.join()
        check_same(got, read(many, CONFIG, count=2 * STEPS))
        check_that_a_worker_that_hangs_is_named(many, service)
        check_that_a_service_without_order_ends_too(many, service)


@pytest.mark.slow
def test_a_dispatcher_that_starts_again_from_its_journal_costs_no_batch(many: Manifest, tmp_path: Path) -> None:
    port, *ports = claim_ports([(0, "port")] * 3)
    command = [sys.executable, "-m", "tfpipe", "serve", "--host", "127.0.0.1", "--json"]
    dispatcher = [*command, "--dispatcher-only", "--port", str(port), "--work-dir", str(tmp_path / "journal")]
    for worker in ports:
        dispatcher += ["--worker-address", f"127.0.0.1:{worker}"]
    address = f"grpc://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(arguments, stdout=PIPE, stderr=DEVNULL))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline()  # it serves
        return started[-1]

    try:
        first = start(*dispatcher)
        for worker in ports:
            start(*command, "--dispatcher", address, "--worker-port", str(worker))
        batches = iter(build_dataset(many, "train", replace(CONFIG, service=address)))
        got = []
        for step in range(2 * STEPS):
            if step == 10:
                first.kill()
                first.wait()
                start(*dispatcher)
            if step == 20:  # and a worker that is lost then begins a job at the new dispatcher
                started[1].kill()
                started[1].wait()
                start(*command, "--dispatcher", address, "--worker-port", str(ports[0]))
            got.append([part.numpy() for part in tf.nest.flatten(next(batches))])
    finally:
        for process in started:
            process.kill()
            process.wait()
    check_same(got, read(many, CONFIG, count=2 * STEPS))


def check_that_a_worker_that_hangs_is_named(many: Manifest, service: Service) -> None:
    dataset = build_dataset(many, "train", replace(CONFIG, service=service.dispatcher, service_timeout_s=4))
    os.kill(service.workers[0].pid or 0, signal.SIGSTOP)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    assert str(explain_pipeline_error(caught.value)) == (
        f"The pipeline failed: The worker {service.workers[0].address} of the tf.data service must give a batch within "
        "4 s (`service_timeout_s`), and did not give that of step 0: start it again under this address, then run the "
        "same command."
    )


def check_that_a_service_without_order_ends_too(many: Manifest, service: Service) -> None:
    os.kill(service.workers[0].pid or 0, signal.SIGCONT)
    config = replace(CONFIG, order="throughput", service=service.dispatcher, service_timeout_s=20)
    batches = iter(build_dataset(many, "train", config))
    for _ in range(STEPS):
        next(batches)
    once = replace(config, order="auto", training=False)
    assert len(list(build_dataset(many, "train", once))) == 17
    for worker in service.workers:  # nobody starts them again
        os.kill(worker.pid or 0, signal.SIGKILL)
    for dataset in (batches, build_dataset(many, "train", replace(once, service_timeout_s=2))):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            list(dataset)
        limit_s = 20 if dataset is batches else 2
        assert str(explain_pipeline_error(caught.value)) == (
            f"The pipeline failed: The tf.data service {service.dispatcher} must give a batch within {limit_s} s "
            "(`service_timeout_s`), and gave none: find the worker that is gone with tfpipe serve --check, start it "
            "again, then run the same command."
        )


def test_a_damaged_record_is_named(copied: Manifest, three: str, flip_bit: Any, shard_paths: Any) -> None:
    flip_bit(shard_paths(copied)[0], 3)
    config = replace(CONFIG, global_batch_size=8, service=three)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"record 3 of .* is damaged"):
        read(copied, config)


@pytest.mark.parametrize("kind", ["bytes", pytest.param("decoded", marks=pytest.mark.slow)])
def test_workers_read_a_cache_in_files_and_nothing_of_the_source(
    copied: Manifest, services: list[str], kind: Literal["bytes", "decoded"], tmp_path: Path
) -> None:
    config = replace(CONFIG, global_batch_size=8, cache=kind, cache_dir=str(tmp_path / "cache"))

    def take(stages: Stages) -> list[Any]:  # more than two epochs of 23 records
        return [[part.numpy() for part in tf.nest.flatten(batch)] for batch in stages.dataset().take(8)]

    expected = take(build_stages(copied, "train", config))
    served = build_stages(copied, "train", replace(config, service=services[0]))
    shutil.rmtree(copied.directory)
    check_same(take(served), expected)
    assert str(served[0].settings["where"]).startswith(str(tmp_path / "cache"))


def test_a_dispatcher_that_does_not_know_its_workers(many: Manifest) -> None:
    with Service(ServiceConfig(host="127.0.0.1", port=0, workers=0)) as service:
        assert find_workers(service.dispatcher) == ()
        with pytest.raises(ConfigError) as caught:
            build_dataset(many, "train", replace(CONFIG, service=service.dispatcher))
    assert str(caught.value) == (
        f"`order` exact by a `service` needs a dispatcher that knows its workers, and {service.dispatcher} does not. "
        "Start it with: tfpipe serve --workers N, and name the workers of other machines with --worker-address."
    )


@pytest.mark.slow
def test_a_stage_that_may_drop_images_is_refused(many: Manifest, three: str) -> None:
    stages = build_stages(many, "train", replace(CONFIG, service=three))

    def add(**facts: Any) -> Stages:
        return stages.insert_after("decode", Stage("mine", lambda images: images.map(lambda image: image), **facts))

    with pytest.raises(ConfigError) as caught:
        add().dataset()
    assert str(caught.value) == (
        "A stage of your own must treat each image for itself where a `service` keeps the exact order, and 'mine' does "
        "not say so. Give it per_image=True if it drops nothing, or leave `service` out."
    )
    expected = read(many, CONFIG, count=1)[0][0]
    assert np.array_equal(next(iter(add(per_image=True).dataset()))["id"], expected)


def test_a_mixture_is_refused(many: Manifest, few: Manifest) -> None:
    with pytest.raises(ConfigError, match=r"^A `service` keeps the exact order of one dataset, not of a mixture\."):
        build_dataset(
            mix({many.directory: 1, few.directory: 1}), "train", replace(CONFIG, service="grpc://127.0.0.1:9")
        )


def test_a_journal_of_other_workers_is_refused(three: str) -> None:
    workers = find_workers(three)
    assert len(workers) == 3
    announce_workers(three, workers)  # as after a restart
    with pytest.raises(TfpipeError, match=r"^A dispatcher that goes on .* must have the same workers, and got a:1\."):
        announce_workers(three, ["a:1"])
